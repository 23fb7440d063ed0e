"""Access to the Hub, and the files that a confined process needs to read and cache what it gives.
Visitors of a shared app may fetch what is public, up to a limit a day.

Fetched bytes are counted in `<root>/.fetched/<digest of the owner>/fetched.json`: name -> bytes and
time.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from finetune import disk, hub_errors, owners, uploads
from finetune.config import BUNDLED_DATASET, SOURCE_FIELDS, RunConfig, is_upload
from finetune.data import catalog, checkpoint_catalog
from finetune.environment import confinement, hub_connection
from finetune.environment.confinement import Confinement
from finetune.errors import DataError, FinetuneError, ModelError
from finetune.hub_errors import Cause, Kind
from finetune.messages import message as _

_TIMEOUT, _PAGE_TIMEOUT = 10.0, 3.0  # seconds for an answer
_ANSWER_SECONDS = 600  # seconds in which a page does not ask again
_DAY = 24 * 3600
# Files that a checkpoint needs, in its top folder; the last ending is that of the weights.
_CHECKPOINT_ENDINGS = (".json", ".txt", ".model", ".safetensors")
_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")


def token() -> bool | None:
    """The `token` argument of the Hub's clients: False for no token, None for this machine's
    token."""
    return None if owners.policy().stored_token else False


def cache_scope(config: RunConfig) -> list[str]:
    """Extra parts of a cache key: pairs that a shared app reads without a token are kept apart."""
    return ["public"] * (owners.policy().asks_rights and catalog.is_hub_dataset(config.dataset))


def is_offline() -> bool:
    """True if the Hub must not be asked or does not answer."""
    forbidden = "1" in (os.environ.get("HF_HUB_OFFLINE"), os.environ.get("HF_DATASETS_OFFLINE"))
    return forbidden or not hub_connection.hub_is_reachable()


def silent(kind: Kind, name: str) -> FinetuneError:
    """The error for a repository that is needed while the Hub does not answer."""
    return hub_errors.refusal(kind, name, Cause("silent"))


def info(
    kind: Kind, repo: str, revision: str = "", timeout: float = _TIMEOUT, sizes: bool = False
) -> Any:
    """Ask the Hub for its `DatasetInfo` or `ModelInfo` about a repository. Raises the client's
    error, or `hub_errors.Gated` for a gated repository in a shared app."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub_connection.hub_endpoint(), token=token())
    ask = api.dataset_info if kind == "dataset" else api.model_info
    answer = ask(repo, revision=revision or None, timeout=timeout, files_metadata=sizes)
    if owners.policy().asks_rights and answer.gated:  # its name is public, its files are not
        raise hub_errors.Gated
    return answer


def search(kind: Kind, text: str, most: int = 10) -> list[tuple[str, int]] | None:
    """Find repositories by name, with their downloads of a month, the most downloaded first; None
    if the Hub does not answer. Models are those that transformers loads."""
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import get_session

    values = {"search": text, "sort": "downloads", "direction": "-1", "limit": str(most)}
    values |= {"filter": "transformers"} if kind == "model" else {}
    address = f"{hub_connection.hub_endpoint()}/api/{kind}s"
    headers = build_hf_headers(token=token())
    try:  # not by HfApi, which waits for ever
        answer = get_session().get(address, params=values, headers=headers, timeout=_PAGE_TIMEOUT)
        answer.raise_for_status()
        return [(entry["id"], int(entry.get("downloads", 0))) for entry in answer.json()]
    except Exception:  # each client library has its own
        return None


