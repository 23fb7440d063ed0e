"""Labels that a person corrected after a model doubted them, and the pairs with these labels.

    <run folder>/corrections.json   row of the validation split -> class
    <predicted file>/labels.json    random row of a file -> class, as a person labelled it

The run itself stays unchanged; a new one can start from the corrected pairs.
"""

import json
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import csv
from pydantic import NonNegativeInt

from finetune.config import DATA_FIELDS, NO_COLUMN, RunConfig
from finetune.data import csv_cells
from finetune.disk import read_as, write_atomically
from finetune.errors import DataError, StoreError
from finetune.evaluation import saved_predictions
from finetune.runs.job_folder import JobFolder
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.base import Target

_TEXTS = ("sentence1", "sentence2")
CORRECTIONS, LABELS = "corrections.json", "labels.json"
_write_lock = threading.Lock()  # a person may correct two labels within a moment


def read_corrections(job: JobFolder, file: str = CORRECTIONS) -> dict[int, str]:
    """Read the corrected class of each row, in row order; empty if unreadable."""
    corrections = read_as(dict[NonNegativeInt, str], job.folder / file) or {}
    return dict(sorted(corrections.items()))


def write_correction(
    job: JobFolder, row: int, label: str, before: str, file: str = CORRECTIONS
) -> None:
    """Set the class of a row, or forget it if it was that `before`."""
    with _write_lock:
        corrections = read_corrections(job, file) | {row: label}
        if label == before:
            del corrections[row]
        text = json.dumps(corrections, ensure_ascii=False, sort_keys=True)
        write_atomically(job.folder / file, text + "\n")


def correct_label(run: Run, row: int, label: str, labels: list[str]) -> None:
    """Set an example's class in the validation split, or restore its own."""
    examples = saved_predictions.kept_examples(run).column("label").to_pylist()
    if label not in labels or not 0 <= row < len(examples):
        raise DataError("There is no such example or class.", "Open Errors again.")
    write_correction(run, row, label, labels[examples[row]])


def corrections_csv(run: Run, labels: list[str]) -> str:
    """Return the validation rows with the corrected labels as CSV, under the names of their file.
    `label_before` is the original label of a corrected one."""
    table = saved_predictions.kept_examples(run)
    before = _corrected_labels(table, labels, {})
    after = _corrected_labels(table, labels, read_corrections(run))
    changed = ["" if old == new else old for old, new in zip(before, after, strict=True)]
    texts = table.drop_columns("label")
    cells = zip(*texts.to_pydict().values(), after, changed, strict=True)
    own = run.state().columns
    names = [getattr(own, name) or name for name in (*texts.column_names, "label")]
    return csv_cells.to_csv([[*names, "label_before"], *cells])


def corrections_upload(store: RunStore, run: Run) -> RunConfig:
    """Return the configuration of a run on the corrected pairs, which become the visitor's own
    files. Raises a DataError if nothing was corrected, the pairs have changed, or there are too
    many to keep."""
    corrections = read_corrections(run)
    if not corrections:
        raise DataError("No label was corrected yet.", "Choose another class for one first.")
    target, tables = _pairs(run)
    if tables["validation"].column("label") != saved_predictions.kept_examples(run).column("label"):
        raise DataError("The data has changed since this run.", "Examine it anew.")
    return _uploaded(store, run, target, tables, corrections)


def additions_upload(
    store: RunStore, run: Run, sentences: Sequence[Sequence[str]], labels: Sequence[str]
) -> RunConfig:
    """Return the configuration of a run on the same pairs and further ones to train on, each with
    one or two sentences as the run's pairs have, and its class."""
    target, tables = _pairs(run)
    train = tables["train"]
    train = train.select([name for name in (*_TEXTS, "label") if name in train.column_names])
    numbers = [list(target.names).index(label) for label in labels]
    added = dict(zip(train.column_names, (*zip(*sentences, strict=True), numbers), strict=True))
    tables["train"] = pa.concat_tables([train, pa.table(added, train.schema)])
    return _uploaded(store, run, target, tables, {})


def _pairs(run: Run) -> tuple[Target, dict[str, pa.Table]]:
    """Read the pairs of a run anew, each of train and validation once."""
    from finetune.data import dataset_cache, splits

    config = run.pinned_config()
    dataset_cache.ensure_cached(config, run.folder.parent)
    pairs = splits.load_pairs(config, run.folder.parent)
    tables = {name: split.with_format("arrow")[:] for name, split in pairs.splits.items()}
    if config.trains_on_all:  # the validation split has the same rows
        tables["train"] = tables["train"][:0]
    return pairs.target, tables


def _uploaded(
    store: RunStore, run: Run, target: Target, tables: dict[str, pa.Table],
    corrections: dict[int, str],
) -> RunConfig:  # fmt: skip
    """Keep the tables as the visitor's own files, `corrections` made in the validation split. Those
    of a cross-validation are one file again."""
    config = run.pinned_config()
    for name, table in tables.items():
        changed = corrections if name == "validation" else {}
        labels = pa.array(_corrected_labels(table, target.names, changed), pa.string())
        texts = table.select([name for name in _TEXTS if name in table.column_names])
        tables[name] = texts.append_column("label", labels)
    if config.folds:
        tables["train"] = pa.concat_tables([tables["train"], tables.pop("validation")])
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.csv" for name in tables}
        for name, table in tables.items():
            # Plain CSV: `safe_csv` would change a text for a spreadsheet.
            csv.write_csv(table, files[name])
        dataset = store.uploads.add(files)
    paired = "sentence2" in tables["train"].column_names
    defaults = {field: getattr(RunConfig(), field) for field in (*DATA_FIELDS, "name")}
    columns = {
        "sentence1_column": "sentence1",
        "sentence2_column": "sentence2" if paired else NO_COLUMN,
        "label_column": "label",
        "positive_label": target.names[target.positive] if target.size == 2 else "",
    }
    own = {"dataset": dataset, "folds": config.folds, "fold": 0}
    return config.changed(**defaults | columns | own)


def _corrected_labels(
    table: pa.Table, names: Sequence[str], corrections: dict[int, str]
) -> list[str]:
    indices = table.column("label").to_pylist()
    if max(indices, default=0) >= len(names):
        raise StoreError(
            "The examples of this run have classes that it does not name: a file is damaged.",
            "Train it anew.",
        )
    return [corrections.get(row, names[index]) for row, index in enumerate(indices)]
