"""Metrics, and how sure they are: arrays in, numbers out."""

__all__ = [
    "calibration",
    "catalog",
    "classification",
    "example_metrics",
    "intervals",
    "label_free",
    "modules",
    "selection",
    "shared_rows",
]
