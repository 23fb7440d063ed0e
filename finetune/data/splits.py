"""Pairs ready to be tokenised: which rows of a corpus make which split.

One shape whatever the source: `sentence1`, `sentence2` or none, `label`. Reading is `corpus`'
business, what is wrong with the rows `examination`'s, tokens `batching`'s.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import DatasetDict
from numpy.typing import NDArray

from finetune import text_hashes
from finetune.config import RunConfig
from finetune.data.dataset_cache import CachedDataset, RowHashes, read_dataset
from finetune.data.labels import positive_class
from finetune.errors import DataError
from finetune.text_hashes import Integers


@dataclass(frozen=True)
class SplitRows:
    """Which rows of a corpus make which split.

    Args:
        rows: split -> the corpus' split it comes from, and indices into that.
        left_out: split -> reason -> rows.
        blocks: why training is impossible; empty where it is possible.
    """

    rows: dict[str, tuple[str, Integers]]
    left_out: dict[str, dict[str, int]]
    blocks: list[str]


@dataclass(frozen=True)
class Pairs:
    """Splits of sentence pairs, ready to be tokenised.

    Args:
        splits: `train` and `validation`, perhaps `test`; columns `sentence1`, `sentence2` (absent
            for single sentences) and `label`, a `ClassLabel`.
        labels: names of the classes, by index.
        positive: index of the class whose F1 is meant when there are two.
        counts: split -> how many rows each class has.
        origin: where they come from and what is wrong with them, as plain values: source,
            revision, columns, rows, left_out, unreadable, leaked.
        fingerprint: sha256 over the labels' names and the hash and label of every row, in order.
        numbers: `train` and `validation` -> a number a pair, whichever of its sentences is first.
    """

    splits: DatasetDict
    labels: list[str]
    positive: int = 1
    counts: dict[str, list[int]] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    numbers: dict[str, Integers] = field(default_factory=dict)


def load_pairs(config: RunConfig, root: Path) -> Pairs:
    """The pairs a configuration asks for.

    Args:
        root: where uploads and what was read of any source are kept, as `RunStore.root`.

    Raises:
        DataError: when the source cannot be read, or what was read cannot be trained on.
    """
    corpus = read_dataset(config, root)
    known = {split: corpus.keys(split) for split in corpus.rows}
    arranged = assign_rows(corpus, config, known)
    if arranged.blocks:
        raise DataError(" ".join(arranged.blocks), "The Data tab shows what was read.")
    positive = positive_class(corpus.labels, config.positive_label)
    wanted = ["sentence1", "sentence2", "label"] if corpus.paired else ["sentence1", "label"]
    splits = DatasetDict(
        {
            name: corpus.split(origin).select_columns(wanted).select(rows)
            for name, (origin, rows) in arranged.rows.items()
        }
    )
    facts = {
        "source": corpus.source,
        "revision": corpus.revision,
        "columns": asdict(corpus.columns),
        "rows": {name: len(split) for name, split in splits.items()},
        "left_out": arranged.left_out,
        "unreadable": {split: count for split, count in corpus.unreadable.items() if count},
        "leaked": leaked(known, arranged),
        "positive_label": corpus.labels[positive],
        # The source's own names, of what was not cut from another split.
        "splits": {
            name: corpus.splits.get(name, "") for name in splits if arranged.rows[name][0] == name
        },
        "named_labels": corpus.named_labels,
    }
    digest = fingerprint(corpus, known, arranged, positive)
    counts = class_counts(corpus, known, arranged)
    numbers = {
        name: unordered_hashes(known[arranged.rows[name][0]])[arranged.rows[name][1]]
        for name in ("train", "validation")
    }
    return Pairs(splits, corpus.labels, positive, counts, facts, digest, numbers)


def leaked(known: dict[str, RowHashes], arranged: SplitRows) -> dict[str, int]:
    """Held-out split -> training rows whose pair stands in it too, in either order, if any do."""
    numbers = {
        name: unordered_hashes(known[origin])[rows]
        for name, (origin, rows) in arranged.rows.items()
    }
    train = numbers.pop("train")
    counts = {name: int(np.isin(train, held_out).sum()) for name, held_out in numbers.items()}
    return {name: count for name, count in counts.items() if count}


def fingerprint(
    corpus: CachedDataset, known: dict[str, RowHashes], arranged: SplitRows, positive: int
) -> str:
    """sha256 over the classes' names and the hash and label of every row used, in order: 64 hex
    digits that are the same for the same rows, wherever they were read from."""
    digest = hashlib.sha256("\n".join([corpus.labels[positive], *corpus.labels]).encode())
    for name, (origin, rows) in arranged.rows.items():
        digest.update(f"\n{name} {len(rows)}\n".encode())
        digest.update(known[origin].exact[rows].tobytes() + known[origin].label[rows].tobytes())
    return digest.hexdigest()


def class_counts(
    corpus: CachedDataset, known: dict[str, RowHashes], arranged: SplitRows
) -> dict[str, list[int]]:
    """Split -> how many of its rows each class has, in the order of the labels."""
    return {
        name: np.bincount(known[origin].label[rows], minlength=len(corpus.labels)).tolist()
        for name, (origin, rows) in arranged.rows.items()
    }


def ordered_hashes(keys: RowHashes) -> Integers:
    """One number a pair; another one when its sentences swap. Shape (rows,)."""
    return text_hashes.ordered_pair_hash(keys.first, keys.second)


def unordered_hashes(keys: RowHashes) -> Integers:
    """One number a pair, the same when its sentences swap. Shape (rows,)."""
    return text_hashes.unordered_pair_hash(keys.first, keys.second)


def complete_rows(corpus: CachedDataset, keys: RowHashes) -> NDArray[np.bool_]:
    """Whether a row has every sentence. Shape (rows,)."""
    whole: NDArray[np.bool_] = keys.first != 0
    if corpus.paired:
        whole &= keys.second != 0
    return whole


def assign_rows(corpus: CachedDataset, config: RunConfig, known: dict[str, RowHashes]) -> SplitRows:
    """Pick the rows: without the incomplete, and what the configuration leaves out; cut a
    validation split from train where there is none.

    The same corpus and configuration give the same rows.

    Args:
        known: the keys of every split of the corpus.
    """
    left: dict[str, dict[str, int]] = {split: {} for split in known}
    rows = {split: _usable(corpus, keys, left[split]) for split, keys in known.items()}
    if config.drop_duplicates:
        for split, keys in known.items():
            _, first = np.unique(ordered_hashes(keys)[rows[split]], return_index=True)
            _keep(rows, split, np.sort(rows[split][first]), "duplicates", left)
    origin = {split: split for split in rows}
    if not len(rows.get("validation", ())):
        rows["train"], rows["validation"] = cut_validation(known["train"], rows["train"], config)
        origin["validation"] = "train"
        left.setdefault("validation", {})
    if not len(rows.get("test", (0,))):
        del rows["test"]
    if config.drop_leaked:
        held_out = [
            unordered_hashes(known[origin[split]])[rows[split]]
            for split in rows
            if split != "train"
        ]
        leaked = np.isin(unordered_hashes(known["train"])[rows["train"]], np.concatenate(held_out))
        _keep(rows, "train", rows["train"][~leaked], "leaked", left)
    for split, most in (
        ("train", config.max_train_samples),
        ("validation", config.max_eval_samples),
    ):
        if 0 < most < len(rows[split]):
            draw = np.random.default_rng([config.data_seed, split == "train"])
            drawn = np.sort(draw.choice(rows[split], most, replace=False))
            _keep(rows, split, drawn, "beyond the maximum", left)
    return SplitRows(
        rows={split: (origin[split], rows[split]) for split in rows},
        left_out=left,
        blocks=_blocks(corpus, known, rows, origin),
    )


def _usable(corpus: CachedDataset, keys: RowHashes, left: dict[str, int]) -> Integers:
    whole = complete_rows(corpus, keys)
    labelled = keys.label >= 0
    counts = {
        "a sentence is missing": int((~whole).sum()),
        "the label is missing": int((whole & ~labelled).sum()),
    }
    left.update({reason: count for reason, count in counts.items() if count})
    return np.flatnonzero(whole & labelled)


def _keep(
    rows: dict[str, Integers], split: str, kept: Integers, reason: str, left: dict[str, Any]
) -> None:
    if gone := len(rows[split]) - len(kept):
        left[split][reason] = gone
    rows[split] = kept


def _blocks(
    corpus: CachedDataset,
    known: dict[str, RowHashes],
    rows: dict[str, Integers],
    origin: dict[str, str],
) -> list[str]:
    if not len(rows["train"]):
        return [f"No row of {corpus.source} can be trained on."]
    found = np.unique(known["train"].label[rows["train"]])
    if len(found) < 2:
        name = corpus.labels[int(found[0])]
        return [f"All {len(rows['train']):,} training rows have one class, {name!r}."]
    if not len(rows["validation"]):
        return ["No row is left for validation."]
    return []


def cut_validation(keys: RowHashes, rows: Integers, config: RunConfig) -> tuple[Integers, Integers]:
    """Train and validation rows: each class by its share, and no sentence in both.

    Rows that share a sentence form a group (a connected component of the graph whose nodes are
    sentences), and a group goes to one side whole. Groups of one row fill up what larger ones
    leave open. Where one group holds almost everything, its rows are cut apart after all: an
    examination then reports the leakage.
    """
    if len(rows) < 2:
        return rows, rows[:0]
    draw = np.random.default_rng(config.data_seed)
    labels = keys.label[rows]
    sizes = np.bincount(labels)
    target = np.where(sizes > 1, np.maximum(1, np.round(sizes * config.validation_share)), 0)
    target = target.astype(np.int64)
    group = sentence_groups(keys.first[rows], keys.second[rows])
    members = np.bincount(group)
    taken = np.zeros(len(rows), bool)
    have = np.zeros_like(target)
    shared = np.flatnonzero(members[group] > 1)
    shared = shared[np.argsort(group[shared], kind="stable")]
    blocks = np.split(shared, np.flatnonzero(np.diff(group[shared])) + 1) if len(shared) else []
    for index in draw.permutation(len(blocks)):
        counts = np.bincount(labels[blocks[index]], minlength=len(target))
        if (have + counts <= target).all():
            taken[blocks[index]] = True
            have += counts
        if (have == target).all():
            break
    alone = draw.permutation(np.flatnonzero(members[group] == 1))
    for label in range(len(target)):
        mine = alone[labels[alone] == label]
        taken[mine[: target[label] - have[label]]] = True
    if not taken.any():
        taken[draw.permutation(len(rows))[: max(1, round(len(rows) * config.validation_share))]] = (
            True
        )
    return rows[~taken], rows[taken]


def sentence_groups(first: Integers, second: Integers) -> Integers:
    """The group of every row, shape (rows,): rows that share a sentence, directly or by others.

    Only rows of which a sentence stands in another one enter the graph; most do not.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not second.any():  # single sentences: the same text is the same group
        second = first
    met = np.sort(np.concatenate([first, np.where(second == first, 0, second)]))
    again = np.unique(met[1:][(met[1:] == met[:-1]) & (met[1:] != 0)])
    joined = np.flatnonzero(np.isin(first, again) | np.isin(second, again))
    group = np.arange(len(first))
    if len(joined):
        both = np.concatenate([first[joined], second[joined]])
        _, nodes = np.unique(both, return_inverse=True)
        ends = nodes[: len(joined)], nodes[len(joined) :]
        size = int(nodes.max()) + 1
        graph = coo_array((np.ones(len(joined), np.int8), ends), shape=(size, size))
        _, found = connected_components(graph, directed=False)
        group[joined] = len(first) + found[ends[0]]
    return np.unique(group, return_inverse=True)[1].astype(np.int64)
