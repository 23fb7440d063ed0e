"""Assign the rows of a cached dataset to splits of sentence pairs, ready to be tokenized."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from datasets import DatasetDict

from finetune.config import RunConfig
from finetune.data import columns, review, validation_cut
from finetune.data.dataset_cache import CachedDataset, RowHashes, read_dataset
from finetune.errors import DataError
from finetune.findings import Finding, Remedy, how_to_answer
from finetune.messages import message as _
from finetune.metrics.shared_rows import SharedRows
from finetune.tasks.base import LEFT_OUT, MISSING_LABEL, Target
from finetune.tasks.labels import LabelColumn, LabelledRows
from finetune.tasks.registry import find_task
from finetune.text_hashes import Integers

_NO_TEXT, _NO_LABEL = "a sentence is missing", "the label is missing"


@dataclass(frozen=True)
class SplitRows:
    """The rows of a cached dataset that make each split."""

    dataset: CachedDataset
    labels: LabelledRows
    hashes: dict[str, RowHashes]  # of every split of the dataset; labels are targets
    rows: dict[str, tuple[str, Integers]]  # split -> the dataset's split, and indices into it
    left_out: dict[str, dict[str, int]]  # split -> reason -> number of rows

    @property
    def names(self) -> list[str]:
        """The names of the classes or labels, by index."""
        names: list[str] = self.labels.reading.names
        return names

    def of(self, name: str) -> RowHashes:
        """Return the hashes of a split's rows."""
        source_split, rows = self.rows[name]
        return self.hashes[source_split][rows]

    def counts(self) -> dict[str, list[int]]:
        """Split -> number of rows of each class or label."""
        task = find_task(self.dataset.task)
        return {name: task.count(self.of(name).label, self.names) for name in self.rows}

    @property
    def distinct(self) -> list[str]:
        """The splits, without a validation split whose rows are trained on, too."""
        (split, train), (source_split, rows) = self.rows["train"], self.rows["validation"]
        again = split == source_split and np.isin(rows, train).any()
        return [name for name in self.rows if name != "validation" or not again]

    def leaked(self) -> dict[str, Integers]:
        """Held-out split -> training rows whose pair the split also contains, in either order."""
        train, (_, rows) = self.of("train").unordered, self.rows["train"]
        held_out = [name for name in self.distinct if name != "train"]
        return {name: rows[np.isin(train, self.of(name).unordered)] for name in held_out}

    def fingerprint(self, target: Target) -> str:
        """sha256 over the target, and the text and label of every row, in order."""
        names = target.names
        positive = names[target.positive] if names else target.task
        digest = hashlib.sha256("\n".join([positive, *names]).encode())
        for name in self.rows:
            keys = self.of(name)
            digest.update(f"\n{name} {len(keys)}\n".encode())
            digest.update(keys.exact.tobytes() + keys.label.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Pairs:
    """Splits of sentence pairs, ready to be tokenized."""

    # `train`, `validation`, perhaps `test`: `sentence1`, `sentence2` (if paired), `label`
    splits: DatasetDict
    target: Target
    # Split -> number of rows of each class or label.
    counts: dict[str, list[int]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # JSON: the source, and what was left out
    fingerprint: str = ""  # sha256 over classes, texts and labels, in order
    pair_hashes: dict[str, Integers] = field(default_factory=dict)  # of train and validation
    shared: SharedRows | None = None  # which validation pairs share a sentence
    folder: Path = Path()  # of the cached dataset


def load_pairs(config: RunConfig, root: Path) -> Pairs:
    """Load the pairs that a configuration asks for; DataError if they cannot be trained on."""
    dataset = read_dataset(config, root)
    assigned, remarks = assign_rows(dataset, config), [*chain(*dataset.remarks.values())]
    for finding in [*remarks, *half_lost(assigned, config)]:
        if finding.severity == "blocks":
            raise DataError(finding.title, finding.action)
    assigned = hold_out(assigned, config)
    dataset, task = assigned.dataset, find_task(dataset.task)
    target = task.target(assigned.labels)
    splits, feature = DatasetDict(), task.feature(target)
    for name, (source_split, rows) in assigned.rows.items():
        labels = np.zeros_like(assigned.hashes[source_split].label)
        labels[rows] = assigned.of(name).label
        column = labels if labels.ndim == 1 else list(labels)  # Arrow takes no table as a column
        texts = dataset.texts(source_split).add_column("label", column, feature=feature)
        splits[name] = texts.select(rows)
    return Pairs(
        splits=splits,
        target=target,
        counts=assigned.counts(),
        facts={
            "source": dataset.source,
            "revision": dataset.revision,
            "columns": {
                role: name
                for role, name in asdict(dataset.columns).items()
                if name or role != "status"
            },
            "reading": [*dataset.notes, *(one.title for one in remarks if one.kind != "sheet")],
            "rows": {name: len(split) for name, split in splits.items()},
            "left_out": assigned.left_out,
            "unreadable": {split: n for split, n in dataset.unreadable.items() if n},
            "leaked": {name: len(rows) for name, rows in assigned.leaked().items() if len(rows)},
            **task.facts(target, config),
            # The source's own names of the splits that were not cut from another.
            "splits": {
                name: dataset.splits.get(name, "")
                for name, (source_split, _) in assigned.rows.items()
                if source_split == name
            },
            "named_labels": dataset.named_labels,
        },
        fingerprint=assigned.fingerprint(target),
        pair_hashes={name: assigned.of(name).unordered for name in ("train", "validation")},
        shared=SharedRows(assigned.of("validation").first, assigned.of("validation").second),
        folder=dataset.folder,
    )


def half_lost(assigned: SplitRows, config: RunConfig) -> Iterator[Finding]:
    """Ask whether to go on without half of a split's rows or more, because these cannot be read, or
    have no text or no label. Nothing is asked about a test split without labels."""
    dataset = assigned.dataset
    for split, read in dataset.rows.items():
        counts = assigned.left_out[split]
        apart = sum(r.count for r in dataset.remarks.get(split, ()) if r.kind in review.LOST)
        unreadable, unlabelled = dataset.unreadable.get(split, 0), counts.get(_NO_LABEL, 0) + apart
        rows, lost = read + unreadable + apart, unreadable + unlabelled + counts.get(_NO_TEXT, 0)
        if not lost or 2 * lost < rows or split not in {*assigned.rows, "train", "validation"}:
            continue
        title = _(
            "{lost:,} of {rows:,} rows of {split} cannot be read, or have no text or no label.",
            lost=lost,
            rows=rows,
            split=split,
        )
        if config.lost_rows == "leave_out":
            undo = [Remedy("lost_rows", "ask", _("Undo"))]
            yield Finding("half-lost", "notes", title, 0, _("You chose it."), [], undo, True)
            continue
        used = asdict(dataset.columns).values()
        others = [name for name, why in dataset.choices.items() if not why and name not in used]
        answers = [columns.chosen("label", name) for name in others if unlabelled]
        if lost < rows:
            answers.insert(0, Remedy("lost_rows", "leave_out", _("Leave them out")))
        if answers:
            yield Finding("half-lost", "blocks", title, 0, how_to_answer(answers), [], answers)


def assign_rows(dataset: CachedDataset, config: RunConfig) -> SplitRows:
    """Choose the rows of each split deterministically: complete rows, except those that the
    configuration leaves out. If there is no validation split, one is cut from train. With folds,
    train and validation both have all rows of the two, which `hold_out` divides."""
    dataset, task = dataset.joined() if config.folds else dataset, find_task(dataset.task)
    hashes = {split: dataset.hashes(split) for split in dataset.rows}
    column = LabelColumn(
        config,
        dataset.columns.label,
        dataset.source,
        dataset.spellings,
        dataset.named_labels,
        {split: keys.label for split, keys in hashes.items()},
        bool(columns.parts_of(dataset.columns.label, dataset.choices)),
    )
    reading: Any = task.read(column)
    anew = True
    while anew:
        targets = {
            s: replace(keys, label=reading.targets(keys.label)) for s, keys in hashes.items()
        }
        assigned = _assign(dataset, targets, config, LabelledRows(column, reading, {}))
        reading, anew = task.settle(assigned.labels)
    return replace(assigned, labels=replace(assigned.labels, reading=reading))


def hold_out(assigned: SplitRows, config: RunConfig) -> SplitRows:
    """Divide the rows of a configuration with folds: all but one fold are trained on, and that one
    is the validation split. For the run that trains on all rows, the validation split has them fold
    by fold, as the other runs have answered them. DataError if the folds cannot be cut."""
    if not config.folds:
        return assigned
    (split, rows), keys, task = assigned.rows["train"], assigned.of("train"), assigned.dataset.task
    strata = find_task(task).strata(keys.label)
    names = assigned.names
    fold = validation_cut.cut_folds(keys, strata, config.folds, config.data_seed, names)
    if config.trains_on_all:
        divided = {"validation": (split, rows[np.argsort(fold, kind="stable")])}
    else:
        held_out = fold == config.fold
        divided = {"train": (split, rows[~held_out]), "validation": (split, rows[held_out])}
    return replace(assigned, rows=assigned.rows | divided)


def _assign(
    dataset: CachedDataset, hashes: dict[str, RowHashes], config: RunConfig, labels: LabelledRows
) -> SplitRows:
    """Choose the rows of each split, given the targets of all rows."""
    task = find_task(dataset.task)
    rows = {split: np.arange(len(keys)) for split, keys in hashes.items()}
    left_out: dict[str, dict[str, int]] = {split: {} for split in hashes}
    source_of = {split: split for split in hashes}

    def keep(split: str, remaining: Integers, reason: str) -> None:
        if removed := len(rows[split]) - len(remaining):
            left_out[split][reason] = removed
        rows[split] = remaining

    # 1. Complete and labelled rows, without repeated pairs.
    for split, keys in hashes.items():
        states = task.states(keys.label)
        keep(split, np.flatnonzero(keys.complete(dataset.paired)), _NO_TEXT)
        keep(split, rows[split][states[rows[split]] != MISSING_LABEL], _NO_LABEL)
        keep(split, rows[split][states[rows[split]] != LEFT_OUT], task.left_out)
        if config.drop_duplicates:
            first = np.unique(keys[rows[split]].ordered, return_index=True)[1]
            keep(split, rows[split][np.sort(first)], "duplicates")
    # 2. Every run needs a validation split; a test split without labels is of no use.
    if not config.folds and not len(rows.get("validation", ())):
        keys, share = hashes["train"][rows["train"]], config.validation_share
        strata = task.strata(keys.label)
        cut = validation_cut.cut_validation(keys, strata, share, config.data_seed)
        rows["train"], rows["validation"] = rows["train"][~cut], rows["train"][cut]
        source_of["validation"] = "train"
        left_out.setdefault("validation", {})
    if not len(rows.get("test", (0,))):
        del rows["test"]
    # 3. What the configuration leaves out.
    if config.drop_leaked:
        pairs = {split: hashes[source_of[split]][rows[split]].unordered for split in rows}
        train = pairs.pop("train")
        leaked = np.isin(train, np.concatenate([train[:0], *pairs.values()]))
        keep("train", rows["train"][~leaked], "leaked")
    if config.folds:
        rows["validation"], source_of["validation"] = rows["train"], "train"
        left_out["validation"] = {}
    labels = replace(
        labels, rows={split: (source_of[split], indices) for split, indices in rows.items()}
    )
    most = {"train": config.max_train_samples, "validation": config.max_eval_samples}
    for split, size in most.items():
        if 0 < size < len(rows[split]):
            rng = np.random.default_rng([config.data_seed, split == "train"])
            sample = np.sort(rng.choice(rows[split], size, replace=False))
            keep(split, sample, "beyond the maximum")
    if config.folds:
        rows["validation"] = rows["train"]
    assigned = {split: (source_of[split], indices) for split, indices in rows.items()}
    return SplitRows(dataset, labels, hashes, assigned, left_out)
