"""Metrics, and how sure they are: arrays in, numbers out."""

__all__ = [
    "abstention",
    "best_set",
    "calibration",
    "catalog",
    "classification",
    "cross_fitting",
    "intervals",
    "modules",
    "multi_label",
    "regression",
    "selection",
]
