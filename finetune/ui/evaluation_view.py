"""A run's evaluation in HTML: scores, curves, and sentences on how to read them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray

from finetune.evaluation import report
from finetune.evaluation.abstention import ERRORS, Abstention
from finetune.evaluation.examples import example_rows
from finetune.evaluation.report import Analysis, RunEvaluation
from finetune.evaluation.slices import TESTED, Slice
from finetune.findings import shorten
from finetune.metrics import calibration, intervals, shared_rows
from finetune.metrics.classification import Curve, thin_curve
from finetune.runs.summary import ENDED, ColumnNames, JobState, RunSummary
from finetune.tasks.base import DecisionRule
from finetune.tasks.comparison import Comparison
from finetune.tasks.registry import task_of
from finetune.ui import charts
from finetune.ui.charts import Series
from finetune.ui.html import in_words, macro, render
from finetune.ui.i18n import gettext, number

MOST_CLASSES = MOST_LABELS = 30  # in a table; the most frequent ones
MOST_PAIRS = 10  # of labels that occur together, or are confused
_DIAGONAL = [(0.0, 0.0), (1.0, 1.0)]
MOST_CHOICES = 200  # classes to choose another label from
MOST_DISAGREEMENTS = 50
PAGE = 20  # examples of a table at a time
_CONFIDENCES = (0.9, 0.95, 0.99)  # to choose from
_LEAST = 0.05  # share of the rows from which on the curve of sure answers is drawn


def view(
    study: RunEvaluation,
    summary: RunSummary,
    decision: DecisionRule,
    orders: JobState,
    test_set: str = "",
    found: Abstention | None = None,
) -> Markup:
    """Draw the whole evaluation. `orders` is the job that scores both orders, `test_set` HTML, and
    `found` what a bound on the error comes to; None for scores."""
    analysis, order = study.analysis, study.analysis.order
    changed_pairs: list[Any] = []
    if order and study.table is not None:
        changed_pairs = list(zip(example_rows(study, order.worst), order.changes, strict=True))
    task = task_of(analysis.target)
    ends = [part.result.high for part in analysis.slices if math.isfinite(part.result.high)]
    own = _VALUES[task.template](analysis, decision)
    judged = report.verdict(analysis, summary.baselines)
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
        verdict=macro("evaluation_text.html", "verdict")(judged),
        metrics=list(dict.fromkeys((task.headline.name, *analysis.scores))),
        widest=max(analysis.scores.items(), key=lambda item: item[1].high - item[1].low),
        margin=intervals.accuracy_margin(analysis.worth),
        counted=shared_rows.note(analysis.examples, analysis.worth),
        slices=_weak_first(analysis.slices, own.get("never", ()), task.has_right),
        slice_scale=1.0 if task.has_right else max(ends, default=1.0) or 1.0,
        tested=TESTED,
        changed_pairs=changed_pairs,
        orders=orders,
        measurable=order is None and summary.paired and summary.status in ENDED,
        curves=[charts.loss_chart(summary), charts.score_chart(summary, analysis.threshold)],
        test_set=test_set,
    )


def _sure_values(found: Abstention | None, decision: DecisionRule) -> dict[str, Any] | None:
    """Return the values that `evaluation/sure.html` needs besides the analysis; None for a task
    whose answers cannot be left out."""
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
            "To the left only the surest answers are given. From a fifth of the rows on, as many "
            "can be given as the upper line stays below the level allowed without a break."
        ),
    )  # fmt: skip
    choices = [
        (name, chosen, [(value, number(f"{100 * value:g}%")) for value in offered])
        for name, chosen, offered in (
            ("error", found.error, sorted({*ERRORS, found.error})),
            ("confidence", found.confidence, sorted({*_CONFIDENCES, found.confidence})),
        )
    ]  # fmt: skip
    counted, kept = shared_rows.note(found.rows, found.worth), decision.sure
    return {"found": found, "kept": kept, "chart": chart, "choices": choices, "counted": counted}


def _weak_first(
    slices: Sequence[Slice], never: Sequence[str], has_right: bool
) -> list[tuple[Slice, str]]:
    """The slices with their marks: the weak ones, then the missed, then by their result, and
    last those too small to be judged."""
    marked = []
    for part in slices:
        missed, small = part.trait == "class" and part.value in never, part.count < TESTED
        result = part.result.value if has_right else -part.result.value
        mark = gettext("weak") if part.weak else gettext("missed") if missed else ""
        mark = mark or (gettext("too few rows") if small else "")
        marked.append(((not part.weak, not missed, small, result), part, mark))
    return [(part, mark) for _, part, mark in sorted(marked, key=lambda each: each[0])]


def disagreements(
    first: RunEvaluation, second: RunEvaluation, comparison: Comparison, columns: ColumnNames
) -> Markup:
    """The pairs that only one of two runs, A and B, got right."""
    rows = comparison.disagreements
    shown: list[Any] = []
    if first.table is not None:
        examples = example_rows(first, rows[:MOST_DISAGREEMENTS])
        target = second.analysis.target
        others = task_of(target).spell(second.answers[[each.row for each in examples]], target)
        first_right = (comparison.misses[0] < comparison.misses[1])[rows]
        shown = list(zip(examples, first_right, others, strict=False))
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


def _class_values(analysis: Analysis, decision: DecisionRule) -> dict[str, Any]:
    """Return the values that `evaluation/classes.html` needs besides the analysis."""
    details = analysis.details
    by_support = sorted(
        range(len(analysis.target.names)), key=lambda n: -details.classes[n].support
    )
    classes = sorted(by_support[:MOST_CLASSES])
    answered, occurring = details.confusion.sum(axis=0), details.confusion.sum(axis=1)
    # If all get one answer, the verdict says so.
    several = np.count_nonzero(answered) > 1
    never = [
        analysis.target.names[n] for n in by_support if several and occurring[n] and not answered[n]
    ]
    return {
        "never": never,
        "classes": classes,
        "labels": [shorten(analysis.target.names[n]) for n in classes],
        "least_errors": calibration.FEWEST_ERRORS,
        "ranking": _ranking_charts(analysis),
        "threshold": _threshold(analysis, decision),
        "calibration_chart": _calibration_chart(analysis),
    }


def _ranking_charts(analysis: Analysis) -> list[Markup]:
    """ROC and precision-recall curve; none unless there are two classes and both occur."""
    roc, precision_recall = analysis.details.roc, analysis.details.precision_recall
    if roc is None or precision_recall is None:
        return []
    share = analysis.details.classes[analysis.target.positive].support / analysis.examples
    title = gettext("ROC, area {n:.3f}", n=roc.area)
    across = gettext("false positive rate")
    look = gettext(
        "The further it bows to the upper left, the better the model ranks; the diagonal is "
        "guessing."
    )
    first = _curve_chart(title, roc, _DIAGONAL, across, look)
    title = gettext("Precision and recall, area {n:.3f}", n=precision_recall.area)
    look = gettext(
        "How many of those called {name} are, when more of them are to be found; it should stay "
        "high far to the right.",
        name=shorten(analysis.target.names[analysis.target.positive]),
    )
    level = [(0.0, share), (1.0, share)]
    return [first, _curve_chart(title, precision_recall, level, gettext("recall"), look)]


def _curve_chart(
    title: str, curve: Curve, guessing: list[charts.Point], across: str, look: str
) -> Markup:
    thinned = thin_curve(curve)
    points = list(zip(thinned.x.tolist(), thinned.y.tolist(), strict=True))
    lines = [
        Series(gettext("this model"), "run0", points, latest=False),
        Series(gettext("guessing"), "guess", guessing, latest=False, straight=True),
    ]
    return charts.chart(title, lines, 1.0, "", across, reach=(0.0, 1.0), look=look)


def _threshold(analysis: Analysis, decision: DecisionRule) -> dict[str, Any]:
    """Data of the threshold slider; empty for more than two classes."""
    sweep = analysis.details.sweep
    if sweep is None:
        return {}
    now = 0.5 if decision.threshold is None else decision.threshold
    thresholds = sweep.thresholds.tolist()
    values = {name: _rounded(scores) for name, scores in sweep.scores.items()}
    best = {name: _rounded([sweep.best[name]])[0] for name in values}
    data = {
        "thresholds": thresholds,
        "values": values,
        "best": {"threshold": sweep.best["threshold"], "values": best},
        "now": now,
    }
    lines = []
    for name, scores in values.items():
        pairs = zip(thresholds, scores, strict=True)
        points = [(at, score) for at, score in pairs if score is not None]
        lines.append(
            Series(
                in_words(name, 2),
                charts.line_style(task_of(analysis.target), name, name),
                points,
                latest=False,
            )
        )
    look = gettext(
        "Left of the line more rows are called positive: recall rises, precision falls. A "
        "flat top means that the exact place matters little."
    )
    title, across = gettext("Scores at every threshold"), gettext("Threshold")
    chart = charts.chart(title, lines, 1.0, "", across, reach=(0.0, 1.0), cursor=now, look=look)
    positive = vars(analysis.details.classes[analysis.target.positive])
    at_now = {
        name: positive[name] if name in positive else analysis.scores[name].value for name in values
    }
    return {"data": json.dumps(data), "now": now, "scores": at_now, "chart": chart}


def _rounded(scores: ArrayLike) -> list[float | None]:
    """Round scores to four digits; None for a score of no examples."""
    return [None if np.isnan(score) else round(float(score), 4) for score in np.asarray(scores)]


def _calibration_chart(analysis: Analysis) -> Markup:
    lines = []
    bins = [(gettext("as trained"), "run1", analysis.details.reliability)]
    if analysis.details.calibration.after is not None:
        bins.append((gettext("after calibration"), "run0", analysis.details.calibration.after))
    for name, style, reliability in bins:
        # Draw bins of at least five examples, or the fullest if none has five.
        enough = reliability.counts >= min(5, reliability.counts.max(initial=1))
        x, y = reliability.confidence[enough], reliability.accuracy[enough]
        points = list(zip(x.tolist(), y.tolist(), strict=True))
        lines.append(Series(name, style, points, markers=True, latest=False))
    lines.append(Series(gettext("perfect"), "guess", _DIAGONAL, latest=False, straight=True))
    look = gettext(
        "On the diagonal, answers given with 80% confidence are right 80 times in 100; below "
        "it the model is too sure of itself."
    )
    title, empty = gettext("Confidence and accuracy"), gettext("No example was scored.")
    across = gettext("confidence")
    return charts.chart(title, lines, 1.0, empty, across, reach=(0.0, 1.0), look=look)


def _score_values(analysis: Analysis, decision: DecisionRule) -> dict[str, Any]:
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


def _label_values(analysis: Analysis, decision: DecisionRule) -> dict[str, Any]:
    """Return the values that `evaluation/labels.html` needs besides the analysis."""
    details, names = analysis.details, analysis.target.names
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
    return tuple(zip(analysis.target.names, fitted.thresholds, strict=True)) if fitted else ()


def _commonest(counts: Any, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """The pairs of labels with the greatest counts."""
    order = np.argsort(-counts, axis=None, kind="stable")[:MOST_PAIRS]
    rows, columns = np.unravel_index(order, counts.shape)
    return [
        (names[row], names[column], int(counts[row, column]))
        for row, column in zip(rows, columns, strict=True)
        if counts[row, column]
    ]


_VALUES = {"classes": _class_values, "score": _score_values, "labels": _label_values}
"""Of a task's template: what returns the values that it needs besides the analysis."""
