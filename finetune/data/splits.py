"""Splits of sentence pairs, ready to be tokenized: the rows of a cached dataset that make each."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, DatasetDict

from finetune.config import RunConfig
from finetune.data import reading_findings, validation_cut
from finetune.data.classes import (
    LEFT_OUT,
    MISSING_LABEL,
    Classes,
    is_positive_plain,
    make_classes,
    positive_class,
)
from finetune.data.dataset_cache import CachedDataset, RowHashes, read_dataset
from finetune.errors import DataError, some
from finetune.messages import message as _
from finetune.tasks.base import Target
from finetune.text_hashes import Integers

RARE = 5  # a class of fewer training rows is asked about


@dataclass(frozen=True)
class SplitRows:
    """The rows of a cached dataset that make each split."""

    dataset: CachedDataset
    classes: Classes
    rare: dict[str, int]  # class of few training rows -> their number, also after an answer
    hashes: dict[str, RowHashes]  # of every split of the dataset; labels are classes
    rows: dict[str, tuple[str, Integers]]  # split -> the dataset's split, and indices into it
    left_out: dict[str, dict[str, int]]  # split -> reason -> number of rows
    blocks: dict[str, str]  # kind of finding -> why training is impossible

    @property
    def labels(self) -> list[str]:
        """The names of the classes, by index."""
        return self.classes.names

    def of(self, name: str) -> RowHashes:
        source_split, rows = self.rows[name]
        return self.hashes[source_split][rows]

    def class_counts(self) -> dict[str, list[int]]:
        """Split -> number of rows of each class."""
        n = len(self.labels)
        return {name: np.bincount(self.of(name).label, minlength=n).tolist() for name in self.rows}

    def leaked(self) -> dict[str, Integers]:
        """Held-out split -> training rows whose pair is in it, too, in either order."""
        train, (_, rows) = self.of("train").unordered, self.rows["train"]
        held_out = [name for name in self.rows if name != "train"]
        return {name: rows[np.isin(train, self.of(name).unordered)] for name in held_out}

    def fingerprint(self, positive: int) -> str:
        """sha256 over the classes' names and the text and label of every row, in order."""
        names = self.labels
        digest = hashlib.sha256("\n".join([names[positive], *names]).encode())
        for name in self.rows:
            keys = self.of(name)
            digest.update(f"\n{name} {len(keys)}\n".encode())
            digest.update(keys.exact.tobytes() + keys.label.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Pairs:
    """Splits of sentence pairs, ready to be tokenized."""

    # `train`, `validation`, perhaps `test`: `sentence1`, `sentence2` (if paired), `label` (a class)
    splits: DatasetDict
    target: Target
    counts: dict[str, list[int]] = field(default_factory=dict)  # split -> rows of each class
    facts: dict[str, Any] = field(default_factory=dict)  # JSON: the source, and what was left out
    fingerprint: str = ""  # sha256 over classes, texts and labels, in order
    pair_hashes: dict[str, Integers] = field(default_factory=dict)  # of train and validation
    folder: Path = Path()  # of the cached dataset


def load_pairs(config: RunConfig, root: Path) -> Pairs:
    """Load the pairs that a configuration asks for; DataError if they cannot be trained on."""
    dataset = read_dataset(config, root)
    reading_findings.check_answered(dataset.remarks)
    assigned = assign_rows(dataset, config)
    if assigned.blocks:
        raise DataError(" ".join(assigned.blocks.values()), "The Data tab shows what was read.")
    if assigned.rare and config.rare_classes == "ask":
        raise DataError(*ask_about_rare(assigned.rare))
    positive = positive_class(assigned.labels, config.positive_label)
    splits, feature = DatasetDict(), ClassLabel(names=assigned.labels)
    for name, (source_split, rows) in assigned.rows.items():
        # -1 is the only negative label of `ClassLabel`.
        labels = np.maximum(assigned.hashes[source_split].label, MISSING_LABEL)
        texts = dataset.texts(source_split).add_column("label", labels, feature=feature)
        splits[name] = texts.select(rows)
    return Pairs(
        splits=splits,
        target=Target(tuple(assigned.labels), positive),
        counts=assigned.class_counts(),
        facts={
            "source": dataset.source,
            "revision": dataset.revision,
            "columns": asdict(dataset.columns),
            "reading": [*dataset.notes, *reading_findings.titles(dataset.remarks)],
            "rows": {name: len(split) for name, split in splits.items()},
            "left_out": assigned.left_out,
            "unreadable": {split: n for split, n in dataset.unreadable.items() if n},
            "leaked": {name: len(rows) for name, rows in assigned.leaked().items() if len(rows)},
            "positive_label": assigned.labels[positive],
            "positive_assumed": not (config.positive_label or is_positive_plain(assigned.labels)),
            # The source's own names of the splits that were not cut from another.
            "splits": {
                name: dataset.splits.get(name, "")
                for name, (source_split, _) in assigned.rows.items()
                if source_split == name
            },
            "named_labels": dataset.named_labels,
        },
        fingerprint=assigned.fingerprint(positive),
        pair_hashes={name: assigned.of(name).unordered for name in ("train", "validation")},
        folder=dataset.folder,
    )


def ask_about_rare(rare: dict[str, int]) -> tuple[str, str]:
    """Ask whether classes of few training rows are real; returns the question and how to answer
    it."""
    text = _(
        "Classes of fewer than {few} training rows: {names}.",
        few=RARE,
        names=some([f"{name!r} ({count})" for name, count in rare.items()]),
    )
    remedy = _(
        "Say whether they are typing errors (label_map, such as 'old=new'), rows to leave out "
        "(rare_classes: leave_out) or classes (keep)."
    )
    return text, remedy


def assign_rows(dataset: CachedDataset, config: RunConfig) -> SplitRows:
    """Choose the rows of each split, the same each time: complete ones, without what the
    configuration leaves out. A validation split is cut from train if there is none."""
    hashes = {split: dataset.hashes(split) for split in dataset.rows}
    labels = np.concatenate([keys.label for keys in hashes.values()])
    spelled = np.bincount(labels[labels >= 0], minlength=len(dataset.spellings))
    named, changes = dataset.named_labels, config.changed_labels
    classes = make_classes(dataset.spellings, spelled, named, changes)
    rare: dict[str, int] = {}
    while True:
        assigned = _assign(dataset, classes, hashes, config)
        rare |= assigned.rare
        if not assigned.rare or config.rare_classes != "leave_out":
            return replace(assigned, rare=rare)
        classes = classes.left_out(list(assigned.rare))


def _assign(
    dataset: CachedDataset, classes: Classes, spelled: dict[str, RowHashes], config: RunConfig
) -> SplitRows:
    """Choose the rows of each split, given the classes of the spellings."""
    codes = np.append(classes.codes, MISSING_LABEL)  # the last entry maps -1 to -1
    hashes = {split: replace(keys, label=codes[keys.label]) for split, keys in spelled.items()}
    rows = {split: np.arange(len(keys)) for split, keys in hashes.items()}
    left_out: dict[str, dict[str, int]] = {split: {} for split in hashes}
    source_of = {split: split for split in hashes}

    def keep(split: str, remaining: Integers, reason: str) -> None:
        if removed := len(rows[split]) - len(remaining):
            left_out[split][reason] = removed
        rows[split] = remaining

    # 1. Complete and labelled rows, without repeated pairs.
    for split, keys in hashes.items():
        keep(split, np.flatnonzero(keys.complete(dataset.paired)), "a sentence is missing")
        keep(split, rows[split][keys.label[rows[split]] != MISSING_LABEL], "the label is missing")
        keep(split, rows[split][keys.label[rows[split]] != LEFT_OUT], "the label is no class")
        if config.drop_duplicates:
            first = np.unique(keys[rows[split]].ordered, return_index=True)[1]
            keep(split, rows[split][np.sort(first)], "duplicates")
    # 2. Every run needs a validation split; a test split without labels is of no use.
    if not len(rows.get("validation", ())):
        keys, share = hashes["train"][rows["train"]], config.validation_share
        cut = validation_cut.cut_validation(keys, share, config.data_seed)
        rows["train"], rows["validation"] = rows["train"][~cut], rows["train"][cut]
        source_of["validation"] = "train"
        left_out.setdefault("validation", {})
    if not len(rows.get("test", (0,))):
        del rows["test"]
    # 3. What the configuration leaves out.
    if config.drop_leaked:
        pairs = {split: hashes[source_of[split]][rows[split]].unordered for split in rows}
        train = pairs.pop("train")
        leaked = np.isin(train, np.concatenate(list(pairs.values())))
        keep("train", rows["train"][~leaked], "leaked")
    counts = {
        split: np.bincount(hashes[source_of[split]].label[indices], minlength=len(classes.names))
        for split, indices in rows.items()
    }
    most = {"train": config.max_train_samples, "validation": config.max_eval_samples}
    for split, size in most.items():
        if 0 < size < len(rows[split]):
            rng = np.random.default_rng([config.data_seed, split == "train"])
            sample = np.sort(rng.choice(rows[split], size, replace=False))
            keep(split, sample, "beyond the maximum")
    # 4. Why training is impossible, or which classes have to be asked about.
    blocks = _blocks(dataset.source, dataset.columns.label, classes, counts)
    found = np.sum(list(counts.values()), axis=0) > 0
    rare = np.flatnonzero(found & (counts["train"] < RARE)).tolist()
    if blocks or dataset.named_labels:  # classes named by the source are intended
        rare = []
    assigned = {split: (source_of[split], indices) for split, indices in rows.items()}
    few = {classes.names[code]: int(counts["train"][code]) for code in rare}
    return SplitRows(dataset, classes, few, hashes, assigned, left_out, blocks)


def _blocks(
    source: str, column: str, classes: Classes, counts: dict[str, Integers]
) -> dict[str, str]:
    """The reasons why training is impossible, from the rows of each class by split."""
    train = counts["train"]
    rows, present = int(train.sum()), np.flatnonzero(train)
    if classes.unknown:
        names = some(classes.unknown)
        text = _("label_map changes {names}, which no row has as its label.", names=names)
        return {"label-map": text}
    if not rows:
        return {"impossible": _("No row of {source} can be trained on.", source=source)}
    if len(present) == 1:
        name = classes.names[present[0]]
        text = _("All {count:,} training rows have one class, {name!r}.", count=rows, name=name)
        return {"impossible": text}
    if 2 * len(present) > rows:
        text = _(
            "The column {column!r} has {classes:,} different values in {count:,} training rows: "
            "texts or ids rather than classes.",
            column=column,
            classes=len(present),
            count=rows,
        )
        return {"too-many-classes": text}
    if not counts["validation"].sum():
        return {"impossible": _("No row is left for validation.")}
    return {}
