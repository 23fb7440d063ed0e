"""Measures how good a model is, how certain that is, and where it fails."""

__all__ = [
    "abstention",
    "advice",
    "baselines",
    "corrections",
    "cross_validation",
    "examples",
    "gate",
    "gate_report",
    "in_ten",
    "picking",
    "probe",
    "quantization",
    "ranking",
    "release",
    "report",
    "saved_predictions",
    "slices",
    "speed",
    "test_set",
    "vectors",
]
