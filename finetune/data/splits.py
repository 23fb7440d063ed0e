"""Splits of sentence pairs, ready to be tokenized: which rows of a cached dataset make each."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import DatasetDict

from finetune.config import RunConfig
from finetune.data.columns import positive_class
from finetune.data.dataset_cache import CachedDataset, RowHashes, read_dataset
from finetune.errors import DataError
from finetune.text_hashes import Integers


@dataclass(frozen=True)
class SplitRows:
    """Which rows of a cached dataset make each split."""

    dataset: CachedDataset
    hashes: dict[str, RowHashes]  # of every split of the dataset
    rows: dict[str, tuple[str, Integers]]  # split -> the dataset's split, and indices into it
    left_out: dict[str, dict[str, int]]  # split -> reason -> number of rows
    blocks: list[str]  # why training is impossible; empty where it is possible

    def ordered(self, name: str) -> Integers:
        """One hash a pair of a split, which changes when its sentences swap."""
        origin, rows = self.rows[name]
        return self.hashes[origin].ordered[rows]

    def unordered(self, name: str) -> Integers:
        """One hash a pair of a split, the same when its sentences swap."""
        origin, rows = self.rows[name]
        return self.hashes[origin].unordered[rows]

    def labels(self, name: str) -> Integers:
        """The class of each row of a split."""
        origin, rows = self.rows[name]
        return self.hashes[origin].label[rows]

    def class_counts(self) -> dict[str, list[int]]:
        """Split -> number of rows of each class."""
        classes = len(self.dataset.labels)
        return {
            name: np.bincount(self.labels(name), minlength=classes).tolist() for name in self.rows
        }

    def leaked(self) -> dict[str, int]:
        """Held-out split -> training rows whose pair is in it too, in either order, if any."""
        train = self.unordered("train")
        counts = {
            name: int(np.isin(train, self.unordered(name)).sum())
            for name in self.rows
            if name != "train"
        }
        return {name: count for name, count in counts.items() if count}

    def fingerprint(self, positive: int) -> str:
        """sha256 over the classes' names and the text and label of every row, in order.

        Args:
            positive: index of the class whose F1 is reported.
        """
        names = self.dataset.labels
        digest = hashlib.sha256("\n".join([names[positive], *names]).encode())
        for name, (origin, rows) in self.rows.items():
            hashes = self.hashes[origin]
            digest.update(f"\n{name} {len(rows)}\n".encode())
            digest.update(hashes.exact[rows].tobytes() + hashes.label[rows].tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Pairs:
    """Splits of sentence pairs, ready to be tokenized.

    `splits` has `train` and `validation`, perhaps `test`, with the columns `sentence1`, `sentence2`
    (absent for single sentences) and `label`, a `ClassLabel`. `origin` says as JSON values where
    they come from and what is wrong with them.
    """

    splits: DatasetDict
    labels: list[str]  # names of the classes, by index
    positive: int = 1  # index of the class whose F1 is reported when there are two
    counts: dict[str, list[int]] = field(default_factory=dict)  # split -> rows of each class
    origin: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""  # sha256 over classes, texts and labels, in order
    numbers: dict[str, Integers] = field(default_factory=dict)  # split -> `SplitRows.unordered`


def load_pairs(config: RunConfig, root: Path) -> Pairs:
    """The pairs that a configuration asks for.

    Raises:
        DataError: when the source cannot be read, or what was read cannot be trained on.
    """
    dataset = read_dataset(config, root)
    assigned = assign_rows(dataset, config)
    if assigned.blocks:
        raise DataError(" ".join(assigned.blocks), "The Data tab shows what was read.")
    positive = positive_class(dataset.labels, config.positive_label)
    columns = [*dataset.sentence_columns, "label"]
    splits = DatasetDict(
        {
            name: dataset.split(origin).select_columns(columns).select(rows)
            for name, (origin, rows) in assigned.rows.items()
        }
    )
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
            "leaked": assigned.leaked(),
            "positive_label": dataset.labels[positive],
            # The source's own names of the splits that were not cut from another.
            "splits": {
                name: dataset.splits.get(name, "")
                for name, (origin, _) in assigned.rows.items()
                if origin == name
            },
            "named_labels": dataset.named_labels,
        },
        fingerprint=assigned.fingerprint(positive),
        numbers={name: assigned.unordered(name) for name in ("train", "validation")},
    )


def assign_rows(
    dataset: CachedDataset, config: RunConfig, hashes: dict[str, RowHashes] | None = None
) -> SplitRows:
    """Choose the rows of each split: complete ones, without what the configuration leaves out; a
    validation split is cut from train where there is none.

    The same dataset and configuration give the same rows.

    Args:
        hashes: those of the dataset, where they are read already.
    """
    hashes = hashes or {split: dataset.hashes(split) for split in dataset.rows}
    rows: dict[str, Integers] = {}
    left_out: dict[str, dict[str, int]] = {split: {} for split in hashes}
    origin = {split: split for split in hashes}

    def keep(split: str, kept: Integers, reason: str) -> None:
        if removed := len(rows[split]) - len(kept):
            left_out[split][reason] = removed
        rows[split] = kept

    # 1. Complete and labelled rows, without repeated pairs.
    for split, keys in hashes.items():
        rows[split] = np.arange(len(keys))
        keep(split, np.flatnonzero(keys.complete(dataset.paired)), "a sentence is missing")
        keep(split, rows[split][keys.label[rows[split]] >= 0], "the label is missing")
        if config.drop_duplicates:
            _, first = np.unique(keys.ordered[rows[split]], return_index=True)
            keep(split, rows[split][np.sort(first)], "duplicates")
    # 2. Every run needs a validation split; a test split without labels is of no use.
    if not len(rows.get("validation", ())):
        rows["train"], rows["validation"] = cut_validation(hashes["train"], rows["train"], config)
        origin["validation"] = "train"
        left_out.setdefault("validation", {})
    if not len(rows.get("test", (0,))):
        del rows["test"]
    # 3. What the configuration leaves out.
    if config.drop_leaked:
        held_out = [
            hashes[origin[split]].unordered[rows[split]] for split in rows if split != "train"
        ]
        train = hashes["train"].unordered[rows["train"]]
        keep("train", rows["train"][~np.isin(train, np.concatenate(held_out))], "leaked")
    for split, most in (
        ("train", config.max_train_samples),
        ("validation", config.max_eval_samples),
    ):
        if 0 < most < len(rows[split]):
            rng = np.random.default_rng([config.data_seed, split == "train"])
            sample = np.sort(rng.choice(rows[split], most, replace=False))
            keep(split, sample, "beyond the maximum")
    return SplitRows(
        dataset,
        hashes,
        rows={split: (origin[split], indices) for split, indices in rows.items()},
        left_out=left_out,
        blocks=_blocks(dataset, hashes["train"].label[rows["train"]], len(rows["validation"])),
    )


def _blocks(dataset: CachedDataset, labels: Integers, validation_rows: int) -> list[str]:
    """Why training is impossible; `labels` are those of the training rows."""
    if not len(labels):
        return [f"No row of {dataset.source} can be trained on."]
    if labels.min() == labels.max():
        name = dataset.labels[int(labels[0])]
        return [f"All {len(labels):,} training rows have one class, {name!r}."]
    return [] if validation_rows else ["No row is left for validation."]


def cut_validation(keys: RowHashes, rows: Integers, config: RunConfig) -> tuple[Integers, Integers]:
    """Split training rows into train and validation: each class by its share, no sentence in both.

    Rows that share a sentence form a group (a connected component of the graph whose nodes are
    sentences), and a group goes to one side whole. Groups of one row fill up what larger ones
    leave open. Where one group holds almost everything, its rows are cut apart after all, and the
    checks report the leakage.
    """
    if len(rows) < 2:
        return rows, rows[:0]
    rng = np.random.default_rng(config.data_seed)
    labels = keys.label[rows]
    sizes = np.bincount(labels)
    target = np.where(sizes > 1, np.maximum(1, np.round(sizes * config.validation_share)), 0)
    target = target.astype(np.int64)
    group = sentence_groups(keys.first[rows], keys.second[rows])
    members = np.bincount(group)
    in_validation = np.zeros(len(rows), bool)
    counts = np.zeros_like(target)
    # 1. Groups of several rows, in random order, as long as they fit.
    shared = np.flatnonzero(members[group] > 1)
    shared = shared[np.argsort(group[shared], kind="stable")]
    groups = np.split(shared, np.flatnonzero(np.diff(group[shared])) + 1) if len(shared) else []
    for index in rng.permutation(len(groups)):
        added = np.bincount(labels[groups[index]], minlength=len(target))
        if (counts + added <= target).all():
            in_validation[groups[index]] = True
            counts += added
        if (counts == target).all():
            break
    # 2. Single rows, until every class has its share.
    alone = rng.permutation(np.flatnonzero(members[group] == 1))
    for label in range(len(target)):
        of_class = alone[labels[alone] == label]
        in_validation[of_class[: target[label] - counts[label]]] = True
    # 3. Any rows, where one group holds almost everything.
    if not in_validation.any():
        size = max(1, round(len(rows) * config.validation_share))
        in_validation[rng.permutation(len(rows))[:size]] = True
    return rows[~in_validation], rows[in_validation]


def sentence_groups(first: Integers, second: Integers) -> Integers:
    """The group of every row, shape (rows,): rows that share a sentence, directly or by others."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not second.any():  # single sentences: the same text is the same group
        second = first
    _, nodes = np.unique(np.concatenate([first, second]), return_inverse=True)
    ends = nodes[: len(first)], nodes[len(first) :]
    size = int(nodes.max(initial=0)) + 1
    graph = coo_array((np.ones(len(first), np.int8), ends), shape=(size, size))
    _, groups = connected_components(graph, directed=False)
    return np.asarray(groups[ends[0]], np.int64)
