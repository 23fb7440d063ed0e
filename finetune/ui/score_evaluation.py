"""What the evaluation of scores shows besides metrics: answers against the truth, and errors."""

from __future__ import annotations

import math
from typing import Any

from finetune.evaluation.report import Analysis
from finetune.tasks.base import DecisionRule


def values(analysis: Analysis, decision: DecisionRule) -> dict[str, Any]:
    """Return the values that `evaluation/score.html` needs besides the analysis."""
    details = analysis.details
    most = max(1, int(details.density.max()))
    size = len(details.density)
    cells = [
        (column, size - 1 - row, math.sqrt(count / most), int(count))
        for column, counts in enumerate(details.density)
        for row, count in enumerate(counts)
        if count
    ]
    highest = max(1, int(details.error_counts.max()))
    bars = [100 * count / highest for count in details.error_counts.tolist()]
    return {"cells": cells, "size": size, "bars": bars}
