"""Where pairs come from: the bundled ones, an upload, or the Hub; and which columns hold them.

A source is opened and its columns chosen here; its rows are read by `corpus`. Code that comes
with a dataset is never run.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from datasets import ClassLabel, DatasetDict, Value, load_dataset
from huggingface_hub import DatasetCard, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError

from finetune import hub_errors, owners
from finetune.config import BUNDLED_DATASET, NO_COLUMN, RunConfig, is_upload
from finetune.data import catalog, hub_access, tables, uploads
from finetune.data.uploads import Uploads
from finetune.environment import hub_connection
from finetune.errors import DataError, FinetuneError, some

LABELS = ["not_equivalent", "equivalent"]  # of the bundled pairs, which say 0 and 1


@dataclass(frozen=True)
class Columns:
    """Which columns hold what; `sentence2` is empty for single sentences."""

    sentence1: str
    sentence2: str
    label: str

    @property
    def sentences(self) -> list[str]:
        return [self.sentence1, self.sentence2] if self.sentence2 else [self.sentence1]


class Source(ABC):
    """Named splits of rows, not read yet.

    Attributes:
        name: for a person.
        revision: commit of a Hub dataset.
        splits: our name -> the source's own.
        columns: column -> why it cannot be used, or "".
        notes: how it is read, where a person should know.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.revision = ""
        self.splits: dict[str, str] = {}
        self.columns: dict[str, str] = {}
        self.notes: list[str] = []

    @abstractmethod
    def rows(self, split: str, columns: Columns, bad: tables.Bad) -> Iterator[tables.Row]:
        """Line and cells of one split; a label the split does not have is None.

        Raises:
            DataError: when the split lacks a column of sentences, or breaks off.
        """

    def classes(self, column: str) -> list[str] | None:
        """The names of the classes, where the source says them."""
        return None


class _Files(Source):
    """One file a split: an upload, or the bundled pairs."""

    def __init__(self, name: str, paths: dict[str, Path], called: dict[str, str]) -> None:
        super().__init__(name)
        self._tables = {
            split: tables.open_table(path, called.get(split, path.name))
            for split, path in paths.items()
        }
        self._called = {split: called.get(split, path.name) for split, path in paths.items()}
        self.splits = {split: split for split in paths}
        train = self._tables["train"]
        self.columns = {column: train.unusable.get(column, "") for column in train.columns}
        self.notes = [note for table in self._tables.values() for note in table.notes]

    def rows(self, split: str, columns: Columns, bad: tables.Bad) -> Iterator[tables.Row]:
        table = self._tables[split]
        for column in columns.sentences:
            if column not in table.columns:
                raise DataError(
                    f"{self._called[split]} has no column {column!r}; "
                    f"it has {some(table.columns)}.",
                    "Give every file the same header.",
                )
        labelled = columns.label in table.columns
        wanted = [*columns.sentences, *([columns.label] if labelled else [])]
        for line, cells in table.rows(wanted, bad):
            yield line, cells if labelled else [*cells, None]


class _Bundled(_Files):
    """The pairs that come with the app, whose classes have names."""

    def __init__(self) -> None:
        paths = {split: catalog.BUNDLED_PAIRS / f"{split}.csv" for split in uploads.SPLITS}
        super().__init__("the bundled pairs", paths, {})

    def classes(self, column: str) -> list[str] | None:
        return LABELS if column == "label" else None

    def rows(self, split: str, columns: Columns, bad: tables.Bad) -> Iterator[tables.Row]:
        for line, cells in super().rows(split, columns, bad):
            if columns.label == "label":
                cells[-1] = LABELS[int(cells[-1])]
            yield line, cells


