"""Metrics, and how sure they are: arrays in, numbers out."""

__all__ = [
    "abstention",
    "agreement",
    "best_set",
    "calibration",
    "catalog",
    "classification",
    "cross_fitting",
    "intervals",
    "label_free",
    "modules",
    "multi_label",
    "prediction_powered",
    "regression",
    "selection",
]
