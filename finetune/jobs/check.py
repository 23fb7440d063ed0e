"""Data checks: what is wrong with the pairs of a configuration, before training on them.

    <store>/checks/<id>/    the job's folder; its request is the configuration
        first_rows.json     the first rows, of what lies here as a file
        partial.json        the report without token lengths
        report.json         the report

A check runs in a process of its own, so that a file that breaks a parser or fills the memory does
not touch the page. What was checked before is not checked again, for whoever asks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TypeVar

from finetune import hub_errors, owners, uploads
from finetune.arguments import add_arguments, arguments_given
from finetune.config import RunConfig, is_upload
from finetune.data import catalog, check_report, hub_access, preview
from finetune.data.check_report import CheckReport
from finetune.data.preview import FirstRows
from finetune.disk import write_atomically
from finetune.environment import caches, hub_connection
from finetune.errors import ConfigError, DataError, FinetuneError
from finetune.jobs import background, workers
from finetune.owners import NOBODY
from finetune.phases import Phase
from finetune.runs import events
from finetune.runs.job_folder import JobFolder
from finetune.runs.store import RunStore, default_root
from finetune.runs.summary import JobState

TIME_LIMIT = 1800  # seconds; a download that hangs must not hold a place for ever
_KEPT = 100  # checks; of more, the oldest go
_ID = re.compile(r"[0-9a-f]{24}")
_File = TypeVar("_File", CheckReport, FirstRows)


class CheckJob(JobFolder):
    """One check's folder."""

    def config(self) -> RunConfig:
        """The configuration whose pairs are checked.

        Raises:
            ConfigError: when it is damaged.
        """
        return RunConfig.from_dict(self.request)


@dataclass
class CheckState(JobState):
    """How far a check is.

    Args:
        report: what it found; None until it ends well.
        partial: what it found without a tokenizer; None until then.
        first_rows: of what lies here as a file; None once the rows themselves can be shown.
    """

    report: CheckReport | None = None
    partial: CheckReport | None = None
    first_rows: FirstRows | None = None

    @property
    def latest(self) -> CheckReport | None:
        """All that is known of the pairs by now."""
        return self.report or self.partial


def start_check(store: RunStore, config: RunConfig, again: bool = False) -> CheckJob:
    """Check the pairs of a configuration in a process of its own; the job's folder.

    Args:
        again: check anew, since a source may have changed.

    Raises:
        ConfigError, DataError: as `check_source_access`; DataError also when nobody known asks for
            what was not checked before.
        JobError: when too many are at work, or no process can be started.
        StoreError: when the folder cannot be made.
    """
    check_source_access(store, config)
    job = check_folder(store, config)
    if check_state(job).report is not None and not again:
        _check_hub_access(config)
        return job
    if not store.visitor.may_start:
        raise DataError(*NOBODY)
    request = catalog.with_absolute_paths(config).to_dict()
    background.start_job(store, "check", job, request)
    _remove_old(job.folder.parent)
    return job


def _remove_old(folder: Path) -> None:
    paths = [path for path in folder.glob("*/") if _ID.fullmatch(path.name)]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        if not JobFolder(path).is_alive():
            shutil.rmtree(path, ignore_errors=True)


def abandon_check(job: JobFolder) -> None:
    """End a check nobody waits for, and remove what it has written."""
    if job.is_alive():
        workers.kill_worker(job)
        shutil.rmtree(job.folder, ignore_errors=True)


def check_folder(store: RunStore, config: RunConfig) -> CheckJob:
    """Where the check of a configuration's pairs is, or would be."""
    return CheckJob(check_report.folder_for(store.root, config))


def check_source_access(store: RunStore, config: RunConfig) -> None:
    """See that what a configuration names is the visitor's to use.

    Raises:
        ConfigError: when it names a place on the disk of a machine that others share.
        DataError: when it names no dataset, or an upload that is not there or not theirs.
    """
    catalog.check_dataset(config.dataset)
    if is_upload(config.dataset):
        store.uploads.files(config.dataset)
    if store.visitor.alone:
        return
    if catalog.is_local_path(config.checkpoint):
        problem = "is on this machine's disk, which is not its visitors'; choose one of the Hub"
        raise ConfigError({"checkpoint": problem})
    if not catalog.may_be_fetched(config.checkpoint):
        raise ConfigError({"checkpoint": "is no name of the Hub; give it as owner/name"})


def get_check(store: RunStore, check_id: object) -> CheckJob:
    """The check of that id.

    Raises:
        DataError: for anything else, and for that of another visitor's upload.
    """
    missing = DataError("There is no such check.", "Press Check.")
    if not isinstance(check_id, str) or not _ID.fullmatch(check_id):
        raise missing
    job = CheckJob(store.root / "checks" / check_id)
    if not job.request:
        return job
    with contextlib.suppress(ConfigError):
        config = job.config()
        if is_upload(config.dataset):
            store.uploads.files(config.dataset)
        if owners.is_shared():
            if check_folder(store, config).id != check_id:
                raise missing
            _check_hub_access(config)
    return job


