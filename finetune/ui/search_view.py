"""A search as HTML: its progress, its trials, and what can be learned from them."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from finetune.config import Range, hyperparameters
from finetune.errors import FinetuneError
from finetune.metrics.catalog import find
from finetune.runs.store import RunStore
from finetune.search import driver, results
from finetune.search.results import TrialRow
from finetune.search.study import PARTS, Study, find_study, studies
from finetune.ui import charts, feedback
from finetune.ui.charts import Series
from finetune.ui.html import fixed, macro, measure, render
from finetune.ui.i18n import gettext
from finetune.ui.run_view import setting_text

_DRAWN = 60  # learning curves, the newest
_STATES = ("finished", "pruned", "failed", "running", "waiting")


def links(store: RunStore, listed: set[str]) -> Markup:
    """A button for each search that has no run; empty if there is none. `listed` are the names of
    the searches that have one."""
    found = [study for study in studies(store) if study.title not in listed]
    return macro("search_links.html", "links")(found) if found else Markup()


def page(store: RunStore, study_id: str) -> Markup:
    """A whole search."""
    try:
        study = find_study(store, study_id)
        rows = results.list_trials(store, study)
    except FinetuneError as error:
        return feedback.show_errors(error)
    scored = [row for row in rows if row.score is not None]
    scored.sort(key=lambda row: row.score or 0.0, reverse=not study.minimize)
    best = results.best_trial(rows, study.minimize)
    spread = results.repeats(store, study)
    metric = measure(study.metric, results.class_count(store, rows))
    counts = {state: sum(row.state == state for row in rows) for state in _STATES}
    lines, ends = parallel_lines(study, scored)
    # Trials that failed or have no place in the queue, with a known reason.
    refused = [row for row in rows if row.reason and row.state in ("failed", "waiting")]
    return render(
        "search.html",
        study=study,
        settings=study.settings,
        metric=metric,
        parts=PARTS,
        progress=results.progress(store, study, rows),
        counts=counts,
        best=best,
        expected=results.expected_score(store, study, rows, best),
        chance=results.within_chance(store, study, rows, best),
        own=next((row for row in rows if row.number == 0 and row.score is not None), None),
        refused=refused[-1] if refused else None,
        repeats=spread,
        alike=results.alike(rows, best, spread),
        rows=[*scored, *(row for row in rows if row.score is None)],
        fields=list(study.settings.space),
        hyperparameters=hyperparameters(),
        value_text=_value_text,
        importance=results.importance(study),
        price=driver.trial_price(study.settings.spec),
        best_chart=_best_chart(study, rows, metric),
        curves=_curves(study, rows, best),
        parallel=lines,
        ends=ends,
        enough=results.ENOUGH,
    )


def _value_text(name: str, value: object) -> str:
    """Text of a field's value, a float with three digits."""
    return setting_text(name, float(f"{value:.3g}") if isinstance(value, float) else value)


def _best_chart(study: Study, rows: Sequence[TrialRow], metric: str) -> Markup:
    """The best score of the finished trials so far."""
    points, best = [], None
    for row in rows:
        if row.state == "finished" and row.score is not None:
            best = row.score if best is None else (min if study.minimize else max)(best, row.score)
            points.append((float(row.number), best))
    return charts.chart(
        gettext("Best so far"),
        [Series(gettext("best {metric}", metric=metric), "headline", points, markers=True)],
        float(max(1, study.settings.budget.trials - 1, len(rows) - 1)),
        gettext("It begins with the first trial that has finished."),
        across=gettext("trial"),
        most=find(study.metric).range[1],
        look=gettext("Once it has been flat for many trials, more of them gain little."),
    )


def _curves(study: Study, rows: Sequence[TrialRow], best: TrialRow | None) -> Markup:
    """The learning curves of the trials, pruned ones dimmed."""
    lines = []
    for row in [row for row in rows if row.curve][-_DRAWN:]:
        style = "second ft-raw" if row.state == "pruned" else "second"
        style = "headline" if best is not None and row.number == best.number else style
        points = [(float(part), score) for part, score in sorted(row.curve.items())]
        lines.append(Series(gettext("trial {n}", n=row.number), style, points, latest=False))
    return charts.chart(
        gettext("Learning curves of all trials"),
        lines,
        float(PARTS),
        gettext("They appear with the first scores."),
        across=gettext("tenth of the trial"),
        most=find(study.metric).range[1],
        look=gettext(
            "The best trial has its own colour; faint lines were ended early. Lines that still "
            "rise at their end may want more passes."
        ),
        legend=False,
    )


def parallel_lines(
    study: Study, scored: Sequence[TrialRow]
) -> tuple[list[tuple[str, TrialRow]], list[tuple[str, str]]]:
    """Trials as lines across an axis for each field and one for the score, all from 0 to 100. SVG
    points, best trial last; and the values at the lower and the upper end of each axis. Both are
    empty if fewer than two trials have a place."""
    scored = [row for row in scored if results.has_position(study, row)]
    scores = [row.score for row in scored if row.score is not None]
    if len(scores) < 2:
        return [], []
    ends = []
    for name in study.settings.space:
        drawn = results.axis(study, name)
        first, last = (drawn.low, drawn.high) if isinstance(drawn, Range) else (drawn[0], drawn[-1])
        ends.append((_value_text(name, first), _value_text(name, last)))
    low, high = min(scores), max(scores)
    ends.append((fixed(low), fixed(high)))
    lines = []
    for row in reversed(scored):
        heights = [results.position(study, name, row.values[name]) for name in study.settings.space]
        heights.append(100 * ((row.score or 0.0) - low) / ((high - low) or 1.0))
        step = 100 / (len(heights) - 1)
        text = " ".join(f"{n * step:.1f},{100 - height:.1f}" for n, height in enumerate(heights))
        lines.append((text, row))
    return lines, ends
