"""What is happening in a run, as the Hugging Face course explains it, and its first batch."""

from __future__ import annotations

from markupsafe import Markup

from finetune.runs.events import FirstBatch, Phase
from finetune.runs.summary import RunSummary
from finetune.ui.html import render

_ENDINGS = ("waiting", "finished", "stopped", "failed", "interrupted")
_MOMENTS: dict[str, str] = {
    Phase.TOKENIZE: "tokenise",
    Phase.TRAIN: "train",
    Phase.EVALUATE: "evaluate",
    Phase.BASELINES: "baselines",
    Phase.BOTH_ORDERS: "orders",
    Phase.SAVE_MODEL: "save",
    Phase.SAVE_UNSCORED_MODEL: "unscored",
    Phase.SAVE_CHECKPOINT: "keep",
}


def moment(summary: RunSummary, dataset: str = "") -> str:
    """Which of the moments in `templates/lesson.html` a run is at.

    Args:
        dataset: the name its configuration has for the pairs: they are loaded before a checkpoint.
    """
    if summary.status in _ENDINGS:
        return summary.status
    if summary.phase == Phase.DOWNLOAD:
        return "data" if summary.detail == dataset else "checkpoint"
    return _MOMENTS.get(summary.phase, "start")


def lesson(moment: str) -> Markup:
    """The box that explains a moment, with a link to the chapter of the course."""
    return render("lesson.html", moment=moment)


def first_batch(batch: FirstBatch | None) -> Markup:
    """The first batch: its form, shapes, lengths and tokens; empty where there is none."""
    if batch is None or not batch.ids or not batch.shapes.get("input_ids"):
        return Markup()
    size, width = batch.shapes["input_ids"]
    positions = batch.positions
    gap = next((n for n, position in enumerate(positions) if position != n), -1)
    return render(
        "first_batch.html",
        batch=batch,
        size=size,
        width=width,
        gap=gap,
        hidden=positions[gap] - gap,
        printable=_printable,
    )


def _printable(token: str) -> str:
    """A token with its leading space visible, and a mark for what cannot be printed."""
    text = "\u2423" + token[1:] if token.startswith(" ") else token
    joiner = "\u200d"
    return "".join(c if c.isprintable() or c == joiner else "\ufffd" for c in text)
