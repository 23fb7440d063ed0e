"""Removal of downloaded checkpoints that no run needs."""

from __future__ import annotations

import contextlib

from finetune.data import checkpoint_catalog, model_cache
from finetune.data.model_cache import CachedModel
from finetune.errors import ConfigError, StoreError
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED


def remove_model(store: RunStore, name: str) -> CachedModel:
    """Remove a checkpoint from this disk, and return what it was.

    Raises:
        StoreError: if it is not there, if the visitor is not the machine's owner, or if a run that
            has not ended trains it.
    """
    if not store.visitor.policy.owner_asks:
        raise StoreError("Visitors cannot remove checkpoints.", "Ask the app's owner.")
    for run in store.everyone.runs():
        with contextlib.suppress(ConfigError):
            checkpoint = run.config().checkpoint
            entry = checkpoint_catalog.find_checkpoint(checkpoint)
            needed = name in (checkpoint, entry.repo if entry else "")
            if needed and run.state().status not in ENDED:
                raise StoreError(
                    "{name} is in use by the run {run}.",
                    "Wait until that has ended, or stop it.",
                    name=name,
                    run=run.title(),
                )
    return model_cache.remove_model(name)
