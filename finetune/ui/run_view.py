"""A run's state in HTML: the phase, a progress bar, the figures that matter. All text escaped."""

from __future__ import annotations

import html
import math
import re

from finetune.jobs import run_table
from finetune.runs.store import Run
from finetune.runs.summary import ENDED, RunSummary
from finetune.ui import tab_links
from finetune.ui.i18n import gettext

PHASES = {
    "": "Starting the worker",
    "start": "Starting",
    "download": "Loading",
    "tokenise": "Tokenising",
    "train": "Training",
    "evaluate": "Evaluating",
    "save": "Saving the best model",
}
# What is saved, where it is not the best model.
SAVES = {
    "a checkpoint": "Saving a checkpoint",
    "the model as it is": "Saving the model as it is",
}
# What a start may be about, as the worker says it.
STARTS = ("loading PyTorch", "finding the largest batch that fits")
ENDINGS = {
    "finished": "Finished",
    "stopped": "Stopped",
    "failed": "Failed",
    "interrupted": "Interrupted",
}


def empty() -> str:
    """While there is no run."""
    text = gettext(
        "Nothing has been trained yet. Press <b>Train</b>, or choose the bundled pairs and "
        "checkpoint first: they need no network and take a few minutes on a laptop."
    )
    # One box inside: the note is a grid, which would give the bold word a line of its own.
    return f'<p class="ft-note"><span>{text}</span></p>'


def status_html(run: Run, summary: RunSummary, place: tuple[int, int] = (0, 0)) -> str:
    """The live view's head for one run.

    Args:
        place: in the queue, from 1, and how many wait; (0, 0) when it does not.
    """
    headline = _headline(summary, place)
    share = summary.step / summary.total_steps if summary.total_steps else 0.0
    percent = f"{100 * share:.0f}"
    bar = f'<i style="width:{100 * share:.1f}%"></i>'
    label = html.escape(gettext("training steps"))
    return (
        f'<div class="ft-status"><strong id="run-phase" class="ft-phase ft-{summary.status}">'
        f"{html.escape(headline)}</strong>"
        f'<span class="ft-facts">{html.escape(run.title())}</span></div>'
        f'<div class="ft-bar" role="progressbar" aria-label="{label}" aria-valuemin="0" '
        f'aria-valuemax="100" aria-valuenow="{percent}">{bar}</div>'
        f'<div class="ft-facts">{html.escape(_facts(summary))}</div>'
        f"{_cards(summary)}{_ending(summary)}"
    )


def announcement(summary: RunSummary, place: tuple[int, int] = (0, 0)) -> str:
    """What a screen reader is told, politely: phases, quarters and endings, not every step."""
    said = _headline(summary, place)
    if summary.status == "running" and 0 < quarters(summary) < 4:
        said = gettext("{what}, {n}% of the steps", what=said, n=25 * quarters(summary))
    return f'<span id="announced">{html.escape(said)}</span>'


def quarters(summary: RunSummary) -> int:
    """How many quarters of the steps are done: often enough to be told aloud."""
    return 4 * summary.step // summary.total_steps if summary.total_steps else 0


