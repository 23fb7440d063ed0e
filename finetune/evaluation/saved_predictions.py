"""Reads and writes a run's `predictions/`: the examples that were scored, and their logits.

validation.parquet       the validation pairs, in the order of the logits
step-000400.npz          logits (examples, outputs) and labels (examples, ...) of one evaluation
swapped.npz              the kept model's logits of all or some of these pairs, in both orders
test.parquet, test.npz   examples, logits and labels of the test split, once it was opened
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from finetune import disk, text_hashes
from finetune.environment import logs
from finetune.errors import ConfigError, DataError, StoreError
from finetune.messages import message as _
from finetune.metrics.calibration import Logits
from finetune.metrics.shared_rows import SharedRows
from finetune.runs.run import Run
from finetune.tasks.base import Target, Targets
from finetune.tasks.registry import task_of

_ANEW = _("Train the run again to get them.")
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class SavedLogits:
    """The logits of one split under one model."""

    step: int  # optimizer steps the model had taken
    logits: Logits  # of shape (examples, outputs), every one finite
    labels: Targets  # of shape (examples, ...)
    broken: int  # number of examples with a logit that was not finite; their logits are 0


@dataclass(frozen=True)
class SwappedLogits:
    """The kept model's logits of validation pairs, with the sentences in both orders."""

    step: int  # optimizer steps the model had taken
    rows: Rows  # indices of the validation examples, of shape (pairs,)
    given: Logits  # of shape (pairs, outputs), for the sentences in the given order
    swapped: Logits  # of the same shape, for the sentences swapped


def save_logits(
    run: Run, step: int, logits: Logits, labels: Targets, split: str = "validation"
) -> None:
    """Save the logits of one evaluation. A full disk raises OSError in all functions that save."""
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


def read_logits(run: Run, step: int, target: Target, split: str = "validation") -> SavedLogits:
    """Read the logits of an evaluation; of the test split, those kept last. StoreError if they were
    not kept, or the file is damaged."""
    path = _logits_file(run, step, split)
    if not path.exists():
        subject = _("The evaluation of step {step:,}", step=step)
        raise StoreError("{subject} of run {id} was not kept.", subject=subject, id=run.id)
    with _reading(run, path, _("Open the test set again.") if split == "test" else _ANEW):
        arrays = _arrays(path, "logits", "labels", "step")
        logits, broken = _finite(arrays["logits"])
        labels = arrays["labels"]
        _check(labels.shape[:1] == logits.shape[:1], "labels and logits differ in number")
        _check(target.size == logits.shape[1], "the logits are of other classes")
        task_of(target).check_targets(labels, target)
        return SavedLogits(int(arrays["step"].item()), logits, labels, broken)


def read_swapped_logits(run: Run, examples: int | None = None) -> SwappedLogits | None:
    """Read the logits of both sentence orders; None if they were not measured. StoreError if the
    file is damaged. `examples`: the number of validation examples, which bounds the indices."""
    path = run.predictions / "swapped.npz"
    if not path.exists():
        return None
    with _reading(run, path, _("Measure both orders again.")):
        arrays = _arrays(path, "given", "swapped", "rows", "step")
        given, swapped = (_finite(arrays[name])[0] for name in ("given", "swapped"))
        rows = arrays["rows"]
        _check(given.shape == swapped.shape, "the orders differ in number")
        _check(rows.shape == given.shape[:1], "rows and logits differ in number")
        _check(rows.dtype.kind in "iu", "an index is no whole number")
        inside = (rows >= 0) & (rows < (examples or 2**31))
        _check(bool(inside.all()), "an index is out of range")
        return SwappedLogits(int(arrays["step"].item()), rows, given, swapped)


def read_examples(
    run: Run, split: str = "validation", labels: Targets | None = None
) -> pa.Table | None:
    """Read the examples of a split, in the order of its logits; None if they were not kept.
    StoreError if the file is damaged, or its labels are not those kept with the logits."""
    path = run.predictions / f"{split}.parquet"
    if not path.exists():
        return None
    with _reading(run, path, _("Delete it to see the figures without the sentences.")):
        table = pq.read_table(path)
        for name in [name for name in table.column_names if name.startswith("sentence")]:
            column = table.column(name)
            text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            _check(text and not column.null_count, f"{name} is no text")
        _check("sentence1" in table.column_names, "there is no sentence1")
        found, prepared = targets_of(table), run.state().prepared
        if prepared is not None:
            task_of(prepared.target).check_targets(found, prepared.target)
        _check(labels is None or np.array_equal(found, labels), "its labels are not those scored")
        return table


def kept_examples(run: Run) -> pa.Table:
    """Return the validation examples; DataError if they were not kept."""
    table = read_examples(run)
    if table is None:
        raise DataError(
            "The validation examples of this run were not kept.",
            "They are from now on: train it anew.",
        )
    return table


def targets_of(table: pa.Table) -> Targets:
    """Return the targets of examples, of shape (examples, ...)."""
    column = table.column("label").combine_chunks()
    _check(not column.null_count, "a label is missing")
    if pa.types.is_nested(column.type):
        return np.asarray(column.flatten()).reshape(len(column), -1)
    values = np.asarray(column)
    _check(values.dtype.kind in "iuf", "the labels are no numbers")
    return values


def sentences_of(table: pa.Table) -> list[list[str]]:
    """Return the sentences of examples, a list for each column."""
    names = [name for name in ("sentence1", "sentence2") if name in table.column_names]
    return [table.column(name).to_pylist() for name in names]


def shared_rows(table: pa.Table | None) -> SharedRows | None:
    """Find the examples that share a sentence; None without texts."""
    return None if table is None else text_hashes.shared_rows(*sentences_of(table))


@contextlib.contextmanager
def _reading(run: Run, path: Path, remedy: str) -> Iterator[None]:
    """Convert every error that a damaged file raises into a `StoreError`."""
    try:
        yield
    except Exception as error:  # zipfile, zlib, numpy and pyarrow have some thirty kinds
        raise StoreError(
            "{name} of run {id} is damaged: {reason}.",
            remedy,
            name=path.name,
            id=run.id,
            reason=logs.first_line(error),
        ) from error


def _arrays(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """Read numeric arrays of a file. Raises any error the file causes."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in names}
    for name, array in arrays.items():
        _check(array.dtype.kind in "iuf", f"{name} has no numbers")
    return arrays


def _check(right: bool, problem: str) -> None:
    if not right:
        raise ValueError(problem)


def files_version(run: Run) -> tuple[tuple[str, int], ...]:
    """Return a value that changes with the files in `predictions/`: names and times."""
    finished = run.predictions.glob("[!.]*")  # the name of a file being written begins with a dot
    return tuple(sorted((path.name, path.stat().st_mtime_ns) for path in finished))


def _logits_file(run: Run, step: int, split: str) -> Path:
    if split not in ("validation", "test"):
        raise ConfigError({"split": f"is {split!r}: validation or test"})
    return run.predictions / ("test.npz" if split == "test" else f"step-{step:06d}.npz")


def _finite(logits: NDArray[Any]) -> tuple[Logits, int]:
    """Return logits with non-finite rows set to 0, and the number of such rows. They count as the
    first class, with no confidence."""
    _check(logits.ndim == 2 and logits.size > 0, "the logits are no table")
    good = np.isfinite(logits).all(axis=1)
    clean = np.where(good[:, None], logits, 0).clip(-1e4, 1e4).astype(np.float32)
    return clean, int((~good).sum())
