"""Tasks: turn a model's logits into answers, and measure how good the answers are."""
