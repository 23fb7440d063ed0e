"""What an analysis says, in HTML: figures, curves, and sentences on how to read them. Text escaped.

Knows no control and no event; that is `evaluation`'s business.
"""

from __future__ import annotations

import html
import json
import math
import time
from collections.abc import Mapping, Sequence

from finetune.evaluation.examples import ExampleRow, example_rows
from finetune.evaluation.report import SUSPECT, Analysis, PairedComparison, RunEvaluation
from finetune.evaluation.slices import TESTED, Slice
from finetune.inference.decision_rule import DecisionRule
from finetune.jobs.background import JobProgress
from finetune.metrics import intervals
from finetune.metrics.calibration import Reliability
from finetune.metrics.classification import ClassScores, Curve, ThresholdSweep, thin_curve
from finetune.metrics.intervals import Interval
from finetune.runs.summary import RunSummary
from finetune.ui import charts
from finetune.ui.charts import Series
from finetune.ui.i18n import say, translate_term

NAMES = {"accuracy": "Accuracy", "f1": "F1"}
MOST_CLASSES = 30  # in a table; of more, the most frequent
PAGE = 20  # examples of a table at a time


def view(study: RunEvaluation, summary: RunSummary, decision: DecisionRule) -> str:
    """All of it but the test set."""
    found = study.analysis
    parts = [
        _headline(found, summary),
        _part(say("Where it errs"), _confusion(found)),
        _part(say("Where it fails"), _slices(found)) if found.slices else "",
        _part(say("Ranking"), _curves(found)),
        _part(say("Threshold"), _threshold(found, decision)) if found.sweep else "",
        _part(say("Calibration"), _calibration(found, decision)),
        _part(say("Both orders"), _order(study)) if found.order else "",
    ]
    return "".join(parts)


def _part(title: str, body: str) -> str:
    return f'<section class="ft-part"><h2 class="ft-h">{html.escape(title)}</h2>{body}</section>'


def _note(text: str) -> str:
    return f'<p class="ft-note">{text}</p>'


def span(one: Interval) -> str:
    """`0.842 to 0.893`."""
    return say("{low:.3f} to {high:.3f}", low=one.low, high=one.high)


def measure(name: str) -> str:
    """What a measure is called, at the head of a column."""
    return html.escape(NAMES.get(name, name))


def _headline(found: Analysis, summary: RunSummary) -> str:
    broken = ""
    if found.broken:
        text = say(
            "{n:,} of {total:,} examples got logits that are no numbers; they count as the first "
            "class. Train again with a lower learning_rate.",
            n=found.broken,
            total=found.examples,
        )
        broken = f'<div class="ft-said">{html.escape(text)}</div>'
    heads = "".join(f'<th scope="col" class="ft-num">{measure(name)}</th>' for name in found.scores)
    rows = [
        _scores_row(
            html.escape(say("this model")),
            {name: f"<b>{one.value:.3f}</b>" for name, one in found.scores.items()},
        ),
        _scores_row(
            html.escape(say("95% interval")),
            {name: span(one) for name, one in found.scores.items()},
        ),
    ]
    rows += [
        _scores_row(
            html.escape(translate_term(what)) + _drawn_from(scores, found),
            {name: f"{scores[name]:.3f}" if name in scores else "\u2013" for name in found.scores},
        )
        for what, scores in summary.baselines.items()
    ]
    return (
        f'{broken}<p class="ft-verdict" id="verdict">{sentence(found, summary.baselines)}</p>'
        f"{_missing(found)}"
        f'<div class="ft-rows ft-slim"><table><thead><tr><th></th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>" + _note(_meaning(found))
    )


def _drawn_from(scores: Mapping[str, float], found: Analysis) -> str:
    """Of a baseline that was scored on a part of the examples: on how many."""
    rows = int(scores.get("examples", found.examples))
    if rows >= found.examples:
        return ""
    return f"<small>{html.escape(say('on {n:,} of them, drawn at random', n=rows))}</small>"


def _scores_row(name: str, cells: Mapping[str, str]) -> str:
    shown_ = "".join(f'<td class="ft-num">{cell}</td>' for cell in cells.values())
    return f'<tr><th scope="row">{name}</th>{shown_}</tr>'