class _Hub(Source):
    """A dataset of the Hub, downloaded by `datasets`; code that comes with it is never run."""

    def __init__(self, config: RunConfig) -> None:
        repo, name = _hub_names(config)
        super().__init__(f"{repo} ({name})" if name else repo)
        if os.path.exists(repo):
            raise DataError(
                f"{repo!r} is a folder here, and would be read in place of the Hub's dataset.",
                "Start in another folder.",
            )
        self.revision = _commit(repo, config.dataset_revision)
        if self.revision:
            _check_card(repo, self.revision)
        self._splits = _download(repo, name, self.revision or config.dataset_revision)
        self.splits = _choose_splits(list(self._splits), config)
        features = self._splits[self.splits["train"]].features
        for column, feature in features.items():
            simple = isinstance(feature, (Value, ClassLabel))
            self.columns[column] = "" if simple else f"is nested ({str(feature)[:60]})"
        self._features = features

    def classes(self, column: str) -> list[str] | None:
        feature = self._features[column]
        return list(feature.names) if isinstance(feature, ClassLabel) else None

    def rows(self, split: str, columns: Columns, bad: tables.Bad) -> Iterator[tables.Row]:
        table = self._splits[self.splits[split]]
        wanted = [*columns.sentences, columns.label]
        present = [column for column in wanted if column in table.column_names]
        names = self.classes(columns.label)
        number = 0
        for batch in table.select_columns(present).iter(1000):
            size = len(batch[present[0]])
            cells = [batch.get(column, [None] * size) for column in wanted]
            if names:
                cells[-1] = [_class_name(names, value) for value in cells[-1]]
            for row in zip(*cells, strict=True):
                number += 1
                yield number, list(row)


def open_source(config: RunConfig, root: Path) -> Source:
    """What a configuration's `dataset` names, ready to be read.

    Raises:
        DataError: when there is no such thing, or it is not to be had.
    """
    name = config.dataset
    catalog.check_dataset(name)
    if name == BUNDLED_DATASET:
        return _Bundled()
    if is_upload(name):
        kept = Uploads(root / "uploads")
        called = kept.called(name)
        return _Files(", ".join(called.values()) or name, kept.files(name), called)
    if reason := catalog.DECLINED.get(name):
        raise DataError(f"{name} cannot be trained on: {reason}", "Choose another dataset.")
    return _Hub(config)


def _hub_names(config: RunConfig) -> tuple[str, str]:
    """Repository and configuration; an offered dataset knows its own."""
    choice = catalog.find_dataset(config.dataset)
    if choice is not None:
        return choice.repo, config.dataset_config_name or choice.config
    return config.dataset, config.dataset_config_name


def _check_card(repo: str, revision: str) -> None:
    """See that a dataset's own description names only files of its own repository.

    `datasets` would fetch any address and open any file that it names.

    Raises:
        DataError: when it names others, or cannot be read.
    """
    try:
        configs = [_described(repo, name, revision) for name in ("README.md", ".huggingface.yaml")]
    except Exception as error:
        raise _refusal(repo, "", revision, error) from error
    for path in _named_files(configs):
        outside = path.startswith(("/", "~")) or ".." in path.split("/")
        if outside or re.search(r"::|\\|^[\w+.-]+:", path):
            raise DataError(
                f"The Hub dataset {repo} names {path!r} as its data, which is no file of its own.",
                "Choose another one, or download it and upload the file.",
            )


def _described(repo: str, file: str, revision: str) -> Any:
    """The `configs` of a dataset's YAML, in its card or beside it; None where it has none."""

    def fetch() -> str:
        return hf_hub_download(
            repo, file, repo_type="dataset", revision=revision, token=hub_access.token()
        )

    try:
        path = Path(hub_errors.retried(fetch))
    except EntryNotFoundError:
        return None
    if file == "README.md":
        return DatasetCard.load(path).data.get("configs")
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values.get("configs") if isinstance(values, dict) else None


def _named_files(described: Any, files: bool = False) -> Iterator[str]:
    """Every text below `data_files` or `data_dir`, however they are nested."""
    if isinstance(described, str):
        yield from [described] * files
    elif isinstance(described, list):
        for one in described:
            yield from _named_files(one, files)
    elif isinstance(described, dict):
        for key, value in described.items():
            if not (files and key == "split"):
                yield from _named_files(value, files or key in ("data_files", "data_dir"))


