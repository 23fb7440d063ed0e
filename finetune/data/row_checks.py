"""Findings on the rows of a cached dataset."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from finetune.config import NO_COLUMN, RunConfig
from finetune.data.check_report import Example, Finding, Severity
from finetune.data.columns import positive_class
from finetune.data.dataset_cache import CachedDataset
from finetune.data.splits import SplitRows
from finetune.errors import DataError, some
from finetune.metrics import classification, intervals
from finetune.text_hashes import Integers

MAX_EXAMPLES = 5  # of a finding
FEW = 100  # training rows
EXAMPLE_CHARACTERS = 200  # of a sentence
# Half the width of the 95% interval of an accuracy near 0.5. Above 0.1 (fewer than 93 pairs) a
# good model and a constant answer can score the same; above 0.06 (fewer than 263) two models that
# differ by a whole preset can. The 372 bundled validation pairs and MRPC's 408 are at 0.05.
UNCERTAIN, SLIGHTLY_UNCERTAIN = 0.1, 0.06
# Imbalance, from 0 for even classes to 1 for a single one. MRPC's 68/32 is 0.35: normal, but
# accuracy alone flatters. From 90/10 on, 0.8, accuracy says next to nothing, and a model may learn
# to answer one class.
IMBALANCED, VERY_IMBALANCED = 0.3, 0.8


def row_findings(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    """What is wrong with the rows of a dataset.

    Args:
        assigned: the rows with duplicates and leaked ones.
    """
    dataset = assigned.dataset
    yield from _unreadable_rows(dataset)
    yield from _single_sentences(config, dataset)
    yield from _incomplete_rows(assigned)
    yield from _leaked_rows(config, assigned)
    yield from _conflicting_labels(assigned)
    yield from _duplicates(config, assigned)
    yield from _class_balance(config, assigned)
    yield from _small_splits(assigned)


def _finding(
    dataset: CachedDataset, kind: str, severity: Severity, title: str, action: str,
    rows: Sequence[tuple[str, Integers]],
) -> Iterator[Finding]:  # fmt: skip
    """A finding on some rows of the dataset's splits; none where there are none."""
    if count := sum(len(indices) for _, indices in rows):
        examples: list[Example] = []
        for split, indices in rows:
            room = MAX_EXAMPLES - len(examples)
            examples += dataset.examples_of(split, indices[:room], EXAMPLE_CHARACTERS)
        yield Finding(kind, severity, title, count, action, examples)


def _unreadable_rows(dataset: CachedDataset) -> Iterator[Finding]:
    if count := sum(dataset.unreadable.values()):
        rows = [
            Example(split, line, note=reason)
            for split, examples in dataset.examples.items()
            for line, reason in examples
        ]
        yield Finding(
            "unreadable", "warns", "Rows that could not be read", count,
            "They are left out; mend those lines and upload the file again to have them.", rows,
        )  # fmt: skip


def _single_sentences(config: RunConfig, dataset: CachedDataset) -> Iterator[Finding]:
    """A column that may be the other sentence is not read, and nobody asked for that."""
    used = (dataset.columns.sentence1, dataset.columns.label)
    unused = [name for name, why in dataset.choices.items() if not why and name not in used]
    if not dataset.paired and not config.sentence2_column and unused:
        yield Finding(
            "single", "notes", f"Single sentences: only {used[0]!r} is read.", 0,
            f"Not read: {some(unused)}. Where one of these is the other sentence of a pair, "
            f"choose it as sentence2_column; else choose {NO_COLUMN}.",
        )  # fmt: skip


def _incomplete_rows(assigned: SplitRows) -> Iterator[Finding]:
    dataset, empty, unlabelled = assigned.dataset, [], []
    for split, keys in assigned.hashes.items():
        complete = keys.complete(dataset.paired)
        empty.append((split, np.flatnonzero(~complete)))
        if split == "train" or (keys.label >= 0).any():  # GLUE's test splits have no labels
            unlabelled.append((split, np.flatnonzero(complete & (keys.label < 0))))
    action = "They are left out."
    title = "Rows with an empty or missing sentence"
    yield from _finding(dataset, "empty", "warns", title, action, empty)
    yield from _finding(dataset, "unlabelled", "warns", "Rows without a label", action, unlabelled)


