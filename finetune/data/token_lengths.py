"""How long pairs are in tokens, at once and unasked: a sample, with the tokenizer's file alone.

For a form whose checkpoint was changed: no torch, no network, a second at the most. Every row and
the checkpoint's own tokenizer class are `examination`'s business. What was measured is remembered
while this process lives.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from finetune.data import checkpoints, tables
from finetune.data.check_report import TokenLengths

ROWS = 2000  # at most; the share that is cut is then known to 2 points
CHARACTERS = 2_000_000  # of them all, half a second's work
_LONGEST = 20_000  # characters of a sentence
_LARGEST = 30 * 2**20  # bytes of a tokenizer's file
_KEPT = 64
_Key = tuple[str, int, str, int]
_known: OrderedDict[_Key, TokenLengths] = OrderedDict()
_lock = threading.Lock()


def tokenizer_file(checkpoint: str) -> Path | None:
    """The file of a checkpoint's tokenizer; None where it is not here, or too large to be quick."""
    folder = checkpoints.local_folder(checkpoint)
    path = folder / "tokenizer.json" if folder else None
    return path if path and path.is_file() and path.stat().st_size <= _LARGEST else None


def cached_lengths(pairs: Path, tokenizer: Path) -> TokenLengths | None:
    """What `measure` found of these; None before it was asked.

    Args:
        pairs: an Arrow stream of a corpus, or a file of pairs.
        tokenizer: `tokenizer.json`.
    """
    return _known.get(_key(pairs, tokenizer))


def measure_lengths(pairs: Path, tokenizer: Path) -> TokenLengths:
    """The lengths of a random part of the rows; with a `note` where they cannot be had.

    Args:
        pairs, tokenizer: as for `known`.
    """
    key = _key(pairs, tokenizer)
    with _lock:
        if (found := _known.get(key)) is not None:
            return found
        try:
            found = _measured(pairs, tokenizer)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library's panics are no Exceptions
            found = TokenLengths(note=f"{tokenizer} cannot be used: {error}"[:300])
        _known[key] = found
        while len(_known) > _KEPT:
            _known.popitem(last=False)
        return found


def _key(pairs: Path, tokenizer: Path) -> _Key:
    times = [path.stat().st_mtime_ns if path.exists() else 0 for path in (pairs, tokenizer)]
    return str(pairs), times[0], str(tokenizer), times[1]


def _measured(pairs: Path, tokenizer: Path) -> TokenLengths:
    from tokenizers import Tokenizer

    rows, total = _arrow(pairs) if pairs.suffix == ".arrow" else _table(pairs)
    if not rows:
        return TokenLengths(note="There is no row to measure.")
    reader = Tokenizer.from_file(str(tokenizer))
    reader.no_truncation()
    reader.no_padding()
    found = np.array([len(one.ids) for one in reader.encode_batch(rows)], np.int64)
    return TokenLengths(
        bins=length_histogram(found), rows=len(found), of=total, longest=int(found.max())
    )


def _arrow(path: Path) -> tuple[list[Any], int]:
    """Some rows of a corpus, and how many it has. Memory-mapped: only their pages are read."""
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        batches = list(stream)
        total = sum(map(len, batches))
        drawn = np.random.default_rng(0).permutation(total)[:ROWS]
        place = np.sort(drawn)
        columns = [n for n in ("sentence1", "sentence2") if n in stream.schema.names]
        rows, start = [], 0
        for batch in batches:
            low, high = np.searchsorted(place, (start, start + len(batch)))
            if high > low:
                taken = batch.select(columns).take(pa.array(place[low:high] - start))
                rows += list(zip(*(column.to_pylist() for column in taken.columns), strict=True))
            start += len(batch)
        # As they were drawn, so that the first of them are a fair sample too.
        return _usable([rows[at] for at in np.argsort(np.argsort(drawn))]), total


def _table(path: Path) -> tuple[list[Any], int]:
    rows = [cells for _, cells in tables.open_table(path).rows(["sentence1", "sentence2"], _ignore)]
    return _usable(rows[:ROWS]), len(rows)


def _ignore(line: int, reason: str) -> None:
    """A row that cannot be read is the examination's to tell."""


def _usable(rows: Sequence[Sequence[str | None]]) -> list[Any]:
    """Pairs, or single sentences, as a tokenizer takes them: whole ones, up to a bound."""
    found: list[Any] = []
    characters = 0
    for row in rows:
        if not all(row):
            continue
        texts = [str(text)[:_LONGEST] for text in row]
        characters += sum(map(len, texts))
        if found and characters > CHARACTERS:
            break
        found.append(tuple(texts) if len(texts) > 1 else texts[0])
    return found


def length_histogram(found: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """About 24 bins of whole numbers; the last one takes the few that are far longer.

    Args:
        found: lengths in tokens, of shape (rows,).
    """
    top = max(int(np.quantile(found, 0.995)), 1)
    width = max(1, -(-top // 24))
    counts = np.bincount(np.minimum(found // width, -(-top // width)))
    made = [(at * width, (at + 1) * width, int(count)) for at, count in enumerate(counts)]
    low, _, count = made[-1]
    made[-1] = (low, max(low + width, int(found.max()) + 1), count)
    return made
