"""Removal of downloaded checkpoints that no run needs."""

from __future__ import annotations

import contextlib

from finetune.data import checkpoint_catalog, model_cache
from finetune.data.model_cache import CachedModel
from finetune.errors import ConfigError, StoreError
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED


def may_remove(store: RunStore) -> bool:
    """True if the store's visitor may see and remove what was downloaded: on one's own machine, or
    as an administrator of a shared app."""
    return store.visitor.policy.owner_asks or store.visitor.admin


def remove_model(store: RunStore, name: str) -> CachedModel:
    """Remove a checkpoint from this disk, and return what it was.

    Raises:
        StoreError: if it is not there, if the visitor may not, or if a run that has not ended
            trains it or learns from it.
    """
    if not may_remove(store):
        raise StoreError("Visitors cannot remove checkpoints.", "Ask the app's owner.")
    for run in store.everyone.runs():
        with contextlib.suppress(ConfigError):
            config = run.config()
            entry = checkpoint_catalog.find_checkpoint(config.checkpoint)
            needed = name in (config.checkpoint, entry.repo if entry else "", *config.teachers)
            if needed and run.state().status not in ENDED:
                raise StoreError(
                    "{name} is in use by the run {run}.",
                    "Wait until that has ended, or stop it.",
                    name=name,
                    run=run.title(),
                )
    return model_cache.remove_model(name)
