"""The training loop and what it needs: model and its layers, batches, several processes."""

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
