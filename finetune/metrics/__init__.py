"""Classification metrics and how sure they are: arrays in, numbers out."""

__all__ = ["calibration", "classification", "intervals", "selection"]
