"""A saved model answers: one pair, a file, and why."""

__all__ = [
    "decision_rule",
    "file_request",
    "files",
    "model_cache",
    "predictor",
    "quantized",
    "result_files",
    "scorer",
]