def _check_hub_access(config: RunConfig) -> None:
    """See that the Hub would give a visitor what was checked, now that they ask.

    Raises:
        DataError: when it would not.
    """
    offered = catalog.find_dataset(config.dataset) is not None  # and so everybody's
    if not owners.is_shared() or offered or not catalog.is_hub_dataset(config.dataset):
        return
    cause = hub_access.refusal("dataset", config.dataset)
    if cause is not None and cause.name in hub_errors.NO_RIGHT:
        raise hub_errors.refusal("dataset", config.dataset, cause)


def check_state(job: JobFolder) -> CheckState:
    """How far a check is."""
    state = CheckState(**vars(background.job_state(job)))
    rows = _read(job, "first_rows.json", FirstRows)
    if report := _read(job, "report.json", CheckReport):
        shown = None if report.corpus else rows
        return replace(state, status="finished", report=report, first_rows=shown)
    partial = _read(job, "partial.json", CheckReport)
    state = replace(state, partial=partial, first_rows=None if partial else rows)
    if state.error and not state.remedy:
        log = job.log_tail(2000).strip().splitlines()
        return replace(state, remedy=f"Try a part of the file. {log[-1] if log else ''}".strip())
    return state


def _read(job: JobFolder, name: str, kind: type[_File]) -> _File | None:
    """What a check has written; None where it has not, or not to the end."""
    if values := job.read_json(job.folder / name):
        with contextlib.suppress(ValueError):
            return kind(**values)
    return None


def check_job(folder: JobFolder) -> int:
    """Check in the job's own process; the exit status."""
    job, root = CheckJob(folder.folder), folder.folder.parent.parent
    signal.signal(signal.SIGALRM, _on_time_limit)
    signal.alarm(TIME_LIMIT)

    def work() -> events.Event:
        config = job.config()
        if rows := preview.read_first_rows(config, root):
            write_atomically(job.folder / "first_rows.json", rows.to_json())

        def on_partial(report: CheckReport) -> None:
            write_atomically(job.folder / "partial.json", report.to_json())

        hub_access.count_dataset(root, job.owner, config)
        hub_access.count_checkpoint(root, job.owner, config.checkpoint, False)
        report = check_config(config, root, _EventProgress(job), on_partial)
        write_atomically(job.folder / "report.json", report.to_json())
        return events.Finished(step=0, seconds=report.seconds)

    remedy = "Try another format of the same data; the log has the details."
    return background.carry_out(job, Phase.START, work, remedy)


def check_config(
    config: RunConfig,
    root: Path,
    on_progress: Callable[[Phase, str, int, int], None],
    on_partial: Callable[[CheckReport], None] = lambda report: None,
) -> CheckReport:
    """The report on a configuration's pairs; asks the Hub only where it answers.

    Raises:
        DataError: when there is nothing to check.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    needed = catalog.needs_hub(config.dataset, config.checkpoint)
    if not needed or not hub_connection.hub_is_reachable():
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    import datasets

    from finetune.data import checks

    datasets.disable_progress_bars()
    return checks.check_pairs(config, root, on_progress, on_partial)


class _EventProgress:
    """Progress as events, a few a second at most."""

    def __init__(self, job: JobFolder) -> None:
        self._job, self._last = job, 0.0
        self._current: tuple[Phase, str] | None = None

    def __call__(self, phase: Phase, detail: str, done: int, total: int) -> None:
        now = time.monotonic()
        is_new = (phase, detail) != self._current
        if not is_new and now - self._last < 0.3:
            return
        if is_new:
            self._job.append(events.PhaseStarted(phase=phase, detail=detail))
        if done:
            self._job.append(events.Progressed(done=done, total=total))
        self._current, self._last = (phase, detail), now


def _on_time_limit(number: int, frame: FrameType | None) -> None:
    raise FinetuneError(
        f"The check took longer than {TIME_LIMIT // 60} minutes.",
        "Check the network, or check a part of the rows.",
    )


def main(arguments: list[str] | None = None) -> int:
    """Check pairs from a terminal; the exit status: 0 fine, 1 blocked, 2 wrong arguments."""
    caches.ensure_cache_folder()
    parser = argparse.ArgumentParser(
        prog="python -m finetune check",
        description="Look for what is wrong with pairs before training on them.",
    )
    parser.add_argument("--runs", type=Path, help=f"(default: {default_root()})")
    uploads.add_arguments(parser)
    add_arguments(parser)
    args = parser.parse_args(arguments)
    try:
        root = args.runs or default_root()
        chosen = RunConfig.from_dict(
            arguments_given(args) | uploads.upload_from_arguments(args, root)
        )
        report = check_config(chosen, root, lambda phase, detail, done, total: None)
    except FinetuneError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    print(report_text(report))
    return 1 if report.blocked else 0


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
