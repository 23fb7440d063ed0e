"""A run's evaluation in HTML: scores, curves, and sentences on how to read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from finetune.evaluation import report
from finetune.evaluation.abstention import Abstention
from finetune.evaluation.examples import example_rows
from finetune.evaluation.report import PairedComparison, RunEvaluation, Verdict
from finetune.evaluation.slices import TESTED, Slice
from finetune.metrics import intervals
from finetune.runs.summary import ENDED, ColumnNames, JobState, RunSummary
from finetune.tasks.base import DecisionRule
from finetune.tasks.registry import task_of
from finetune.ui import charts, evaluation_details, run_charts
from finetune.ui.charts import Series
from finetune.ui.html import macro, render
from finetune.ui.i18n import gettext, number

MOST_CHOICES = 200  # classes to choose another label from
MOST_DISAGREEMENTS = 50
PAGE = 20  # examples of a table at a time
_ERRORS, _CONFIDENCES = (0.005, 0.01, 0.02, 0.05, 0.1), (0.9, 0.95, 0.99)  # to choose from
_LEAST = 0.05  # share of the rows from which on the curve of sure answers is drawn


def view(
    study: RunEvaluation,
    summary: RunSummary,
    decision: DecisionRule,
    orders: JobState,
    test_set: str = "",
    found: Abstention | None = None,
) -> Markup:
    """Draw the whole evaluation.

    Args:
        orders: the job that scores both orders.
        test_set: HTML about the test set.
        found: what a bound on the error comes to; None for scores.
    """
    analysis, order = study.analysis, study.analysis.order
    changed_pairs: list[Any] = []
    if order and study.table is not None:
        changed_pairs = list(zip(example_rows(study, order.worst), order.changes, strict=True))
    task = task_of(analysis.target)
    ends = [part.result.high for part in analysis.slices if math.isfinite(part.result.high)]
    own = evaluation_details.VALUES[task.template](analysis, decision)
    return render(
        "evaluation.html",
        kind=task.template,
        has_right=task.has_right,
        **own,
        bound=_sure_values(found, decision),
        analysis=analysis,
        columns=summary.columns,
        baselines=sorted(
            summary.baselines.items(),
            key=lambda item: -task.headline.rank(item[1].get(task.headline.name, 0.0)),
        ),
        decision=decision,
        verdict=verdict_sentence(report.verdict(analysis, summary.baselines)),
        metrics=list(dict.fromkeys((task.headline.name, *analysis.scores))),
        widest=max(analysis.scores.items(), key=lambda item: item[1].high - item[1].low),
        margin=intervals.accuracy_margin(analysis.examples),
        slices=_weak_first(analysis.slices, own.get("never", ()), task.has_right),
        slice_scale=1.0 if task.has_right else max(ends, default=1.0) or 1.0,
        tested=TESTED,
        changed_pairs=changed_pairs,
        orders=orders,
        measurable=order is None and summary.paired and summary.status in ENDED,
        curves=[
            run_charts.loss_chart(summary),
            run_charts.score_chart(summary, analysis.threshold),
        ],
        test_set=test_set,
    )


def _sure_values(found: Abstention | None, decision: DecisionRule) -> dict[str, Any] | None:
    """Return the values that `evaluation/sure.html` needs besides the analysis: the bound, and the
    error at every share; None without them.

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


def verdict_sentence(verdict: Verdict) -> Markup:
    """Say if the model beats the best baseline by more than chance."""
    return macro("evaluation_text.html", "verdict")(verdict)


def _weak_first(
    slices: Sequence[Slice], never: Sequence[str], has_right: bool
) -> list[tuple[Slice, str]]:
    """The slices with their marks: the weak ones, then the missed, then by their result, and
    last those too small to be judged."""

    def mark(part: Slice) -> str:
        if part.weak:
            return gettext("weak")
        if part.trait == "class" and part.value in never:
            return gettext("missed")
        return gettext("too few") if part.count < TESTED else ""

    def rank(part: Slice) -> tuple[Any, ...]:
        missed = part.trait == "class" and part.value in never
        return (
            not part.weak,
            not missed,
            part.count < TESTED,
            part.result.value if has_right else -part.result.value,
        )

    return [(part, mark(part)) for part in sorted(slices, key=rank)]


def disagreements(
    first: RunEvaluation, second: RunEvaluation, comparison: PairedComparison, columns: ColumnNames
) -> Markup:
    """The pairs that only one of two runs, A and B, got right."""
    rows = comparison.disagreements
    shown: list[Any] = []
    if first.table is not None:
        examples = example_rows(first, rows[:MOST_DISAGREEMENTS])
        target = second.analysis.target
        others = task_of(target).spell(second.answers[[each.row for each in examples]], target)
        shown = list(zip(examples, comparison.first_right, others, strict=False))
    return render("disagreements.html", shown=shown, total=len(rows), columns=columns)


def examples(
    study: RunEvaluation,
    rows: NDArray[np.int64] | Sequence[int],
    first: int,
    corrections: Mapping[int, str],
    columns: ColumnNames,
) -> Markup:
    """Draw a page of `rows`, from index `first` on. `corrections`: row -> its new class."""
    task = task_of(study.analysis.target)
    labels = task.choices(study.analysis.target)
    return render(
        "examples.html",
        has_right=task.has_right,
        examples=example_rows(study, [int(row) for row in rows[first : first + PAGE]]),
        total=len(rows),
        first=first,
        page=PAGE,
        columns=columns,
        labels=labels,
        corrections=corrections,
        relabel=study.table is not None and 0 < len(labels) <= MOST_CHOICES,
    )
