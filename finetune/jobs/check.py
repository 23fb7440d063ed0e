"""Data checks: what is wrong with the pairs of a configuration, before training on them.

The folder `checks/<id>` gets `partial.json`, the report without token lengths, and `report.json`.
Who asks for the same pairs gets the same check.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from finetune import disk, hub_errors, owners, uploads
from finetune.arguments import add_arguments, arguments_given
from finetune.config import RunConfig, is_upload
from finetune.data import catalog, check_report, hub_access
from finetune.data.check_report import CheckReport, read_report
from finetune.errors import ConfigError, DataError
from finetune.evaluation import baselines
from finetune.jobs import background, workers
from finetune.messages import message as _
from finetune.metrics.catalog import STANDARD, metric_name
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder
from finetune.runs.store import RunStore, default_root
from finetune.runs.summary import MAJORITY, JobState

_ID = re.compile(r"[0-9a-f]{24}")


class CheckJob(JobFolder):
    """One check's folder."""

    def config(self) -> RunConfig:
        """The configuration whose pairs are checked; a `ConfigError` where it is damaged."""
        return RunConfig(**self.request)


@dataclass
class CheckState(JobState):
    """How far a check is; `latest` is the report, or what of it is there by now."""

    report: CheckReport | None = None  # None until it ends well
    latest: CheckReport | None = None


def start_check(store: RunStore, config: RunConfig, again: bool = False) -> CheckJob:
    """Check the pairs of a configuration, `again` where a source may have changed."""
    check_source_access(store, config)
    job = check_folder(store, config)
    if check_state(job).report is not None and not again:
        _check_hub_access(config)
        return job
    if not store.visitor.may_start:
        raise DataError(*owners.NOBODY)
    background.start_job(store, job, "check", catalog.with_absolute_paths(config).to_dict())
    checks = [path for path in job.folder.parent.glob("*/") if _ID.fullmatch(path.name)]
    for old in sorted(checks, key=lambda path: path.stat().st_mtime)[:-100]:
        if not JobFolder(old).is_alive():
            shutil.rmtree(old, ignore_errors=True)
    return job


def abandon_check(job: JobFolder) -> None:
    """End a check nobody waits for, and remove what it has written."""
    if job.is_alive():
        workers.kill_worker(job)
        shutil.rmtree(job.folder, ignore_errors=True)


def check_folder(store: RunStore, config: RunConfig) -> CheckJob:
    """Where the check of a configuration's pairs is, or would be."""
    return CheckJob(check_report.folder_for(store.root, config))


def check_source_access(store: RunStore, config: RunConfig) -> None:
    """Raise a `ConfigError` or `DataError` where a configuration names a place on a shared
    machine's disk, or another visitor's upload."""
    catalog.check_dataset(config.dataset)
    if is_upload(config.dataset):
        store.uploads.files(config.dataset)
    if store.visitor.alone:
        return
    if problem := catalog.checkpoint_problem(config.checkpoint):
        raise ConfigError({"checkpoint": problem})


def get_check(store: RunStore, check_id: object) -> CheckJob:
    """The check of that id; a `DataError` for anything else, as another visitor's upload."""
    missing = DataError("There is no such check.", "Press Examine.")
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
    """See that the Hub would give a visitor what was checked, now that they ask."""
    public = catalog.find_dataset(config.dataset) or not catalog.is_hub_dataset(config.dataset)
    if public or not owners.is_shared():
        return
    cause = hub_access.refusal("dataset", config.dataset)
    if cause is not None and cause.name in hub_errors.NO_RIGHT:
        raise hub_errors.refusal("dataset", config.dataset, cause)


def check_state(job: JobFolder) -> CheckState:
    """How far a check is."""
    state = CheckState(**vars(background.job_state(job)))
    if report := read_report(job.folder / "report.json"):
        state.report, state.status = report, "finished"
    state.latest = latest_report(job)
    return state


