"""Checkpoints in the Hub's cache on this disk: what they take, and their removal.

Source of the layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass

from finetune import disk
from finetune.environment import confinement
from finetune.errors import StoreError

_PREFIX = "models--"


@dataclass(frozen=True)
class CachedModel:
    """A repository of the Hub of which something lies on this disk."""

    name: str
    bytes: int  # of its files, unfinished downloads included
    used: float  # when a file was last written or read, in seconds since the epoch


def list_models() -> list[CachedModel]:
    """List the checkpoints on this disk, the largest first."""
    models = []
    for folder in confinement.hub_cache().glob(f"{_PREFIX}*/"):
        # Links lead to files that are counted anyway; where the client may not link, it has none.
        files = []
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # a download has just moved it
                if not path.is_symlink() and path.is_file() and path.parent != folder / "refs":
                    files.append(path.stat())
        if files:
            name = folder.name.removeprefix(_PREFIX).replace("--", "/")
            used = max(max(file.st_mtime, file.st_atime) for file in files)
            models.append(CachedModel(name, sum(file.st_size for file in files), used))
    return sorted(models, key=lambda model: (-model.bytes, model.name))


def remove_model(name: str) -> CachedModel:
    """Remove a checkpoint from this disk; StoreError if it is not there. The Hub still has it."""
    found = next((model for model in list_models() if model.name == name), None)
    if found is None:
        raise StoreError(
            "{name} is not among the downloaded checkpoints.",
            "`python -m finetune models` lists them.",
            name=name,
        )
    folder = confinement.hub_cache() / (_PREFIX + name.replace("/", "--"))
    with disk.writing(folder, StoreError, ""):
        shutil.rmtree(folder)
    return found
