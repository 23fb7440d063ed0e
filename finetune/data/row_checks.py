"""Findings on the rows and texts of a cached dataset."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from finetune.config import NO_COLUMN, RunConfig
from finetune.data import dataset_cache
from finetune.data.check_report import Example, Finding, Severity, example_of
from finetune.data.columns import positive_class
from finetune.data.dataset_cache import CachedDataset
from finetune.data.splits import SplitRows
from finetune.errors import DataError, some
from finetune.metrics import classification, intervals
from finetune.phases import Phase
from finetune.text_hashes import Integers

MAX_EXAMPLES = 5  # of a finding
RARE = 10  # rows; a class with fewer in train is called rare
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

# Searched in every sentence: kind, severity, RE2 pattern, title, action.
_PATTERNS: tuple[tuple[str, Severity, str, str, str], ...] = (
    (
        "encoding", "warns",
        r"\x{FFFD}|\x{00C3}[\x{0080}-\x{00BF}]|\x{00E2}\x{20AC}|\x{00C2}[\x{00A0}-\x{00BF}]",
        "Sentences with signs of a wrong encoding, such as \u00c3\u00a9 for \u00e9",
        "They are used as they are; save the file as UTF-8 to mend them.",
    ),
    (
        "control", "warns", r"[\x00-\x08\x0B\x0C\x0E-\x1F\x7F]",
        "Sentences with control characters",
        "They are used as they are; most tokenizers drop such characters.",
    ),
    (
        "invisible", "notes", r"[\x{200B}\x{2060}\x{FEFF}\x{00AD}\x{202A}-\x{202E}]",
        "Sentences with invisible characters",
        "They are used as they are; sentences that differ in these only count as equal.",
    ),
    (
        "markup", "notes", r"<[a-zA-Z/!][^<>]*>|&(amp|lt|gt|quot|nbsp|#\d+);",
        "Sentences with HTML in them",
        "They are used as they are, and shown as text; the model learns the tags too.",
    ),
    (
        "placeholder", "warns", r"^\s*(?i:nan|null|none|n/a|#n/a|undefined|\?+|-+)\s*$",
        "Sentences that look like a placeholder for a missing one",
        "They are used as they are; empty the cells to have the rows left out.",
    ),
    (
        "wordless", "notes", r"^[\s\d.,:;/+\-%$\x{20AC}()]+$",
        "Sentences of digits and signs only, such as numbers or dates",
        "They are used as they are; check that the columns are the right ones.",
    ),
)  # fmt: skip


class RowChecks:
    """Findings on the rows of a dataset, by their hashes.

    Args:
        assigned: the rows with duplicates and leaked ones.
    """

    def __init__(self, config: RunConfig, assigned: SplitRows) -> None:
        self._config, self._assigned = config, assigned
        self._dataset, self._hashes = assigned.dataset, assigned.hashes

    def findings(self) -> Iterator[Finding]:
        yield from self._unreadable()
        yield from self._single_sentences()
        yield from self._incomplete()
        yield from self._leakage()
        yield from self._conflicts()
        yield from self._duplicates()
        yield from self._identical()
        yield from self._classes()
        yield from self._balance()
        yield from self._small_splits()

    def _finding(
        self, kind: str, severity: Severity, title: str, action: str,
        masks: dict[str, NDArray[np.bool_]], order: dict[str, Integers] | None = None,
    ) -> Iterator[Finding]:  # fmt: skip
        """A finding on some rows of the dataset's splits; none where there are none.

        Args:
            masks: split -> whether it is about each row.
            order: split -> a number a row; examples with the same number stand together.
        """
        if count := sum(int(mask.sum()) for mask in masks.values()):
            rows = [
                (split, int(row))
                for split, mask in masks.items()
                for row in np.flatnonzero(mask)[:200]
            ]
            if order is not None:
                rows.sort(key=lambda row: int(order[row[0]][row[1]]))
            examples = _examples(self._dataset, rows[:MAX_EXAMPLES])
            yield Finding(kind, severity, title, count, action, examples)

    def _no_rows(self) -> dict[str, NDArray[np.bool_]]:
        return {split: np.zeros(len(keys), bool) for split, keys in self._hashes.items()}

    def _unreadable(self) -> Iterator[Finding]:
        if count := sum(self._dataset.unreadable.values()):
            rows = [
                Example(split, line, note=reason)
                for split, examples in self._dataset.examples.items()
                for line, reason in examples
            ]
            yield Finding(
                "unreadable", "warns", "Rows that could not be read", count,
                "They are left out; mend those lines and upload the file again to have them.",
                rows[: dataset_cache.MAX_BAD_ROWS],
            )  # fmt: skip

    def _single_sentences(self) -> Iterator[Finding]:
        """A column that may be the other sentence is not read, and nobody asked for that."""
        used = (self._dataset.columns.sentence1, self._dataset.columns.label)
        unused = [
            name for name, why in self._dataset.choices.items() if not why and name not in used
        ]
        if not self._dataset.paired and not self._config.sentence2_column and unused:
            yield Finding(
                "single", "notes", f"Single sentences: only {used[0]!r} is read.", 0,
                f"Not read: {some(unused)}. Where one of these is the other sentence of a pair, "
                f"choose it as sentence2_column; else choose {NO_COLUMN}.",
            )  # fmt: skip

    def _incomplete(self) -> Iterator[Finding]:
        complete = {
            split: keys.complete(self._dataset.paired) for split, keys in self._hashes.items()
        }
        yield from self._finding(
            "empty", "warns", "Rows with an empty or missing sentence", "They are left out.",
            {split: ~mask for split, mask in complete.items()},
        )  # fmt: skip
        unlabelled = {s: complete[s] & (keys.label < 0) for s, keys in self._hashes.items()}
        unused = [split for split, mask in unlabelled.items() if mask.all() and split != "train"]
        counts = {split: int(unlabelled.pop(split).sum()) for split in unused}
        yield from self._finding(
            "unlabelled", "warns", "Rows without a label", "They are left out.", unlabelled
        )
        for split, count in counts.items():
            if count:
                yield Finding(
                    "unlabelled-split", "notes", f"The split {split} has no labels at all", count,
                    "It is not used, for nothing can be scored on it.",
                )  # fmt: skip

    def _leakage(self) -> Iterator[Finding]:
        """Training rows in a held-out split: exactly, after normalization, or swapped."""
        action = "They are left out of train." if self._config.drop_leaked else (
            "They are kept, and the score will flatter the model; drop_leaked leaves them out of "
            "train."
        )  # fmt: skip
        origin, rows = self._assigned.rows["train"]
        for name, (held_out_origin, held_out_rows) in self._assigned.rows.items():
            if name == "train":
                continue
            held_out = self._hashes[held_out_origin]
            train = self._hashes[origin]
            exact = np.isin(train.exact[rows], held_out.exact[held_out_rows])
            ordered = np.isin(self._assigned.ordered("train"), self._assigned.ordered(name))
            either = np.isin(self._assigned.unordered("train"), self._assigned.unordered(name))
            kinds = {
                "exact": (exact, "exactly"),
                "normalised": (
                    ordered & ~exact,
                    "but for case, white space or punctuation at the ends",
                ),
                "swapped": (either & ~exact & ~ordered, "with the sentences in the other order"),
            }
            for kind, (leaked, how) in kinds.items():
                mask = np.zeros(len(train), bool)
                mask[rows[leaked]] = True
                yield from self._finding(
                    f"leakage-{kind}", "warns",
                    f"Leakage: training rows that stand in {name} too, {how}", action,
                    {origin: mask},
                )  # fmt: skip

    def _conflicts(self) -> Iterator[Finding]:
        """Rows whose pair has another label elsewhere, in any split."""
        names = list(self._assigned.rows)
        pairs = np.concatenate([self._assigned.ordered(name) for name in names])
        labels = np.concatenate([self._assigned.labels(name) for name in names])
        if not len(pairs):
            return
        _, group = np.unique(pairs, return_inverse=True)
        lowest = np.full(group.max() + 1, np.iinfo(np.int64).max)
        highest = np.full(group.max() + 1, -1)
        np.minimum.at(lowest, group, labels)
        np.maximum.at(highest, group, labels)
        conflicting = (lowest != highest)[group]
        masks, start = self._no_rows(), 0
        for origin, rows in self._assigned.rows.values():
            masks[origin][rows[conflicting[start : start + len(rows)]]] = True
            start += len(rows)
        yield from self._finding(
            "conflicts", "warns", "Rows whose pair has another label elsewhere",
            "They are kept; one of the labels is wrong, and no model can learn both. Of equal "
            "pairs in a split drop_duplicates keeps the first.",
            masks, {split: keys.ordered for split, keys in self._hashes.items()},
        )  # fmt: skip

    def _duplicates(self) -> Iterator[Finding]:
        masks = self._no_rows()
        for name, (origin, rows) in self._assigned.rows.items():
            _, first = np.unique(self._assigned.ordered(name), return_index=True)
            masks[origin][np.delete(rows, first)] = True
        action = "The later ones are left out." if self._config.drop_duplicates else (
            "They are kept and count more than once; drop_duplicates leaves the later ones out."
        )  # fmt: skip
        title = "Rows that repeat an earlier pair of their split"
        yield from self._finding("duplicates", "warns", title, action, masks)

    def _identical(self) -> Iterator[Finding]:
        masks = self._no_rows()
        for origin, rows in self._assigned.rows.values():
            keys = self._hashes[origin]
            masks[origin][rows] = (keys.first == keys.second)[rows]
        title, action = "Pairs of a sentence with itself", "They are kept; they teach little."
        yield from self._finding("identical", "notes", title, action, masks)

    def _classes(self) -> Iterator[Finding]:
        labels, counts = self._dataset.labels, self._assigned.class_counts()
        train = np.array(counts["train"], np.int64)
        rare = [label for label in range(len(train)) if 0 < train[label] < RARE]
        if rare and train.sum() > 2 * RARE:
            names = some([f"{labels[label]} ({train[label]})" for label in rare])
            yield Finding(
                "rare", "warns", f"Classes with fewer than {RARE} training rows: {names}",
                int(train[rare].sum()),
                "They are kept, but hardly learned: add rows, or merge them.",
            )  # fmt: skip
        for name, split_counts in counts.items():
            absent = [labels[i] for i, count in enumerate(split_counts) if not count]
            if absent and any(split_counts) and np.count_nonzero(train) > 1:
                effect = "never learned" if name == "train" else "never scored"
                yield Finding(
                    f"absent-{name}", "warns", f"Classes without a row in {name}: {some(absent)}",
                    len(absent),
                    f"They are {effect}; add rows, or choose another {name} split.",
                )  # fmt: skip

    def _balance(self) -> Iterator[Finding]:
        """Whether one class is so common that accuracy flatters; what a constant answer scores."""
        labels, counts = self._dataset.labels, self._assigned.class_counts()
        train, validation = np.array(counts["train"], np.int64), counts["validation"]
        classes = len(labels)
        if np.count_nonzero(train) < 2 or not any(validation):
            return
        commonest = int(train.argmax())
        share = train[commonest] / train.sum()
        imbalance = (share - 1 / classes) / (1 - 1 / classes)
        if imbalance < IMBALANCED:
            return
        with contextlib.suppress(DataError):  # an unknown positive class is a finding of its own
            positive = positive_class(labels, self._config.positive_label)
            scores = classification.constant_answer_scores(validation, commonest, positive)
            if classes > 2:
                advice = "Macro F1 and MCC tell more than accuracy."
            elif positive == commonest:
                advice = (
                    "MCC tells more than accuracy and this F1; so does the F1 of the rarer class, "
                    "which positive_label can ask for."
                )
            else:
                advice = f"F1 of {labels[positive]!r} and MCC tell more than accuracy."
            if imbalance >= VERY_IMBALANCED:
                advice += " class_weights can be set to balanced, or rows of the rarer added."
            yield Finding(
                "balance", "warns" if imbalance >= VERY_IMBALANCED else "notes",
                f"Classes out of balance: {share:.1%} of the training rows are "
                f"{labels[commonest]!r}",
                int(train[commonest]),
                f"Always answering that scores accuracy {scores['accuracy']:.3f}, "
                f"{'F1' if classes == 2 else 'macro F1'} {scores['f1']:.3f} and MCC 0 on "
                f"validation. {advice}",
            )  # fmt: skip

    def _small_splits(self) -> Iterator[Finding]:
        train, validation = (len(self._assigned.rows[name][1]) for name in ("train", "validation"))
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


def text_findings(
    dataset: CachedDataset, progress: Callable[[Phase, str, int, int], None]
) -> Iterator[Finding]:
    """Findings of `_PATTERNS`, in one pass over the Arrow batches."""
    counts = [0] * len(_PATTERNS)
    examples: list[list[tuple[str, int]]] = [[] for _ in _PATTERNS]
    done, total = 0, sum(dataset.rows.values())
    for split in dataset.rows:
        start = 0
        for batch in dataset.batches(split):
            for index, (_, _, pattern, _, _) in enumerate(_PATTERNS):
                rows = _matching_rows(batch, dataset.sentence_columns, pattern)
                counts[index] += len(rows)
                examples[index] += [(split, start + int(row)) for row in rows[:MAX_EXAMPLES]]
            start += len(batch)
            done += len(batch)
            progress(Phase.READ_TEXTS, "", done, total)
    for index, (kind, severity, _, title, action) in enumerate(_PATTERNS):
        if counts[index]:
            shown = _examples(dataset, examples[index][:MAX_EXAMPLES])
            yield Finding(kind, severity, title, counts[index], action, shown)


def _matching_rows(batch: pa.RecordBatch, names: list[str], pattern: str) -> Integers:
    matches = np.zeros(len(batch), bool)
    for name in names:
        mask = pc.match_substring_regex(batch.column(name), pattern).fill_null(False)
        matches |= mask.to_numpy(zero_copy_only=False)
    return np.flatnonzero(matches)


def _examples(dataset: CachedDataset, rows: Sequence[tuple[str, int]]) -> list[Example]:
    return [
        example_of(dataset.split(split)[row], split, dataset.labels, EXAMPLE_CHARACTERS)
        for split, row in rows
    ]