def _leaked_rows(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    action = "They are left out of train." if config.drop_leaked else (
        "They are kept, and the score will flatter the model; drop_leaked leaves them out of "
        "train."
    )  # fmt: skip
    origin, rows = assigned.rows["train"]
    for name in assigned.rows:
        if name != "train":
            leaked = np.isin(assigned.of("train").unordered, assigned.of(name).unordered)
            yield from _finding(
                assigned.dataset, "leakage", "warns",
                f"Leakage: training rows that stand in {name} too, in either order, but for case, "
                "white space or punctuation at the ends",
                action, [(origin, rows[leaked])],
            )  # fmt: skip


def _conflicting_labels(assigned: SplitRows) -> Iterator[Finding]:
    """Rows whose pair has another label elsewhere, in any split."""
    keys, classes = list(map(assigned.of, assigned.rows)), max(1, len(assigned.dataset.labels))
    _, group = np.unique(np.concatenate([key.ordered for key in keys]), return_inverse=True)
    labels = np.concatenate([key.label for key in keys])
    labels_of_group = np.bincount(np.unique(group * classes + labels) // classes)
    conflicting = labels_of_group[group] > 1
    conflicts, start = [], 0
    for origin, rows in assigned.rows.values():
        end = start + len(rows)
        order = np.argsort(group[start:end], kind="stable")  # rows of a pair stand together
        conflicts.append((origin, rows[order][conflicting[start:end][order]]))
        start = end
    yield from _finding(
        assigned.dataset, "conflicts", "warns", "Rows whose pair has another label elsewhere",
        "They are kept; one of the labels is wrong, and no model can learn both. Of equal pairs "
        "in a split drop_duplicates keeps the first.", conflicts,
    )  # fmt: skip


def _duplicates(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    action = "The later ones are left out." if config.drop_duplicates else (
        "They are kept and count more than once; drop_duplicates leaves the later ones out."
    )  # fmt: skip
    repeated = []
    for name, (origin, rows) in assigned.rows.items():
        _, first = np.unique(assigned.of(name).ordered, return_index=True)
        repeated.append((origin, np.delete(rows, first)))
    title = "Rows that repeat an earlier pair of their split"
    yield from _finding(assigned.dataset, "duplicates", "warns", title, action, repeated)


def _class_balance(config: RunConfig, assigned: SplitRows) -> Iterator[Finding]:
    """Classes that a split lacks; whether one is so common that accuracy flatters, and what a
    constant answer scores."""
    labels, counts = assigned.dataset.labels, assigned.class_counts()
    train, validation = np.array(counts["train"], np.int64), counts["validation"]
    classes = len(labels)
    if np.count_nonzero(train) < 2 or not any(validation):
        return
    for name, split_counts in counts.items():
        if absent := [labels[i] for i, count in enumerate(split_counts) if not count]:
            effect = "never learned" if name == "train" else "never scored"
            yield Finding(
                f"absent-{name}", "warns", f"Classes without a row in {name}: {some(absent)}",
                len(absent), f"They are {effect}; add rows, or choose another {name} split.",
            )  # fmt: skip
    commonest = int(train.argmax())
    share = train[commonest] / train.sum()
    imbalance = (share - 1 / classes) / (1 - 1 / classes)
    if imbalance < IMBALANCED:
        return
    with contextlib.suppress(DataError):  # an unknown positive class is a finding of its own
        positive = positive_class(labels, config.positive_label)
        scores = classification.constant_answer_scores(validation, commonest, positive)
        advice = "Macro F1 and MCC tell more than accuracy."
        if classes == 2:
            rarer = labels[1 - commonest]
            advice = f"F1 of {rarer!r}, which positive_label can ask for, and MCC tell more."
        if imbalance >= VERY_IMBALANCED:
            advice += " class_weights can be set to balanced, or rows of the rarer added."
        yield Finding(
            "balance", "warns" if imbalance >= VERY_IMBALANCED else "notes",
            f"Classes out of balance: {share:.1%} of the training rows are {labels[commonest]!r}",
            int(train[commonest]),
            f"Always answering that scores accuracy {scores['accuracy']:.3f}, "
            f"{'F1' if classes == 2 else 'macro F1'} {scores['f1']:.3f} and MCC 0 on "
            f"validation. {advice}",
        )  # fmt: skip


def _small_splits(assigned: SplitRows) -> Iterator[Finding]:
    train, validation = (len(assigned.rows[name][1]) for name in ("train", "validation"))
    if 0 < train < FEW:
        yield Finding(
            "few", "warns", f"Only {train} training rows", train,
            "A few hundred are the least from which a model learns something that lasts.",
        )  # fmt: skip
    if not validation:
        return
    interval = intervals.wilson_interval(validation // 2, validation)
    half_width = (interval.high - interval.low) / 2
    if half_width > SLIGHTLY_UNCERTAIN:
        yield Finding(
            "few-validation", "warns" if half_width > UNCERTAIN else "notes",
            f"Only {validation} validation rows: they tell accuracy to "
            f"\u00b1{100 * half_width:.0f} points",
            validation,
            "That is half the 95% interval of an accuracy near 0.5; scores that differ by "
            "less tell nothing. Bring more validation rows, or raise validation_share where "
            "they are cut from train.",
        )  # fmt: skip