def _download(repo: str, name: str, revision: str) -> DatasetDict:
    def load() -> Any:
        return load_dataset(repo, name or None, revision=revision or None, token=hub_access.token())

    try:
        found = hub_errors.retried(load)
    except Exception as error:  # its builders raise whatever their readers do
        raise _refusal(repo, name, revision, error) from error
    if not isinstance(found, DatasetDict) or not found:
        raise DataError(f"The Hub dataset {repo} has no splits.", "Choose another one.")
    return found


def _refusal(repo: str, name: str, revision: str, error: Exception) -> FinetuneError:
    """Why the Hub or its client gave no dataset, in words with a remedy."""
    text = str(error)
    if "Config name is missing" in text or (name and "BuilderConfig" in text):
        known = re.findall(r"'([^']+)'", text.split("[", 1)[-1].split("]", 1)[0])
        wrong = f"has no configuration {name!r}" if name else "has several configurations"
        return DataError(
            f"The Hub dataset {repo} {wrong}: {some(known)}.",
            "Choose one as dataset_config_name.",
        )
    if "scripts are no longer supported" in text or "trust_remote_code" in text:
        return DataError(
            f"The Hub dataset {repo} needs code of its own (trust_remote_code), "
            "which is never run.",
            "Choose one stored as Parquet, CSV or JSON, or download it and upload the file.",
        )
    if not hub_errors.cause(error).status and is_offline():
        return hub_errors.refusal("dataset", repo, hub_errors.Cause("silent"))
    return hub_errors.explained("dataset", repo, error, revision) or DataError(
        f"The Hub dataset {repo} could not be read: {hub_errors.first_line(error)}",
        "Check its configuration and revision, or download it and upload the file.",
    )


def _commit(repo: str, revision: str) -> str:
    """The commit a branch or tag stands for now; empty where the Hub cannot be asked.

    Raises:
        DataError: when the Hub knows no such dataset or revision, or would not give it to who
            asks; in a shared app also when it cannot be asked.
    """
    if is_offline():
        if owners.is_shared():  # a library's cache does not say who may read what is in it
            raise hub_errors.refusal("dataset", repo, hub_errors.Cause("silent"))
        return ""
    try:
        return hub_access.info("dataset", repo, revision).sha or ""
    except Exception as error:
        raise _refusal(repo, "", revision, error) from error


def is_offline() -> bool:
    told = os.environ.get("HF_HUB_OFFLINE") == "1" or os.environ.get("HF_DATASETS_OFFLINE") == "1"
    return told or not hub_connection.hub_is_reachable()


def has_new_commit(config: RunConfig, revision: str) -> bool:
    """Whether the Hub has another commit now than this, or than none known.

    What is no Hub dataset has not moved, nor what cannot be asked.

    Raises:
        DataError: when the Hub does not give a visitor the dataset, which was read before.
    """
    if not catalog.is_hub_dataset(config.dataset):
        return False
    if not owners.is_shared() and is_commit(config.dataset_revision):
        return False
    repo, _ = _hub_names(config)
    if is_offline():
        return False
    try:
        found = hub_access.info("dataset", repo, config.dataset_revision).sha
    except Exception as error:
        if owners.is_shared() and hub_errors.cause(error).name in hub_errors.NO_RIGHT:
            raise _refusal(repo, "", config.dataset_revision, error) from error
        return False
    return bool(found and found != revision)


def is_commit(revision: str) -> bool:
    """Whether a revision is a commit, which never changes."""
    return bool(re.fullmatch(r"[0-9a-f]{40}", revision))


_GUESSED_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "validation_matched", "dev", "val", "valid", "eval"),
    "test": ("test", "validation_mismatched"),
}


def _choose_splits(names: list[str], config: RunConfig) -> dict[str, str]:
    """Our splits' names -> the source's.

    Raises:
        DataError: when one that was asked for is not there.
    """
    chosen: dict[str, str] = {}
    for split, guesses in _GUESSED_SPLITS.items():
        asked = getattr(config, f"{split}_split")
        if asked and asked != NO_COLUMN and asked not in names:
            raise DataError(
                f"{config.dataset} has no split {asked!r}; it has {some(names)}.",
                f"Choose one of them as {split}_split.",
            )
        found = asked or next((name for name in guesses if name in names), "")
        if found and found != NO_COLUMN:
            chosen[split] = found
    if "train" not in chosen:
        chosen["train"] = next((n for n in names if n not in chosen.values()), names[0])
    if "validation_mismatched" in names and not config.test_split and "validation" in chosen:
        # MNLI: its own test split has no labels, its second validation split has.
        chosen["test"] = "validation_mismatched"
    return chosen


