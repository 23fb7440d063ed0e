"""Lengths of pairs in tokens: of a sample, measured with all checks, or estimated at once.

The estimate needs the tokenizer's file alone: no torch, no network, a second at most. It serves a
form whose checkpoint has changed, and is kept while this process lives.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from finetune import hub_errors
from finetune.config import RunConfig
from finetune.data import checkpoints, tables
from finetune.data.check_report import TokenLengths
from finetune.phases import Phase

if TYPE_CHECKING:
    from finetune.data.splits import SplitRows

CHECKED_ROWS = 10_000
ESTIMATED_ROWS = 2000  # the share of rows that are cut is then known to 2 points
CHARACTERS = 2_000_000  # of all rows of an estimate, half a second's work
_KNOWN_ROWS = 1000  # rows of which it is checked whether the tokenizer knows them
_LONGEST_CHECKED, _LONGEST_ESTIMATED = 100_000, 20_000  # characters of a sentence
_LARGEST_TOKENIZER = 30 * 2**20  # bytes
_KEPT_ESTIMATES = 64
_Key = tuple[str, int, str, int]
_estimates: dict[_Key, TokenLengths] = {}
_lock = threading.Lock()


def check_lengths(
    assigned: SplitRows, config: RunConfig, progress: Callable[[Phase, str, int, int], None]
) -> TokenLengths:
    """Measure the training rows, or a random sample, with the checkpoint's own tokenizer.

    Args:
        progress: called with what is being done.

    Returns:
        The lengths; with only a `note` where the tokenizer cannot be loaded.

    Raises:
        ModelError: when the tokenizer is empty or does not know the text.
    """
    from transformers import AutoTokenizer

    origin, rows = assigned.rows["train"]
    if not len(rows):
        return TokenLengths(note="There is no row to measure.")
    progress(Phase.LOAD_TOKENIZER, "", 0, 0)
    try:
        path = checkpoints.resolve_checkpoint(config.checkpoint)
        tokenizer = hub_errors.retried(lambda: AutoTokenizer.from_pretrained(path))
    except Exception as error:  # the libraries raise whatever their readers do
        return TokenLengths(note=_missing_note(config.checkpoint, error))
    checkpoints.check_tokenizer(config.checkpoint, tokenizer)
    progress(Phase.MEASURE_LENGTHS, "", 0, 0)
    sample = rows
    if len(rows) > CHECKED_ROWS:
        rng = np.random.default_rng(config.data_seed)
        sample = np.sort(rng.choice(rows, CHECKED_ROWS, replace=False))
    lengths: list[int] = []
    known_rows: list[list[int]] = []
    every = -(-len(sample) // _KNOWN_ROWS)
    for batch in assigned.dataset.select(origin, sample):
        sentences = [
            [text[:_LONGEST_CHECKED] for text in batch.column(name).to_pylist()]
            for name in assigned.dataset.sentence_columns
        ]
        for ids in tokenizer(*sentences, truncation=False, verbose=False)["input_ids"]:
            if len(lengths) % every == 0:
                known_rows.append(ids)
            lengths.append(len(ids))
    checkpoints.check_known(config.checkpoint, tokenizer, known_rows)
    counts = np.array(lengths, np.int64)
    return TokenLengths(
        bins=length_histogram(counts),
        rows=len(sample),
        of=len(rows),
        longest=int(counts.max()),
        max_length=config.max_length,
        cut=float((counts > config.max_length).mean()),
    )


def _missing_note(checkpoint: str, error: Exception) -> str:
    explained = hub_errors.explained("checkpoint", checkpoint, error)
    reason = (explained.fact if explained else hub_errors.first_line(error))[:200].rstrip(".")
    return (
        f"The lengths are missing, for the tokenizer of {checkpoint} cannot be loaded ({reason}): "
        "choose another checkpoint under Train, and press Examine again."
    )


def length_histogram(lengths: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """About 24 bins of whole numbers: from, below, rows; the last takes the few far longer ones.

    Args:
        lengths: in tokens, of shape (rows,).
    """
    top = max(int(np.quantile(lengths, 0.995)), 1)
    width = max(1, -(-top // 24))
    counts = np.bincount(np.minimum(lengths // width, -(-top // width)))
    bins = [(i * width, (i + 1) * width, int(count)) for i, count in enumerate(counts)]
    low, _, count = bins[-1]
    bins[-1] = (low, max(low + width, int(lengths.max()) + 1), count)
    return bins


def tokenizer_file(checkpoint: str) -> Path | None:
    """The file of a checkpoint's tokenizer; None where it is not here, or too large to be quick."""
    folder = checkpoints.local_folder(checkpoint)
    path = folder / "tokenizer.json" if folder else None
    return path if path and path.is_file() and path.stat().st_size <= _LARGEST_TOKENIZER else None


