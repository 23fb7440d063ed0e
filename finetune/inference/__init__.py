"""A saved model answers: one pair, a file, and why."""

__all__ = [
    "decision_rule",
    "explain",
    "file_request",
    "files",
    "model_cache",
    "perturbations",
    "predictor",
    "scorer",
]
