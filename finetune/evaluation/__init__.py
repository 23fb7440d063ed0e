"""Measures how good a model is, how certain that is, and where it fails."""

__all__ = [
    "abstention",
    "advice",
    "baselines",
    "corrections",
    "examples",
    "gate",
    "gate_report",
    "in_ten",
    "picking",
    "quantization",
    "ranking",
    "release",
    "report",
    "saved_predictions",
    "slices",
    "speed",
    "test_set",
]
