"""Rows of a source, cached on disk: texts as Arrow files, labels and hashes as arrays."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pydantic.dataclasses
from datasets import Dataset
from datasets.table import MemoryMappedTable, concat_tables
from filelock import FileLock
from numpy.typing import NDArray
from pydantic import TypeAdapter

from finetune import disk, owners, text_hashes
from finetune.config import RunConfig
from finetune.data import catalog, hub_access, review, sources
from finetune.data.columns import (
    NESTED,
    SAMPLE_ROWS,
    choices_of,
    choose_columns,
    unread_split,
)
from finetune.data.sources import CellRows, Source
from finetune.environment import child_process
from finetune.errors import DataError
from finetune.findings import Example, Finding, in_split, shorten
from finetune.messages import Text, message
from finetune.runs.summary import ColumnNames
from finetune.tasks.base import CUT_SCORES, Task
from finetune.tasks.classes import LabelEncoder
from finetune.tasks.registry import find_task, recognise
from finetune.text_hashes import Integers

MAX_BAD_ROWS = 1000  # of a split, kept with their reasons
PREVIEW_ROWS, PREVIEW_CHARACTERS = 10, 400  # characters of each sentence
_BATCH_ROWS = 1000  # written together
_CHILD_SECONDS, _CHILD_MEMORY = 1800, 2**32

ProgressCallback = Callable[[str, int], None]  # a split, and how many of its rows are read


@dataclass(frozen=True)
class RowHashes:
    """Labels and hashes of a split's rows; 0 for a missing sentence.

    All but `label` have the shape (rows,).
    """

    # What the label column says, of shape (rows, ...) and any type: the numbers of the task's
    # encoder, or its targets.
    label: NDArray[Any]
    line: Integers  # in the source, from 1, which is the header's if there is one
    exact: Integers  # of the texts as they are
    first: Integers  # of the normalized sentences
    second: Integers

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, rows: Integers) -> Self:
        return replace(self, **{name: values[rows] for name, values in vars(self).items()})

    @property
    def ordered(self) -> Integers:
        return text_hashes.ordered_pair_hash(self.first, self.second)

    @property
    def unordered(self) -> Integers:
        return text_hashes.unordered_pair_hash(self.first, self.second)

    def complete(self, paired: bool) -> NDArray[np.bool_]:
        """Mask of the rows that have every sentence, shape (rows,)."""
        complete: NDArray[np.bool_] = self.first != 0
        return complete & (self.second != 0) if paired else complete


@pydantic.dataclasses.dataclass(frozen=True)
class CachedDataset:
    """The rows of a source on disk: three files a split, and `dataset.json` with these fields."""

    folder: Path
    source: str  # its name, as shown to the user
    revision: str  # commit of a Hub dataset; empty otherwise
    choices: dict[str, Text]  # column -> why it cannot be used, or ""
    columns: ColumnNames
    task: str
    spellings: list[str]  # of the labels
    rows: dict[str, int]  # split -> number of rows
    unreadable: dict[str, int]  # split -> number of rows that could not be read
    examples: dict[str, list[Example]]  # split -> some of these, each with its reason
    notes: list[Text]  # facts for the user on how it was read
    remarks: dict[str, list[Finding]]  # split -> remarks on how its file was read
    splits: dict[str, str]  # split -> the source's own name of it
    named_labels: bool  # True if the source names its classes
    sheets: list[str]  # of a workbook
    behind: int = 0  # rows of `validation` that `train` has behind its own

    @property
    def paired(self) -> bool:
        return bool(self.columns.sentence2)

    def joined(self) -> Self:
        """The same rows, with those of the validation split behind those of train."""
        if "validation" not in self.rows:
            return self
        rows, names = dict(self.rows), dict(self.splits)
        behind = rows.pop("validation")
        rows["train"] += behind
        names["train"] += f" + {names.pop('validation')}"
        return replace(self, rows=rows, splits=names, behind=behind)

    def texts(self, split: str) -> Dataset:
        """The sentences of a split, memory-mapped."""
        paths = [self.folder / f"{part}.arrow" for part in self._parts(split)]
        facts = " ".join(f"{path.resolve()} {path.stat().st_mtime_ns}" for path in paths)
        # With a fingerprint of our own: that of `Dataset.from_file` fails while another thread of
        # the app imports transformers.
        fingerprint = hashlib.sha256(facts.encode()).hexdigest()[:16]
        tables = [MemoryMappedTable.from_file(str(path)) for path in paths]
        return Dataset(concat_tables(tables), fingerprint=fingerprint)

    def hashes(self, split: str) -> RowHashes:
        """The labels of a split, whose numbers are those of `spellings`, and its hashes."""
        paths = [self.folder / part for part in self._parts(split)]
        labels = np.concatenate([np.load(f"{path}-labels.npy") for path in paths])
        return RowHashes(labels, *np.concatenate([np.load(f"{path}.npy") for path in paths], 1))

    def origins(self, split: str, rows: Integers) -> Iterator[tuple[str, Integers]]:
        """Yield each split of the source that a split consists of, and which of the rows are its
        own."""
        first = self.rows[split] - self.behind * (split == "train")
        for part, name in enumerate(self._parts(split)):
            yield name, rows[(rows >= first) == part]

    def _parts(self, split: str) -> list[str]:
        return ["train", "validation"] if self.behind and split == "train" else [split]

    def examples_of(self, split: str, rows: Integers, characters: int) -> list[Example]:
        """Return rows of a split as examples, each sentence cut to this many characters."""
        texts, keys = self.texts(split), self.hashes(split)
        own = {int(row): part for part, some in self.origins(split, rows) for row in some}
        return [
            Example(
                own[row],
                int(keys.line[row]),
                label=find_task(self.task).cell(self.spellings, keys.label[row]),
                **{name: shorten(text or "", characters) for name, text in texts[row].items()},
            )
            for row in rows.tolist()
        ]


def preview_rows(folder: Path, split: str, seed: int | None = None) -> list[Example]:
    """Return the first rows of a split of a cached dataset, or a random sample if there is a seed.
    DataError if the dataset is gone."""
    dataset = load_cached(folder)
    if dataset is None:
        raise DataError("The stored rows of this data are gone.", "Press Examine again.")
    rows = np.arange(dataset.rows[split])
    if seed is not None:
        size = min(PREVIEW_ROWS, len(rows))
        rows = np.sort(np.random.default_rng(seed).choice(rows, size, replace=False))
    return dataset.examples_of(split, rows[:PREVIEW_ROWS], PREVIEW_CHARACTERS)


def read_dataset(
    config: RunConfig, root: Path, progress: ProgressCallback = lambda split, rows: None
) -> CachedDataset:
    """Read all rows of a configuration's source, from the cache if it has them. DataError if the
    source is missing or unreadable, or its columns are unclear."""
    catalog.check_dataset(config.dataset)
    folder = hub_access.pairs_folder(root, config)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if (cached := _load_current(config, root)) is not None:
            return cached
        for left in folder.glob(".*/"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        source = sources.open_source(config, root)
        sample = sample_cells(source, config)
        columns = choose_columns(source.columns, source.name, config, sample)
        remarks = [*source.remarks.get("train", ()), *unread_split(sample, columns)]
        source.remarks["train"] = remarks
        name = message("What was read, in {root},", root=root)
        with (
            tempfile.TemporaryDirectory(prefix=".", dir=folder) as unfinished,
            disk.writing(name, DataError),
        ):
            if config.task or config.score_cut:
                task = find_task(CUT_SCORES if config.score_cut else config.task)
            else:  # the cells of the label column show it
                alone = columns._replace(sentence1="", sentence2="")
                rows = source.rows("train", alone, lambda *_: None, lambda *_: None)
                task = recognise([cells[-1] for _, cells in islice(rows, SAMPLE_ROWS)])
            dataset = _write(Path(unfinished) / "new", source, columns, task, progress)
            values = TypeAdapter(CachedDataset).dump_json(dataset, exclude={"folder"})
            (folder / "dataset.json").unlink(missing_ok=True)  # until every new file is there
            for path in dataset.folder.iterdir():
                shutil.move(path, folder / path.name)
            disk.write_atomically(folder / "dataset.json", values.decode())
    return replace(dataset, folder=folder)


def sample_cells(source: Source, config: RunConfig) -> dict[str, list[Any]]:
    """Read cells of each usable training column to guess columns by: the first rows and some later
    ones. Empty if no column has to be guessed."""
    usable = [name for name, reason in source.columns.items() if reason in ("", NESTED)]
    if all(choices_of(config).values()):
        return {}
    rows = source.cells("train", usable, lambda *_: None)
    first = enumerate(islice(rows, 10 * SAMPLE_ROWS))
    sample = [cells for n, (_, cells) in first if n < SAMPLE_ROWS or n % 10 == 0]
    columns = zip(usable, zip(*sample, strict=True), strict=False)  # no row, no column
    return {name: list(cells) for name, cells in columns}


def ensure_cached(config: RunConfig, root: Path) -> None:
    """Read the rows of a source into the cache, in a child process, unless they are there."""
    if _load_current(config, root) is None:
        confined = owners.policy().confines_workers  # if not, it may need the person's own token
        child_process.call(
            "finetune.data.dataset_cache:_read",
            config.to_json(),
            str(root),
            about=message("The source of this data"),
            seconds=_CHILD_SECONDS,
            memory=_CHILD_MEMORY,
            confinement=hub_access.of_pairs(config, root) if confined else None,
        )


def _read(config: str, root: str) -> None:
    """Call `read_dataset` in an empty folder, so that no name refers to a file."""
    place = Path(root).resolve()
    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):
        read_dataset(RunConfig.from_json(config), place)


def _load_current(config: RunConfig, root: Path) -> CachedDataset | None:
    """The cached dataset of a configuration; None if its source has a newer commit."""
    cached = load_cached(hub_access.pairs_folder(root, config))
    if cached is None and config.dataset_revision:  # it may have been read as the newest commit
        cached = load_cached(hub_access.pairs_folder(root, config.changed(dataset_revision="")))
        if cached is not None and cached.revision != config.dataset_revision:
            return None
    if cached is None or sources.has_new_commit(config, cached.revision):
        return None
    return cached


def load_cached(folder: Path) -> CachedDataset | None:
    """Load the cached dataset in a folder; None if it is missing or damaged. The folder's time
    becomes that of its last use."""
    with contextlib.suppress(ValueError):
        dataset = CachedDataset(folder=folder, **disk.read_json(folder / "dataset.json"))
        with contextlib.suppress(OSError):
            os.utime(folder)
        return dataset
    return None


def _write(
    folder: Path, source: Source, columns: ColumnNames, task: Task, progress: ProgressCallback
) -> CachedDataset:
    class_names = source.classes.get(columns.label)
    encoder = task.encoder(columns.label, class_names or [])
    unreadable = dict.fromkeys(source.splits, 0)
    examples: dict[str, list[Example]] = {split: [] for split in source.splits}
    left_out: dict[str, dict[str, list[int]]] = {split: {} for split in source.splits}
    numbers: dict[str, Integers] = {}  # split -> the hashes of `RowHashes`, a row each

    def note_bad(split: str, line: int, reason: str) -> None:
        unreadable[split] += 1
        if len(examples[split]) < MAX_BAD_ROWS:
            examples[split].append(Example(split, line, note=reason))

    def note_left_out(split: str, line: int, reason: str) -> None:
        left_out[split].setdefault(reason, []).append(line)

    folder.mkdir()
    for split in source.splits:
        rows = source.rows(split, columns, partial(note_bad, split), partial(note_left_out, split))
        path, told = folder / f"{split}.arrow", partial(progress, split)
        labels, numbers[split] = _write_texts(path, rows, columns, encoder, told)
        np.save(folder / f"{split}-labels.npy", labels)
        np.save(folder / f"{split}.npy", numbers[split])
    return CachedDataset(
        folder=folder,
        source=source.name,
        revision=source.revision,
        choices=source.columns,
        columns=columns,
        task=task.name,
        spellings=encoder.spellings,
        rows={split: values.shape[1] for split, values in numbers.items()},
        unreadable=unreadable,
        examples=examples,
        notes=source.notes,
        remarks={
            split: in_split(
                [*source.remarks.get(split, ()), *review.remarks(columns.status, lines)], split
            )
            for split, lines in left_out.items()
        },
        splits=source.splits,
        named_labels=class_names is not None,
        sheets=source.sheets,
    )


def _write_texts(
    path: Path,
    rows: CellRows,
    columns: ColumnNames,
    encoder: LabelEncoder,
    progress: Callable[[int], None],
) -> tuple[NDArray[Any], Integers]:
    """Write the sentences of rows as an Arrow stream, in bounded memory; their labels, and
    their lines and hashes as `RowHashes` has them, of shape (4, rows)."""
    numbers, labels = array("q"), [encoder.no_labels]
    schema = pa.schema([(f"sentence{n}", pa.string()) for n, _ in enumerate(columns.sentences, 1)])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        while batch := list(islice(rows, _BATCH_ROWS)):
            texts = []
            labels.append(np.array([encoder.code(cells[-1]) for _, cells in batch]))
            for line, cells in batch:
                sentences = [text_hashes.clean_sentence(cell) for cell in cells[:-1]]
                first, second = (*map(text_hashes.text_hash, sentences), 0)[:2]
                exact = text_hashes.hash64("\0".join(text or "" for text in sentences))
                numbers.extend((line, exact, first, second))
                texts.append(sentences)
            arrays = [pa.array(column, pa.string()) for column in zip(*texts, strict=True)]
            stream.write_batch(pa.record_batch(arrays, schema=schema))
            progress(len(numbers) // 4)
    return np.concatenate(labels), np.array(numbers, np.int64).reshape(-1, 4).T.copy()
