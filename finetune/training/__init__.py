"""The training loop and what it needs: model, batches, several processes, trackers."""

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
