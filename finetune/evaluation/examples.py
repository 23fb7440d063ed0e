"""Selects and lists the examples of an evaluation: wrong ones, suspected labels, a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from finetune.evaluation.report import HISTORIES, RunEvaluation

# What examples can be sorted by -> whether the greatest comes first.
SORTS = {"confidence": True, "words": True, "overlap": True, "row": False}
SELECTIONS = ("wrong", "right", "suspected labels", "all")


@dataclass(frozen=True)
class ExampleRow:
    """One example as a table shows it.

    Args:
        row: its place in the validation split, from 0.
        label, answer: names of classes.
        confidence: probability of the answer.
        history: one of `HISTORIES`.
        words: of both sentences together; 0 where unknown.
        overlap: share of words the sentences have in common; None where unknown.
    """

    row: int
    sentence1: str
    sentence2: str
    label: str
    answer: str
    confidence: float
    history: str
    words: int
    overlap: float | None


def select_examples(
    study: RunEvaluation,
    which: str = "wrong",
    label: str = "",
    history: str = "",
    search: str = "",
    by: str = "confidence",
) -> NDArray[np.int64]:
    """Rows of examples, in order.

    Args:
        which: one of `SELECTIONS`.
        label: the true class by name; any where empty.
        history: one of `HISTORIES`; any where empty.
        search: a text that stands in one of the sentences, in upper or lower case.
        by: one of `SORTS`; suspected labels come by their doubt.
    """
    kept = np.ones(len(study.truth), bool)
    if which in ("wrong", "right"):
        kept &= (study.answers == study.truth) == (which == "right")
    if label in study.analysis.labels:
        kept &= study.truth == study.analysis.labels.index(label)
    if history in HISTORIES:
        kept &= study.history == list(HISTORIES).index(history)
    if search.strip() and study.table is not None:
        kept &= _contains(study.table, search.strip())
    if which == "suspected labels":
        return study.suspects[kept[study.suspects]]
    rows = np.flatnonzero(kept)
    values: dict[str, NDArray[Any]] = {"row": np.arange(len(kept))}
    if study.traits is not None:
        values |= {"words": study.traits.words, "overlap": study.traits.overlap}
    ranked = np.nan_to_num(values.get(by, study.confidence)[rows].astype(np.float64), nan=-1.0)
    return rows[np.argsort(-ranked if SORTS.get(by, True) else ranked, kind="stable")]


def most_doubted_errors(
    study: RunEvaluation, label: str = "", history: str = "", search: str = "", most: int = 10
) -> NDArray[np.int64]:
    """Rows of wrong answers, those whose label is doubted most first: the nearest to a suspected
    label where none is."""
    rows = select_examples(study, "wrong", label, history, search, "row")
    return rows[np.argsort(-study.doubt[rows], kind="stable")][:most]


def _contains(table: pa.Table, text: str) -> NDArray[np.bool_]:
    either = np.zeros(table.num_rows, bool)
    for name in {"sentence1", "sentence2"} & set(table.column_names):
        matches = pc.match_substring(table.column(name), text, ignore_case=True)
        either |= matches.fill_null(False).to_numpy()
    return either


def example_rows(study: RunEvaluation, rows: Sequence[int]) -> list[ExampleRow]:
    """The examples of some rows, in the order of `rows`."""
    names = study.analysis.labels
    texts: list[dict[str, Any]] = [{} for _ in rows]
    if study.table is not None:
        texts = study.table.take(pa.array(rows, pa.int64())).to_pylist()
    lines = []
    for row, text in zip(rows, texts, strict=True):
        overlap = float(study.traits.overlap[row]) if study.traits is not None else float("nan")
        lines.append(
            ExampleRow(
                row=int(row),
                sentence1=text.get("sentence1") or "",
                sentence2=text.get("sentence2") or "",
                label=names[study.truth[row]],
                answer=names[study.answers[row]],
                confidence=float(study.confidence[row]),
                history=HISTORIES[study.history[row]],
                words=int(study.traits.words[row]) if study.traits is not None else 0,
                overlap=None if np.isnan(overlap) else overlap,
            )
        )
    return lines
