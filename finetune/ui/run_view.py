"""Runs as HTML: the state of one, its configuration, the table of all."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from markupsafe import Markup

from finetune import config, owners
from finetune.config import RunConfig
from finetune.engines import registry, spending
from finetune.engines.base import read_spec
from finetune.errors import StoreError
from finetune.evaluation import advice, baselines, report
from finetune.inference import decision_rule
from finetune.jobs import run_table, service
from finetune.jobs.run_table import BundleRow, RunRow
from finetune.messages import message
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.studies.study import Study, studies
from finetune.ui import feedback
from finetune.ui.html import duration, fixed, in_words, macro, phase_text, render, when
from finetune.ui.i18n import gettext, number

MAX_COMPARED = 8  # colours and dashes that can be told apart
OF_PAIRS = ("swap_augmentation", "sentence_order")  # settings that single texts do not have
PAGE = 20  # rows of the table at a time
STATUSES = {
    "waiting": message("waiting"),
    "running": message("running"),
    "finished": message("finished"),
    "stopped": message("stopped"),
    "failed": message("failed"),
    "interrupted": message("interrupted"),
}


def bar(run: Run, summary: RunSummary, queue_place: tuple[int, int] = (0, 0)) -> Markup:
    """Phase, time left, and on which engine. `queue_place`: its place from 1, and how many wait;
    (0, 0) if it does not wait."""
    spec, engine = read_spec(run), registry.engine_of(run)
    return render(
        "run_bar.html",
        headline=_headline(summary, queue_place),
        summary=summary,
        ended=summary.status in ENDED,
        seconds=run_table.training_seconds(summary) or 0.0,
        engine=engine,
        spec=spec,
        spent=spending.spent_in(run) if engine.is_remote else 0.0,
    )


def action(run: Run, summary: RunSummary) -> Markup:
    """The Stop or Resume button."""
    spec = read_spec(run)
    return render(
        "run_action.html",
        ended=summary.status in ENDED,
        remote=registry.is_remote(run),
        attached=bool(spec.job),  # a job that is followed to its end first
        # A run that waits to resume still has the file that stopped it.
        stopping=run.stop_requested() and summary.status != "waiting",
        resumable=summary.status in service.RESUMABLE,
    )


def cards(run: Run, summary: RunSummary) -> Markup:
    """The latest loss and the scores of the best model."""
    kept = config = None
    with contextlib.suppress(StoreError, OSError):
        config = run.config()
        if decision_rule.read_rule(run.best).threshold is not None:
            analysis = report.evaluate_run(run, summary).analysis
            kept = None if analysis.threshold is None else analysis
    return render("run_cards.html", summary=summary, kept=kept, config=config)


def remark(summary: RunSummary) -> Markup:
    """Say that a simple method is as good as training can be; empty if none is."""
    rows = summary.prepared.validation_examples if summary.prepared else 0
    text = baselines.why_no_training(summary.baselines, summary.task, summary.classes, rows)
    return macro("feedback.html", "warning")(gettext(text)) if text else Markup()


def verdict(store: RunStore, run: Run, summary: RunSummary) -> Markup:
    """Say how the run ended and what to do next; empty while it runs. A fold or a losing trial is
    not offered to be published."""
    if summary.status not in ENDED:
        return Markup()
    judged, advised, plain = None, None, None
    with contextlib.suppress(StoreError, OSError):  # it keeps no scored model
        if summary.saved_step is not None:
            judged = report.run_verdict(run, summary)
            advised = advice.advise(summary, run.config(), judged)
            analysis = report.evaluate_run(run, summary).analysis
            plain = advice.plainly(analysis, summary.baselines)
    return render(
        "run_verdict.html", run=run, summary=summary, verdict=judged, advice=advised,
        plain=plain, constant=summary.task.constant, publishable=store.is_model(run),
    )  # fmt: skip


def announcement(summary: RunSummary, queue_place: tuple[int, int] = (0, 0)) -> Markup:
    """Text for a screen reader: phases, quarters and endings, not every step."""
    text = _headline(summary, queue_place)
    if summary.status == "running" and 0 < quarters(summary) < 4:
        text = gettext("{what}, at least {n}% of the steps", what=text, n=25 * quarters(summary))
    return Markup('<span id="announced">{}</span>').format(text)


def brief(run: Run, summary: RunSummary) -> str:
    """State of a run in a few words, for the browser's title."""
    if summary.status == "running" and summary.step and summary.total_steps:
        return f"{100 * summary.step // summary.total_steps}%"
    kept = report.kept_metrics(run, summary) if summary.status == "finished" else {}
    score = kept.get(summary.task.headline.name)
    if score is not None:
        name = in_words(summary.task.headline.name, summary.classes)
        return gettext("Done: {measure} {f1:.2f}", measure=name, f1=score)
    if summary.status == "waiting":
        return gettext("Waiting")
    return _headline(replace(summary, detail=""), (0, 0))


def quarters(summary: RunSummary) -> int:
    """Number of quarters of the steps done."""
    return 4 * summary.step // summary.total_steps if summary.total_steps else 0


def _headline(summary: RunSummary, queue_place: tuple[int, int]) -> str:
    place, waiting = queue_place
    if summary.status == "waiting" and place:
        return gettext("Waiting, no. {place} of {n}", place=place, n=waiting)
    ended = summary.status in ENDED
    text = gettext(STATUSES[summary.status]) if ended else phase_text(summary.phase, summary.detail)
    return text[:1].upper() + text[1:]


