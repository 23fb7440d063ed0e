"""Answers of a saved model: for one pair, for a file, and why."""

__all__ = [
    "decision_rule",
    "file_request",
    "files",
    "other_answers",
    "predictor",
    "quantized",
    "result_files",
    "scorer",
]
