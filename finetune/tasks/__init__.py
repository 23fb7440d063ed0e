"""Tasks: turn a model's logits into answers, and measure how good the answers are."""

__all__ = ["base", "cells", "classes", "comparison", "numerals", "registry"]