def latest_report(job: JobFolder) -> CheckReport | None:
    """What a check has found by now: rows are counted long before their lengths are."""
    return read_report(job.folder / "report.json") or read_report(job.folder / "partial.json")


def check_job(folder: JobFolder) -> int:
    """Check in the job's own process; the exit status."""
    job, root = CheckJob(folder.folder), folder.folder.parent.parent
    signal.alarm(1800)  # ends the process: a download that hangs must not hold a place for ever

    def write(name: str, report: CheckReport) -> None:
        disk.write_atomically(job.folder / name, report.to_json())

    def work() -> None:
        config, progress = job.config(), background.EventProgress(job, Phase.START)
        hub_access.count_dataset(root, job.owner, config)
        hub_access.count_checkpoint(root, job.owner, config.checkpoint, False)
        report = check_config(config, root, progress, lambda part: write("partial.json", part))
        write("report.json", report)

    remedy = _("Try another format of the same data; the log has the details.")
    return background.carry_out(job, Phase.START, work, remedy)


def check_config(
    config: RunConfig,
    root: Path,
    on_progress: Callable[[Phase, str, int, int], None] = lambda phase, detail, done, total: None,
    on_partial: Callable[[CheckReport], None] = lambda report: None,
) -> CheckReport:
    """The report on a configuration's pairs, with the baselines that need no model."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    background.choose_offline(config.dataset, config.checkpoint)
    from finetune.data import checks, splits

    report = checks.check_pairs(config, root, on_progress, on_partial)
    if report.blocked:
        return report
    on_partial(report)
    on_progress(Phase.BASELINES, "", 0, 0)
    scores = {MAJORITY: report.majority}
    if tfidf := baselines.measure_tfidf(splits.load_pairs(config, root)):
        scores[baselines.TFIDF] = tfidf
    return replace(report, baselines=scores)


def main(arguments: list[str] | None = None) -> int:
    """Check pairs from a terminal; the exit status: 0 fine, 1 blocked."""
    about = "Look for what is wrong with pairs before training on them."
    parser = argparse.ArgumentParser("python -m finetune check", description=about)
    parser.add_argument("--runs", type=Path, default=default_root())
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    uploads.add_arguments(parser)
    add_arguments(parser)
    args = parser.parse_args(arguments)
    files = uploads.upload_from_arguments(args, args.runs)
    with contextlib.redirect_stdout(sys.stderr):  # what a library prints is no part of the report
        report = check_config(RunConfig(**arguments_given(args) | files), args.runs)
    if args.json:
        print(json.dumps(check_report.summarise(report), ensure_ascii=False, indent=2))
    else:
        _print_report(report)
    return 1 if report.blocked else 0


def _print_report(report: CheckReport) -> None:
    print(report.source, report.revision[:12])
    print(f"  {check_report.describe_columns(report.columns)}")
    for note in report.notes:
        print(f"  {note}")
    for split in report.splits:
        classes = zip(report.labels, split.classes, strict=True)
        counts = ", ".join(f"{name} {count:,}" for name, count in classes)
        print(f"  {split.name}: {split.rows:,} rows ({counts})")
    titles = {metric.name: metric_name(metric.name, len(report.labels)) for metric in STANDARD}
    for name, scores in report.baselines.items():
        values = ", ".join(f"{title} {scores[metric]:.3f}" for metric, title in titles.items())
        print(f"  to beat, {name}: {values}")
    measured = {MAJORITY: report.majority, **report.baselines}
    if remark := baselines.why_no_training(measured, len(report.labels)):
        print(f"  {remark}")
    for finding in report.findings:
        severity = "done" if finding.done else finding.severity
        print(f"  {severity}: {finding.sentence} {finding.action}")
        for row in finding.examples:
            cells = filter(None, (row.sentence1, row.sentence2, row.label, row.note))
            print(f"    {row.split} line {row.line}: {' | '.join(cells)}")
