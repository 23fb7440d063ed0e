"""What the checks of pairs found, as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from finetune.data.check_report import CheckReport, Example
from finetune.data.preview import FirstRows
from finetune.jobs.check import CheckState
from finetune.messages import message
from finetune.ui.html import macro

SEVERITIES = {
    "blocks": message("Blocks training"),
    "warns": message("Warning"),
    "notes": message("Note"),
}
CLASSES = 12  # shown in the chart


def empty() -> Markup:
    """Before anything was checked."""
    return macro("checks.html", "empty")()


def progress(state: CheckState) -> Markup:
    """What a check is doing, while it is, or why it failed."""
    return macro("checks.html", "progress")(state)


def overview(report: CheckReport, glance: FirstRows | None = None) -> Markup:
    """Verdict, source, rows a split, classes, lengths; or, where the columns are not clear, the
    first rows to choose them by."""
    return macro("checks.html", "overview")(report, glance, _largest_classes(report))


def _largest_classes(report: CheckReport) -> list[tuple[str, int]]:
    """Names and training rows of the classes to show, in the labels' order unless there are too
    many."""
    train = next((split for split in report.splits if split.name == "train"), None)
    if train is None or not train.rows:
        return []
    classes = list(zip(report.labels, train.classes, strict=True))
    if len(classes) <= CLASSES:
        return classes
    return sorted(classes, key=lambda item: -item[1])[:CLASSES]


def findings(report: CheckReport) -> Markup:
    """Every finding, the gravest first; its rows folded away."""
    return macro("checks.html", "findings")(report, SEVERITIES)


def findings_link(report: CheckReport, check_id: str) -> str:
    """A link that downloads the findings, where there are any."""
    return macro("checks.html", "findings_link")(check_id) if report.findings else ""


def rows(examples: Sequence[Example], paired: bool, caption: str) -> Markup:
    """Rows of the pairs as a table."""
    return macro("checks.html", "rows")(examples, paired, caption)
