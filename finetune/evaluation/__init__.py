"""Measures how good a model is, how certain that is, and where it fails."""
