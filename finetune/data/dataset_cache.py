"""What was read of a source: Arrow files on disk with a hash of every sentence.

Reading is done once, row by row, in bounded memory; a second look costs nothing. What compares
rows (duplicates, leakage, groups) compares the hashes and never holds texts. Which rows are used
is `data`'s business.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, Features, Value
from filelock import FileLock

from finetune import disk, json_files, owners, text_hashes
from finetune.config import BUNDLED_DATASET, SOURCE_FIELDS, RunConfig
from finetune.data import catalog, sources
from finetune.data.labels import Vocabulary
from finetune.data.sources import Columns, Source
from finetune.environment import child_process
from finetune.errors import DataError, some
from finetune.text_hashes import Integers

MAX_EXAMPLES = 20  # rows that could not be read, kept to be shown
_VERSION = 1  # of the corpus on disk; another one is read anew
_ROWS = 10_000  # a batch in the Arrow files,
_SECONDS, _MEMORY = 1800, 2**32  # of a child that reads
_CHARACTERS = 2**24  # or fewer rows, where they are as long as books

ProgressCallback = Callable[[str, int], None]  # a split, and how many of its rows are read


@dataclass(frozen=True)
class RowHashes:
    """One split as numbers, each of shape (rows,); 64-bit hashes, 0 for a missing sentence.

    Args:
        label: class index; -1 where there is none.
        exact: of the texts as they are.
        first, second: of each sentence after `hashes.normal`; `second` is 0 for single sentences.
    """

    label: Integers
    exact: Integers
    first: Integers
    second: Integers

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True)
class CachedDataset:
    """What was read of a source, on disk.

    Args:
        folder: one Arrow file a split, and `corpus.json`, which is the rest of this.
        source: what it was read from, for a person.
        revision: commit of a Hub dataset; empty otherwise.
        choices: column -> why it cannot be used, or "" where it can.
        columns: the columns read.
        labels: names of the classes, by index.
        rows: split -> rows read.
        unreadable: split -> rows that could not be.
        examples: split -> line and reason of some of those.
        notes: how it was read, where a person should know.
        splits: our name of a split -> the source's own.
        named_labels: whether the source itself numbers its classes.
    """

    folder: Path
    source: str
    revision: str
    choices: dict[str, str]
    columns: Columns
    labels: list[str]
    rows: dict[str, int]
    unreadable: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    splits: dict[str, str] = field(default_factory=dict)
    named_labels: bool = False

    @property
    def paired(self) -> bool:
        return bool(self.columns.sentence2)

    def split(self, name: str) -> Dataset:
        """One split, memory-mapped."""
        return Dataset.from_file(str(self.folder / f"{name}.arrow"))

    def keys(self, name: str) -> RowHashes:
        """One split as numbers; its texts are read past, not kept."""
        found = {key: np.empty(self.rows[name], np.int64) for key in _KEYS}
        start = 0
        for batch in self.batches(name):
            for key, array in found.items():
                array[start : start + len(batch)] = batch.column(key).to_numpy()
            start += len(batch)
        return RowHashes(**found)

    def batches(self, name: str) -> Iterator[pa.RecordBatch]:
        """One split in order, a batch at a time.

        Not memory-mapped as `split` is: mapped pages would count as this process's memory.
        """
        path = str(self.folder / f"{name}.arrow")
        with pa.OSFile(path) as file, pa.ipc.open_stream(file) as stream:
            yield from stream

    def some(self, name: str, rows: Integers) -> Iterator[pa.RecordBatch]:
        """The rows of some indices, in ascending order, a batch at a time."""
        start = 0
        for batch in self.batches(name):
            low, high = np.searchsorted(rows, (start, start + len(batch)))
            if high > low:
                yield batch.take(pa.array(rows[low:high] - start))
            start += len(batch)


_KEYS = ("label", "exact", "first", "second")


def read_dataset(
    config: RunConfig, root: Path, told: ProgressCallback = lambda split, rows: None
) -> CachedDataset:
    """Everything in the source of a configuration, from what was kept where it was read before.

    Args:
        root: as for `load`.
        told: called now and then while rows are read.

    Raises:
        DataError: when there is no such source, it cannot be read, or its columns are unclear.
    """
    catalog.check_dataset(config.dataset)
    folder = root / "data" / _name(config)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if (known := _current(config, root)) is not None:
            return known
        source = sources.open_source(config, root)
        columns = sources.choose_columns(source, config)
        aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        aside.mkdir()
        try:
            corpus = _Writer(aside, source, columns, told).write()
            (aside / "corpus.json").write_text(_to_json(corpus), encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(aside, folder)
        except OSError as error:
            raise disk.failure(f"What was read, in {root},", error, DataError) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return CachedDataset(**{**corpus.__dict__, "folder": folder})


def ensure(config: RunConfig, root: Path) -> None:
    """See that what `read` gives is kept, without parsing anything in this process: for the app.

    Args, Raises: as `read`.
    """
    if _current(config, root) is None:
        child_process.call(
            "finetune.data.dataset_cache:_read", config.to_json(), str(root),
            about="The source of these pairs", seconds=_SECONDS, memory=_MEMORY,
        )  # fmt: skip


def _read(config: str, root: str) -> None:
    read_dataset(RunConfig.from_json(config), Path(root))


def _current(config: RunConfig, root: Path) -> CachedDataset | None:
    """What was read of a source, where that is still what it has."""
    found = (load_cached(root / "data" / _name(config)), _of_the_same_commit(config, root))
    return next(
        (one for one in found if one and not sources.has_new_commit(config, one.revision)), None
    )


def _of_the_same_commit(config: RunConfig, root: Path) -> CachedDataset | None:
    """What was read as the newest of a Hub dataset, where that was the commit asked for."""
    newest = config.changed(dataset_revision="")
    found = load_cached(root / "data" / _name(newest)) if config.dataset_revision else None
    return found if found is not None and found.revision == config.dataset_revision else None


def _name(config: RunConfig) -> str:
    """The folder's name of what a configuration reads: the same for the same source."""
    values = [str(_VERSION), *(getattr(config, name) for name in SOURCE_FIELDS)]
    if owners.is_shared() and catalog.is_hub_dataset(config.dataset):
        values.append("for everybody")  # read without a token: nobody's private rows
    if config.dataset == BUNDLED_DATASET:
        values += [
            str(path.stat().st_mtime_ns) for path in sorted(catalog.BUNDLED_PAIRS.glob("*.csv"))
        ]
    return hashlib.sha256("\0".join(values).encode()).hexdigest()[:24]


