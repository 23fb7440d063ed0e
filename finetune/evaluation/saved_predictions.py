"""Reads and writes a run's `predictions/`: the examples that were scored, and their logits.

validation.parquet       the validation pairs, in the order of the logits
step-000400.npz          logits (examples, classes) and labels (examples,) of one evaluation
swapped.npz              the kept model's logits of the same pairs, or some, in both orders
test.parquet, test.npz   the same of the test split, once it was opened
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from finetune import disk
from finetune.errors import StoreError
from finetune.messages import message as _
from finetune.runs.run import Run

Logits = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class SavedLogits:
    """The logits of one split under one model."""

    step: int  # optimizer steps the model had taken
    logits: Logits  # of shape (examples, classes), every one finite
    labels: Labels  # of shape (examples,)
    broken: int  # examples of which a logit was not a number; theirs are 0


@dataclass(frozen=True)
class SwappedLogits:
    """The kept model's logits, of shape (pairs, classes), of the validation examples `rows` in the
    order given and in the other."""

    step: int
    rows: Labels
    given: Logits
    swapped: Logits


def save_logits(
    run: Run, step: int, logits: Logits, labels: Labels, split: str = "validation"
) -> None:
    """Keep the logits of one evaluation. A full disk raises OSError, here and below."""
    _save_arrays(_logits_file(run, step, split), step=step, logits=logits, labels=labels)


def save_swapped_logits(run: Run, logits: SwappedLogits) -> None:
    """Keep the logits of both orders."""
    _save_arrays(run.predictions / "swapped.npz", **vars(logits))


def _save_arrays(path: Path, **arrays: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    with disk.replacing(path) as new, new.open("wb") as file:
        np.savez(file, **arrays)


def save_examples(run: Run, split: str, table: pa.Table) -> None:
    """Keep the examples of a split: columns `sentence1`, perhaps `sentence2`, and `label`."""
    run.predictions.mkdir(exist_ok=True)
    with disk.replacing(run.predictions / f"{split}.parquet") as file:
        pq.write_table(table.replace_schema_metadata(None), file, compression="zstd")


def read_logits(run: Run, step: int, split: str = "validation") -> SavedLogits:
    """The logits of an evaluation, of the test split those kept last; or a StoreError."""
    try:
        with np.load(_logits_file(run, step, split)) as arrays:
            logits, broken = _finite(arrays["logits"])
            return SavedLogits(
                int(arrays["step"]), logits, arrays["labels"].astype(np.int64), broken
            )
    except FileNotFoundError as error:
        subject = _("The evaluation of step {step:,}", step=step)
        raise StoreError(
            "{subject} of run {id} was not kept.", subject=subject, id=run.id
        ) from error


def read_swapped_logits(run: Run) -> SwappedLogits | None:
    """The logits of both orders; None where they were not measured."""
    path = run.predictions / "swapped.npz"
    if not path.exists():
        return None
    with np.load(path) as arrays:
        given, swapped = (_finite(arrays[name])[0] for name in ("given", "swapped"))
        return SwappedLogits(int(arrays["step"]), arrays["rows"], given, swapped)


def read_examples(run: Run, split: str = "validation") -> pa.Table | None:
    """The examples of a split, in the order of its logits; None where they were not kept."""
    path = run.predictions / f"{split}.parquet"
    return pq.read_table(path) if path.exists() else None


def files_version(run: Run) -> tuple[tuple[str, int], ...]:
    """A value that changes when a file in `predictions/` does: names and times."""
    finished = run.predictions.glob("[!.]*")  # a dot begins the name of what is being written
    return tuple(sorted((path.name, path.stat().st_mtime_ns) for path in finished))


def _logits_file(run: Run, step: int, split: str) -> Path:
    return run.predictions / ("test.npz" if split == "test" else f"step-{step:06d}.npz")


def _finite(logits: NDArray[Any]) -> tuple[Logits, int]:
    """Logits that can be computed with, and how many rows could not: theirs become 0, so that
    they count as the first class, without confidence."""
    good = np.isfinite(logits).all(axis=1)
    clean = np.where(good[:, None], logits, 0).clip(-1e4, 1e4).astype(np.float32)
    return clean, int((~good).sum())
