"""Labels that a person corrected after a model doubted them, and the pairs with these labels.

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
_write_lock = threading.Lock()  # a person may correct two labels within a moment
# The fields that chose the pairs, which have been chosen now.
_SOURCE_FIELDS = (
    "dataset_config_name", "dataset_revision", "train_split", "validation_split", "test_split",
    "validation_share", "max_train_samples", "max_eval_samples", "drop_duplicates", "drop_leaked",
)  # fmt: skip


def read_corrections(run: Run) -> dict[int, str]:
    """Row -> the corrected class, in the order of the rows."""
    values = run.read_json(run.folder / "corrections.json")
    rows = {int(row): str(label) for row, label in values.items() if row.isdecimal()}
    return dict(sorted(rows.items()))


def correct_label(run: Run, row: int, label: str, labels: list[str]) -> dict[int, str]:
    """Give an example of the validation split another class, or its own again; all corrections
    then.

    Raises:
        DataError: when there is no such example or class.
        StoreError: when the folder cannot be written.
    """
    table = _examples(run)
    if not 0 <= row < table.num_rows:
        raise DataError(f"There is no validation example {row + 1}.", "Choose one of the table.")
    if label not in labels:
        raise DataError(f"There is no class {label!r}.", f"The classes are {', '.join(labels)}.")
    with _write_lock:
        corrections = read_corrections(run)
        corrections.pop(row, None)
        if labels.index(label) != table.column("label")[row].as_py():
            corrections[row] = label
        text = json.dumps(corrections, ensure_ascii=False, sort_keys=True)
        write_atomically(run.folder / "corrections.json", text + "\n")
    return corrections


def corrections_csv(run: Run, labels: list[str]) -> Iterator[str]:
    """The validation pairs with the corrected labels as CSV, in pieces; `label_before` is the label
    that a corrected one had."""
    return _csv_pieces(_examples(run), labels, read_corrections(run))


def _csv_pieces(table: pa.Table, labels: list[str], corrections: dict[int, str]) -> Iterator[str]:
    columns = [name for name in table.column_names if name != "label"]
    yield safe_csv.to_csv([[*columns, "label", "label_before"]])
    for start in range(0, table.num_rows, _BATCH):
        lines = []
        for row, example in enumerate(table.slice(start, _BATCH).to_pylist(), start):
            before = labels[example["label"]]
            label = corrections.get(row, before)
            texts = [example[name] for name in columns]
            lines.append([*texts, label, before if label != before else ""])
        yield safe_csv.to_csv(lines)


def corrections_upload(store: RunStore, run: Run) -> RunConfig:
    """The configuration of a run on the corrected pairs, which become the visitor's own files.

    Reads the run's pairs again, which takes a moment.

    Raises:
        DataError: when nothing was corrected, the pairs have changed since the run, or the
            visitor may not keep so much.
        StoreError: when they cannot be written.
    """
    from finetune.data import dataset_cache, splits

    corrections = read_corrections(run)
    if not corrections:
        raise DataError("No label was corrected yet.", "Choose another class for one first.")
    config = run.pinned_config()
    dataset_cache.ensure_cached(config, run.folder.parent)
    pairs = splits.load_pairs(config, run.folder.parent)
    if pairs.splits["validation"]["label"][:] != _examples(run).column("label").to_pylist():
        raise DataError("The pairs have changed since this run.", "Examine them anew.")
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for split, rows in pairs.splits.items():
            files[split] = Path(folder) / f"{split}.csv"
            changed = corrections if split == "validation" else {}
            _write_split(files[split], rows, pairs.labels, changed)
        name = store.uploads.add(files)
    paired = "sentence2" in pairs.splits["train"].column_names
    default = RunConfig()
    return config.changed(
        **{field: getattr(default, field) for field in _SOURCE_FIELDS},
        dataset=name,
        sentence1_column="sentence1",
        sentence2_column="sentence2" if paired else NO_COLUMN,
        label_column="label",
        positive_label=pairs.labels[pairs.positive] if len(pairs.labels) == 2 else "",
        name="",
    )


def _write_split(path: Path, rows: Any, labels: list[str], corrections: dict[int, str]) -> None:
    """A split as plain CSV: `safe_csv` would change a text for a spreadsheet."""
    columns = [name for name in ("sentence1", "sentence2") if name in rows.column_names]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "label"])
        batches = rows.with_format("arrow").iter(_BATCH)
        examples = (example for batch in batches for example in batch.to_pylist())
        for row, example in enumerate(examples):
            label = corrections.get(row, labels[example["label"]])
            writer.writerow([*(example[name] for name in columns), label])


def _examples(run: Run) -> pa.Table:
    table = saved_predictions.read_examples(run)
    if table is None:
        raise DataError(
            "The validation examples of this run were not kept.",
            "They are from now on: train it anew.",
        )
    return table
