"""Classification metrics and how sure they are: arrays in, numbers out."""

__all__ = ["calibration", "classification", "cross_fitting", "intervals", "selection"]
