"""A run's state in HTML: the phase, a progress bar, the figures that matter. All text escaped."""

from __future__ import annotations

import html
import time

from finetune.store import Run
from finetune.summary import ENDED, Summary

PHASES = {
    "": "Starting the worker",
    "start": "Starting",
    "download": "Loading",
    "tokenise": "Tokenising",
    "train": "Training",
    "evaluate": "Evaluating",
    "save": "Saving the best model",
}
ENDINGS = {
    "finished": "Finished",
    "stopped": "Stopped",
    "failed": "Failed",
    "interrupted": "Interrupted",
}
EMPTY = (
    '<p class="ft-note">Nothing has been trained yet. Press <b>Train</b>: the bundled pairs and '
    "checkpoint need no network and take a few minutes on a laptop.</p>"
)


def status_html(run: Run, summary: Summary) -> str:
    """The live view's head for one run."""
    headline = _headline(summary)
    share = summary.step / summary.total_steps if summary.total_steps else 0.0
    percent = f"{100 * share:.0f}"
    bar = f'<i style="width:{100 * share:.1f}%"></i>'
    return (
        f'<div class="ft-status"><strong id="run-phase">{html.escape(headline)}</strong>'
        f'<span class="ft-facts">{html.escape(run.title())}</span></div>'
        f'<div class="ft-bar" role="progressbar" aria-label="training steps" aria-valuemin="0" '
        f'aria-valuemax="100" aria-valuenow="{percent}">{bar}</div>'
        f'<div class="ft-facts">{html.escape(_facts(summary))}</div>'
        f"{_cards(summary)}{_ending(summary)}"
    )


def announcement(summary: Summary) -> str:
    """What a screen reader is told, politely: phases and endings, not every step."""
    return f'<span id="announced">{html.escape(_headline(summary))}</span>'


def duration(seconds: float) -> str:
    """`48 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _headline(summary: Summary) -> str:
    if summary.status in ENDINGS:
        return ENDINGS[summary.status]
    text = PHASES.get(summary.phase, summary.phase)
    shown = summary.detail if summary.phase in {"download", "tokenise", "start"} else ""
    return f"{text} {shown}".strip()


def _facts(summary: Summary) -> str:
    facts = []
    prepared = summary.prepared
    if prepared:
        facts.append(f"step {summary.step:,} of {prepared.total_steps:,}")
        if summary.train:
            facts.append(f"epoch {summary.train[-1].epoch:.2f}")
            facts.append(f"{summary.samples_per_second:.0f} samples/s")
    left = summary.seconds_left
    if summary.status == "running" and left is not None:
        facts.append(f"about {duration(left)} left")
    elif summary.status in ENDED and summary.began:
        facts.append(f"took {duration((summary.ended or time.time()) - summary.began)}")
    elif prepared:
        facts.append("time left: unknown until the first steps")
    if summary.started:
        times = f"{summary.started.processes} \u00d7 " if summary.started.processes > 1 else ""
        facts.append(f"on {times}{summary.started.device}")
    if prepared and prepared.gradient_accumulation_steps > 1:
        batch, summed = prepared.per_device_train_batch_size, prepared.gradient_accumulation_steps
        facts.append(f"{summed} batches of {batch} a step")
    return " \u00b7 ".join(facts) or "PyTorch takes a few seconds to load"


def _cards(summary: Summary) -> str:
    loss = f"{summary.train[-1].loss:.3f}" if summary.train else "\u2013"
    best = summary.best
    shown = best or (summary.validation[-1] if summary.validation else None)
    majority = summary.prepared.majority if summary.prepared else {}
    cards = [_card("training loss", loss, "now" if summary.status == "running" else "at the end")]
    for name, title in (("accuracy", "accuracy"), ("f1", "F1")):
        value = f"{shown.metrics[name]:.3f}" if shown and name in shown.metrics else "\u2013"
        base = f"majority class {majority[name]:.3f}" if name in majority else "on validation"
        cards.append(_card(f"best {title}" if shown else title, value, base))
    where = f"{shown.step:,}" if shown else "\u2013"
    cards.append(_card("best step", where, "the model kept" if shown else "none yet"))
    return f'<div class="ft-cards">{"".join(cards)}</div>'


def _card(title: str, value: str, small: str) -> str:
    return (
        f'<div class="ft-card"><span>{html.escape(title)}</span><b>{html.escape(value)}</b>'
        f"<small>{html.escape(small)}</small></div>"
    )


def _good(text: str) -> str:
    return f'<div class="ft-said ft-good">{text}</div>'


def _ending(summary: Summary) -> str:
    match summary.status:
        case "finished":
            early = "It ended early, for the score had stopped rising. " * summary.early
            return _good(
                f"{early}Next: try it on your own sentences under <b>Predict</b>, or share it "
                "under <b>Publish</b>."
            )
        case "stopped" if summary.saved_step is not None:
            step = f"The model of step {summary.saved_step:,} is kept"
            if summary.validation:
                return _good(f"{step}: try it under <b>Predict</b>, or <b>Resume</b> the run.")
            return _good(f"{step}. It was stopped before the first evaluation: scores unknown.")
        case "stopped":
            return _good("Stopped before training began: <b>Resume</b> begins it.")
        case "failed":
            fact, remedy = html.escape(summary.error), html.escape(summary.remedy)
            return f'<div class="ft-said"><b>{fact}</b> {remedy}</div>'
        case "interrupted":
            kept = (
                f"The best model so far, of step {summary.saved_step:,}, is kept."
                if summary.saved_step is not None
                else "Nothing was saved before that."
            )
            cause = summary.error or (
                "The worker process ended without a word: the machine restarted, or it ran out of "
                "memory."
            )
            remedy = summary.remedy or "<b>Resume</b> goes on from the last checkpoint."
            return (
                f'<div class="ft-said"><b>{cause}</b> {kept} {remedy} The log has what was '
                "printed.</div>"
            )
    return ""
