"""A run's evaluation in HTML: scores, curves, and sentences on how to read them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from finetune.evaluation import examples as run_examples
from finetune.evaluation.examples import ExampleRow
from finetune.evaluation.report import SUSPECT, Analysis, PairedComparison, RunEvaluation
from finetune.evaluation.slices import TESTED, Slice
from finetune.inference.decision_rule import DecisionRule
from finetune.metrics import intervals
from finetune.metrics.calibration import Reliability
from finetune.metrics.classification import Curve, thin_curve
from finetune.runs.summary import JobState, RunSummary
from finetune.ui import charts
from finetune.ui.charts import Series
from finetune.ui.html import macro, measure, render, short
from finetune.ui.i18n import gettext
from finetune.ui.run_table_view import when

MOST_CLASSES = 30  # in a table; of more, the most frequent
MOST_CHOICES = 200  # classes to choose another label from
MOST_DISAGREEMENTS = 50
PAGE = 20  # examples of a table at a time
_TEXT = "evaluation_text.html"
_DIAGONAL = [(0.0, 0.0), (1.0, 1.0)]


def view(study: RunEvaluation, summary: RunSummary, decision: DecisionRule) -> Markup:
    """All of it but the test set."""
    analysis = study.analysis
    by_support = sorted(range(len(analysis.labels)), key=lambda n: -analysis.classes[n].support)
    classes = sorted(by_support[:MOST_CLASSES])
    answers = np.count_nonzero(analysis.confusion.sum(axis=0))
    changed_pairs: list[tuple[ExampleRow, float]] = []
    if analysis.order and study.table is not None:
        examples = run_examples.example_rows(study, analysis.order.worst)
        changed_pairs = list(zip(examples, analysis.order.changes, strict=True))
    return render(
        "evaluation.html",
        analysis=analysis,
        baselines=summary.baselines,
        decision=decision,
        verdict=sentence(analysis, summary.baselines),
        # Where there is one answer for all, the verdict says so.
        missed=missed_sentences(analysis) if answers != 1 else "",
        missed_labels={analysis.labels[n] for n in missed(analysis)},
        widest=max(analysis.scores.values(), key=lambda score: score.high - score.low),
        classes=classes,
        labels=[short(analysis.labels[n]) for n in classes],
        weakness=weakness(analysis),
        ranking=_ranking_charts(analysis),
        backwards=backwards(_roc_areas(analysis), analysis.examples),
        threshold=_threshold(analysis, decision),
        calibration_chart=_calibration_chart(analysis),
        changed_pairs=changed_pairs,
    )


def sentence(analysis: Analysis, baselines: Mapping[str, Mapping[str, float]]) -> Markup:
    """Whether the gain over the best baseline is more than chance."""
    metric = "f1" if "f1" in analysis.scores else "accuracy"
    score = analysis.scores[metric]
    levels = {name: scores[metric] for name, scores in baselines.items() if metric in scores}
    baseline, level, chance = "", 0.0, 0.0
    if levels:
        baseline, level = max(levels.items(), key=lambda item: item[1])
        examples = int(baselines[baseline].get("examples", analysis.examples))
        chance = intervals.newcombe_bound(score, level, examples)
    answered = analysis.confusion.sum(axis=0).nonzero()[0]
    occurring = analysis.confusion.sum(axis=1).nonzero()[0]
    always = analysis.labels[answered[0]] if len(answered) == 1 < len(occurring) else None
    verdict = macro(_TEXT, "verdict")
    return verdict(measure(metric), score.value, baseline, level, chance, always)


def missed(analysis: Analysis) -> dict[int, bool]:
    """Classes that occur but are found less often than by chance, however few their examples are.

    By chance: answers given as often as the model gives them, but drawn at random, find of each
    class the share of all answers that name it.

    Returns:
        class -> whether it is never answered, which finds none of it; the most frequent first.
    """
    counts = analysis.confusion
    never: dict[int, bool] = {}
    for n in sorted(range(len(analysis.labels)), key=lambda n: -analysis.classes[n].support):
        support, answered = int(counts[n].sum()), int(counts[:, n].sum())
        if support and (not answered or counts[n, n] * analysis.examples < answered * support):
            never[n] = not answered
    return never


def missed_sentences(analysis: Analysis) -> Markup:
    """Names the `missed` classes; empty where there are none."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for n, is_never in missed(analysis).items():
        text = gettext(
            "{label} ({right:,} of {n:,} right)",
            label=short(analysis.labels[n]),
            right=int(analysis.confusion[n, n]),
            n=int(analysis.confusion[n].sum()),
        )
        names[is_never].append(text)
    return macro(_TEXT, "missed")(never=names[True], seldom=names[False])