def refusal(kind: Kind, repo: str) -> Cause | None:
    """The reason why the caller cannot read a repository now, or None; for pages, cached for ten
    minutes."""
    return _refusal(kind, repo, int(time.monotonic() // _ANSWER_SECONDS))


@lru_cache(maxsize=256)
def _refusal(kind: Kind, repo: str, period: int) -> Cause | None:
    try:
        info(kind, repo, timeout=_PAGE_TIMEOUT)
    except Exception as error:  # each client library has its own
        return hub_errors.cause(error)
    return None


@dataclass(frozen=True)
class HubCheckpoint:
    """The Hub's facts about a checkpoint."""

    bytes: int  # to download; 0 if the Hub does not say
    kind: str  # its `model_type`; "" if the Hub does not say
    has_weights: bool  # as safetensors; True if the Hub does not say


_asked: dict[str, tuple[float, HubCheckpoint]] = {}  # name -> when and what the Hub answered


def known_checkpoint(name: str) -> HubCheckpoint | None:
    """The Hub's last answer to `ask_checkpoint`; None if there is none in the last ten minutes."""
    when, answer = _asked.get(name, (-math.inf, None))
    return answer if time.monotonic() - when < _ANSWER_SECONDS else None


def ask_checkpoint(name: str) -> None:
    """Ask the Hub what a checkpoint takes to download, what kind it is, and if its weights are
    safetensors."""
    sizes, answer = _file_sizes("model", name, "", _PAGE_TIMEOUT)
    kind = str((getattr(answer, "config", None) or {}).get("model_type", ""))
    sizes = {file: size for file, size in sizes.items() if "/" not in file}
    weights = {file: size for file, size in sizes.items() if _WEIGHTS.fullmatch(file)}
    others = [n for file, n in sizes.items() if file.endswith(_CHECKPOINT_ENDINGS[:-1])]
    answered = HubCheckpoint(sum(others) + sum(weights.values()), kind, bool(weights) or not sizes)
    _asked[name] = time.monotonic(), answered


def count_dataset(root: Path, owner: str, config: RunConfig) -> None:
    """Count the bytes that a configuration's pairs fetch from the Hub. DataError if the owner may
    not fetch so much; without an owner ("") nothing is counted."""
    repo, part = catalog.repo_and_config(config)

    def size() -> int:
        sizes, _answer = _file_sizes("dataset", repo, config.dataset_revision)
        of_part = [n for path, n in sizes.items() if part and path.startswith(f"{part}/")]
        return sum(of_part or sizes.values())

    name = f"{repo} {part} {config.dataset_revision}".strip()
    if catalog.is_hub_dataset(config.dataset) and (problem := _count(root, owner, name, size)):
        raise DataError(problem, "Choose a smaller one, or upload a part of its rows.")


def count_checkpoint(root: Path, owner: str, checkpoint: str, weights: bool = True) -> None:
    """Count the bytes that a checkpoint, or only its tokenizer, fetches from the Hub. ModelError if
    the owner may not fetch so much."""
    endings = _CHECKPOINT_ENDINGS if weights else _CHECKPOINT_ENDINGS[:-1]

    def size() -> int:
        sizes, _answer = _file_sizes("model", checkpoint)
        return sum(n for path, n in sizes.items() if path.endswith(endings) and "/" not in path)

    name = checkpoint if weights else f"{checkpoint} (tokenizer)"
    of_hub = catalog.needs_hub(BUNDLED_DATASET, checkpoint)
    if of_hub and (problem := _count(root, owner, name, size)):
        raise ModelError(problem, "Choose a smaller one.")


def _file_sizes(
    kind: Kind, repo: str, revision: str = "", timeout: float = _TIMEOUT
) -> tuple[dict[str, int], Any]:
    """The size of each file of a repository, in bytes, and the whole answer; empty if the Hub does
    not say."""
    with contextlib.suppress(Exception):  # the download reports the error
        if hub_connection.hub_is_reachable():
            answer = info(kind, repo, revision, timeout, sizes=True)
            return {file.rfilename: file.size or 0 for file in answer.siblings or []}, answer
    return {}, None


def counts_folder(root: Path, owner: str) -> Path:
    """The folder that counts what an owner has fetched."""
    return root / ".fetched" / hashlib.sha256(owner.encode()).hexdigest()[:32]


def _count(root: Path, owner: str, name: str, size: Callable[[], int]) -> str:
    """Add a download to what was fetched today. Returns why it may not be fetched, or ""."""
    limit = owners.policy().limits.hub_bytes
    if not owner or limit == math.inf or os.environ.get("HF_HUB_OFFLINE") == "1":
        return ""
    path = counts_folder(root, owner) / "fetched.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        since = time.time() - _DAY
        fetched = {key: entry for key, entry in disk.read_json(path).items() if entry[1] > since}
        if fetched.get(name, (0, 0))[0]:
            return ""
        needed = size()
        before = sum(n for n, _ in fetched.values())
        if before + needed > limit:
            return _(
                "{name} has {needed:,.0f} MB. A visitor may fetch {limit:,.0f} MB of the Hub in a "
                "day, and you have fetched {before:,.0f} MB.",
                name=name, needed=needed / 2**20, limit=limit / 2**20, before=before / 2**20,
            )  # fmt: skip
        fetched[name] = needed, time.time()
        disk.write_atomically(path, json.dumps(fetched) + "\n")
    return ""


_VERSION = 12  # of the files and the bundled pairs; another version is written anew


def pairs_folder(root: Path, config: RunConfig) -> Path:
    """The cache folder of a configuration's rows; equal for equal sources and columns."""
    values = [str(_VERSION), *(getattr(config, name) for name in SOURCE_FIELDS)]
    values += cache_scope(config)
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
    folder = counts_folder(root, owner)
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
