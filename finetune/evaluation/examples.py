"""Selects and lists the examples of an evaluation: wrong ones, suspected labels, a search."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from finetune.evaluation import report
from finetune.evaluation.report import RunEvaluation
from finetune.runs.run import Run
from finetune.tasks.base import one_stratum
from finetune.tasks.registry import task_of

SELECTIONS = ("wrong", "right", "suspected labels", "all")


@dataclass(frozen=True)
class SampledPair:
    """A validation pair, its label, and whether the model gets it right."""

    sentence1: str
    sentence2: str
    label: str
    right: bool | None  # None if answers are only near


@dataclass(frozen=True)
class ExampleRow:
    """One example as a table shows it."""

    row: int  # of the validation split, from 0
    sentence1: str
    sentence2: str
    label: str  # names of classes
    answer: str
    error: float  # 0 for a right answer
    confidence: float  # probability of the answer; nan if the task has none
    words: int  # of both sentences together; 0 if unknown
    overlap: float | None  # share of words in common; None if unknown


def select_examples(
    study: RunEvaluation, which: str = "wrong", label: str = "", search: str = ""
) -> NDArray[np.int64]:
    """Select rows of examples: the most confident answers first, suspected labels by their
    error score. The worst errors come first if answers are only near.

    Args:
        which: one of `SELECTIONS`.
        label: the true class by name; empty for any.
        search: a text that stands in one of the sentences, in upper or lower case.
    """
    selected = np.ones(len(study.truth), bool)
    has_right = task_of(study.analysis.target).has_right
    if which in ("wrong", "right") and has_right:
        selected &= study.right == (which == "right")
    if label in study.analysis.target.names:
        index = study.analysis.target.names.index(label)
        selected &= (study.truth == index) if study.truth.ndim == 1 else study.truth[:, index] > 0
    if search.strip() and study.table is not None:
        found = np.zeros(len(selected), bool)
        for name in {"sentence1", "sentence2"} & set(study.table.column_names):
            texts = study.table.column(name)
            found |= pc.match_substring(texts, search.strip(), ignore_case=True).to_numpy()
        selected &= found
    if which == "suspected labels":
        return study.suspected_labels[selected[study.suspected_labels]]
    rows = np.flatnonzero(selected)
    first = study.confidence if has_right else study.errors
    return rows[np.argsort(-first[rows], kind="stable")]


def example_rows(study: RunEvaluation, rows: Sequence[int]) -> list[ExampleRow]:
    """Return the examples of some rows, in the order of `rows`."""
    target, traits = study.analysis.target, study.traits
    spelled = (
        task_of(target).spell(values[list(rows)], target) for values in (study.truth, study.answers)
    )
    texts: list[dict[str, str]] = [{}] * len(rows)
    if study.table is not None:
        texts = study.table.take(pa.array(rows, pa.int64())).to_pylist()
    return [
        ExampleRow(
            int(row), text.get("sentence1", ""), text.get("sentence2", ""), label, answer,
            error=float(study.errors[row]),
            confidence=float(study.confidence[row]),
            words=int(traits.words[row]) if traits else 0,
            overlap=float(traits.overlap[row]) if traits and "sentence2" in text else None,
        )
        for row, text, label, answer in zip(rows, texts, *spelled, strict=True)
    ]  # fmt: skip


def sample_pairs(run: Run, most: int = 4) -> list[SampledPair]:
    """Sample validation pairs of as many classes as possible, right and wrong ones; none if they
    were not kept. Raises a StoreError as `kept_answers` does."""
    kept = report.kept_answers(run)
    if kept.table is None:
        return []
    task, target = task_of(kept.target), kept.target
    right = (task.errors(kept.answers, kept.truth) == 0).tolist()
    ranked, strata = [], one_stratum(task.strata(kept.truth))
    taken: Counter[tuple[int, bool]] = Counter()  # class, and whether it is right
    for row in random.sample(range(len(right)), len(right)):
        kind = int(strata[row]), right[row]
        ranked.append((taken[kind], not right[row], row))
        taken[kind] += 1
    rows = [row for _, _, row in sorted(ranked)[:most]]
    labels = task.spell(kept.truth[rows], target)
    shown = [right[row] if task.has_right else None for row in rows]
    texts = kept.table.take(pa.array(rows, pa.int64())).to_pylist()
    return [
        SampledPair(text["sentence1"], text.get("sentence2", ""), label, is_right)
        for text, label, is_right in zip(texts, labels, shown, strict=True)
    ]