def weakness(analysis: Analysis) -> Markup:
    """Which kinds of pairs it is surely worse at, which were too few to tell, and which classes it
    misses whatever their size."""
    small = [part for part in analysis.slices if part.count < TESTED]
    return macro(_TEXT, "weakness")(
        missed=missed_sentences(analysis),
        weak=[_kind(part) for part in analysis.slices if part.weak],
        small=[f"{_kind(part)} ({part.count:,})" for part in small],
        judged=len(analysis.slices) - len(small),
        least=TESTED,
    )


def _kind(part: Slice) -> str:
    """A class is named as it is; the other values are words of ours."""
    value = part.value if part.trait == "class" else gettext(part.value)
    return f"{gettext(part.trait)}: {value}"


def _ranking_charts(analysis: Analysis) -> list[Markup]:
    """ROC and precision-recall curve; none unless there are two classes and both occur."""
    if analysis.roc is None or analysis.precision_recall is None:
        return []
    share = analysis.classes[analysis.positive].support / analysis.examples
    roc = gettext(
        "The further it bows to the upper left, the better the model ranks; the diagonal is "
        "guessing."
    )
    precision_recall = gettext(
        "How many of those called {name} are, when more of them are to be found; it should stay "
        "high far to the right.",
        name=short(analysis.labels[analysis.positive]),
    )
    title = gettext("ROC, area {n:.3f}", n=analysis.roc.area)
    across = gettext("false positive rate")
    first = _curve_chart(title, analysis.roc, _DIAGONAL, across, roc)
    title = gettext("Precision and recall, area {n:.3f}", n=analysis.precision_recall.area)
    level = [(0.0, share), (1.0, share)]
    curve = analysis.precision_recall
    return [first, _curve_chart(title, curve, level, "recall", precision_recall)]


def _curve_chart(
    title: str, curve: Curve, guessing: list[charts.Point], across: str, look: str
) -> Markup:
    thinned = thin_curve(curve)
    points = list(zip(thinned.x.tolist(), thinned.y.tolist(), strict=True))
    lines = [
        Series(gettext("this model"), "run0", points, latest=False),
        Series(gettext("guessing"), "guess", guessing, latest=False, straight=True),
    ]
    return charts.chart(title, lines, 1.0, "", across, share=True, look=look)


def _roc_areas(analysis: Analysis) -> dict[str, tuple[float, int]]:
    """The positive class -> area under its ROC curve and its examples; empty without a curve."""
    if analysis.roc is None:
        return {}
    support = analysis.classes[analysis.positive].support
    return {analysis.labels[analysis.positive]: (analysis.roc.area, support)}


def backwards(areas: Mapping[str, tuple[float, int]], examples: int) -> Markup:
    """A warning of areas under the ROC curve that are below one half; empty where none is.

    Args:
        areas: class -> its area, and how many of the examples are of it.
        examples: of all classes.
    """
    below = {name: values for name, values in areas.items() if values[0] < 0.5}
    if not below:
        return Markup()
    return macro(_TEXT, "backwards")(
        [f"{short(name)} ({area:.3f})" for name, (area, _) in below.items()],
        sure=any(_surely_below(area, support, examples) for area, support in below.values()),
    )


def _surely_below(area: float, positives: int, examples: int) -> bool:
    """Whether an area is below one half by more than chance, one-sided at 5%: the variance of
    guessing is (n + 1) / 12 over positives and negatives (Mann and Whitney 1947, On a Test of
    Whether one of Two Random Variables is Stochastically Larger than the Other,
    https://doi.org/10.1214/aoms/1177730491)."""
    negatives = examples - positives
    spread = math.sqrt((examples + 1) / (12 * positives * negatives))
    return (0.5 - area) / spread > 1.645


