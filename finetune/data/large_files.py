"""Large files of checkpoints, fetched into the Hub's cache with progress.

A download that was cut off or killed goes on where it ended. The Hub's own client begins anew.

Source of the cache's layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from filelock import FileLock

from finetune import hub_errors
from finetune.data import hub_access
from finetune.environment import confinement

_LARGE = 8 * 2**20  # bytes; the Hub's client fetches what is smaller
_CHUNK = 2**20
_TIMEOUT = 60.0  # seconds without a byte
_SHA256 = re.compile(r"[0-9a-f]{64}")
Progress = Callable[[int, int], None]


class _Missing(NamedTuple):
    address: str
    blob: Path  # its place in the cache, named by its sha256
    size: int


def fetch_large_files(
    repo: str, names: Sequence[str], revision: str, on_progress: Progress | None = None
) -> None:
    """Fetch those of some files that are large and not in the cache yet.

    Args:
        revision: a commit.
        on_progress: called with the bytes fetched and their total. What it raises ends the
            download.

    Raises:
        the errors of the Hub's client.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    blobs = confinement.hub_cache() / f"models--{repo.replace('/', '--')}" / "blobs"
    missing = []
    for name in names:
        address = hf_hub_url(repo, name, revision=revision)
        try:
            facts = get_hf_file_metadata(address, token=hub_access.token())
        except EntryNotFoundError:
            continue
        blob = blobs / (facts.etag or "")
        if _SHA256.fullmatch(blob.name) and (facts.size or 0) >= _LARGE and not blob.exists():
            missing.append(_Missing(address, blob, facts.size or 0))
    before, total = 0, sum(file.size for file in missing)
    for file in missing:
        blobs.mkdir(parents=True, exist_ok=True)
        locks = confinement.hub_cache() / ".locks" / blobs.parent.name
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"{file.blob.name}.part.lock"):
            for done in _fetch(file):
                if on_progress:
                    on_progress(before + done, total)
        before += file.size


def _fetch(file: _Missing) -> Iterator[int]:
    """Fetch what is missing of a file, and put it into its place if its contents are right. Yields
    the bytes that are there."""
    part = file.blob.with_suffix(".part")
    with part.open("ab") as written:
        while (before := written.tell()) < file.size:
            try:
                yield from _read_on(file, written)
            except Exception as error:
                if hub_errors.cause(error).name != "silent" or written.tell() == before:
                    raise  # and not if it was cut off and something came
    with part.open("rb") as read:
        right = hashlib.file_digest(read, "sha256").hexdigest() == file.blob.name
    if right:
        part.rename(file.blob)
    else:  # the Hub's client fetches it
        part.unlink()


def _read_on(file: _Missing, written: BinaryIO) -> Iterator[int]:
    """Append the rest of a file. Yields its size after each part."""
    from huggingface_hub import get_session
    from huggingface_hub.utils._headers import build_hf_headers

    headers = build_hf_headers(token=hub_access.token()) | {"Range": f"bytes={written.tell()}-"}
    with get_session().stream("GET", file.address, headers=headers, timeout=_TIMEOUT) as answer:
        answer.raise_for_status()
        if answer.status_code != 206:  # the whole file
            written.truncate(0)
        for chunk in answer.iter_bytes(_CHUNK):
            written.write(chunk)
            yield written.tell()
