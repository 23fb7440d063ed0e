"""Rows of a source as Arrow files on disk, with hashes of their sentences, read only once.

Rows are written in bounded memory. What compares rows (duplicates, leakage, groups) compares the
hashes and needs no texts.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, Features, Value
from filelock import FileLock
from numpy.typing import NDArray

from finetune import disk, json_files, owners, text_hashes
from finetune.config import BUNDLED_DATASET, SOURCE_FIELDS, RunConfig
from finetune.data import catalog, sources
from finetune.data.columns import Columns, LabelEncoder, choose_columns
from finetune.environment import child_process
from finetune.errors import DataError, some
from finetune.text_hashes import Integers

MAX_BAD_ROWS = 20  # kept as examples, of each split
_VERSION = 2  # of the files; those of another version are written anew
_BATCH_ROWS = 10_000
_BATCH_CHARACTERS = 2**24  # a batch ends before `_BATCH_ROWS` where its texts are long
_CHILD_SECONDS, _CHILD_MEMORY = 1800, 2**32
_HASH_COLUMNS = ("label", "exact", "first", "second")

ProgressCallback = Callable[[str, int], None]  # a split, and how many of its rows are read


@dataclass(frozen=True)
class RowHashes:
    """Labels and hashes of a split's rows, each of shape (rows,); 0 for a missing sentence."""

    label: Integers  # class index; -1 where there is none
    exact: Integers  # of the texts as they are
    first: Integers  # of the normalized sentences
    second: Integers

    def __len__(self) -> int:
        return len(self.label)

    @property
    def ordered(self) -> Integers:
        """One hash a pair, which changes when its sentences swap."""
        return text_hashes.ordered_pair_hash(self.first, self.second)

    @property
    def unordered(self) -> Integers:
        """One hash a pair, the same when its sentences swap."""
        return text_hashes.unordered_pair_hash(self.first, self.second)

    def complete(self, paired: bool) -> NDArray[np.bool_]:
        """Whether each row has every sentence."""
        complete: NDArray[np.bool_] = self.first != 0
        return complete & (self.second != 0) if paired else complete


@dataclass(frozen=True)
class CachedDataset:
    """The rows of a source on disk: an Arrow file a split, and `dataset.json` with these fields."""

    folder: Path
    source: str  # its name, as shown to the user
    revision: str  # commit of a Hub dataset; empty otherwise
    choices: dict[str, str]  # column -> why it cannot be used, or ""
    columns: Columns
    labels: list[str]  # names of the classes, by index
    rows: dict[str, int]  # split -> number of rows
    unreadable: dict[str, int]  # split -> number of rows that could not be read
    examples: dict[str, list[tuple[int, str]]]  # split -> line and reason of some of those
    notes: list[str]  # remarks for the user on how it was read
    splits: dict[str, str]  # split -> the source's own name of it
    named_labels: bool  # whether the source itself names its classes

    @property
    def paired(self) -> bool:
        return bool(self.columns.sentence2)

    @property
    def sentence_columns(self) -> list[str]:
        return ["sentence1", "sentence2"] if self.paired else ["sentence1"]

    def split(self, name: str) -> Dataset:
        """One split, memory-mapped."""
        return Dataset.from_file(str(self.folder / f"{name}.arrow"))

    def hashes(self) -> dict[str, RowHashes]:
        """Labels and hashes of every split."""
        return {name: self._hashes(name) for name in self.rows}

    def _hashes(self, name: str) -> RowHashes:
        columns = {key: np.empty(self.rows[name], np.int64) for key in _HASH_COLUMNS}
        start = 0
        for batch in self.batches(name):
            for key, values in columns.items():
                values[start : start + len(batch)] = batch.column(key).to_numpy()
            start += len(batch)
        return RowHashes(**columns)

    def batches(self, name: str) -> Iterator[pa.RecordBatch]:
        """One split in order, a batch at a time.

        Not memory-mapped, as mapped pages would count as this process's memory.
        """
        path = str(self.folder / f"{name}.arrow")
        with pa.OSFile(path) as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def select(self, name: str, rows: Integers) -> Iterator[pa.RecordBatch]:
        """The rows of ascending indices, a batch at a time."""
        start = 0
        for batch in self.batches(name):
            low, high = np.searchsorted(rows, (start, start + len(batch)))
            if high > low:
                yield batch.take(pa.array(rows[low:high] - start))
            start += len(batch)


