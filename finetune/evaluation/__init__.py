"""How good a model is, how sure that is, and where it fails."""

__all__ = [
    "advice", "baselines", "corrections", "examples", "in_ten", "picking", "quantization", "report",
    "saved_predictions", "slices", "test_set",
]  # fmt: skip