def _threshold(analysis: Analysis, decision: DecisionRule) -> dict[str, Any]:
    """What the slider shows; empty for more than two classes."""
    sweep = analysis.sweep
    if sweep is None:
        return {}
    metrics = ("f1", "accuracy", "precision", "recall")
    values = {name: [round(float(y), 4) for y in getattr(sweep, name)] for name in metrics}
    best = {name: round(sweep.best[name], 4) for name in metrics}
    thresholds = sweep.thresholds.tolist()
    now = decision.threshold if decision.threshold is not None else 0.5
    nearest = int(np.abs(sweep.thresholds - now).argmin())
    data = {
        "thresholds": thresholds,
        "values": values,
        "best": {"threshold": sweep.best["threshold"], "values": best},
        "now": now,
    }
    lines = []
    for name, scores in values.items():
        points = list(zip(thresholds, scores, strict=True))
        lines.append(Series("F1" if name == "f1" else name, name, points, latest=False))
    look = gettext(
        "Left of the line more pairs are called positive: recall rises, precision falls. A "
        "flat top means that the exact place matters little."
    )
    title, across = gettext("Scores at every threshold"), gettext("Threshold")
    chart = charts.chart(title, lines, 1.0, "", across, share=True, cursor=now, look=look)
    at_now = {name: values[name][nearest] for name in metrics}
    return {"data": json.dumps(data), "now": now, "scores": at_now, "chart": chart}


def _calibration_chart(analysis: Analysis) -> Markup:
    bins = {gettext("as trained"): ("run1", analysis.reliability)}
    if analysis.calibration is not None:
        bins[gettext("calibrated")] = ("run0", analysis.calibration.after)
    lines = [
        Series(name, style, _reliable(reliability), markers=True, latest=False)
        for name, (style, reliability) in bins.items()
    ]
    lines.append(Series(gettext("perfect"), "guess", _DIAGONAL, latest=False, straight=True))
    look = gettext(
        "On the diagonal, answers given with 80% confidence are right 80 times in 100; below "
        "it the model is too sure of itself."
    )
    title, empty = gettext("Confidence and accuracy"), gettext("No example was scored.")
    across = gettext("confidence")
    return charts.chart(title, lines, 1.0, empty, across, share=True, look=look)


def _reliable(bins: Reliability) -> list[charts.Point]:
    """The bins that hold enough to say something: five examples, or all where they are fewer."""
    enough = bins.counts >= min(5, bins.counts.max(initial=1))
    points = zip(bins.confidence[enough].tolist(), bins.accuracy[enough].tolist(), strict=True)
    return list(points)


def versus(
    first: RunEvaluation, second: RunEvaluation, comparison: PairedComparison | None
) -> Markup:
    """Whether the second of two runs, B, is surely other than the first, A."""
    disagreements: list[tuple[ExampleRow, bool, str]] = []
    if comparison is not None and first.table is not None:
        examples = run_examples.example_rows(first, comparison.disagreements[:MOST_DISAGREEMENTS])
        others = [second.analysis.labels[second.answers[example.row]] for example in examples]
        disagreements = list(zip(examples, comparison.first_right, others, strict=False))
    return render(
        "versus.html",
        comparison=comparison,
        examples=first.analysis.examples,
        same_answers=comparison is not None and bool((first.answers == second.answers).all()),
        disagreements=disagreements,
    )


def test_set(
    summary: RunSummary, study: RunEvaluation | None, job: JobState, has_test: bool
) -> Markup:
    """The sealed test set, or its scores and how often it was opened.

    Args:
        study: the evaluation on the test set; None where it was not opened.
        job: the process that scores it.
    """
    current = study is not None and study.analysis.step == summary.opened[-1].step
    return render(
        "test_set.html",
        opened=summary.opened,
        analysis=study.analysis if study is not None and current else None,
        job=job,
        has_test=has_test,
        when=when,
    )


def examples(
    rows: Sequence[ExampleRow],
    total: int,
    first: int,
    labels: Sequence[str],
    corrections: Mapping[int, str],
    relabel: bool,
    nearest: bool = False,
) -> Markup:
    """A page of examples.

    Args:
        total, first: how many there are on all pages, and the position of this page's first.
        corrections: row -> the class it was corrected to.
        relabel: whether another class can be chosen.
        nearest: whether these stand in for suspected labels, of which there is none.
    """
    return render(
        "examples.html",
        examples=rows,
        total=total,
        first=first,
        page=PAGE,
        labels=labels,
        corrections=corrections,
        relabel=relabel and len(labels) <= MOST_CHOICES,
        suspect=SUSPECT,
        nearest=nearest,
    )
