"""How much of the Hub a visitor's work fetches, held against what they may fetch in a day.

    <root>/.fetched/<digest of the owner>.json    name -> bytes, and when it was asked for

Asked before anything is fetched. On one's own machine nothing is counted.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from filelock import FileLock

from finetune import owners
from finetune.config import BUNDLED_CHECKPOINT, RunConfig, is_upload
from finetune.data import catalog
from finetune.disk import write_atomically
from finetune.environment import hub_connection
from finetune.errors import DataError, ModelError, StoreError
from finetune.owners import Limits

_DAY = 24 * 3600
# Of a checkpoint, in its first folder; the weights are the last.
_FILES = (".json", ".txt", ".model", ".safetensors")


def count_dataset(root: Path, owner: str, config: RunConfig) -> None:
    """Count the pairs of a configuration, where they come from the Hub.

    Args:
        root: of the runs.
        owner: whose work it is; nobody's is not counted.

    Raises:
        DataError: when it is more than they may fetch.
    """
    choice = catalog.find_dataset(config.dataset)
    repo = choice.repo if choice else config.dataset
    if not repo or is_upload(repo) or not _counts(owner):
        return
    part = config.dataset_config_name or (choice.config if choice else "")
    name = f"{repo} {part} {config.dataset_revision}".strip()
    if _fetched(root, owner).get(name):
        return
    sizes = _sizes("dataset", repo, config.dataset_revision)
    inside = {path: size for path, size in sizes.items() if part and path.startswith(f"{part}/")}
    if problem := _count(root, owner, name, sum((inside or sizes).values())):
        raise DataError(problem, "Choose a smaller one, or upload a part of its rows.")


def count_checkpoint(root: Path, owner: str, checkpoint: str, weights: bool = True) -> None:
    """Count a checkpoint of the Hub.

    Args:
        weights: whether they are fetched too, or only what reads the texts.

    Raises:
        ModelError: when it is more than they may fetch.
    """
    here = checkpoint == BUNDLED_CHECKPOINT or Path(checkpoint).is_dir()
    if here or not _counts(owner):
        return
    name = checkpoint if weights else f"{checkpoint} (tokenizer)"
    if _fetched(root, owner).get(name):
        return
    wanted = _FILES if weights else _FILES[:-1]
    sizes = _sizes("model", checkpoint, "")
    size = sum(n for path, n in sizes.items() if path.endswith(wanted) and "/" not in path)
    if problem := _count(root, owner, name, size):
        raise ModelError(problem, "Choose a smaller one.")


def _counts(owner: str) -> bool:
    return bool(owner) and owners.is_shared() and os.environ.get("HF_HUB_OFFLINE") != "1"


def _sizes(kind: str, repo: str, revision: str) -> dict[str, int]:
    """The files of a repository and their bytes; none where the Hub does not say, and who fetches
    it then is told why."""
    from huggingface_hub import HfApi

    if not hub_connection.hub_is_reachable():
        return {}
    api = HfApi(endpoint=hub_connection.hub_endpoint())
    ask = api.dataset_info if kind == "dataset" else api.model_info
    try:
        told = ask(repo, revision=revision or None, files_metadata=True, token=False, timeout=10)
    except Exception:  # each library has errors of its own
        return {}
    return {one.rfilename: one.size or 0 for one in told.siblings or []}


def _count(root: Path, owner: str, name: str, size: int) -> str:
    """Note that something is about to be fetched; why it may not be, or nothing."""
    path, most = _ledger(root, owner), Limits.of_environment().hub_bytes
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock"), timeout=10):
            known = _fetched(root, owner)
            had = sum(known.values()) - known.get(name, 0)
            if had + size > most:
                return (
                    f"{name} has {size / 2**20:,.0f} MB. A visitor may fetch {most / 2**20:,.0f} "
                    f"MB of the Hub in a day, and you have fetched {had / 2**20:,.0f} MB."
                )
            kept = {what: one for what, one in _read(path).items() if what in known}
            write_atomically(path, json.dumps(kept | {name: (size, time.time())}) + "\n")
    except (OSError, StoreError):  # a full disk: the work will say so
        return ""
    return ""


def _ledger(root: Path, owner: str) -> Path:
    return root / ".fetched" / f"{hashlib.sha256(owner.encode()).hexdigest()[:32]}.json"


def _fetched(root: Path, owner: str) -> dict[str, int]:
    """What was counted in the last day: name -> bytes."""
    since = time.time() - _DAY
    return {name: n for name, (n, when) in _read(_ledger(root, owner)).items() if when > since}


def _read(path: Path) -> dict[str, tuple[int, float]]:
    try:
        return {name: (n, when) for name, (n, when) in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
