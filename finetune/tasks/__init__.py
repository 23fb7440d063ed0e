"""What is learned: a task says how a model's logits are answers, and how good these are."""

__all__ = ["base", "registry", "single_label"]
