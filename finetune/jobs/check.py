"""`python -m finetune check`: look at the pairs of a configuration before training on them.

The page starts this as a process of its own, so that a file that breaks a parser or fills the
memory does not touch the page; a terminal gets the findings as text. Like a run it writes its
progress as events into its folder, and `report.json` at the end.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from finetune.arguments import add_arguments, arguments_given
from finetune.config import RunConfig
from finetune.data import first_rows, hub_allowance, uploads
from finetune.data.check_report import CheckReport
from finetune.disk import write_atomically
from finetune.environment import caches, hub_connection
from finetune.errors import FinetuneError
from finetune.jobs import background, check_jobs
from finetune.runs import events
from finetune.runs.store import Run, default_root

LIMIT = 1800  # seconds; a download that hangs must not hold a place for ever


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 examined, 1 failed or blocked, 2 wrong arguments."""
    caches.ensure_cache_folder()
    parser = argparse.ArgumentParser(prog="python -m finetune check", description=__doc__)
    parser.add_argument("--folder", type=Path, help="an examination's folder, as the page makes it")
    parser.add_argument("--runs", type=Path, help=f"(default: {default_root()})")
    uploads.add_arguments(parser)
    add_arguments(parser)
    namespace = parser.parse_args(arguments)
    try:
        if namespace.folder:
            folder = Run(namespace.folder)
            return carry_out(folder, folder.config(), namespace.folder.parent.parent)
        root = namespace.runs or default_root()
        given = arguments_given(namespace)
        chosen = RunConfig.from_dict(given | uploads.upload_from_arguments(namespace, root))
        report = check_config(chosen, root, lambda what, done, total: None)
    except FinetuneError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    print(report_text(report))
    return 1 if report.blocked else 0


def carry_out(folder: Run, chosen: RunConfig, root: Path) -> int:
    """Examine into a folder: events while it goes on, then the report; the exit status."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT)

    def work() -> events.Event:
        if seen := first_rows.read_first_rows(chosen, root):
            write_atomically(folder.folder / check_jobs.GLANCE, seen.to_json())

        def partly(report: CheckReport) -> None:
            write_atomically(folder.folder / check_jobs.PARTIAL, report.to_json())

        hub_allowance.count_dataset(root, check_jobs.asked_by(folder), chosen)
        hub_allowance.count_checkpoint(root, check_jobs.asked_by(folder), chosen.checkpoint, False)
        report = check_config(chosen, root, EventProgress(folder), partly)
        write_atomically(folder.folder / "report.json", report.to_json())
        return events.Finished(step=0, seconds=report.seconds)

    remedy = "Try another format of the same data; the log has the details."
    return background.run_job(folder, "start", work, remedy, begins="opening the pairs")


def check_config(
    chosen: RunConfig,
    root: Path,
    told: Callable[[str, int, int], None],
    partly: Callable[[CheckReport], None] = lambda report: None,
) -> CheckReport:
    """The report of a configuration's pairs; asks the Hub only where it answers.

    Raises:
        DataError: when there is nothing to examine.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from finetune.data import catalog

    needed = catalog.needs_hub(chosen.dataset, chosen.checkpoint)
    if not needed or not hub_connection.hub_is_reachable():
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    import datasets

    from finetune.data import checks

    datasets.disable_progress_bars()
    return checks.check_pairs(chosen, root, told, partly)


class EventProgress:
    """Progress as events, a few a second at most."""

    def __init__(self, folder: Run) -> None:
        self._folder, self._what, self._last = folder, "", 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what == self._what and now - self._last < 0.3:
            return
        if what != self._what:
            self._folder.append(events.PhaseStarted(phase="examine", detail=what))
        if done:
            self._folder.append(events.Progressed(done=done, total=total, detail=what))
        self._what, self._last = what, now


def _too_long(number: int, frame: FrameType | None) -> None:
    raise FinetuneError(
        f"The examination took longer than {LIMIT // 60} minutes.",
        "Check the network, or examine a part of the rows.",
    )


def report_text(report: CheckReport) -> str:
    """A report for a terminal."""
    lines = [f"{report.source} {report.revision[:12]}".strip()]
    lines += [f"  {note}" for note in report.notes]
    for split in report.splits:
        classes = ", ".join(
            f"{name} {count:,}" for name, count in zip(report.labels, split.classes, strict=True)
        )
        left = ", ".join(f"{count:,} {reason}" for reason, count in split.left_out.items())
        lines.append(f"  {split.name}: {split.rows:,} rows ({classes})")
        lines += [f"    left out: {left}"] * bool(left)
    for finding in report.findings:
        count = f" ({finding.count:,})" if finding.count else ""
        lines.append(f"  {finding.severity}: {finding.title}{count}. {finding.action}")
        lines += [
            f"    {row.split} line {row.line}: "
            + " | ".join(filter(None, (row.sentence1, row.sentence2, row.label, row.note)))
            for row in finding.examples
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