def duration(seconds: float) -> str:
    """`48 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _headline(summary: RunSummary, place: tuple[int, int]) -> str:
    if summary.status == "waiting" and place[0]:
        return gettext("Waiting, no. {place} of {n} in the queue", place=place[0], n=place[1])
    if summary.status in ENDINGS:
        return gettext(ENDINGS[summary.status])
    text = gettext(PHASES.get(summary.phase, summary.phase))
    if summary.phase == "save" and summary.detail in SAVES:
        return gettext(SAVES[summary.detail])
    shown = summary.detail if summary.phase in {"download", "tokenise", "start"} else ""
    if counted := re.fullmatch(r"(\d+) pairs", shown):
        return f"{text} {gettext('{n:,} pairs', n=int(counted[1]))}"
    return f"{text} {gettext(shown)}".strip()


def _facts(summary: RunSummary) -> str:
    facts = []
    prepared = summary.prepared
    if prepared:
        steps = {"step": summary.step, "total": prepared.total_steps}
        facts.append(gettext("step {step:,} of {total:,}", **steps))
        if summary.train:
            facts.append(gettext("epoch {n:.2f}", n=summary.train[-1].epoch))
            facts.append(gettext("{n:.0f} samples/s", n=summary.samples_per_second))
    left = summary.seconds_left
    if summary.status == "running" and left is not None:
        facts.append(gettext("about {time} left", time=duration(left)))
    elif summary.status in ENDED and summary.began:
        facts.append(
            gettext("took {time}", time=duration(run_table.training_seconds(summary) or 0.0))
        )
    elif prepared:
        facts.append(gettext("time left: unknown until the first steps"))
    if summary.started:
        times = f"{summary.started.processes} \u00d7 " if summary.started.processes > 1 else ""
        facts.append(gettext("on {device}", device=f"{times}{summary.started.device}"))
    if prepared and prepared.gradient_accumulation_steps > 1:
        batch, summed = prepared.per_device_train_batch_size, prepared.gradient_accumulation_steps
        facts.append(gettext("{n} batches of {size} a step", n=summed, size=batch))
    if summary.status == "waiting":
        facts.append(gettext("it begins when the runs before it have ended"))
    return " \u00b7 ".join(facts) or gettext("PyTorch takes a few seconds to load")


def _cards(summary: RunSummary) -> str:
    loss = f"{summary.train[-1].loss:.3f}" if summary.train else "\u2013"
    best = summary.best
    shown = best or (summary.validation[-1] if summary.validation else None)
    when = gettext("now") if summary.status == "running" else gettext("at the end")
    when = when if summary.train else gettext("none yet")
    cards = [_card(gettext("training loss"), loss, when)]
    for name, title, best_title in (
        ("accuracy", "accuracy", gettext("accuracy, best model")),
        ("f1", "F1", gettext("F1, best model")),
    ):
        value = f"{shown.metrics[name]:.3f}" if shown and name in shown.metrics else "\u2013"
        cards.append(_card(best_title if best else title, value, _beside(summary, name)))
    where = f"{best.step:,}" if best else "\u2013"
    kept = best and summary.saved_step is not None
    cards.append(
        _card(
            gettext("best step"), where, gettext("the model kept") if kept else gettext("none yet")
        )
    )
    return f'<div class="ft-cards">{"".join(cards)}</div>'


def _beside(summary: RunSummary, name: str) -> str:
    """What a score is read against: how sure it is, and the best that other means reach."""
    shown = summary.best or (summary.validation[-1] if summary.validation else None)
    parts = []
    if shown and (ends := shown.intervals.get(name)):
        parts.append(gettext("95%: {low:.3f} to {high:.3f}", low=ends[0], high=ends[1]))
    known = [scores[name] for scores in summary.baselines.values() if name in scores]
    if known:
        top = max(known)  # the checkpoint's own similarity, most often the best, comes last
        going = summary.status == "running"
        parts.append(
            gettext("best baseline so far {n:.3f}", n=top)
            if going
            else gettext("best baseline {n:.3f}", n=top)
        )
    return "\n".join(parts) or gettext("on validation")


def _card(title: str, value: str, small: str) -> str:
    return (
        f'<div class="ft-card"><span>{html.escape(title)}</span><b>{html.escape(value)}</b>'
        + "".join(f"<small>{html.escape(line)}</small>" for line in small.splitlines())
        + "</div>"
    )


def _doubtful(text: str) -> str:
    return f'<div class="ft-said ft-warn">{text}</div>'


def _good(text: str) -> str:
    return f'<div class="ft-said ft-good">{text}</div>'


def _ending(summary: RunSummary) -> str:
    match summary.status:
        case "finished":
            return _finished(summary)
        case "stopped":
            return _stopped(summary)
        case "failed":
            fact = html.escape(summary.error)
            remedy = html.escape(summary.remedy or gettext("The log below has the details."))
            return f'<div class="ft-said"><b>{fact}</b> {remedy}</div>'
        case "interrupted":
            return _interrupted(summary)
    return ""


def _finished(summary: RunSummary) -> str:
    early = (
        gettext("It ended early, for the score had stopped rising.") + " " if summary.early else ""
    )
    scores = summary.best.metrics if summary.best else {}
    level = max((one["f1"] for one in summary.baselines.values() if "f1" in one), default=None)
    said = _good
    if _like_a_constant(summary):
        said = _doubtful
        early += (
            "<b>"
            + gettext("Its scores are those of always giving the same answer.")
            + "</b> "
        )  # fmt: skip
    elif level is not None and scores.get("f1", 1.0) <= level:
        said = _doubtful
        early += (
            "<b>"
            + gettext("Its best F1, {f1:.3f}, is not above the best baseline\u2019s, {level:.3f}.",
                  f1=scores["f1"], level=level)
            + "</b> "
        )  # fmt: skip
    return said(early + _next(better=said is _good))


def _next(better: bool) -> str:
    """What to do with a model that is better than its baselines, or with one that is not."""
    ask, attempt = (
        tab_links.tab_link("runs", gettext("Is it really better?")),
        tab_links.tab_link("predict", gettext("Try it")),
    )
    if not better:
        on = gettext(
            "Next: train it with more epochs, more pairs or another learning_rate. <b>Runs</b> "
            "shows where it fails, and how sure that is."
        )
        return on + tab_links.link_row(ask, attempt)
    on = gettext(
        "Next: see under <b>Runs</b> whether it is really better, try it on your own sentences "
        "under <b>Predict</b>, or share it under <b>Publish</b>."
    )
    return on + tab_links.link_row(
        ask, attempt, tab_links.tab_link("publish", gettext("Publish it"))
    )


def _like_a_constant(summary: RunSummary) -> bool:
    """Whether the best scores are exactly those of always answering the most frequent class."""
    majority = summary.prepared.majority if summary.prepared else {}
    scores = summary.best.metrics if summary.best else {}
    names = [name for name in ("accuracy", "f1") if name in majority and name in scores]
    return len(names) == 2 and all(
        math.isclose(majority[n], scores[n], abs_tol=1e-9) for n in names
    )


def _stopped(summary: RunSummary) -> str:
    reason = f"<b>{html.escape(summary.error)}</b> " if summary.error else ""
    return _good(reason + _kept(summary))


def _kept(summary: RunSummary) -> str:
    """What is left of a run that was stopped, and what can be done with it."""
    if summary.discarded:
        return gettext("Stopped, and its model was discarded. <b>Resume</b> begins it anew.")
    if summary.saved_step is None:
        return gettext("Stopped before training began: <b>Resume</b> begins it.")
    if summary.validation:
        text = gettext(
            "The model of step {step:,} is kept: try it under <b>Predict</b>, or <b>Resume</b> the "
            "run.",
            step=summary.saved_step,
        )
        return text + tab_links.link_row(tab_links.tab_link("predict", gettext("Try it")))
    return gettext(
        "The model of step {step:,} is kept. It was stopped before the first evaluation: "
        "scores unknown. <b>Resume</b> goes on.",
        step=summary.saved_step,
    )


def _interrupted(summary: RunSummary) -> str:
    kept = gettext("Nothing was saved before that.")
    if summary.saved_step is not None:
        kept = gettext("The best model so far, of step {step:,}, is kept.", step=summary.saved_step)
    cause = html.escape(summary.error) or gettext(
        "The worker process ended without a word: the machine restarted, or it ran out of memory."
    )
    remedy = html.escape(summary.remedy) or gettext(
        "<b>Resume</b> goes on from the last checkpoint."
    )
    log = gettext("The log has what was printed.")
    return f'<div class="ft-said"><b>{cause}</b> {kept} {remedy} {log}</div>'
