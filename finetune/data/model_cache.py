"""Checkpoints in the Hub's cache on this disk: what they take, their removal, and large files,
fetched with progress.

A download that was cut off or killed goes on where it ended. The Hub's own client begins anew.

Source of the layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import contextlib
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from filelock import AcquireReturnProxy, FileLock, Timeout

from finetune import disk, hub_errors
from finetune.data import hub_access
from finetune.environment import confinement
from finetune.errors import StoreError

_PREFIX = "models--"
_LARGE = 8 * 2**20  # bytes; the Hub's client fetches what is smaller
_CHUNK = 2**20
_TIMEOUT = 60.0  # seconds without a byte
_SHA256 = re.compile(r"[0-9a-f]{64}")


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


class _Missing(NamedTuple):
    address: str
    sha256: str
    place: Path  # in the cache
    size: int


def fetch_large_files(
    repo: str, names: Sequence[str], revision: str, on_progress: Callable[[int, int], None]
) -> None:
    """Fetch those of some files of a commit that are large and not in the cache yet. Raises the
    errors of the Hub's client. `on_progress` is called with the bytes fetched and their total; what
    it raises ends the download."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    folder = confinement.hub_cache() / (_PREFIX + repo.replace("/", "--"))
    blobs, missing = folder / "blobs", []
    for name in names:
        address = hf_hub_url(repo, name, revision=revision)
        try:
            facts = get_hf_file_metadata(address, token=hub_access.token())
        except EntryNotFoundError:
            continue
        sha256, size = facts.etag or "", facts.size or 0
        # The client links to `blobs`; where it may not, the file itself lies in its snapshot.
        linked = not constants.HF_HUB_DISABLE_SYMLINKS
        place = blobs / sha256 if linked else folder / "snapshots" / revision / name
        if _SHA256.fullmatch(sha256) and size >= _LARGE and not place.exists():
            missing.append(_Missing(address, sha256, place, size))
    before, total = 0, sum(file.size for file in missing)
    for file in missing:
        blobs.mkdir(parents=True, exist_ok=True)
        locks = confinement.hub_cache() / ".locks" / blobs.parent.name
        locks.mkdir(parents=True, exist_ok=True)
        with _alone(locks / f"{file.sha256}.part.lock", partial(on_progress, before, total)):
            if not file.place.exists():  # another process may have fetched it
                for done in _fetch(file, blobs / f"{file.sha256}.part"):
                    on_progress(before + done, total)
        before += file.size


def _alone(path: Path, waits: Callable[[], None]) -> AcquireReturnProxy:
    """Take a lock. While another process holds it, `waits` is called twice a second."""
    lock = FileLock(path)
    while True:
        try:
            return lock.acquire(timeout=0.5)
        except Timeout:
            waits()


def _fetch(file: _Missing, part: Path) -> Iterator[int]:
    """Fetch what is missing of a file, and put it into its place if its contents are right. Yields
    the bytes that are there."""
    with part.open("ab") as written:
        while (before := written.tell()) < file.size:
            try:
                yield from _read_on(file, written)
            except Exception as error:
                if hub_errors.cause(error).name != "silent" or written.tell() == before:
                    raise  # and not if it was cut off and something came
    with part.open("rb") as read:
        right = hashlib.file_digest(read, "sha256").hexdigest() == file.sha256
    if right:
        file.place.parent.mkdir(parents=True, exist_ok=True)
        part.rename(file.place)
    else:  # the Hub's client fetches it
        part.unlink()


def _read_on(file: _Missing, written: BinaryIO) -> Iterator[int]:
    """Append the rest of a file. Yields its size after each part."""
    from huggingface_hub import get_session
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import hf_raise_for_status

    headers = build_hf_headers(token=hub_access.token()) | {"Range": f"bytes={written.tell()}-"}
    with get_session().stream("GET", file.address, headers=headers, timeout=_TIMEOUT) as answer:
        hf_raise_for_status(answer)
        if answer.status_code != 206:  # the whole file
            written.truncate(0)
        for chunk in answer.iter_bytes(_CHUNK):
            written.write(chunk)
            yield written.tell()
