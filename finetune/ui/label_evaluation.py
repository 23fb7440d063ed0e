"""What the evaluation of several labels shows besides metrics: each label, and pairs of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from finetune.evaluation.report import Analysis
from finetune.tasks.base import DecisionRule

MOST_LABELS = 30  # in a table; the most frequent ones
MOST_PAIRS = 10  # of labels that occur together, or are confused


def values(analysis: Analysis, decision: DecisionRule) -> dict[str, Any]:
    """Return the values that `evaluation/labels.html` needs besides the analysis."""
    details, names = analysis.details, analysis.labels
    shown = sorted(range(len(names)), key=lambda n: -details.labels[n].support)[:MOST_LABELS]
    never = [names[n] for n in shown if details.labels[n].support and not details.labels[n].given]
    together = np.triu(details.together, 1)
    return {
        "never": never,
        "shown": [(names[n], details.labels[n]) for n in shown],
        "rare": [names[n] for n in details.rare],
        "together": _commonest(together, names),
        "confused": _commonest(details.confused, names),
        "kept": dict(decision.thresholds),
        "levels": [dict(fitted_thresholds(analysis)).get(names[n]) for n in shown],
    }


def fitted_thresholds(analysis: Analysis) -> tuple[tuple[str, float], ...]:
    """Return the threshold of each label with its best F1; none if there are too few examples."""
    fitted = analysis.details.thresholds
    return tuple(zip(analysis.labels, fitted.thresholds, strict=True)) if fitted else ()


def _commonest(counts: Any, names: list[str]) -> list[tuple[str, str, int]]:
    """The pairs of labels with the greatest counts."""
    order = np.argsort(-counts, axis=None, kind="stable")[:MOST_PAIRS]
    rows, columns = np.unravel_index(order, counts.shape)
    return [
        (names[row], names[column], int(counts[row, column]))
        for row, column in zip(rows, columns, strict=True)
        if counts[row, column]
    ]