def cached_lengths(pairs: Path, tokenizer: Path) -> TokenLengths | None:
    """The estimate that `measure_lengths` has made of these files; None before it was called."""
    return _estimates.get(_key(pairs, tokenizer))


def measure_lengths(pairs: Path, tokenizer: Path) -> TokenLengths:
    """Estimate the lengths from a random sample of rows.

    Args:
        pairs: an Arrow stream of a cached dataset, or a table file.
        tokenizer: `tokenizer.json`.

    Returns:
        The lengths; with only a `note` where they cannot be measured.
    """
    key = _key(pairs, tokenizer)
    with _lock:
        if key not in _estimates:
            while len(_estimates) >= _KEPT_ESTIMATES:
                del _estimates[next(iter(_estimates))]
            try:
                _estimates[key] = _estimate(pairs, tokenizer)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # the library's panics are no Exceptions
                note = f"{tokenizer} cannot be used: {error}"[:300]
                _estimates[key] = TokenLengths(note=note)
        return _estimates[key]


def _key(pairs: Path, tokenizer: Path) -> _Key:
    times = [path.stat().st_mtime_ns if path.exists() else 0 for path in (pairs, tokenizer)]
    return str(pairs), times[0], str(tokenizer), times[1]


def _estimate(pairs: Path, tokenizer_path: Path) -> TokenLengths:
    from tokenizers import Tokenizer

    rows, total = _arrow_rows(pairs) if pairs.suffix == ".arrow" else _table_rows(pairs)
    texts = list(_texts(rows))
    if not texts:
        return TokenLengths(note="There is no row to measure.")
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encodings = tokenizer.encode_batch(texts)
    lengths = np.array([len(encoding.ids) for encoding in encodings], np.int64)
    return TokenLengths(
        bins=length_histogram(lengths), rows=len(lengths), of=total, longest=int(lengths.max())
    )


def _arrow_rows(path: Path) -> tuple[list[Sequence[Any]], int]:
    """A random sample of rows in random order, and the number of all.

    Memory-mapped: only the pages of the sample are read.
    """
    rows: list[Sequence[Any]] = []
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        columns = [name for name in ("sentence1", "sentence2") if name in stream.schema.names]
        batches = list(stream)
        total = sum(map(len, batches))
        sample = random.Random(0).sample(range(total), min(total, ESTIMATED_ROWS))
        indices, start = np.sort(np.array(sample, np.int64)), 0
        for batch in batches:
            low, high = np.searchsorted(indices, (start, start + len(batch)))
            if high > low:
                selected = batch.select(columns).take(pa.array(indices[low:high] - start))
                rows += zip(*(column.to_pylist() for column in selected.columns), strict=True)
            start += len(batch)
    random.Random(0).shuffle(rows)
    return rows, total


def _table_rows(path: Path) -> tuple[list[Sequence[Any]], int]:
    table = tables.open_table(path)
    rows: list[Sequence[Any]] = [
        cells for _, cells in table.rows(["sentence1", "sentence2"], lambda *bad_row: None)
    ]
    return rows[:ESTIMATED_ROWS], len(rows)


def _texts(rows: Sequence[Sequence[str | None]]) -> Iterator[str | tuple[str, ...]]:
    """Complete rows as a tokenizer takes them, up to `CHARACTERS`."""
    characters = 0
    for row in rows:
        texts = tuple(str(text)[:_LONGEST_ESTIMATED] for text in row if text)
        if len(texts) < len(row):
            continue
        characters += sum(map(len, texts))
        if characters > CHARACTERS and characters > sum(map(len, texts)):
            break
        yield texts if len(texts) > 1 else texts[0]
