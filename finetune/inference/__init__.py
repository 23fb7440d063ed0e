"""A saved model answers: one pair, a file, and why."""
