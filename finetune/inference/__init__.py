"""Answers of a saved model: for one pair, for a file, and why."""
