"""Splits of sentence pairs, ready to be tokenized: which rows of a cached dataset make each."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, DatasetDict

from finetune.config import RunConfig
from finetune.data import validation_cut
from finetune.data.columns import is_positive_plain, positive_class
from finetune.data.dataset_cache import CachedDataset, RowHashes, read_dataset
from finetune.errors import DataError
from finetune.messages import message as _
from finetune.text_hashes import Integers


@dataclass(frozen=True)
class SplitRows:
    """Which rows of a cached dataset make each split."""

    dataset: CachedDataset
    hashes: dict[str, RowHashes]  # of every split of the dataset
    rows: dict[str, tuple[str, Integers]]  # split -> the dataset's split, and indices into it
    left_out: dict[str, dict[str, int]]  # split -> reason -> number of rows
    blocks: list[str]  # why training is impossible; empty where it is possible

    def of(self, name: str) -> RowHashes:
        origin, rows = self.rows[name]
        return self.hashes[origin][rows]

    def class_counts(self) -> dict[str, list[int]]:
        """Split -> number of rows of each class."""
        n = len(self.dataset.labels)
        return {name: np.bincount(self.of(name).label, minlength=n).tolist() for name in self.rows}

    def leaked(self) -> dict[str, Integers]:
        """Held-out split -> training rows whose pair is in it too, in either order."""
        train, (_, rows) = self.of("train").unordered, self.rows["train"]
        held_out = [name for name in self.rows if name != "train"]
        return {name: rows[np.isin(train, self.of(name).unordered)] for name in held_out}

    def fingerprint(self, positive: int) -> str:
        """sha256 over the classes' names and the text and label of every row, in order."""
        names = self.dataset.labels
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
    labels: list[str]  # names of the classes, by index
    positive: int = 1  # index of the class whose F1 is reported when there are two
    counts: dict[str, list[int]] = field(default_factory=dict)  # split -> rows of each class
    origin: dict[str, Any] = field(default_factory=dict)  # JSON: the source, and what is wrong
    fingerprint: str = ""  # sha256 over classes, texts and labels, in order
    numbers: dict[str, Integers] = field(default_factory=dict)  # split -> `RowHashes.unordered`
    folder: Path = Path()  # of the cached dataset


def load_pairs(config: RunConfig, root: Path) -> Pairs:
    """The pairs that a configuration asks for; DataError where they cannot be trained on."""
    dataset = read_dataset(config, root)
    assigned = assign_rows(dataset, config)
    if assigned.blocks:
        raise DataError(" ".join(assigned.blocks), "The Data tab shows what was read.")
    positive = positive_class(dataset.labels, config.positive_label)
    splits, feature = DatasetDict(), ClassLabel(names=dataset.labels)
    for name, (origin, rows) in assigned.rows.items():
        labels = assigned.hashes[origin].label
        texts = dataset.texts(origin).add_column("label", labels, feature=feature)
        splits[name] = texts.select(rows)
    return Pairs(
        splits=splits,
        labels=dataset.labels,
        positive=positive,
        counts=assigned.class_counts(),
        origin={
            "source": dataset.source,
            "revision": dataset.revision,
            "columns": asdict(dataset.columns),
            "rows": {name: len(split) for name, split in splits.items()},
            "left_out": assigned.left_out,
            "unreadable": {split: n for split, n in dataset.unreadable.items() if n},
            "leaked": {name: len(rows) for name, rows in assigned.leaked().items() if len(rows)},
            "positive_label": dataset.labels[positive],
            "positive_assumed": not (config.positive_label or is_positive_plain(dataset.labels)),
            # The source's own names of the splits that were not cut from another.
            "splits": {
                name: dataset.splits.get(name, "")
                for name, (origin, _) in assigned.rows.items()
                if origin == name
            },
            "named_labels": dataset.named_labels,
        },
        fingerprint=assigned.fingerprint(positive),
        numbers={name: assigned.of(name).unordered for name in ("train", "validation")},
        folder=dataset.folder,
    )


def assign_rows(dataset: CachedDataset, config: RunConfig) -> SplitRows:
    """Choose the rows of each split, the same each time: complete ones, without what the
    configuration leaves out; a validation split is cut from train where there is none."""
    hashes = {split: dataset.hashes(split) for split in dataset.rows}
    rows = {split: np.arange(len(keys)) for split, keys in hashes.items()}
    left_out: dict[str, dict[str, int]] = {split: {} for split in hashes}
    origin = {split: split for split in hashes}

    def keep(split: str, remaining: Integers, reason: str) -> None:
        if removed := len(rows[split]) - len(remaining):
            left_out[split][reason] = removed
        rows[split] = remaining

    # 1. Complete and labelled rows, without repeated pairs.
    for split, keys in hashes.items():
        keep(split, np.flatnonzero(keys.complete(dataset.paired)), "a sentence is missing")
        keep(split, rows[split][keys.label[rows[split]] >= 0], "the label is missing")
        if config.drop_duplicates:
            first = np.unique(keys[rows[split]].ordered, return_index=True)[1]
            keep(split, rows[split][np.sort(first)], "duplicates")
    # 2. Every run needs a validation split; a test split without labels is of no use.
    if not len(rows.get("validation", ())):
        keys, share = hashes["train"][rows["train"]], config.validation_share
        cut = validation_cut.cut_validation(keys, share, config.data_seed)
        rows["train"], rows["validation"] = rows["train"][~cut], rows["train"][cut]
        origin["validation"] = "train"
        left_out.setdefault("validation", {})
    if not len(rows.get("test", (0,))):
        del rows["test"]
    # 3. What the configuration leaves out.
    if config.drop_leaked:
        pairs = {split: hashes[origin[split]][rows[split]].unordered for split in rows}
        train = pairs.pop("train")
        leaked = np.isin(train, np.concatenate(list(pairs.values())))
        keep("train", rows["train"][~leaked], "leaked")
    most = {"train": config.max_train_samples, "validation": config.max_eval_samples}
    for split, size in most.items():
        if 0 < size < len(rows[split]):
            rng = np.random.default_rng([config.data_seed, split == "train"])
            sample = np.sort(rng.choice(rows[split], size, replace=False))
            keep(split, sample, "beyond the maximum")
    # 4. Why training is impossible.
    labels, blocks = np.unique(hashes["train"].label[rows["train"]]), []
    if not len(labels):
        blocks = [_("No row of {source} can be trained on.", source=dataset.source)]
    elif len(labels) == 1:
        count, name = len(rows["train"]), dataset.labels[labels[0]]
        text = _("All {count:,} training rows have one class, {name!r}.", count=count, name=name)
        blocks = [text]
    elif not len(rows["validation"]):
        blocks = [_("No row is left for validation.")]
    assigned = {split: (origin[split], indices) for split, indices in rows.items()}
    return SplitRows(dataset, hashes, assigned, left_out, blocks)
