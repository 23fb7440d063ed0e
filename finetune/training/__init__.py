"""The training loop and what it needs: model, batches, several processes, trackers."""
