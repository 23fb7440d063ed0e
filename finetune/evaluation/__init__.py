"""Measures how good a model is, how certain that is, and where it fails."""

__all__ = [
    "abstention",
    "advice",
    "baselines",
    "corrections",
    "examples",
    "in_ten",
    "picking",
    "quantization",
    "report",
    "saved_predictions",
    "slices",
    "test_set",
]
