"""Lengths of pairs in tokens: measured with all checks, or estimated in a second for a form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.data import checkpoint_files, checkpoints, tokenizer_fit
from finetune.data.check_report import TokenLengths
from finetune.errors import FinetuneError, ModelError
from finetune.findings import Finding
from finetune.messages import message as _

if TYPE_CHECKING:
    from finetune.data.splits import SplitRows

CHECKED_ROWS = 10_000
ESTIMATED_ROWS = 2500  # the share of rows that are cut is then known to 2 points
CHARACTERS = 2_000_000  # of all rows of an estimate, half a second's work
_LONGEST_CHECKED, _LONGEST_ESTIMATED = 100_000, 20_000  # characters of a sentence
_LOOKED_AT = 1000  # rows, and tokens of each, that are checked for unknown ones
_READ = 1000  # sentences whose words are looked at
_LARGEST_TOKENIZER = 30 * 2**20  # bytes
_estimates: dict[tuple[Path, Path], TokenLengths] = {}


def check_lengths(assigned: SplitRows, config: RunConfig) -> tuple[TokenLengths, Iterable[Finding]]:
    """Measure the training rows, or a random sample, with the checkpoint's tokenizer, and report
    how well it knows their language.

    If it cannot be loaded, the result is only a `note`. ModelError if it is empty."""
    from transformers import AutoTokenizer

    source_split, rows = assigned.rows["train"]
    if not len(rows):
        return TokenLengths(note=_("There is no row to measure.")), ()
    try:
        folder = checkpoint_files.fetch(config.checkpoint, weights=False)
        with checkpoint_files.open_files(folder, config.checkpoint) as files:
            tokenizer = files.load(AutoTokenizer)
    except FinetuneError as error:
        reason = error.fact[:200].rstrip(".")
        note = _(
            "The lengths are missing, because the tokenizer of {checkpoint} cannot be loaded "
            "({reason}): choose another checkpoint under Train, and press Examine again.",
            checkpoint=config.checkpoint,
            reason=reason,
        )
        return TokenLengths(note=note), ()
    checkpoints.check_tokenizer(config.checkpoint, tokenizer)
    sample = rows
    if len(rows) > CHECKED_ROWS:
        rng = np.random.default_rng(config.data_seed)
        sample = np.sort(rng.choice(rows, CHECKED_ROWS, replace=False))
    lengths: list[int] = []
    first: list[list[int]] = []
    read: list[str] = []  # of the first rows
    texts = assigned.dataset.texts(source_split).select(sample)
    for batch in texts.iter(checkpoints.rows_at_once(texts, _LONGEST_CHECKED)):
        sentences = [[text[:_LONGEST_CHECKED] for text in column] for column in batch.values()]
        token_ids = tokenizer(*sentences, truncation=False, verbose=False)["input_ids"]
        lengths += map(len, token_ids)
        if len(read) < _READ:
            read += [text[:_LOOKED_AT] for column in sentences for text in column]
        first += [ids[:_LOOKED_AT] for ids in token_ids[: _LOOKED_AT - len(first)]]
    measured = _summarize(lengths, len(rows), config.max_length)
    try:
        checkpoints.check_known(config.checkpoint, tokenizer, first)
    except ModelError as error:
        return measured, [tokenizer_fit.unknown_text(error, read, config.checkpoint)]
    fit = tokenizer_fit.measure_fit(tokenizer, read)
    return measured, tokenizer_fit.findings(fit, config.checkpoint)


def _summarize(tokens: Sequence[int], total: int, max_length: int = 0) -> TokenLengths:
    lengths = np.array(tokens)
    return TokenLengths(
        bins=length_histogram(lengths),
        rows=len(lengths),
        of=total,
        longest=int(lengths.max()),
        max_length=max_length,
        cut=float((lengths > max_length).mean()) if max_length else 0.0,
    )


def length_histogram(lengths: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Count lengths in about 24 bins: from, below, rows. The last bin takes the few far longer
    ones."""
    top = max(int(np.quantile(lengths, 0.995)), 1)
    width = max(1, -(-top // 24))
    counts = np.bincount(np.minimum(lengths // width, -(-top // width)))
    bins = [(i * width, (i + 1) * width, int(count)) for i, count in enumerate(counts)]
    low, _, count = bins[-1]
    bins[-1] = (low, max(low + width, int(lengths.max()) + 1), count)
    return bins


def tokenizer_file(checkpoint: str) -> Path | None:
    """The file of a checkpoint's tokenizer; None if it is not on this disk, or too large to be
    quick."""
    folder = checkpoints.local_folder(checkpoint)
    path = folder / "tokenizer.json" if folder else None
    return path if path and path.is_file() and path.stat().st_size <= _LARGEST_TOKENIZER else None


def cached_lengths(pairs: Path, tokenizer: Path) -> TokenLengths | None:
    """The estimate that `measure_lengths` made of these files, or None."""
    return _estimates.get((pairs, tokenizer))


def measure_lengths(pairs: Path, tokenizer: Path) -> TokenLengths:
    """Estimate the lengths from a random sample of rows, once in this process. If that fails, the
    result is only a `note`. `pairs` is a cached dataset's Arrow stream or the bundled CSV."""
    if (pairs, tokenizer) not in _estimates:
        try:
            lengths = _estimate(pairs, tokenizer)
        except Exception as error:  # the library's own
            reason = str(error)[:200]
            note = _("{tokenizer} cannot be used: {error}", tokenizer=tokenizer, error=reason)
            lengths = TokenLengths(note=note)
        _estimates[pairs, tokenizer] = lengths
    return _estimates[pairs, tokenizer]


def _estimate(pairs: Path, tokenizer_path: Path) -> TokenLengths:
    from tokenizers import Tokenizer

    if pairs.suffix == ".csv":
        table = pyarrow.csv.read_csv(pairs).select(["sentence1", "sentence2"])
    else:
        with pa.memory_map(str(pairs)) as file, pa.ipc.open_stream(file) as stream:
            table = stream.read_all()
    size = min(len(table), ESTIMATED_ROWS)
    sample = table.take(np.random.default_rng(0).choice(len(table), size, replace=False))
    texts = [
        tuple(text[:_LONGEST_ESTIMATED] for text in row.values())
        for row in sample.to_pylist()
        if all(row.values())
    ]
    if not texts:
        return TokenLengths(note=_("There is no row to measure."))
    characters = np.cumsum([sum(map(len, row)) for row in texts])
    texts = texts[: max(1, int(np.searchsorted(characters, CHARACTERS)))]
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encodings = tokenizer.encode_batch([row if len(row) > 1 else row[0] for row in texts])
    return _summarize([len(encoding.ids) for encoding in encodings], len(table))
