"""The training loop and its parts: model, layers, batches, several processes."""
