"""Runs as HTML: the state of one, its configuration, the table of all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from markupsafe import Markup

from finetune import config, owners
from finetune.config import RunConfig
from finetune.engines import registry, spending
from finetune.engines.base import read_spec
from finetune.errors import StoreError
from finetune.evaluation import advice, baselines, report
from finetune.inference import decision_rule
from finetune.jobs import run_table, service
from finetune.jobs.run_table import RunGroup, RunRow
from finetune.messages import message
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.ui import feedback
from finetune.ui.html import duration, fixed, in_words, macro, phase_text, render, when
from finetune.ui.i18n import gettext, number

MAX_COMPARED = 8  # colours and dashes that can be told apart
PAGE = 20  # rows of the table at a time
MOST_SETTINGS = 8  # columns of differing hyperparameters
STATUSES = {
    "waiting": message("waiting"),
    "running": message("running"),
    "finished": message("finished"),
    "stopped": message("stopped"),
    "failed": message("failed"),
    "interrupted": message("interrupted"),
}


def bar(run: Run, summary: RunSummary, queue_place: tuple[int, int] = (0, 0)) -> Markup:
    """Phase, progress, time left, and on which engine.

    Args:
        queue_place: place in the queue, from 1, and how many wait; (0, 0) if it does not wait.
    """
    spec, engine = read_spec(run), registry.engine_of(run)
    return render(
        "run_bar.html",
        headline=_headline(summary, queue_place),
        summary=summary,
        ended=summary.status in ENDED,
        seconds=run_table.training_seconds(summary) or 0.0,
        engine=engine.label or spec.engine,
        spec=spec if engine.is_remote else None,
        spent=spending.spent_on(run) if engine.is_remote else 0.0,
        settled=summary.status in ENDED and not spec.may_be_at_work,
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


def progress(summary: RunSummary) -> Markup:
    """A bar of the steps taken."""
    share = summary.step / summary.total_steps if summary.total_steps else 0.0
    return macro("macros.html", "progress_bar")(gettext("training steps"), share)


def cards(run: Run, summary: RunSummary) -> Markup:
    """The latest loss, the scores of the best model, and whether training was worth while."""
    remark = baselines.why_no_training(summary.baselines, summary.task, summary.classes)
    kept = config = None
    with contextlib.suppress(StoreError, OSError):
        config = run.config()
        if decision_rule.read_rule(run.best).threshold is not None:
            analysis = report.evaluate_run(run, summary).analysis
            kept = None if analysis.threshold is None else analysis
    return render("run_cards.html", summary=summary, remark=remark, kept=kept, config=config)


def verdict(run: Run, summary: RunSummary) -> Markup:
    """Say how the run ended and what to do next; empty while it runs."""
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
        plain=plain, constant=summary.task.constant,
    )  # fmt: skip


def announcement(summary: RunSummary, queue_place: tuple[int, int] = (0, 0)) -> Markup:
    """Text for a screen reader: phases, quarters and endings, not every step."""
    text = _headline(summary, queue_place)
    if summary.status == "running" and 0 < quarters(summary) < 4:
        text = gettext("{what}, {n}% of the steps", what=text, n=25 * quarters(summary))
    return Markup('<span id="announced">{}</span>').format(text)


def brief(run: Run, summary: RunSummary) -> str:
    """State of a run in a few words, for the browser's title."""
    if summary.status == "running" and summary.step and summary.total_steps:
        return f"{100 * summary.step // summary.total_steps}%"
    kept = report.kept_metrics(run, summary) if summary.status == "finished" else {}
    score = kept.get(summary.headline.name)
    if score is not None:
        name = in_words(summary.headline.name, summary.classes)
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
        return gettext("Waiting, no. {place} of {n} in the queue", place=place, n=waiting)
    ended = summary.status in ENDED
    text = gettext(STATUSES[summary.status]) if ended else phase_text(summary.phase, summary.detail)
    return text[:1].upper() + text[1:]


def configuration(run: Run) -> Markup:
    """Every hyperparameter of the run, or the error in reading them."""
    try:
        settings = run.config()
    except StoreError as error:
        return feedback.show_errors(error)
    resolved, values = run.state().resolved_settings(settings), settings.to_dict()
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