def sentence(found: Analysis, baselines: Mapping[str, Mapping[str, float]]) -> str:
    """Whether the gain over the best baseline is more than chance, in one sentence of HTML."""
    name = "f1" if "f1" in found.scores else "accuracy"
    score = found.scores[name]
    known = {what: scores[name] for what, scores in baselines.items() if name in scores}
    mine = f"{measure(name)} {score.value:.3f}"
    if not known:
        return say("{score}; no baseline was measured for this run.", score=mine)
    what, level = max(known.items(), key=lambda one: one[1])
    rows = int(baselines[what].get("examples", found.examples))
    chance = intervals.newcombe_bound(score, level, rows)
    told = {
        "score": mine,
        "baseline": html.escape(translate_term(what)),
        "level": level,
        "chance": chance,
    }
    answered = found.confusion.sum(axis=0).nonzero()[0]
    asked = found.confusion.sum(axis=1).nonzero()[0]
    if len(answered) == 1 and len(asked) > 1:
        return say(
            "<b>It always answers {label}:</b> it has learned nothing yet that tells the examples "
            "apart. Train for longer, raise learning_rate, or set class_weights.",
            label=html.escape(found.labels[answered[0]]),
        )
    if score.value - level > chance:
        return say(
            "<b>Better than the baselines:</b> {score}, and the best baseline, {baseline}, has "
            "{level:.3f}. Chance explains a difference of {chance:.3f} at most.",
            **told,
        )
    if level - score.value > chance:
        return say(
            "<b>Worse than a baseline:</b> {score}, and the best baseline, {baseline}, has "
            "{level:.3f}. Use that one, or train on.",
            **told,
        )
    return say(
        "<b>Not surely better:</b> {score}, and the best baseline, {baseline}, has {level:.3f}. "
        "With so few examples chance can explain a difference of up to {chance:.3f}.",
        **told,
    )


def missed(found: Analysis) -> dict[int, bool]:
    """Classes that occur but are found less often than by chance, however few their examples are.

    By chance: answers given as often as the model gives them, but drawn at random, find of each
    class the share of all answers that name it.

    Returns:
        class -> whether it is never answered, which finds none of it; the most frequent first.
    """
    counts = found.confusion
    kept: dict[int, bool] = {}
    for n in sorted(range(len(found.labels)), key=lambda n: -found.classes[n].support):
        support, answered = int(counts[n].sum()), int(counts[:, n].sum())
        if support and (not answered or counts[n, n] * found.examples < answered * support):
            kept[n] = not answered
    return kept


def missed_sentences(found: Analysis) -> str:
    """What `missed` found, in HTML; empty where that is nothing."""
    known, told = missed(found), ""
    never = [n for n, is_never in known.items() if is_never]
    seldom = [n for n, is_never in known.items() if not is_never]
    if never:
        told = say(
            "<b>It never answers {classes}</b>, so it gets none of these right.",
            classes=_some([_missed(found, n) for n in never]),
        )
    if seldom:
        more = say(
            "<b>Worse than chance at {classes}:</b> as many such answers, given at random, would "
            "find more of them.",
            classes=_some([_missed(found, n) for n in seldom]),
        )
        told = f"{told} {more}".strip()
    return told


def _missed(found: Analysis, n: int) -> str:
    told = {"right": int(found.confusion[n, n]), "n": int(found.confusion[n].sum())}
    return say("{label} ({right:,} of {n:,} right)", label=_short(found.labels[n]), **told)


def _some(names: Sequence[str], most: int = 6) -> str:
    """The first of some names, escaped, and how many more there are."""
    shown_ = html.escape(", ".join(names[:most]))
    return shown_ + (" " + say("and {n:,} more", n=len(names) - most) if names[most:] else "")


def _missing(found: Analysis) -> str:
    """What `missed` found, below the verdict, unless that says it already."""
    told = missed_sentences(found)
    if not told or (found.confusion.sum(axis=0) > 0).sum() == 1:
        return ""
    return f'<div class="ft-said ft-warn" id="missed">{told}</div>'


def _meaning(found: Analysis) -> str:
    widest = max(found.scores.values(), key=lambda one: one.high - one.low)
    how = say("bootstrap over the pairs, {n:,} resamples", n=widest.resamples)
    if not widest.resamples:
        how = say(
            "Wilson\u2019s, for all were right or all wrong and resampling them shows nothing"
        )
    return say(
        "Measured on {n:,} validation pairs. Of 100 such intervals about 95 hold the score that "
        "the model has on endlessly many pairs of this kind. The widest here is {points:.1f} "
        "points wide ({how}).",
        n=found.examples,
        points=100 * (widest.high - widest.low),
        how=how,
    )


