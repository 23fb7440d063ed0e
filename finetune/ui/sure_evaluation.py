"""What an evaluation shows of answering only when sure: the bound, and the error at every share."""

from __future__ import annotations

from typing import Any

import numpy as np

from finetune.evaluation.abstention import Abstention
from finetune.tasks.base import DecisionRule
from finetune.ui import charts
from finetune.ui.charts import Series
from finetune.ui.i18n import gettext, number

_ERRORS, _CONFIDENCES = (0.005, 0.01, 0.02, 0.05, 0.1), (0.9, 0.95, 0.99)  # to choose from
_LEAST = 0.05  # share of the rows from which on the curve is drawn; fewer rows tell nothing


def values(found: Abstention | None, decision: DecisionRule) -> dict[str, Any] | None:
    """Return the values that `evaluation/sure.html` needs besides the analysis; None without them.

    Args:
        found: what the kept bound, or else the one offered first, comes to; None for a task whose
            answers cannot be left out.
    """
    if found is None:
        return None
    curve = found.curve
    points = np.stack([curve.coverage, curve.error, curve.upper], axis=1)
    drawn = charts.thinned(points[curve.coverage >= _LEAST].tolist())
    lines = [
        Series(
            gettext("wrong"), "run0", [(x, y) for x, y, _ in drawn], latest=False,
            baselines=((gettext("allowed"), found.error),),
        ),
        Series(
            gettext("wrong at most"), "run1", [(x, upper) for x, _, upper in drawn], latest=False
        ),
    ]  # fmt: skip
    chart = charts.chart(
        gettext("Errors among the surest answers"), lines, 1.0, gettext("No example was scored."),
        gettext("share that is answered"), reach=(0.0,),
        cursor=found.rule.coverage if found.rule else None,
        look=gettext(
            "To the left only the surest answers are given. Where the dashed bound of the share "
            "that is wrong lies below the level allowed, so many can be."
        ),
    )  # fmt: skip
    choices = [
        (name, chosen, [(value, number(f"{100 * value:g}%")) for value in offered])
        for name, chosen, offered in (
            ("error", found.error, sorted({*_ERRORS, found.error})),
            ("confidence", found.confidence, sorted({*_CONFIDENCES, found.confidence})),
        )
    ]  # fmt: skip
    return {"found": found, "kept": decision.sure, "chart": chart, "choices": choices}
