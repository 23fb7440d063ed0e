"""What the checks of pairs found, as HTML."""

from __future__ import annotations

from markupsafe import Markup

from finetune.data.check_report import CheckReport
from finetune.messages import message
from finetune.ui.html import macro

SEVERITIES = {
    "blocks": message("Blocks training"),
    "warns": message("Warning"),
    "notes": message("Note"),
}
CLASSES = 12  # shown in the chart


def overview(report: CheckReport) -> Markup:
    """Verdict, source, rows a split, classes, lengths; or, where the columns are not clear, the
    first rows to choose them by."""
    train = next((split for split in report.splits if split.name == "train"), None)
    classes: list[tuple[str, int]] = []
    if train is not None and train.rows:
        classes = list(zip(report.labels, train.classes, strict=True))
    if len(classes) > CLASSES:
        classes = sorted(classes, key=lambda item: -item[1])[:CLASSES]
    return macro("checks.html", "overview")(report, classes)


def findings(report: CheckReport) -> Markup:
    """Every finding, the gravest first; its rows folded away."""
    return macro("checks.html", "findings")(report, SEVERITIES)
