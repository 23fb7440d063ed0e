"""What lies in a run's `predictions/`: the examples scored, and the logits they were given.

    validation.parquet   the validation pairs, in the order of the logits, written once
    step-000400.npz      logits (examples, classes) and labels (examples,) of one evaluation
    swapped.npz          the kept model's logits of the same pairs in both orders, or of some
    test.parquet, test.npz   the same of the test split, once it was opened

Knows neither torch nor what the logits mean; that is `analysis`' business.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
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
    """The kept model's logits of pairs in the order given and in the other.

    Args:
        step: optimizer steps the model had taken.
        rows: which validation examples, of shape (pairs,).
        given, other: of shape (pairs, classes), every one finite.
    """

    step: int
    rows: Labels
    given: Logits
    other: Logits


def save_scored(run: Run, step: int, logits: Logits, labels: Labels) -> None:
    """Keep the logits of one evaluation.

    Raises:
        OSError: when the disk is full or the run's folder is gone.
    """
    _save(_at(run, step), step=step, logits=logits, labels=labels)


def save_swapped(run: Run, swapped: SwappedLogits) -> None:
    """Keep the logits of both orders.

    Raises:
        OSError: as `save_scored`.
    """
    _save(
        run.predictions / "swapped.npz",
        step=swapped.step, rows=swapped.rows, given=swapped.given, other=swapped.other,
    )  # fmt: skip


def save_test(run: Run, step: int, logits: Logits, labels: Labels) -> None:
    """Keep the logits of the opened test split.

    Raises:
        OSError: as `save_scored`.
    """
    _save(run.predictions / "test.npz", step=step, logits=logits, labels=labels)


def save_examples(run: Run, split: str, table: pa.Table) -> None:
    """Keep the examples of a split: columns `sentence1`, perhaps `sentence2`, and `label`.

    Raises:
        OSError: as `save_scored`.
    """
    run.predictions.mkdir(exist_ok=True)
    path = run.predictions / f"{split}.parquet"
    aside = _aside(path)
    pq.write_table(table.replace_schema_metadata(None), aside, compression="zstd")
    os.replace(aside, path)


def read_logits(run: Run, step: int) -> SavedLogits:
    """The logits of the evaluation after `step` steps.

    Raises:
        StoreError: when they were not kept or cannot be read.
    """
    return _scored(_at(run, step), f"The evaluation of step {step:,}")


def read_test_logits(run: Run) -> SavedLogits:
    """The logits of the test split.

    Raises:
        StoreError: when it was not opened.
    """
    return _scored(run.predictions / "test.npz", "The test set")


def read_swapped_logits(run: Run) -> SwappedLogits | None:
    """The logits of both orders; None where they were not measured."""
    try:
        found = _load(run.predictions / "swapped.npz")
        given, other = _finite(found["given"])[0], _finite(found["other"])[0]
        return SwappedLogits(int(found["step"]), found["rows"].astype(np.int64), given, other)
    except (OSError, ValueError, KeyError):
        return None


def read_examples(run: Run, split: str = "validation") -> pa.Table | None:
    """The examples of a split, in the order of its logits; None where they were not kept."""
    try:
        return pq.read_table(run.predictions / f"{split}.parquet")
    except (OSError, pa.ArrowException):
        return None


def example_texts(table: pa.Table, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Some examples as plain values, in the order of `rows`."""
    return list(table.take(pa.array(rows, pa.int64())).to_pylist())


def files_version(run: Run) -> tuple[tuple[str, int, int], ...]:
    """What changes when anything in `predictions/` does: names, times and sizes."""
    found = []
    for path in sorted(run.predictions.glob("*")):
        try:
            facts = path.stat()
        except OSError:
            continue
        found.append((path.name, facts.st_mtime_ns, facts.st_size))
    return tuple(found)


def _at(run: Run, step: int) -> Path:
    return run.predictions / f"step-{step:06d}.npz"


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")


def _save(path: Path, **arrays: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    aside = _aside(path)
    try:
        np.savez(aside, **arrays)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _load(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def _scored(path: Path, what: str) -> SavedLogits:
    try:
        found = _load(path)
        logits, broken = _finite(found["logits"])
        labels = found["labels"].astype(np.int64)
        if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
            raise ValueError(f"shapes {logits.shape} and {labels.shape}")
        step = int(found["step"]) if "step" in found else int(path.stem.rpartition("-")[2])
    except FileNotFoundError as error:
        raise StoreError(f"{what} of run {path.parent.parent.name} was not kept.") from error
    except Exception as error:  # a damaged zip raises whatever its bytes lead to
        raise StoreError(
            f"{what} of run {path.parent.parent.name} cannot be read: {error}.",
            "Its file in predictions/ is damaged.",
        ) from error
    return SavedLogits(step, logits, labels, broken)


def _finite(logits: NDArray[Any]) -> tuple[Logits, int]:
    """Logits that can be computed with, and how many rows could not: theirs become 0, so that
    they count as the first class, without confidence."""
    clean = logits.astype(np.float32, copy=False)
    good = np.asarray(np.isfinite(clean).all(axis=1))
    if not good.all():
        clean = np.where(good[:, None], clean, np.float32(0))
    return np.clip(clean, -1e4, 1e4), int((~good).sum())
