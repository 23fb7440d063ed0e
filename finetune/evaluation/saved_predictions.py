"""Reads and writes a run's `predictions/`: the examples that were scored, and their logits.

validation.parquet       the validation pairs, in the order of the logits
step-000400.npz          logits (examples, classes) and labels (examples,) of one evaluation
swapped.npz              the kept model's logits of the same pairs, or some, in both orders
test.parquet, test.npz   the same of the test split, once it was opened
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from finetune.errors import StoreError
from finetune.runs.run import Run

Logits = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class SavedLogits:
    """The logits of one split under one model.

    Args:
        step: optimizer steps the model had taken.
        logits: of shape (examples, classes), every one finite.
        labels: of shape (examples,).
        broken: examples of which a logit was not a number; theirs are 0.
    """

    step: int
    logits: Logits
    labels: Labels
    broken: int = 0


@dataclass(frozen=True)
class SwappedLogits:
    """The kept model's logits, of shape (pairs, classes), of validation examples in the order given
    and in the other."""

    step: int
    rows: Labels
    given: Logits
    swapped: Logits


def save_logits(
    run: Run, step: int, logits: Logits, labels: Labels, split: str = "validation"
) -> None:
    """Keep the logits of one evaluation. A full disk raises OSError, here and below."""
    with _replacing(_logits_file(run, step, split)) as file:
        np.savez(file, step=step, logits=logits, labels=labels)


def save_swapped_logits(run: Run, logits: SwappedLogits) -> None:
    """Keep the logits of both orders."""
    with _replacing(run.predictions / "swapped.npz") as file:
        np.savez(
            file,
            step=logits.step, rows=logits.rows, given=logits.given, swapped=logits.swapped,
        )  # fmt: skip


def save_examples(run: Run, split: str, table: pa.Table) -> None:
    """Keep the examples of a split: columns `sentence1`, perhaps `sentence2`, and `label`."""
    with _replacing(run.predictions / f"{split}.parquet") as file:
        pq.write_table(table.replace_schema_metadata(None), file, compression="zstd")


def read_logits(run: Run, step: int, split: str = "validation") -> SavedLogits:
    """The logits of an evaluation; of the test split those kept last.

    Raises:
        StoreError: when they were not kept or cannot be read.
    """
    subject = "The test set" if split == "test" else f"The evaluation of step {step:,}"
    try:
        with np.load(_logits_file(run, step, split), allow_pickle=False) as arrays:
            logits, broken = _finite(arrays["logits"])
            labels, step = arrays["labels"].astype(np.int64), int(arrays["step"])
        if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
            raise ValueError(f"shapes {logits.shape} and {labels.shape}")
    except FileNotFoundError as error:
        raise StoreError(f"{subject} of run {run.id} was not kept.") from error
    except Exception as error:  # a damaged zip raises whatever its bytes lead to
        raise StoreError(
            f"{subject} of run {run.id} cannot be read: {error}.",
            "Its file in predictions/ is damaged.",
        ) from error
    return SavedLogits(step, logits, labels, broken)


def read_swapped_logits(run: Run) -> SwappedLogits | None:
    """The logits of both orders; None where they were not measured."""
    try:
        with np.load(run.predictions / "swapped.npz", allow_pickle=False) as arrays:
            given, swapped = (_finite(arrays[name])[0] for name in ("given", "swapped"))
            rows = arrays["rows"].astype(np.int64)
            return SwappedLogits(int(arrays["step"]), rows, given, swapped)
    except (OSError, ValueError, KeyError):
        return None


def read_examples(run: Run, split: str = "validation") -> pa.Table | None:
    """The examples of a split, in the order of its logits; None where they were not kept."""
    try:
        return pq.read_table(run.predictions / f"{split}.parquet")
    except (OSError, pa.ArrowException):
        return None


def files_version(run: Run) -> tuple[tuple[str, int, int], ...]:
    """A value that changes when a file in `predictions/` does: names, times and sizes."""
    files = []
    for path in sorted(run.predictions.glob("*")):
        with contextlib.suppress(OSError):
            stat = path.stat()
            files.append((path.name, stat.st_mtime_ns, stat.st_size))
    return tuple(files)


def _logits_file(run: Run, step: int, split: str) -> Path:
    return run.predictions / ("test.npz" if split == "test" else f"step-{step:06d}.npz")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of another when all is written."""
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _finite(logits: NDArray[Any]) -> tuple[Logits, int]:
    """Logits that can be computed with, and how many rows could not: theirs become 0, so that
    they count as the first class, without confidence."""
    clean = logits.astype(np.float32, copy=False)
    good = np.asarray(np.isfinite(clean).all(axis=1))
    if not good.all():
        clean = np.where(good[:, None], clean, np.float32(0))
    return np.clip(clean, -1e4, 1e4), int((~good).sum())
