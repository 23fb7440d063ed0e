"""The files that a confined process needs to read and cache pairs and checkpoints.

The folders are created here, because a process can only be confined to folders that exist.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from finetune import uploads
from finetune.config import BUNDLED_DATASET, SOURCE_FIELDS, RunConfig, is_upload
from finetune.data import catalog, checkpoint_catalog, hub_access
from finetune.environment import confinement
from finetune.environment.confinement import Confinement
from finetune.errors import DataError
from finetune.hub_errors import Kind

_VERSION = 12  # of the files and the bundled pairs; another version is written anew


def pairs_folder(root: Path, config: RunConfig) -> Path:
    """The cache folder of a configuration's rows; equal for equal sources and columns."""
    values = [str(_VERSION), *(getattr(config, name) for name in SOURCE_FIELDS)]
    values += hub_access.cache_scope(config)
    return root / "data" / hashlib.sha256("\0".join(values).encode()).hexdigest()[:24]


def of_pairs(config: RunConfig, root: Path) -> Confinement:
    """The files needed to read a configuration's pairs."""
    folder = pairs_folder(root, config)
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)  # so that it is not deleted as a leftover
    # A Hub dataset may have been read as the newest commit.
    reads = [pairs_folder(root, config.changed(dataset_revision=""))]
    if is_upload(config.dataset):
        with contextlib.suppress(DataError):  # its files are gone; reading them reports it
            files = uploads.Uploads(root / "uploads").files(config.dataset).values()
            reads += {path.parent for path in files}
    found = Confinement(_absolute(reads), _absolute([folder]))
    if catalog.is_hub_dataset(config.dataset):
        found |= _of_repository("dataset", catalog.repo_and_config(config)[0])
    return found


def of_checkpoint(name: str) -> Confinement:
    """The files needed to load a checkpoint of the Hub; none for the bundled one, a Python
    package."""
    if not catalog.needs_hub(BUNDLED_DATASET, name) or not catalog.may_be_fetched(name):
        return Confinement()
    entry = checkpoint_catalog.find_checkpoint(name)
    repository = _of_repository("model", name)
    return repository | _of_repository("model", entry.repo) if entry else repository


def of_counts(root: Path, owner: str) -> Confinement:
    """The files needed to count what an owner fetches."""
    folder = hub_access.counts_folder(root, owner)
    folder.mkdir(parents=True, exist_ok=True)
    return Confinement(writes=_absolute([folder]))


def _of_repository(kind: Kind, repo: str) -> Confinement:
    """The folders of a repository in the Hub's cache, as its client names them."""
    name = f"{kind}s--" + repo.replace("/", "--")
    cache = confinement.hub_cache()
    folders = [cache / name, cache / ".locks" / name]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return Confinement(writes=_absolute(folders))


def _absolute(paths: list[Path]) -> tuple[str, ...]:
    return tuple(str(path.resolve()) for path in paths)