def load_cached(folder: Path) -> CachedDataset | None:
    """The corpus in a folder; None where there is none, or one of another version."""
    try:
        known = json_files.read(folder / "corpus.json")
        known["columns"] = Columns(**known["columns"])
        return CachedDataset(folder=folder, **known)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _to_json(corpus: CachedDataset) -> str:
    values = asdict(corpus)
    del values["folder"]
    return json.dumps(values, ensure_ascii=False)


class _Writer:
    """From the rows of a source to a corpus on disk, in one pass and a quick second one."""

    def __init__(
        self, folder: Path, source: Source, columns: Columns, told: ProgressCallback
    ) -> None:
        self._folder, self._source, self._columns, self._told = folder, source, columns, told
        self._classes = Vocabulary(columns.label, source.classes(columns.label))
        self._paired = bool(columns.sentence2)
        self._unreadable: dict[str, int] = {}
        self._examples: dict[str, list[tuple[int, str]]] = {}
        self._labelled, self._copied = 0, [0] * len(columns.sentences)

    def write(self) -> CachedDataset:
        counts = {split: self._first_pass(split) for split in self._source.splits}
        for column, copied in zip(self._columns.sentences, self._copied, strict=True):
            if self._labelled and copied == self._labelled:
                raise DataError(
                    f"The label column {self._columns.label!r} has the text of {column!r} in "
                    "every row.",
                    "Choose another one as label_column.",
                )
        order = self._order()
        labels = [self._classes.names[code] for code in order]
        place = np.full(len(order) + 1, -1, np.int64)  # the last one is where -1 points
        place[order] = np.arange(len(order))
        for split in counts:
            self._second_pass(split, labels, place)
        return CachedDataset(
            folder=self._folder,
            source=self._source.name,
            revision=self._source.revision,
            choices=self._source.columns,
            columns=self._columns,
            labels=labels,
            rows=counts,
            unreadable=self._unreadable,
            examples=self._examples,
            notes=self._source.notes + self._more_notes(),
            splits=self._source.splits,
            named_labels=self._source.classes(self._columns.label) is not None,
        )

    def _order(self) -> list[int]:
        if self._source.classes(self._columns.label):
            return list(range(len(self._classes.names)))
        return self._classes.order()

    def _more_notes(self) -> list[str]:
        merged = sorted(self._classes.merged)
        return [f"Labels that differ in case only are one class: {some(merged)}."] * bool(merged)

    def _schema(self, labels: list[str] | None) -> pa.Schema:
        number, text = Value("int64"), Value("string")
        label = ClassLabel(names=labels) if labels else number
        sentences = {"sentence1": text} | ({"sentence2": text} if self._paired else {})
        numbers = {"label": label, "line": number, **dict.fromkeys(_KEYS[1:], number)}
        return Features(**sentences, **numbers).arrow_schema

    def _first_pass(self, split: str) -> int:
        """Texts, hashes, and labels by the number of their first sight."""
        schema, total = self._schema(None), 0
        self._unreadable[split], self._examples[split] = 0, []
        rows = self._source.rows(
            split, self._columns, lambda line, text: self._bad(split, line, text)
        )
        held: list[tuple[Any, ...]] = []
        size = 0
        with (
            pa.OSFile(str(self._folder / f"{split}.raw"), "wb") as file,
            pa.ipc.new_stream(file, schema) as stream,
        ):
            for line, cells in rows:
                held.append(self._row(line, cells))
                size += sum(len(cell) for cell in cells if isinstance(cell, str))
                if len(held) == _ROWS or size > _CHARACTERS:
                    total += _flush(stream, schema, held)
                    size = 0
                    self._told(split, total)
            total += _flush(stream, schema, held)
        self._told(split, total)
        return total

    def _bad(self, split: str, line: int, reason: str) -> None:
        self._unreadable[split] += 1
        if len(self._examples[split]) < MAX_EXAMPLES:
            self._examples[split].append((line, reason))

    def _row(self, line: int, cells: list[Any]) -> tuple[Any, ...]:
        texts = [text_hashes.clean_sentence(cell) for cell in cells[:-1]]
        label = self._classes.code(cells[-1])
        if label >= 0:
            self._labelled += 1
            if (said := text_hashes.clean_sentence(cells[-1])) in texts:
                self._copied[texts.index(said)] += 1
        keys = [text_hashes.text_hash(text) for text in texts]
        exact = text_hashes.hash64("\0".join(text or "" for text in texts))
        return (*texts, label, line, exact, keys[0], keys[1] if self._paired else 0)

    def _second_pass(self, split: str, labels: list[str], place: Integers) -> None:
        """The same with the labels' final numbers."""
        raw = self._folder / f"{split}.raw"
        schema = self._schema(labels)
        at = schema.get_field_index("label")
        with (
            pa.OSFile(str(raw)) as source,
            pa.ipc.open_stream(source) as stream,
            pa.OSFile(str(self._folder / f"{split}.arrow"), "wb") as file,
            pa.ipc.new_stream(file, schema) as out,
        ):
            for batch in stream:
                columns = list(batch.columns)
                columns[at] = pa.array(place[columns[at].to_numpy()])
                out.write_batch(pa.record_batch(columns, schema=schema))
        raw.unlink()


def _flush(stream: Any, schema: pa.Schema, held: list[tuple[Any, ...]]) -> int:
    count = len(held)
    if held:
        columns = zip(*held, strict=True)
        arrays = [pa.array(column, one.type) for column, one in zip(columns, schema, strict=True)]
        stream.write_batch(pa.record_batch(arrays, schema=schema))
        held.clear()
    return count
