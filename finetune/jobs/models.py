"""Checkpoints on this disk, and the removal of those that no run needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import chain

from finetune.data import checkpoint_catalog, model_cache
from finetune.data.model_cache import CachedModel
from finetune.errors import ConfigError, StoreError
from finetune.jobs import memory
from finetune.runs.job_folder import JobFolder
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED

_READERS = ("checks", "probes")  # folders of jobs that read checkpoints


def is_downloaded(checkpoint: str) -> bool:
    """True if a checkpoint's weights are on this disk."""
    return memory.read_shape(checkpoint) is not None


def may_remove(store: RunStore) -> bool:
    """True if the store's visitor may see and remove what was downloaded: on one's own machine, or
    as an administrator of a shared app."""
    return store.visitor.policy.owner_asks or store.visitor.admin


def remove_model(store: RunStore, name: str) -> CachedModel:
    """Remove a checkpoint from this disk, and return what it was. StoreError if it is not there, if
    the visitor may not, or if a run that has not ended trains it, or another job reads it."""
    if not may_remove(store):
        raise StoreError("Visitors cannot remove checkpoints.", "Ask the app's owner.")
    for job in map(JobFolder, chain(*(store.root.glob(f"{each}/*/") for each in _READERS))):
        named = {job.request.get("checkpoint"), *job.request.get("checkpoints", ())}
        if name in _repositories(named) and job.is_alive():
            raise StoreError(
                "{name} is being read to check or compare it.", "Try again in a minute.", name=name
            )
    for run in store.everyone.runs():
        with contextlib.suppress(ConfigError):
            needed = _repositories({run.config().checkpoint})
            if name in needed and run.state().status not in ENDED:
                raise StoreError(
                    "{name} is in use by the run {run}.",
                    "Wait until that has ended, or stop it.",
                    name=name,
                    run=run.title(),
                )
    return model_cache.remove_model(name)


def _repositories(names: Iterable[str | None]) -> set[str]:
    """Return names of checkpoints together with those of their repositories."""
    given = {name for name in names if name}
    entries = filter(None, map(checkpoint_catalog.find_checkpoint, given))
    return given | {entry.repo for entry in entries}