def read_dataset(
    config: RunConfig, root: Path, progress: ProgressCallback = lambda split, rows: None
) -> CachedDataset:
    """All rows of the source that a configuration names, from the cache where it has them.

    Raises:
        DataError: when there is no such source, it cannot be read, or its columns are unclear.
    """
    catalog.check_dataset(config.dataset)
    folder = root / "data" / _folder_name(config)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if (cached := _load_current(config, root)) is not None:
            return cached
        source = sources.open_source(config, root)
        columns = choose_columns(source.columns, source.name, config)
        partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        partial.mkdir()
        try:
            dataset = _Writer(partial, source, columns, progress).write()
            values = {key: value for key, value in asdict(dataset).items() if key != "folder"}
            text = json.dumps(values, ensure_ascii=False)
            (partial / "dataset.json").write_text(text, encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(partial, folder)
        except OSError as error:
            raise disk.failure(f"What was read, in {root},", error, DataError) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return replace(dataset, folder=folder)


def ensure_cached(config: RunConfig, root: Path) -> None:
    """See that the rows of a source are in the cache; a child process reads those that are not.

    Args, Raises: as `read_dataset`.
    """
    if _load_current(config, root) is None:
        child_process.call(
            "finetune.data.dataset_cache:_read", config.to_json(), str(root),
            about="The source of these pairs", seconds=_CHILD_SECONDS, memory=_CHILD_MEMORY,
        )  # fmt: skip


def _read(config: str, root: str) -> None:
    read_dataset(RunConfig.from_json(config), Path(root))


def _load_current(config: RunConfig, root: Path) -> CachedDataset | None:
    """The cached dataset of a configuration, where its source has no newer commit."""
    cached = load_cached(root / "data" / _folder_name(config))
    if cached is None and config.dataset_revision:  # it may have been read as the newest commit
        newest = load_cached(root / "data" / _folder_name(config.changed(dataset_revision="")))
        if newest is not None and newest.revision == config.dataset_revision:
            cached = newest
    if cached is None or sources.has_new_commit(config, cached.revision):
        return None
    return cached


def _folder_name(config: RunConfig) -> str:
    """The cache folder's name, the same for configurations with the same source and columns."""
    values = [str(_VERSION), *(getattr(config, name) for name in SOURCE_FIELDS)]
    if owners.is_shared() and catalog.is_hub_dataset(config.dataset):
        values.append("public")  # read without a token, so it has nobody's private rows
    if config.dataset == BUNDLED_DATASET:
        files = sorted(catalog.BUNDLED_PAIRS.glob("*.csv"))
        values += [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return hashlib.sha256("\0".join(values).encode()).hexdigest()[:24]


def load_cached(folder: Path) -> CachedDataset | None:
    """The cached dataset in a folder; None where there is none, or it is damaged."""
    try:
        values = json_files.read(folder / "dataset.json")
        values["columns"] = Columns(**values["columns"])
        return CachedDataset(folder=folder, **values)
    except (TypeError, KeyError):
        return None


class _Writer:
    """Writes the rows of a source as Arrow files.

    The final numbers of the classes are known after all rows are read, so each file is written
    twice: with the numbers of first appearance, then with the final ones.
    """

    def __init__(
        self, folder: Path, source: sources.Source, columns: Columns, progress: ProgressCallback
    ) -> None:
        self._folder, self._source, self._columns = folder, source, columns
        self._progress = progress
        self._class_names = source.class_names(columns.label)
        self._labels = LabelEncoder(columns.label, self._class_names or [])
        self._unreadable: dict[str, int] = {}
        self._examples: dict[str, list[tuple[int, str]]] = {}
        self._labelled_rows = 0
        self._copies = [0] * len(columns.sentences)  # rows whose label is the sentence's text

    def write(self) -> CachedDataset:
        rows = {split: self._write_rows(split) for split in self._source.splits}
        for column, copies in zip(self._columns.sentences, self._copies, strict=True):
            if self._labelled_rows and copies == self._labelled_rows:
                raise DataError(
                    f"The label column {self._columns.label!r} has the text of {column!r} in "
                    "every row.",
                    "Choose another one as label_column.",
                )
        order = range(len(self._labels.names)) if self._class_names else self._labels.order()
        labels = [self._labels.names[code] for code in order]
        final_codes = np.full(len(labels) + 1, -1, np.int64)  # the last entry maps -1 to -1
        final_codes[list(order)] = np.arange(len(labels))
        for split in rows:
            self._write_labels(split, labels, final_codes)
        notes = list(self._source.notes)
        if merged := sorted(self._labels.merged):
            notes.append(f"Labels that differ in case only are one class: {some(merged)}.")
        return CachedDataset(
            folder=self._folder,
            source=self._source.name,
            revision=self._source.revision,
            choices=self._source.columns,
            columns=self._columns,
            labels=labels,
            rows=rows,
            unreadable=self._unreadable,
            examples=self._examples,
            notes=notes,
            splits=self._source.splits,
            named_labels=self._class_names is not None,
        )

    def _schema(self, label: Any) -> pa.Schema:
        number, text = Value("int64"), Value("string")
        texts = {f"sentence{n}": text for n, _ in enumerate(self._columns.sentences, 1)}
        numbers = {"label": label, "line": number, **dict.fromkeys(_HASH_COLUMNS[1:], number)}
        return Features(**texts, **numbers).arrow_schema

    def _write_rows(self, split: str) -> int:
        """Write texts, hashes and labels by first appearance; the number of rows."""
        self._unreadable[split], self._examples[split] = 0, []

        def count_bad_row(line: int, reason: str) -> None:
            self._unreadable[split] += 1
            if len(self._examples[split]) < MAX_BAD_ROWS:
                self._examples[split].append((line, reason))

        schema = self._schema(Value("int64"))
        total = 0
        with (
            pa.OSFile(str(self._folder / f"{split}.raw"), "wb") as file,
            pa.ipc.new_stream(file, schema) as stream,
        ):
            rows = self._source.rows(split, self._columns, count_bad_row)
            for batch in _batches(map(self._row, rows)):
                columns = zip(*batch, strict=True)
                arrays = [
                    pa.array(column, item.type)
                    for column, item in zip(columns, schema, strict=True)
                ]
                stream.write_batch(pa.record_batch(arrays, schema=schema))
                total += len(batch)
                self._progress(split, total)
        return total

    def _row(self, row: tuple[int, list[Any]]) -> tuple[Any, ...]:
        line, cells = row
        texts = [text_hashes.clean_sentence(cell) for cell in cells[:-1]]
        label = self._labels.code(cells[-1])
        if label >= 0:
            self._labelled_rows += 1
            if (label_text := text_hashes.clean_sentence(cells[-1])) in texts:
                self._copies[texts.index(label_text)] += 1
        hashes = [text_hashes.text_hash(text) for text in texts]
        exact = text_hashes.hash64("\0".join(text or "" for text in texts))
        return (*texts, label, line, exact, hashes[0], hashes[1] if len(hashes) > 1 else 0)

    def _write_labels(self, split: str, labels: list[str], final_codes: Integers) -> None:
        """Write the file of a split again, with the final numbers of its labels."""
        raw = self._folder / f"{split}.raw"
        schema = self._schema(ClassLabel(names=labels) if labels else Value("int64"))
        index = schema.get_field_index("label")
        with (
            pa.OSFile(str(raw)) as file,
            pa.ipc.open_stream(file) as stream,
            pa.OSFile(str(self._folder / f"{split}.arrow"), "wb") as out,
            pa.ipc.new_stream(out, schema) as writer,
        ):
            for batch in stream:
                columns = list(batch.columns)
                columns[index] = pa.array(final_codes[columns[index].to_numpy()])
                writer.write_batch(pa.record_batch(columns, schema=schema))
        raw.unlink()


def _batches(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    batch: list[tuple[Any, ...]] = []
    characters = 0
    for row in rows:
        batch.append(row)
        characters += sum(len(cell) for cell in row[:2] if isinstance(cell, str))
        if len(batch) == _BATCH_ROWS or characters > _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