def configuration(run: Run) -> Markup:
    """Every hyperparameter of the run, or the error in reading them."""
    try:
        settings = run.config()
    except StoreError as error:
        return feedback.show_errors(error)
    summary = run.state()
    resolved, values = summary.resolved_settings(settings), settings.to_dict()
    if not summary.paired:
        values = {name: value for name, value in values.items() if name not in OF_PAIRS}
    texts = {name: setting_text(name, value, resolved.get(name)) for name, value in values.items()}
    changed = {name for name, value in values.items() if value != getattr(RunConfig(), name)}
    return macro("run_details.html", "configuration")(texts, changed, config.hyperparameters())


def rows(store: RunStore) -> list[RunRow]:
    """The rows of all runs. If an admin looks at everybody's, each has its owner as a tag."""
    listed = run_table.run_rows(store)
    if not is_everybodys(store):
        return listed
    owner_of = {row.id: Run(store.root / row.id).owner.removeprefix("user:") for row in listed}
    tags = {row.id: filter(None, (owner_of[row.id][:16], *row.tags)) for row in listed}
    return [replace(row, tags=tuple(tags[row.id])) for row in listed]


def is_everybodys(store: RunStore) -> bool:
    """True if an admin looks at everybody's runs, to stop or delete them."""
    return store.visitor.sees_all and owners.policy().several_people


View = dict[str, Any]  # what a browser looks at; kept by the server, no client can change it


def blank() -> View:
    """The initial view: nothing opened, the newest first, only own runs."""
    return {
        "by": "created", "descending": True, "page": 0, "opened": "", "compared": [],
        "everybody": False, "search": "", "columns": [], "unfolded": [],
        "ticks": 0,  # what was ticked is forgotten when it grows
    }  # fmt: skip


def table(store: RunStore, rows: Sequence[RunRow], view: View, text: str = "") -> Markup:
    """A page of the table, or a hint if it is empty; `assets/run_table.js` reports clicks. Each
    listed run has the words of `text`."""
    matching, order = run_table.filter_rows(rows, text), (view["by"], view["descending"])
    lines: list[RunRow | BundleRow] = []
    for line in run_table.by_dataset(run_table.sort_rows(matching, *order, rows), rows):
        lines.append(line)
        if isinstance(line, BundleRow) and line.name in view["unfolded"]:
            lines += line.lines()
    page = max(0, min(view["page"], (len(lines) - 1) // PAGE))  # the last if there are fewer
    metrics = {(row.headline, row.classes) for row in matching if row.scores}
    ordered, searches = _searches(store, {row.bundle for row in rows})
    return render(
        "run_table.html",
        lines=lines[page * PAGE : (page + 1) * PAGE],
        columns=[*run_table.FIXED, *view["columns"]],
        choices=_choices(matching),
        several_datasets=len({row.dataset for row in matching}) > 1,
        view=view,
        page=page,
        pages=-(-len(lines) // PAGE),
        searches=searches,
        ordered=ordered,
        ids="|".join(line.ids for line in run_table.sort_rows(rows, *order, rows)),
        matching=len(matching),
        total=len(rows),
        scores=list(run_table.SCORES),
        cell=cell_text,
        interval=partial(run_table.score_interval, store),
        measure=in_words(*metrics.pop()) if len(metrics) == 1 else "",
        most_classes=max((row.classes for row in matching), default=0),
    )


def _searches(store: RunStore, listed: set[str]) -> tuple[dict[str, int], list[Study]]:
    """The trials of each search that goes on, of which the last have no run yet; and the searches
    that are not `listed` by a run."""
    ordered, others = {}, []
    for study in studies(store):
        with contextlib.suppress(StoreError):  # a damaged one hides no run
            if study.title not in listed:
                others.append(study)
            if not study.is_stopped:
                ordered[study.title] = study.settings.budget.trials
    return ordered, others


def _choices(rows: Sequence[RunRow]) -> list[str]:
    """The columns that can be shown besides: data, scores, and settings other than the default."""
    useful = {name for row in rows for name in (*row.settings, *row.scores)}
    useful |= {"dataset", "best_epoch"}
    return [name for name in all_columns() if name in useful and name != "checkpoint"]


def all_columns() -> list[str]:
    """The columns that the table can have and be sorted by."""
    return list(dict.fromkeys((*run_table.COLUMNS, *config.hyperparameters())))


def cell_text(row: RunRow, column: str) -> str:
    """Text of a cell; a dash if unknown."""
    value = row.value(column)
    if column == "status" and row.damaged:
        return gettext("configuration damaged")
    if column == "status":
        status = gettext(STATUSES[row.status])
        if not row.place:
            return status
        return gettext("{status}, no. {place} in the queue", status=status, place=row.place)
    if value is None:
        return "\u2013"
    if column in ("score", *run_table.SCORES):
        return fixed(value, 3)
    if column == "best_epoch":
        return fixed(value, 2)
    if column == "megabytes":
        return fixed(value, 0 if value >= 10 else 1)
    if column == "seconds":
        return duration(value)
    if column == "created":
        return when(value)
    return setting_text(column, value, row.resolved.get(column))


def setting_text(name: str, value: object, resolved: object = None) -> str:
    """Text of a setting's value, in words if it is no amount; `resolved` is what an automatic one
    came to."""
    field = config.hyperparameters().get(name)
    word = field.words.get(value) if field and field.kind in (int, float) else None
    if resolved is not None and (word is not None or value == "auto"):
        return gettext("{value} (auto)", value=_value_text(resolved))
    return gettext(word) if word is not None else _value_text(value)


def _value_text(value: object) -> str:
    text = run_table.value_text(value)
    return number(text) if isinstance(value, float) else text
