"""Metrics, and how sure they are: arrays in, numbers out."""

__all__ = [
    "abstention",
    "agreement",
    "calibration",
    "catalog",
    "classification",
    "cross_fitting",
    "intervals",
    "label_free",
    "modules",
    "multi_label",
    "regression",
    "selection",
    "shared_rows",
]
