"""Several runs together: compared and ranked, judged for a release, or the trials of a search."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gradio as gr
from markupsafe import Markup

from finetune.config import hyperparameters
from finetune.errors import DataError, FinetuneError, NoSuchRun, StoreError
from finetune.evaluation import gate, picking, ranking, release, report
from finetune.evaluation.gate import Judgement, Limits
from finetune.hyperparameter import Range
from finetune.jobs import evaluate, run_table
from finetune.jobs.evaluate import ComparisonJob
from finetune.jobs.run_table import RunRow
from finetune.metrics import shared_rows
from finetune.metrics.catalog import LOSS, find
from finetune.runs import grids
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState, RunSummary
from finetune.studies import driver, results
from finetune.studies.results import TrialRow
from finetune.studies.study import PARTS, Study, find_study
from finetune.ui import charts, elements, evaluation_view, feedback, run_view, upload_limits
from finetune.ui.charts import Series
from finetune.ui.elements import button
from finetune.ui.html import fixed, in_words, macro, measure, render
from finetune.ui.i18n import gettext
from finetune.ui.panel import Panel, Updates, handler

_LETTERS = "ABCDEFGH"
_RANKED = 30  # runs shown in a ranking
_DRAWN = 60  # learning curves of a search, the newest
_STATES = ("finished", "pruned", "failed", "running", "waiting")  # of a trial


def comparison(store: RunStore, run_ids: Sequence[str]) -> Markup:
    """Draw runs side by side, best F1 on new pairs first, and say if the first two can be told
    apart."""
    try:
        runs = [store.get(run_id) for run_id in run_ids]
    except NoSuchRun as error:
        return feedback.show_errors(error)
    row_of = {row.id: row for row in run_table.run_rows(store)}
    ranked: list[tuple[float, Run, RunRow, RunSummary, float | None]] = []
    for run in runs:
        row, summary = row_of[run.id], run.state()
        picked, best = picking.run_picking(run), summary.best
        expected = None  # the score on new pairs, if picking changes it
        if picked is not None and best is not None:
            expected = picked.expected(best.metrics).get(summary.task.headline.name)
        score = row.value(row.headline) if expected is None else expected
        rank = -math.inf if score is None else summary.task.headline.rank(score)
        ranked.append((rank, run, row, summary, expected))
    ranked.sort(key=lambda each: each[0], reverse=True)
    _, runs, rows, summaries, expected_scores = map(list, zip(*ranked, strict=True))
    fingerprints = {each.prepared.fingerprint for each in summaries if each.prepared}  # so far
    first = second = None
    with contextlib.suppress(StoreError):
        first = report.evaluate_run(runs[0], summaries[0])
    with contextlib.suppress(StoreError):
        second = report.evaluate_run(runs[1], summaries[1])
    paired = None
    if first and second:
        both = [name for name in first.analysis.scores if name in second.analysis.scores]
        paired = report.compare_runs(first, second, [*map(find, both)])
    classes, headline = max(row.classes for row in rows), summaries[0].task.headline
    measured = dict.fromkeys((headline, *(m for each in summaries for m in each.measured)))
    titles = {metric.name: in_words(metric.name, classes) for metric in (*measured, LOSS)}
    drawn = [
        _chart(summaries, gettext("Validation {f1}", f1=title), name)
        for name, title in titles.items()
    ]
    drawn.insert(1, _chart(summaries, gettext("Training loss, smoothed"), ""))
    html = render(
        "compare.html",
        runs=rows,
        summaries=summaries,
        letters=_LETTERS,
        keys=[macro("macros.html", "swatch")(f"run{n}") + _LETTERS[n] for n in range(len(runs))],
        comparable=len(fingerprints) <= 1 and (paired is not None or not (first and second)),
        comparison=paired,
        counted=shared_rows.note(len(first.truth), paired.worth) if first and paired else "",
        examples=first.analysis.examples if first else 0,
        headline=headline.name,
        is_better=paired is not None and paired.is_better(headline),
        f1=titles[headline.name],
        at_thresholds=any(row.threshold is not None for row in rows),
        expected=expected_scores,
        seeds=_of_seeds(rows, summaries, expected_scores),
        below=_below_baseline(rows, summaries, expected_scores),
        differing=run_table.differing_settings(rows),
        columns=_differing_columns(rows, classes),
        cell=run_view.cell_text,
        charts=drawn,
    )
    if paired is not None and first is not None and second is not None:
        html += evaluation_view.disagreements(first, second, paired, summaries[0].columns)
    finished = [run for run in runs if run.state().status == "finished"]
    names = {run.id: letter for letter, run in zip(_LETTERS, runs, strict=False)}
    return html + (ranking_of(store, finished[0], names) if finished else "")


def ranking_of(store: RunStore, run: Run, letters: Mapping[str, str]) -> Markup:
    """Draw all finished runs on the validation pairs of a run, the best first; nothing if it is the
    only one. `letters`: run id -> its letter in the comparison."""
    try:
        ranked = ranking.rank_runs(ranking.beside(store, run))
    except StoreError:
        return Markup("")
    shown = ranked.runs[:_RANKED]
    lows, highs = [each.score.low for each in shown], [each.score.high for each in shown]
    ends = min(lows), max(highs)
    return render(
        "ranking.html",
        ranking=ranked,
        shown=shown,
        first=run.id,
        letters=letters,
        measure=measure(ranked.metric.name, ranked.classes),
        ends=ends if ends[0] < ends[1] else (ends[0] - 1, ends[1] + 1),
        unknown=any(each.milliseconds is None for each in ranked.runs),
        job=ComparisonJob.of(run, "speed").state(),
    )


def _best_baseline(summaries: Sequence[RunSummary]) -> tuple[str, float] | None:
    headline = summaries[0].task.headline
    levels = {
        name: scores[headline.name]
        for summary in summaries
        for name, scores in summary.baselines.items()
        if headline.name in scores
    }
    return max(levels.items(), key=lambda item: headline.rank(item[1]), default=None)


def _below_baseline(
    rows: Sequence[RunRow], summaries: Sequence[RunSummary], expected: Sequence[float | None]
) -> dict[str, Any] | None:
    """The best baseline, and the letters of the runs that are below it on new rows; None if there
    are none."""
    if (best := _best_baseline(summaries)) is None:
        return None
    headline, (baseline, level) = summaries[0].task.headline, best
    scores = [
        row.scores.get(headline.name, level) if own is None else own
        for row, own in zip(rows, expected, strict=True)
    ]
    below = [
        letter
        for letter, score in zip(_LETTERS, scores, strict=False)
        if headline.rank(score) < headline.rank(level)
    ]
    return {"baseline": baseline, "level": level, "letters": below} if below else None


def _of_seeds(
    rows: Sequence[RunRow], summaries: Sequence[RunSummary], expected: Sequence[float | None]
) -> dict[str, Any] | None:
    """What runs that differ only in their seed show together on new rows; None of others."""
    bundle, headline = run_table.BundleRow("", rows), summaries[0].task.headline
    scores = [
        row.value("score") if own is None else own
        for row, own in zip(rows, expected, strict=True)
        if row.status == "finished"
    ]
    spread = grids.seed_spread(scores, headline.name)
    if bundle.kind != "seeds" or spread is None:
        return None
    baseline, level = _best_baseline(summaries) or ("", 0.0)
    name = rows[0].name.rpartition(grids.SEED)[0]
    return {"name": name, "spread": spread, "baseline": baseline, "level": level}


def _differing_columns(rows: Sequence[RunRow], classes: int) -> dict[str, str]:
    """The results in which the runs differ -> their titles."""
    titles = {
        **{
            name: gettext("{f1}, best model", f1=measure(name, classes))
            for name in run_table.SCORES
        },
        "status": gettext("Status"),
        "best_epoch": gettext("Best pass"),
        "seconds": gettext("Duration"),
        "created": gettext("When"),
    }
    return {
        name: title
        for name, title in titles.items()
        if len({run_view.cell_text(row, name) for row in rows}) > 1 or name == rows[0].headline
    }


def _chart(summaries: Sequence[RunSummary], title: str, metric: str) -> Markup:
    """One metric of all runs; the training loss if `metric` is empty."""
    lines = []
    for n, summary in enumerate(summaries):
        if metric:
            points = charts.metric_points(summary, metric)
        else:
            points = [(float(each.step), each.loss) for each in charts.thinned(summary.train)]
            if len(points) >= charts.SMOOTHED:
                points = charts.smoothed(points)
        lines.append(Series(_LETTERS[n], f"run{n}", points, markers=bool(metric)))
    last = max(summary.total_steps for summary in summaries)
    epochs = {charts.steps_per_epoch(summary) for summary in summaries}
    epoch = epochs.pop() if len(epochs) == 1 else 0
    empty = gettext("None of these runs has come so far.")
    of = find(metric) if metric else None
    return charts.chart(title, lines, last, empty, of=of, epoch=epoch)


_LISTED = 20  # changed answers of each kind


class ReleaseCheck(Panel):
    def draw(self) -> None:
        with gr.Column(visible=False, elem_id="release-check") as self.box:
            elements.heading("Release check")
            elements.note(
                "The new model fails if it loses more right answers than it may, or if its gain is "
                "surely below the least. Both answer a golden file, whose labelled rows no model "
                "is trained on, or else the validation rows."
            )
            with gr.Row(equal_height=True):
                self.new = elements.dropdown([], "New model", "check-new")
                self.old = elements.dropdown([], "Old model", "check-old")
                text = "Answers that may be lost"
                self.max_lost = elements.number_box(0, text, "check-lost", min_width=150)
                text = "Least gain"
                self.min_gain = elements.number_box(-0.01, text, "check-gain", min_width=110)
            self.golden = elements.pairs_file("Golden file, if there is one", "check-golden")
            with gr.Row():
                self.start = button("Check", "check-start", 140, variant="primary", scale=0)
            self.message = elements.notice("check-message")
            self.result = gr.HTML(elem_id="check-result")
        self.poller = elements.polling_element(1)
        self.connect()
        chosen = [self.new.change, self.old.change]  # the result is of other models
        gr.on(chosen, lambda: "", None, self.result, **feedback.QUICK)

    def shown(self, store: RunStore, run_ids: Sequence[str]) -> Updates:
        """Return the updates for the runs that are compared; the newest is the new one."""
        runs = [store.get(run_id) for run_id in run_ids]
        models = {run.id: run.title() for run in runs if run.has_model() and store.is_model(run)}
        newest = sorted(models, reverse=True)
        if len(newest) < 2:
            return {self.box: gr.update(visible=False)}
        choices = [(models[run_id], run_id) for run_id in newest]
        return {
            self.box: gr.update(visible=True),
            self.new: gr.update(choices=choices, value=newest[0]),
            self.old: gr.update(choices=choices, value=newest[1]),
        }

    @handler("start.click")
    def on_start(
        self, store: RunStore, new: str, old: str, max_lost: str, min_gain: str, golden: str | None
    ) -> Updates:
        """Judge by the saved answers at once; a golden file is answered by a job."""
        lost, gain = elements.number(max_lost, whole=True), elements.number(min_gain)
        limits, runs = Limits(lost, gain), (store.get(new), store.get(old))
        if not golden:
            judged = release.check_release(*runs, limits)
            return {self.message: "", self.result: result(judged)}
        path = upload_limits.path(store.visitor, golden)
        job = evaluate.start_release_check(store, *runs, limits, path, Path(golden).name)
        return {self.message: "", self.result: progress(job.state())} | self._polled(job)

    @handler("poller.submit")
    def on_tick(self, store: RunStore, new: str) -> Updates:
        job = ComparisonJob.of(store.get(new), "release")
        evaluate.tidy_golden(store, job)
        return self._polled(job)

    def _polled(self, job: ComparisonJob) -> Updates:
        state, judged = job.state(), job.judgement
        drawn = progress(state) if judged is None or state.running else result(judged)
        return {self.result: drawn, self.poller: state.running}


def progress(state: JobState) -> Markup:
    """Draw a job that has no judgement yet."""
    if state.status == "waiting":
        return feedback.note(gettext(Phase.WAIT.text))
    if state.running:
        return feedback.note(gettext("Both models answer the golden file …"))
    return feedback.show_errors(
        DataError(state.error or gettext("The check ended early."), state.remedy)
    )


def result(judged: Judgement) -> Markup:
    """Draw a judgement."""
    markdown = gate.as_markdown(judged)
    return render(
        "release_check.html",
        judged=judged,
        changed=(
            (judged.lost_rows[:_LISTED], judged.lost),
            (judged.gained_rows[:_LISTED], judged.gained),
        ),
        slices=[part for part in judged.slices if part.lost or part.gained],
        markdown="data:text/markdown;charset=utf-8," + quote(markdown, safe=""),
    )


def search(store: RunStore, study_id: str) -> Markup:
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
        curves=_trial_curves(study, rows, best),
        parallel=lines,
        ends=ends,
        enough=results.ENOUGH,
    )


def _value_text(name: str, value: object) -> str:
    """Text of a field's value, a float with three digits."""
    return run_view.setting_text(name, float(f"{value:.3g}") if isinstance(value, float) else value)


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
        of=find(study.metric),
        look=gettext("Once it has been flat for many trials, more of them gain little."),
    )


def _trial_curves(study: Study, rows: Sequence[TrialRow], best: TrialRow | None) -> Markup:
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
        of=find(study.metric),
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
    # A trial that was killed while it was drawn may lack some values.
    scored = [row for row in scored if study.settings.space.keys() <= row.values.keys()]
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
