"""Metrics, and how sure they are: arrays in, numbers out."""