def _confusion(found: Analysis) -> str:
    order = sorted(range(len(found.labels)), key=lambda n: -found.classes[n].support)
    kept = sorted(order[:MOST_CLASSES])
    left = len(found.labels) - len(kept)
    more = ""
    if left:
        more = " " + say(
            "The {n} most frequent of {total:,} classes.", n=MOST_CLASSES, total=len(found.labels)
        )
    matrix = _matrix(found, kept) if len(kept) <= 12 else ""
    areas = _areas(found)
    return (
        '<div class="ft-two">'
        + matrix
        + _classes(found, kept)
        + "</div>"
        + areas
        + _note(
            say(
                "Rows are the true classes, columns the answers; the errors lie off the diagonal. "
                "Matthews\u2019 correlation is {n:.3f}: 0 is guessing, 1 is perfect, whatever the "
                "balance of the classes.",
                n=found.matthews,
            )
            + more
        )
    )


def _matrix(found: Analysis, kept: Sequence[int]) -> str:
    totals = found.confusion.sum(axis=1)
    heads = "".join(f'<th scope="col">{html.escape(_short(found.labels[n]))}</th>' for n in kept)
    rows = []
    for true in kept:
        cells = []
        for said in kept:
            count = int(found.confusion[true, said])
            share = count / totals[true] if totals[true] else 0.0
            kind = "ft-hit" if true == said else "ft-miss"
            cells.append(
                f'<td class="{kind}" style="--share:{100 * share:.0f}%">{count:,}'
                f"<small>{share:.0%}</small></td>"
            )
        name = html.escape(_short(found.labels[true]))
        rows.append(f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>')
    return (
        '<div class="ft-rows ft-matrix"><table><caption>'
        f"{html.escape(say('Confusion matrix: true class by answer'))}</caption><thead><tr><th>"
        f"{html.escape(say('true'))} \\ {html.escape(say('answer'))}</th>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _classes(found: Analysis, kept: Sequence[int]) -> str:
    def row(n: int) -> str:
        one: ClassScores = found.classes[n]
        mark = f" ({html.escape(say('positive'))})" if found.binary and n == found.positive else ""
        figures = "".join(
            f'<td class="ft-num">{value:.3f}</td>' for value in (one.precision, one.recall, one.f1)
        )
        return (
            f'<tr><th scope="row">{html.escape(_short(found.labels[n]))}{mark}</th>{figures}'
            f'<td class="ft-num">{one.support:,}</td></tr>'
        )

    heads = _heads(("", "precision", "recall", "F1", say("pairs")), 1)
    return (
        f'<div class="ft-rows ft-matrix"><table><caption>{html.escape(say("Each class"))}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(map(row, kept))}</tbody></table></div>"
    )


def _heads(names: Sequence[str], figures: int) -> str:
    """Heads of columns, plain text; an empty one is over the rows' names.

    Args:
        figures: the first column that holds figures.
    """
    return "".join(
        f'<th scope="col"{" class=ft-num" if n >= figures else ""}>{html.escape(name)}</th>'
        if name
        else "<th></th>"
        for n, name in enumerate(names)
    )


def _areas(found: Analysis) -> str:
    if not found.areas:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{html.escape(_short(name))}</th><td class="ft-num">{roc:.3f}</td>'
        f'<td class="ft-num">{precise:.3f}</td></tr>'
        for name, (roc, precise) in found.areas.items()
    )
    heads = _heads(("", "ROC", say("average precision")), 1)
    title = html.escape(say("Areas under the curves, each class against the rest"))
    supports = {found.labels[n]: one.support for n, one in enumerate(found.classes)}
    told = {name: (roc, supports[name]) for name, (roc, _) in found.areas.items()}
    return backwards(told, found.examples) + (
        f'<details class="ft-more"><summary>{title}</summary><div class="ft-rows ft-matrix"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _short(text: str) -> str:
    return text if len(text) <= 32 else text[:30] + "\u2026"


def weakness(found: Analysis) -> str:
    """Which kinds of pairs it is surely worse at, which were too few to tell, and which classes it
    misses whatever their size; HTML."""
    weak = [one for one in found.slices if one.weak]
    small = [_kind(one) for one in found.slices if not one.judged]
    told = [missed_sentences(found)]
    if weak:
        named = html.escape("; ".join(_kind(one) for one in weak))
        told.append(say("Weak at: <b>{kinds}</b>.", kinds=named))
    elif len(small) == len(found.slices):
        told.append(say("No kind of pair has enough examples to be judged."))
    elif small or told[0]:
        told.append(
            say("Of the kinds of pairs large enough to judge, none is surely worse than the rest.")
        )
    else:
        told.append(say("No kind of pair is surely worse than the rest."))
    if small:
        told.append(
            say(
                "Too few to judge, fewer than {least}: {kinds}.",
                least=TESTED,
                kinds=_some([f"{name} ({one.count:,})" for name, one in zip(
                    small, [one for one in found.slices if not one.judged], strict=True)]),
            )
        )  # fmt: skip
    return " ".join(filter(None, told))


def _kind(one: Slice) -> str:
    return f"{translate_term(one.trait)}: {_value(one)}"


def _slices(found: Analysis) -> str:
    verdict = weakness(found)
    lost = {found.labels[n] for n in missed(found)}
    rows, trait = [], ""
    for one in found.slices:
        head = translate_term(one.trait) if one.trait != trait else ""
        trait = one.trait
        is_lost = one.trait == "class" and one.value in lost
        word = say("weak") if one.weak else say("missed") if is_lost else ""
        mark = f"<b>\u25bc {html.escape(word)}</b> " if word else ""
        f1 = "\u2013" if one.f1 is None else f"{one.f1:.3f}"
        rows.append(
            f'<tr{" class=ft-weak" if word else ""}><th scope="row">{html.escape(head)}</th>'
            f'<td>{mark}{html.escape(_value(one))}</td><td class="ft-num">{one.count:,}</td>'
            f'<td class="ft-num">{one.accuracy.value:.3f}</td>'
            f"<td>{_whisker(one.accuracy)}</td>"
            f'<td class="ft-num">{f1}</td></tr>'
        )
    heads = ["", say("kind of pair"), say("pairs"), "accuracy", say("95% interval, 0 to 1")]
    numeric = (False, False, True, True, False)
    head_cells = "".join(
        f'<th scope="col"{" class=ft-num" * is_number}>{html.escape(name)}</th>'
        if name
        else "<th></th>"
        for name, is_number in zip(heads, numeric, strict=True)
    )
    return (
        f'<p id="weak">{verdict}</p><div class="ft-rows ft-matrix"><table><thead><tr>{head_cells}'
        f'<th scope="col" class="ft-num">F1</th></tr></thead><tbody>{"".join(rows)}</tbody>'
        "</table></div>"
        + _note(
            say(
                "Weak: its accuracy is below that of all other pairs by more than chance, tested "
                "over all kinds together (Holm). Look at these under Errors, and bring more of "
                "them to train on."
            )
        )
    )


def _value(one: Slice) -> str:
    """A class is named as it is; the other values are words of ours."""
    return one.value if one.trait == "class" else translate_term(one.value)


def _whisker(one: Interval) -> str:
    return (
        f'<span class="ft-whisker" role="img" aria-label="{span(one)}" title="{span(one)}">'
        f'<i style="left:{100 * one.low:.1f}%;width:{100 * (one.high - one.low):.1f}%"></i>'
        f'<b style="left:{100 * one.value:.1f}%"></b></span>'
    )


_DIAGONAL = [(0.0, 0.0), (1.0, 1.0)]


def _points(curve: Curve) -> list[charts.Point]:
    thinned = thin_curve(curve)
    return [(float(x), float(y)) for x, y in zip(thinned.x, thinned.y, strict=True)]


def _curves(found: Analysis) -> str:
    if found.roc is None or found.precision_recall is None:
        return _note(say("Curves are drawn for two classes, of which both occur."))
    positive = found.labels[found.positive]
    share = found.classes[found.positive].support / found.examples
    mine, guess = say("this model"), say("guessing")
    roc = charts.chart(
        say("ROC, area {n:.3f}", n=found.roc.area),
        [Series(mine, "run0", _points(found.roc), latest=False),
         Series(guess, "guess", _DIAGONAL, latest=False, straight=True)],
        1.0, "", say("false positive rate"), share=True,
        look=say("The further it bows to the upper left, the better the model ranks; the diagonal "
                 "is guessing."),
    )  # fmt: skip
    precise = charts.chart(
        say("Precision and recall, area {n:.3f}", n=found.precision_recall.area),
        [Series(mine, "run0", _points(found.precision_recall), latest=False),
         Series(guess, "guess", [(0.0, share), (1.0, share)], latest=False, straight=True)],
        1.0, "", "recall", share=True,
        look=say("How many of those called {name} are, when more of them are to be found; it "
                 "should stay high far to the right.", name=_short(positive)),
    )  # fmt: skip
    area, support = found.roc.area, found.classes[found.positive].support
    return f'<div class="ft-two">{roc}{precise}</div>' + backwards(
        {positive: (area, support)}, found.examples
    )


def backwards(areas: Mapping[str, tuple[float, int]], examples: int) -> str:
    """A plain word on areas under the ROC curve that are below one half; empty where none is.

    Args:
        areas: class -> its area, and how many of the examples are of it.
        examples: of all classes.
    """
    below = {name: one for name, one in areas.items() if one[0] < 0.5}
    if not below:
        return ""
    named = _some([f"{_short(name)} ({area:.3f})" for name, (area, _) in below.items()])
    told = say(
        "The ROC area is below 0.5 for {classes}: it ranks worse than chance.", classes=named
    )
    if any(_surely_below(area, few, examples) for area, few in below.values()):
        told += " " + say("The labels, or which class is positive, may be swapped.")
    else:
        told += " " + say("With so few examples, that can be chance: it ranks no better than one "
                          "who guesses.")  # fmt: skip
    return f'<div class="ft-said ft-warn" id="backwards">{told}</div>'


def _surely_below(area: float, positives: int, examples: int) -> bool:
    """Whether an area is below one half by more than chance, one-sided at 5%: the variance of
    guessing is (n + 1) / 12 over positives and negatives (Mann and Whitney 1947, On a Test of
    Whether one of Two Random Variables is Stochastically Larger than the Other,
    https://doi.org/10.1214/aoms/1177730491)."""
    negatives = examples - positives
    spread = math.sqrt((examples + 1) / (12 * positives * negatives))
    return (0.5 - area) / spread > 1.645


def _threshold(found: Analysis, decision: DecisionRule) -> str:
    assert found.sweep is not None
    sweep: ThresholdSweep = found.sweep
    values = {
        name: [round(float(one), 4) for one in getattr(sweep, name)]
        for name in ("f1", "accuracy", "precision", "recall")
    }
    at = [float(one) for one in sweep.thresholds]
    best = sweep.best
    now = decision.threshold if decision.threshold is not None else 0.5
    lines = [
        Series(_called(name), name, list(zip(at, values[name], strict=True)),
               latest=False)
        for name in values
    ]  # fmt: skip
    drawn = charts.chart(
        say("Scores at every threshold"), lines, 1.0, "", say("Threshold"), share=True, cursor=now,
        look=say("Left of the line more pairs are called positive: recall rises, precision falls. "
                 "A flat top means that the exact place matters little."),
    )  # fmt: skip
    known = {
        "thresholds": at,
        "values": values,
        "best": {"threshold": best.threshold, "values": {
            name: round(float(getattr(best, name)), 4) for name in values}},
        "now": now,
    }  # fmt: skip
    data = html.escape(json.dumps(known), quote=True)
    positive = html.escape(_short(found.labels[found.positive]))
    cells = "".join(
        f'<div class="ft-card"><span>{html.escape(_called(name))}</span>'
        f'<b data-score="{name}">{values[name][_nearest(at, now)]:.3f}</b></div>'
        for name in values
    )
    title = html.escape(say("Threshold"))
    best_text = say("Best F1: threshold {n:.3f}, F1 {f1:.3f}", n=best.threshold, f1=best.f1)
    buttons = _button(best_text, 'data-to="best"')
    buttons += _button(
        say("Save this threshold with the model"), 'data-do="save"', "save-threshold"
    )
    if decision.threshold is not None:
        text = say("Forget the saved one ({n:.3f})", n=decision.threshold)
        buttons += _button(text, 'data-do="forget"', "forget-threshold")
    return (
        f'<div class="ft-threshold" data-sweep="{data}">'
        + _note(
            say(
                "A pair is called <b>{name}</b> when its probability reaches the threshold; 0.5 is "
                "the most probable class.",
                name=positive,
            )
        )
        + f'<label>{title} <output>{now:.2f}</output><input type="range" min="0" max="100" '
        f'step="1" value="{100 * now:.0f}" id="threshold-slider" '
        f'aria-label="{title}"></label><div class="ft-cards">{cells}</div>{drawn}'
        f'<div class="ft-links">{buttons}</div>'
        + _note(
            say(
                "Chosen on the validation pairs, so its score here is a little too good; the test "
                "set says what it is worth. Predict uses a saved threshold only when you say so."
            )
        )
        + "</div>"
    )


def _called(name: str) -> str:
    """A measure in the middle of a sentence or a legend."""
    return {"f1": "F1"}.get(name, name)


def _button(text: str, does: str, id_: str = "") -> str:
    named = f' id="{id_}"' if id_ else ""
    return f'<button type="button" class="ft-button" {does}{named}>{html.escape(text)}</button>'


def _nearest(at: Sequence[float], value: float) -> int:
    return min(range(len(at)), key=lambda n: abs(at[n] - value))


def _calibration(found: Analysis, decision: DecisionRule) -> str:
    fitted = found.calibration
    before = _reliable(found.reliability)
    lines = [Series(say("as trained"), "run1", before, markers=True, latest=False)]
    if fitted is not None:
        after = _reliable(fitted.after)
        lines.append(Series(say("calibrated"), "run0", after, markers=True, latest=False))
    lines.append(Series(say("perfect"), "guess", _DIAGONAL, latest=False, straight=True))
    error = found.reliability.ece
    drawn = charts.chart(
        say("Confidence and accuracy"), lines, 1.0, say("No example was scored."),
        say("confidence"), share=True,
        look=say("On the diagonal, answers given with 80% confidence are right 80 times in 100; "
                 "below it the model is too sure of itself."),
    )  # fmt: skip
    if fitted is None:
        return drawn + _note(
            say(
                "Expected calibration error: <b>{n:.3f}</b> as trained. Too few examples to fit a "
                "temperature.",
                n=error,
            )
        )
    text = say(
        "Expected calibration error: <b>{n:.3f}</b> as trained, <b>{after:.3f}</b> with "
        "temperature {temperature:.2f} (fitted on validation; this figure comes from {folds} "
        "parts, each calibrated by the others). No answer changes, only how sure the model says "
        "it is.",
        n=error,
        after=fitted.after.ece,
        temperature=fitted.temperature,
        folds=fitted.folds,
    )
    saved = decision.temperature
    if saved is not None:
        forget = say("Forget the saved temperature ({n:.2f})", n=saved)
        kept = _button(forget, 'data-do="cool"', "forget-temperature")
    else:
        what = f'data-do="temper" data-what="{fitted.temperature:.6f}"'
        kept = _button(say("Save this temperature with the model"), what, "save-temperature")
    return f'{drawn}{_note(text)}<div class="ft-links">{kept}</div>'


def _reliable(one: Reliability) -> list[charts.Point]:
    """The bins that hold enough to say something: five examples, or all where they are fewer."""
    enough = min(5, int(one.counts.max(initial=1)))
    return [
        (float(x), float(y))
        for x, y, count in zip(one.confidence, one.accuracy, one.counts, strict=True)
        if count >= enough
    ]


def _order(study: RunEvaluation) -> str:
    order = study.analysis.order
    assert order is not None
    scores = ", ".join(
        say(
            "{measure} {plain:.3f} in the order given and {averaged:.3f} with both orders averaged",
            measure=measure(name),
            plain=order.plain[name],
            averaged=order.averaged[name],
        )
        for name in order.plain
    )
    drawn = order.pairs < study.analysis.examples
    told = {"flips": order.flips, "n": order.pairs, "share": order.flips / order.pairs}
    changed = (
        say("{flips:,} of {n:,} drawn pairs ({share:.1%})", **told)
        if drawn
        else say("{flips:,} of {n:,} pairs ({share:.1%})", **told)
    )
    text = say(
        "A paraphrase is one in either order. Swapping the sentences changes the answer for "
        "{changed} and its probability by {difference:.3f} on average. {scores}. Few flips are a "
        "good sign; swap_augmentation trains on both orders.",
        changed=f'<b id="flips">{html.escape(changed)}</b>',
        difference=order.difference,
        scores=scores,
    )
    if study.table is None or not order.worst:
        return _note(text)
    rows = "".join(
        f"<tr><td dir=auto>{_text(one.sentence1)}</td><td dir=auto>{_text(one.sentence2)}</td>"
        f'<td>{html.escape(one.label)}</td><td class="ft-num">{change:.3f}</td></tr>'
        for one, change in zip(example_rows(study, order.worst), order.changes, strict=True)
    )
    heads = _heads(("sentence1", "sentence2", say("label"), say("change")), 3)
    title = html.escape(say("The pairs that change most"))
    return _note(text) + (
        f'<details class="ft-more"><summary>{title}</summary><div class="ft-rows"><table><thead>'
        f"<tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def versus(first: RunEvaluation, second: RunEvaluation, found: PairedComparison | None) -> str:
    """Whether the second of two runs, B, is surely other than the first, A."""
    head = f'<h2 class="ft-h">{html.escape(say("Is the difference real?"))}</h2>'
    if found is None:
        return head + _note(
            say(
                "They were scored on different pairs, so their scores cannot be compared pair by "
                "pair."
            )
        )
    rows, sure = [], False
    for name, one in found.difference.items():
        sure |= not one.low <= 0 <= one.high
        what = html.escape(say("{measure}, B minus A", measure=NAMES[name]))
        ends = say("{low:+.3f} to {high:+.3f}", low=one.low, high=one.high)
        rows.append(
            f'<tr><th scope="row">{what}</th><td class="ft-num">{one.value:+.3f}</td>'
            f"<td>{ends}</td></tr>"
        )
    test = found.mcnemar
    if (first.answers == second.answers).all():
        return head + _note(
            say(
                "<b>There is none</b>: they give the same answer on each of the {n:,} pairs.",
                n=first.analysis.examples,
            )
        )
    if test.p < 0.05:
        verdict = say("<b>B and A differ by more than chance</b>")
    elif sure:
        verdict = say(
            "<b>Perhaps</b>: one of the two tests says more than chance, the other does not"
        )
    else:
        verdict = say("<b>The difference can be chance</b>")
    apart = len(found.disagreements)
    text = say(
        "{verdict}: of {n:,} pairs, A alone got {first:,} right and B alone {second:,} "
        "(McNemar\u2019s exact test, p = {p:.3g}).",
        verdict=verdict,
        n=first.analysis.examples,
        first=test.first_only,
        second=test.second_only,
        p=test.p,
    )
    heads = (
        f'<th></th><th scope="col" class="ft-num">{html.escape(say("difference"))}</th>'
        f'<th scope="col">{html.escape(say("95% interval"))}</th>'
    )
    table = (
        f'<div class="ft-rows ft-slim"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    look = _note(
        say(
            "An interval that holds 0 means that other pairs of the same kind could turn the order "
            "around (paired bootstrap). Another seed could too: repeat both with several."
        )
    )
    told = f'<p id="versus">{text}</p>'
    return head + told + table + look + (_apart(first, second, found) if apart else "")


_MARKS = {True: "\u2713", False: "\u2715"}


def _apart(first: RunEvaluation, second: RunEvaluation, found: PairedComparison) -> str:
    if first.table is None:
        return ""
    rows = found.disagreements[:50]
    lines = []
    names = second.analysis.labels
    for one, is_first in zip(example_rows(first, rows), found.first_right, strict=False):
        other = names[second.answers[one.row]]
        lines.append(
            f"<tr><td dir=auto>{_text(one.sentence1)}</td><td dir=auto>{_text(one.sentence2)}</td>"
            f"<td>{html.escape(one.label)}</td>"
            f"<td>{_MARKS[is_first]} {html.escape(one.answer)}</td>"
            f"<td>{_MARKS[not is_first]} {html.escape(other)}</td></tr>"
        )
    total = len(found.disagreements)
    title = say("The {n:,} pairs that only one of them got right", n=total)
    title += say(", the first {n} shown", n=len(rows)) if total > len(rows) else ""
    heads = _heads(("sentence1", "sentence2", say("label"), "A", "B"), 5)
    return (
        f'<details class="ft-more" id="apart"><summary>{html.escape(title)}</summary>'
        f'<div class="ft-rows ft-examples"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></details>"
    )


def _text(text: str) -> str:
    return html.escape(text if len(text) <= 400 else text[:400] + "\u2026")


def test_set(
    summary: RunSummary, study: RunEvaluation | None, state: JobProgress, has_test: bool
) -> str:
    """The sealed test set, or what it said and how often it was asked."""
    if state.error:
        said = html.escape(f"{state.error} {state.remedy}".strip())
        return f'<div class="ft-said" role="alert">{said}</div>'
    if state.running:
        doing = html.escape(say("Scoring the test set: {doing} \u2026", doing=state.doing))
        return f'<p class="ft-note" role="status">{doing}</p>'
    if not has_test:
        return _note(say("These pairs have no test split: bring a test file to have one."))
    if not summary.opened:
        return _note(
            say(
                "The test set is <b>sealed</b>: this run was not scored on it. Open it once, when "
                "every choice is made; whoever chooses by it loses what it is for. That it was "
                "opened, and how often, is written into the run."
            )
        )
    last, times = summary.opened[-1], len(summary.opened)
    text = say("Test set: {scores}", scores=_figures(last.metrics))
    if study is not None and study.analysis.step == last.step:
        ends = "; ".join(f"{measure(k)} {span(one)}" for k, one in study.analysis.scores.items())
        text += " " + say("on {n:,} pairs (95%: {ends})", n=study.analysis.examples, ends=ends)
    if last.at_threshold and last.threshold is not None:
        text += "; " + say(
            "with the saved threshold {n:.3f}: {scores}",
            n=last.threshold,
            scores=_figures(last.at_threshold),
        )
    told = {
        "times": times,
        "when": time.strftime("%Y-%m-%d %H:%M", time.localtime(last.time)),
        "step": last.step,
    }
    often = (
        say("Opened once, at {when}, at step {step:,}.", **told)
        if times == 1
        else say("Opened {times} times, last at {when}, at step {step:,}.", **told)
    )
    return f'<p id="test-scores">{text}.</p>' + _note(often)


def _figures(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{measure(k)} <b>{v:.3f}</b>" for k, v in metrics.items())


def examples(
    found: Sequence[ExampleRow],
    total: int,
    first: int,
    labels: Sequence[str],
    corrections: Mapping[int, str],
    relabel: bool,
    nearest: bool = False,
) -> str:
    """A table of examples.

    Args:
        found: those of this page.
        total: how many there are.
        first: place of the first of them among those, from 0.
        labels: the classes.
        corrections: row -> class a person has given.
        relabel: whether another class can be chosen.
        nearest: whether these stand in for suspected labels, of which there is none.
    """  # fmt: skip
    if not found:
        return _note(say("No example is like that."))
    rows = "".join(_example(one, labels, corrections, relabel) for one in found)
    last = first + len(found)
    steps = "".join(
        f'<button type="button" class="ft-button" data-do="page" data-what="{to}"'
        f"{'' if 0 <= to < total else ' disabled'}>{html.escape(name)}</button>"
        for name, to in (
            ("\u2190 " + say("Before"), first - PAGE),
            (say("Next") + " \u2192", first + PAGE),
        )
    )
    heads = '<th scope="col">sentence1</th><th scope="col">sentence2</th>' + "".join(
        f'<th scope="col"{" class=ft-num" * is_number}>{html.escape(name)}</th>'
        for name, is_number in (
            (say("label"), False),
            (say("answer"), False),
            (say("confidence"), True),
            (say("over the evaluations"), False),
            (say("words"), True),
            (say("overlap"), True),
        )
    )
    where = say("{first:,} to {last:,} of {total:,}", first=first + 1, last=last, total=total)
    told = ""
    if nearest:
        told = _note(
            say(
                "<b>None is sure; these are the nearest.</b> No label here is contradicted at "
                "every evaluation and given less than {share:.0%} on average; of the wrong "
                "answers, these are the ones whose label is doubted most.",
                share=SUSPECT,
            )
        )
    return (
        f'{told}<div class="ft-rows ft-examples" role="region" '
        f'aria-label="{html.escape(say("Examples"))}" tabindex="0">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<div class="ft-links"><span class="ft-facts">{html.escape(where)}</span>{steps}</div>'
    )


def _example(
    one: ExampleRow, labels: Sequence[str], corrections: Mapping[int, str], relabel: bool
) -> str:
    given = html.escape(one.label)
    if relabel and len(labels) <= 200:
        now = corrections.get(one.row, one.label)
        options = "".join(
            f'<option value="{html.escape(name, quote=True)}"{" selected" * (name == now)}>'
            f"{html.escape(name)}</option>"
            for name in labels
        )
        given = (
            f'<select data-row="{one.row}" aria-label="'
            f'{html.escape(say("Label of example {n}", n=one.row + 1))}">{options}</select>'
        )
        if one.row in corrections:
            was = say("was {label}", label=one.label)
            given += f"<small>{html.escape(was)}</small>"
    wrong = "" if one.answer == one.label else ' class="ft-wrong"'
    mark = "" if one.answer == one.label else "\u2715 "
    overlap = "\u2013" if one.overlap is None else f"{one.overlap:.2f}"
    return (
        f"<tr><td dir=auto>{_text(one.sentence1)}</td><td dir=auto>{_text(one.sentence2)}</td>"
        f"<td>{given}</td><td{wrong}>{mark}{html.escape(one.answer)}</td>"
        f'<td class="ft-num">{one.confidence:.3f}</td>'
        f"<td>{html.escape(translate_term(one.history))}</td>"
        f'<td class="ft-num">{one.words or ""}</td><td class="ft-num">{overlap}</td></tr>'
    )
