"""Labels a person has corrected after a model doubted them, and the pairs with them.

    <run folder>/corrections.json   row of the validation split -> class

The run itself stays as it was; a new one can start from the corrected pairs.
"""

from __future__ import annotations

import csv
import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config import NO_COLUMN, RunConfig
from finetune.data import safe_csv
from finetune.disk import write_atomically
from finetune.errors import DataError
from finetune.evaluation import saved_predictions
from finetune.runs.run import Run
from finetune.runs.store import RunStore

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 10_000
_CHANGING = threading.Lock()  # a person may correct two labels within a moment


def read_corrections(run: Run) -> dict[int, str]:
    """Row -> the class it was given, in the order of the rows."""
    found = run.read_json(run.folder / "corrections.json")
    return {
        int(row): label
        for row, label in sorted(found.items(), key=lambda one: int(one[0]))
        if row.isdecimal() and isinstance(label, str)
    } if all(str(row).isdecimal() for row in found) else {}  # fmt: skip


def correct_label(run: Run, row: int, label: str, labels: list[str]) -> dict[int, str]:
    """Give an example another class, or its own again; all corrections after that.

    Args:
        row: its place in the validation split.
        label: the class; that of the data takes a correction back.
        labels: the classes there are.

    Raises:
        DataError: when there is no such example or class.
        StoreError: when the folder cannot be written.
    """
    table = _table(run)
    if not 0 <= row < table.num_rows:
        raise DataError(f"There is no validation example {row + 1}.", "Choose one of the table.")
    if label not in labels:
        raise DataError(f"There is no class {label!r}.", f"The classes are {', '.join(labels)}.")
    with _CHANGING:
        known = read_corrections(run)
        known.pop(row, None)
        if labels.index(label) != table.column("label")[row].as_py():
            known[row] = label
        named = {str(one): name for one, name in sorted(known.items())}
        text = json.dumps(named, ensure_ascii=False)
        write_atomically(run.folder / "corrections.json", text + "\n")
    return known


def corrections_csv(run: Run, labels: list[str]) -> Iterator[str]:
    """The validation pairs with the corrected labels, in pieces; `label_before` says what a
    corrected one was.

    Raises:
        DataError: when the examples were not kept.
    """
    table = _table(run)
    names = [name for name in table.column_names if name != "label"]
    return _written(table, names, labels, read_corrections(run))


def _written(
    table: pa.Table, names: list[str], labels: list[str], known: dict[int, str]
) -> Iterator[str]:
    yield safe_csv.to_csv([*names, "label", "label_before"], [])
    for at in range(0, table.num_rows, _BATCH):
        lines = []
        for row, one in enumerate(table.slice(at, _BATCH).to_pylist(), start=at):
            label = labels[one["label"]]
            now = known.get(row, label)
            lines.append([*(one[name] for name in names), now, label if now != label else ""])
        yield safe_csv.to_csv_rows(lines)


def corrections_upload(store: RunStore, run: Run) -> RunConfig:
    """The configuration of a run on the corrected pairs, which become the visitor's own files.

    Reads the run's pairs again, which takes a moment.

    Raises:
        DataError: when nothing was corrected, the pairs have changed since the run, or the
            visitor may not keep so much.
        StoreError: when they cannot be written.
    """
    from finetune.data import dataset_cache, splits

    known = read_corrections(run)
    if not known:
        raise DataError("No label was corrected yet.", "Choose another class for one first.")
    config = run.pinned_config()
    dataset_cache.ensure_cached(config, run.folder.parent)
    pairs = splits.load_pairs(config, run.folder.parent)
    kept, now = _table(run), pairs.splits["validation"]
    if now.num_rows != kept.num_rows or now["label"][:] != kept.column("label").to_pylist():
        raise DataError("The pairs have changed since this run.", "Examine them anew.")
    with tempfile.TemporaryDirectory() as folder:
        files = {
            split: _file(Path(folder), split, rows, pairs.labels, known)
            for split, rows in pairs.splits.items()
        }
        name = store.uploads.add(files)
    paired = "sentence2" in pairs.splits["train"].column_names
    blank = RunConfig()
    reset = {name: getattr(blank, name) for name in _OF_THE_SOURCE}
    return config.changed(
        **reset,
        dataset=name,
        sentence1_column="sentence1",
        sentence2_column="sentence2" if paired else NO_COLUMN,
        label_column="label",
        positive_label=pairs.labels[pairs.positive] if len(pairs.labels) == 2 else "",
        name="",
    )


# What chose the pairs, which are chosen now.
_OF_THE_SOURCE = (
    "dataset_config_name", "dataset_revision", "train_split", "validation_split", "test_split",
    "validation_share", "max_train_samples", "max_eval_samples", "drop_duplicates", "drop_leaked",
)  # fmt: skip


def _file(folder: Path, split: str, rows: Any, labels: list[str], known: dict[int, str]) -> Path:
    """A split as CSV as it is: not `sheets`', which would change a text for a spreadsheet."""
    path = folder / f"{split}.csv"
    names = [name for name in ("sentence1", "sentence2") if name in rows.column_names]
    corrected = known if split == "validation" else {}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "label"])
        at = 0
        for batch in rows.iter(_BATCH):
            for index, label in enumerate(batch["label"]):
                text = corrected.get(at + index, labels[label])
                writer.writerow([*(batch[name][index] for name in names), text])
            at += len(batch["label"])
    return path


def _table(run: Run) -> pa.Table:
    table = saved_predictions.read_examples(run)
    if table is None:
        raise DataError(
            "The validation examples of this run were not kept.",
            "They are from now on: train it anew.",
        )
    return table
