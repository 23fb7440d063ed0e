"""The training loop and its parts: model, layers, batches, several processes."""

__all__ = [
    "accelerator",
    "cuda_graphs",
    "dataloaders",
    "layers",
    "loop",
    "model",
    "recipe",
]