def _class_name(names: list[str], value: Any) -> str | None:
    """Of a `ClassLabel`'s number; GLUE's test splits say -1 for unknown."""
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


_PAIRS = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"),
    ("texta", "textb"), ("text1", "text2"), ("sentencea", "sentenceb"), ("sent1", "sent2"),
    ("question", "sentence"), ("query", "passage"), ("query", "document"), ("q1", "q2"),
    ("s1", "s2"), ("title1", "title2"), ("a", "b"), ("first", "second"), ("left", "right"),
    ("source", "paraphrase"),
)  # fmt: skip
_SINGLES = ("sentence", "text", "review", "content", "comment", "question", "body", "title")
_LABELS = (
    "label", "labels", "isduplicate", "duplicate", "goldlabel", "isparaphrase", "paraphrase",
    "isequivalent", "equivalent", "class", "category", "target", "quality", "entailmentjudgment",
    "sentiment", "intent", "answer", "same", "match", "score", "similarity", "y",
)  # fmt: skip


def guess_columns(names: Sequence[str]) -> tuple[str, str, str]:
    """The columns of sentence1, sentence2 and label by their names; "" for what is not clear.

    The one column beside known sentences is the label. Three columns of unknown names are taken in
    the order of the common files, two as a text and its label.
    """
    known: dict[str, str] = {}
    for name in names:
        known.setdefault(re.sub(r"[\W_]+", "", name.lower()), name)
    label = next((known[name] for name in _LABELS if name in known), "")
    free = {plain: name for plain, name in known.items() if name != label}
    found = next(((free[a], free[b]) for a, b in _PAIRS if a in free and b in free), None)
    if found is None:
        single = next((free[name] for name in _SINGLES if name in free), "")
        found = (single, "") if single else None
    rest = [name for name in free.values() if name not in (found or ())]
    if found is not None:
        if not label and len(rest) == 1:
            label = rest[0]
        return *found, label
    if not label and len(names) in (2, 3) and len(rest) == len(names):
        *rest, label = rest
    if label and len(rest) in (1, 2):
        return rest[0], rest[1] if len(rest) == 2 else "", label
    return "", "", label


def choose_columns(source: Source, config: RunConfig) -> Columns:
    """The columns to read: those asked for, else guessed from their names.

    Raises:
        DataError: when one asked for is not there or cannot be used, or none can be guessed.
    """
    names = list(source.columns)
    guessed = dict(zip(("sentence1", "sentence2", "label"), guess_columns(names), strict=True))
    found: dict[str, str] = {}
    for what, default in guessed.items():
        asked = getattr(config, f"{what}_column")
        if asked == NO_COLUMN and what == "sentence2":
            found[what] = ""
        elif not asked and source.columns.get(default):
            raise DataError(
                f"The column {default!r} {source.columns[default]}.",
                f"Choose another one as {what}_column.",
            )
        elif not asked:
            found[what] = default
        elif asked not in source.columns:
            raise DataError(
                f"{source.name} has no column {asked!r}; it has {some(list(source.columns))}.",
                f"Choose one of them as {what}_column.",
            )
        elif reason := source.columns[asked]:
            raise DataError(
                f"The column {asked!r} {reason}.", f"Choose another one as {what}_column."
            )
        else:
            found[what] = asked
    columns = Columns(**found)
    for what in ("label", "sentence1"):
        if not found[what]:
            noun = "label" if what == "label" else "sentences"
            raise DataError(
                f"No column of {source.name} is clearly the {noun}: it has "
                f"{some(list(source.columns))}.",
                f"Choose it as {what}_column.",
            )
    given = [*columns.sentences, columns.label]
    if len(set(given)) < len(given):
        raise DataError(
            f"One column is chosen twice: {some(given)}.", "Choose a different one for each."
        )
    return columns