def table(
    rows: Sequence[RunRow],
    by: str,
    descending: bool,
    text: str = "",
    page: int = 0,
    chosen: Sequence[str] = (),
) -> Markup:
    """A page of the table, or a hint if it is empty; `assets/run_table.js` reports clicks.

    Args:
        by, descending: the sort order.
        text: words that each listed run must have.
        page: from 0; the last one if there are fewer.
        chosen: columns; empty for those in which the runs differ.
    """
    matching = run_table.filter_rows(rows, text)
    lines: list[RunRow | RunGroup] = []
    kinds = {(row.headline, in_words(row.headline, row.classes)) for row in matching if row.scores}
    for line in run_table.by_dataset(run_table.sort_rows(matching, by, descending, rows), rows):
        lines += [line, *line.rows] if isinstance(line, RunGroup) else [line]
    page = max(0, min(page, (len(lines) - 1) // PAGE))
    columns, same, choices = _columns(matching, chosen)
    return render(
        "run_table.html",
        lines=lines[page * PAGE : (page + 1) * PAGE],
        columns=columns,
        same=same,
        choices=choices,
        chosen=chosen,
        several_datasets=len({row.dataset for row in matching}) > 1,
        dataset_of=run_table.dataset_of,
        by=by,
        descending=descending,
        page=page,
        pages=-(-len(lines) // PAGE),
        ids=" ".join(row.id for row in rows),
        matching=len(matching),
        total=len(rows),
        scores=run_table.score_columns(),
        curve_beside=next((name for name in columns if name in _headlines(matching)), ""),
        cell=cell_text,
        sparkline=_sparkline(matching),
        most_classes=max((row.classes for row in matching), default=0) if len(kinds) == 1 else 0,
        mixed=len(kinds) > 1,
    )


def _headlines(rows: Sequence[RunRow]) -> set[str]:
    """The scores by which the rows' tasks tell models apart."""
    return {row.headline for row in rows}


def _columns(
    rows: Sequence[RunRow], chosen: Sequence[str]
) -> tuple[list[str], list[str], list[str]]:
    """The columns shown, `chosen` or those in which the rows differ (all, for a single row); the
    texts that all rows share in some others; and the columns to choose from: those shown, and those
    with a value other than the default."""
    known = [*run_table.columns()]
    settings = [name for name in run_table.differing_settings(rows) if name not in known]
    scored = {name for row in rows for name in (*row.measured, *row.scores)}
    if len(_headlines(rows)) > 1:  # runs of several tasks: what tells their models apart
        scored = _headlines(rows)
    scores = [name for name in run_table.score_columns() if name in scored]
    first, last = ["name", *scores, "status", "dataset", "checkpoint"], known[-3:]
    columns, same = [], []
    for column in [*first, *settings[:MOST_SETTINGS], *last]:
        texts = {cell_text(row, column) for row in rows}
        if len(texts) > 1 or len(rows) < 2 or column in {"name"} | _headlines(rows):
            columns.append(column)
        elif column in ("status", "dataset", "checkpoint"):
            same.append(texts.pop())
    if len({row.dataset for row in rows}) > 1:  # their names stand above the runs
        columns = [name for name in columns if name != "dataset"]
    if chosen:
        columns, same = ["name", *(name for name in chosen if name != "name")], []
    useful = {name for row in rows for name in (*row.settings, *row.scores)} | set(columns)
    plain = run_table.columns().keys() - run_table.score_columns()
    choices = [name for name in all_columns() if name in useful | plain and name != "name"]
    return columns, same, choices


def all_columns() -> list[str]:
    """The columns that the table can have and be sorted by."""
    return list(dict.fromkeys((*run_table.columns(), *config.hyperparameters())))


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
    if column in run_table.score_columns() or column == "best_epoch":
        return fixed(value, 2 if column == "best_epoch" else 3)
    if column == "seconds":
        return duration(value)
    if column == "created":
        return when(value)
    return setting_text(column, value, row.resolved.get(column))


def setting_text(name: str, value: object, resolved: object = None) -> str:
    """Text of a setting's value, in words if it is no amount.

    Args:
        resolved: what an automatic one came to.
    """
    field = config.hyperparameters().get(name)
    word = field.words.get(value) if field and field.kind in (int, float) else None
    if resolved is not None and (word is not None or value == "auto"):
        return gettext("{value} (auto)", value=_value_text(resolved))
    return gettext(word) if word is not None else _value_text(value)


def _value_text(value: object) -> str:
    text = run_table.value_text(value)
    return number(text) if isinstance(value, float) else text


def _sparkline(rows: Sequence[RunRow]) -> Callable[[RunRow], str]:
    """A function from a row to the points of its F1 in a box of 80 by 20, one scale for all."""
    scores = [score for row in rows for score in row.curve]
    low, high = min(scores, default=0.0), max(scores, default=1.0)
    span = high - low or 1.0

    def points(row: RunRow) -> str:
        across = 76 / max(1, len(row.curve) - 1)
        return " ".join(
            f"{2 + n * across:.1f},{18 - 16 * (score - low) / span:.1f}"
            for n, score in enumerate(row.curve)
        )

    return points
