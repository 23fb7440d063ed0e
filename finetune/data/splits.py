"""Assign the rows of a cached dataset to splits of sentence pairs, ready to be tokenized. A
validation split or folds are cut from the training rows: each class by its share, equal pairs
together."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from datasets import DatasetDict
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.data import columns, review
from finetune.data.dataset_cache import CachedDataset, RowHashes, read_dataset
from finetune.errors import DataError
from finetune.findings import Finding, Remedy, question
from finetune.messages import message as _
from finetune.metrics.shared_rows import SharedRows, linked_rows
from finetune.tasks.base import LEFT_OUT, MISSING_LABEL, Target
from finetune.tasks.labels import LabelledRows, answered
from finetune.tasks.registry import find_task
from finetune.text_hashes import Integers

# Parts of the wanted size that are tried, so that a few large groups do not decide the split.
_SIZES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
_NO_TEXT, _NO_LABEL = "a sentence is missing", "the label is missing"


@dataclass(frozen=True)
class SplitRows:
    """The rows of a cached dataset that make each split."""

    dataset: CachedDataset
    labels: LabelledRows
    hashes: dict[str, RowHashes]  # of every split of the dataset; labels are targets
    rows: dict[str, tuple[str, Integers]]  # split -> the dataset's split, and indices into it
    left_out: dict[str, dict[str, int]]  # split -> reason -> number of rows that could be read

    def of(self, name: str) -> RowHashes:
        """Return the hashes of a split's rows."""
        source_split, rows = self.rows[name]
        return self.hashes[source_split][rows]

    def counts(self) -> dict[str, list[int]]:
        """Split -> number of rows of each class or label; none of a score."""
        size = len(self.labels.reading.names)

        def count(targets: NDArray[Any]) -> Any:
            return np.bincount(targets, None, size) if targets.ndim == 1 else targets.sum(axis=0)

        return {
            split: [*map(int, count(self.of(split).label))] if size else [] for split in self.rows
        }

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
    # Of the pairs of train and validation, and of the sentences of train.
    pair_hashes: dict[str, Integers] = field(default_factory=dict)
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
    named = dataset.columns._asdict().items()
    uncut = [name for name, (source_split, _) in assigned.rows.items() if source_split == name]
    return Pairs(
        splits=splits,
        target=target,
        counts=assigned.counts(),
        facts={
            "source": dataset.source,
            "revision": dataset.revision,
            "columns": {role: name for role, name in named if name or role != "status"},
            "reading": [*dataset.notes, *(one.title for one in remarks if one.kind != "sheet")],
            "rows": {name: len(split) for name, split in splits.items()},
            "left_out": assigned.left_out,
            "unreadable": {split: n for split, n in dataset.unreadable.items() if n},
            "leaked": {name: len(rows) for name, rows in assigned.leaked().items() if len(rows)},
            **task.facts(target, config),
            # The source's own names of the splits that were not cut from another.
            "splits": {name: dataset.splits.get(name, "") for name in uncut},
            "named_labels": dataset.named_labels,
        },
        fingerprint=assigned.fingerprint(target),
        pair_hashes={
            **{name: assigned.of(name).unordered for name in ("train", "validation")},
            "sentences": np.concatenate([assigned.of("train").first, assigned.of("train").second]),
        },
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
            yield answered("half-lost", title, Remedy("lost_rows", "ask", _("Undo")))
            continue
        used = dataset.columns._asdict().values()
        others = [name for name, why in dataset.choices.items() if not why and name not in used]
        answers = [columns.chosen("label", name) for name in others if unlabelled]
        if lost < rows:
            answers.insert(0, Remedy("lost_rows", "leave_out", _("Leave them out")))
        if answers:
            yield question("half-lost", title, answers)


def assign_rows(dataset: CachedDataset, config: RunConfig) -> SplitRows:
    """Choose the rows of each split deterministically: complete rows, except those that the
    configuration leaves out. If there is no validation split, one is cut from train. With folds,
    train and validation both have all rows of the two, which `hold_out` divides."""
    dataset, task = dataset.joined() if config.folds else dataset, find_task(dataset.task)
    hashes = {split: dataset.hashes(split) for split in dataset.rows}
    labels = LabelledRows(
        config,
        dataset.columns.label,
        dataset.source,
        dataset.spellings,
        dataset.named_labels,
        {split: keys.label for split, keys in hashes.items()},
        bool(columns.parts_of(dataset.columns.label, dataset.choices)),
    )
    reading: Any = task.read(labels)
    anew = True
    while anew:
        targets = {
            s: replace(keys, label=reading.targets(keys.label)) for s, keys in hashes.items()
        }
        assigned = _assign(dataset, targets, config, replace(labels, reading=reading))
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
    fold = cut_folds(keys, strata, config.folds, config.data_seed, assigned.labels.reading.names)
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
        cut = cut_validation(keys, task.strata(keys.label), share, config.data_seed)
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
            keep(split, np.sort(rng.choice(rows[split], size, replace=False)), "beyond the maximum")
    if config.folds:
        rows["validation"] = rows["train"]
    assigned = {split: (source_of[split], indices) for split, indices in rows.items()}
    return SplitRows(dataset, labels, hashes, assigned, left_out)


def cut_validation(keys: RowHashes, strata: Integers, share: float, seed: int) -> NDArray[np.bool_]:
    """Choose the rows of a validation split, a mask of shape (rows,).

    Each class gets its share of the split. Rows that share a sentence, directly or through others,
    stay together. If the split would then be less than half of the requested size, or its classes
    off by more than a row, only equal pairs stay together; if one pair is almost everything, no
    rows do. The order of the rows does not matter, but any other row draws all anew.

    `strata`, such as classes, each get their `share` of the rows, from 0 to 1; they have the shape
    (rows,), from 0, or (rows, strata) of 0 and 1 for rows that may be of several.
    """
    if len(keys) < 2:
        return np.zeros(len(keys), bool)
    # At least a row of each class, but never all of one.
    row, stratum = np.nonzero(strata) if strata.ndim > 1 else (np.arange(len(keys)), strata)
    rows = np.bincount(stratum)
    wanted = np.where(rows > 1, np.maximum(1, np.round(rows * share)), 0).astype(np.int64)
    if not wanted.any():  # as many classes as rows
        wanted[stratum[0]] = 1
    shares = wanted / wanted.sum()
    rng = np.random.default_rng(seed)
    linked = linked_rows(keys.first, keys.second if keys.second.any() else keys.first)
    for size in _SIZES:
        chosen = _draw_groups(linked, row, stratum, np.ceil(wanted * size).astype(int), rng)
        got = np.bincount(stratum[chosen[row]], minlength=len(wanted))
        total = int(got.sum())
        # Off by a row, or by half the standard deviation of a random draw if that is more.
        allowed = np.maximum(1.0, np.sqrt(total * shares * (1 - shares)) / 2)
        off = np.abs(got - total * shares) > allowed
        if 2 * total >= wanted.sum() and not off.any():
            return chosen
    equal = np.unique(keys.unordered, return_inverse=True)[1]
    chosen = _draw_groups(equal, row, stratum, wanted, rng)
    if 2 * chosen.sum() >= wanted.sum():
        return chosen
    return _draw_groups(np.arange(len(keys)), row, stratum, wanted, rng)


def cut_folds(
    keys: RowHashes, strata: Integers, folds: int, seed: int, names: Sequence[str] = ()
) -> Integers:
    """Assign each row to a fold, from 1; shape (rows,). No sentence is in two folds, and each
    stratum is spread over them as evenly as that allows. DataError if there are too few groups of
    rows that share sentences, or one is too large for its fold.

    Groups of rows that share sentences go, the largest and then the rarest first, to the fold that
    lacks most of their strata (after Sechidis et al. 2011,
    https://doi.org/10.1007/978-3-642-23808-6_10).

    `strata` are as `cut_validation` takes them; `names` are theirs if they are classes, each of
    which has to be in every fold.
    """
    group = linked_rows(keys.first, keys.second if keys.second.any() else keys.first)
    table = strata if strata.ndim > 1 else np.eye(1 + max(strata, default=0), dtype=int)[strata]
    counts = np.zeros((1 + max(group, default=-1), table.shape[1]), np.int64)
    np.add.at(counts, group, table)
    rows = np.bincount(group, minlength=len(counts))
    if len(counts) < folds:
        raise DataError(
            "{folds} folds need as many groups of rows that share no sentence; there are {n}.",
            "Set folds to 0, or bring more rows.", folds=folds, n=len(counts),
        )  # fmt: skip
    for name, found in zip(names, (counts > 0).sum(axis=0).tolist(), strict=False):
        if 0 < found < folds and strata.ndim == 1:
            raise DataError(
                "{folds} folds need as many groups of rows of each class that share no sentence; "
                "{name} has {n}.",
                _("Set folds to {n} at most, or leave the class out with label_map.", n=found)
                if found > 1 else _("Set folds to 0, or leave the class out with label_map."),
                folds=folds, name=name, n=found,
            )  # fmt: skip
    shares = counts / np.maximum(1, counts.sum(axis=0))
    order = np.random.default_rng(seed).permutation(len(counts))
    order = order[np.lexsort((-shares.max(axis=1)[order], -rows[order]))]
    fold_of, sizes = np.zeros(len(counts), np.int64), np.zeros(folds)
    taken = np.zeros((folds, table.shape[1]))
    for index in order.tolist():
        fold = np.lexsort((sizes, taken @ shares[index]))[0]
        fold_of[index] = fold + 1
        taken[fold] += shares[index]
        sizes[fold] += rows[index]
    if sizes.max() > np.ceil(1.5 * len(keys) / folds):
        raise DataError(
            "{share:.0%} of the rows share sentences with one another, so they cannot be cut into "
            "{folds} folds with no sentence in two.",
            "Set folds to 0, or to fewer.", share=rows.max() / len(keys), folds=folds,
        )  # fmt: skip
    return fold_of[group]


def _draw_groups(
    group: Integers, row: Integers, stratum: Integers, wanted: Integers, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw whole groups of rows until each class has the wanted rows or no other group fits.
    Each `row` is of the `stratum` in the same place, and perhaps of others.

    Groups with the rarest class come first (iterative stratification, Sechidis et al. 2011,
    https://doi.org/10.1007/978-3-642-23808-6_10). Groups of several rows get their share of each
    class; single rows fill up the rest.
    """
    cells, rows = np.unique(group[row] * len(wanted) + stratum, return_counts=True)
    owner, label = np.divmod(cells, len(wanted))
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    sizes = np.bincount(stratum, minlength=len(wanted))
    rarity = np.argsort(np.argsort(sizes, kind="stable"))
    order = rng.permutation(len(starts))
    rarest = np.minimum.reduceat(rarity[label], starts)
    order = order[np.argsort(rarest[order], kind="stable")]
    several = np.bincount(group) > 1
    in_several = np.bincount(stratum, weights=several[group[row]], minlength=len(wanted))
    their_share = np.ceil(in_several * wanted / np.maximum(1, sizes)).astype(int)
    counts = list(zip(label.tolist(), rows.tolist(), strict=True))
    members = [counts[start:end] for start, end in pairwise([*starts.tolist(), len(counts)])]
    chosen, taken = np.zeros(len(starts), bool), [0] * len(wanted)
    for candidates, limits in (
        (order[several[order]], their_share),
        (order[~several[order]], wanted),
        (order[several[order]], wanted),
    ):
        most = limits.tolist()
        for index in candidates.tolist():
            fits = all(taken[at] + n <= most[at] for at, n in members[index])
            if fits and not chosen[index]:
                chosen[index] = True
                for at, n in members[index]:
                    taken[at] += n
    return chosen[group]
