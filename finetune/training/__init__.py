"""The training loop and its parts: model, layers, batches, several processes."""

__all__ = [
    "accelerator",
    "dataloaders",
    "distributed",
    "first_batch",
    "layers",
    "loop",
    "model",
    "schedule",
]
