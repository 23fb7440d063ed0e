"""Measures how good a model is, how certain that is, and where it fails."""

__all__ = [
    "abstention",
    "advice",
    "baselines",
    "corrections",
    "cross_validation",
    "examples",
    "file_shift",
    "gate",
    "monitoring",
    "picking",
    "probe",
    "quantization",
    "ranking",
    "release",
    "report",
    "saved_predictions",
    "slices",
    "test_set",
]
