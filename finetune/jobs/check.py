"""Data checks: problems in the pairs of a configuration, found before training on them.

The folder `checks/<id>` gets `partial.json`, the report without token lengths, and `report.json`.
Requests for the same pairs share one check.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from finetune import disk, hub_errors, owners
from finetune.config import DATA_FIELDS, RunConfig, is_upload
from finetune.data import catalog, check_report, hub_access
from finetune.data.check_report import CheckReport
from finetune.errors import ConfigError, DataError
from finetune.evaluation import baselines
from finetune.jobs import background, workers
from finetune.jobs.background import BackgroundJob, Report
from finetune.messages import message as _
from finetune.metrics.catalog import metric_name
from finetune.runs.events import Phase
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState
from finetune.tasks.registry import find_task

BUNDLED_REPORT = catalog.BUNDLED_PAIRS / "report.json"  # their check, made beforehand
_ID = re.compile(r"[0-9a-f]{24}")


@dataclass
class CheckState(JobState):
    """Progress of a check; `latest` is the report, or the part available so far."""

    report: CheckReport | None = None  # None until it succeeds
    latest: CheckReport | None = None


class CheckJob(BackgroundJob):
    """The check of one configuration's pairs."""

    name, folders, limit = "check", "checks/*", 3
    minutes = 30
    phase = Phase.START
    remedy = _("Try another format of the same data; the log has the details.")

    def config(self) -> RunConfig:
        """The configuration whose pairs are checked. Raises a `ConfigError` if it is damaged."""
        return RunConfig.from_saved(self.request)

    def state(self) -> CheckState:
        """Return the check's state. Its rows are counted long before their lengths."""
        state = CheckState(**vars(super().state()))
        if report := disk.read_as(CheckReport, self.folder / "report.json"):
            state.report, state.status = report, "finished"
        state.latest = report or disk.read_as(CheckReport, self.folder / "partial.json")
        return state

    def work(self, report: Report) -> None:
        root, config = self.folder.parent.parent, self.config()

        def write(found: CheckReport, name: str = "partial.json") -> None:
            disk.write_atomically(self.folder / name, found.to_json())

        hub_access.count_dataset(root, self.owner, config)
        hub_access.count_checkpoint(root, self.owner, config.checkpoint, False)
        write(check_config(config, root, report, write), "report.json")


def report_known_beforehand(config: RunConfig) -> CheckReport | None:
    """Return the report on the bundled pairs as they are; None for others."""
    same = all(getattr(config, name) == getattr(RunConfig(), name) for name in DATA_FIELDS)
    return disk.read_as(CheckReport, BUNDLED_REPORT) if same else None


def start_check(store: RunStore, config: RunConfig, again: bool = False) -> CheckJob:
    """Check the pairs of a configuration; with `again` if a source may have changed."""
    check_source_access(store, config)
    job = check_folder(store, config)
    if job.state().report is not None and not again:
        _check_hub_access(config)
        return job
    job.begin(store, catalog.with_absolute_paths(config).to_dict())
    background.keep_newest(job.folder.parent, 100)
    return job


def abandon_check(job: CheckJob) -> None:
    """End a check nobody waits for, and remove its files."""
    if job.state().running:
        workers.kill_worker(job)
        shutil.rmtree(job.folder, ignore_errors=True)


def check_folder(store: RunStore, config: RunConfig) -> CheckJob:
    """Return the check of a configuration's pairs, which may not exist yet."""
    return CheckJob(check_report.folder_for(store.root, config))


def check_source_access(store: RunStore, config: RunConfig) -> None:
    """Raise a `ConfigError` or `DataError` if a configuration names a path on a shared machine's
    disk, or another visitor's upload."""
    catalog.check_dataset(config.dataset)
    if is_upload(config.dataset):
        store.uploads.files(config.dataset)
    if problem := catalog.checkpoint_problem(config.checkpoint, store.visitor.policy):
        raise ConfigError({"checkpoint": problem})


def get_check(store: RunStore, check_id: object) -> CheckJob:
    """Return the check of an id. A `DataError` for others, such as that of a visitor's upload."""
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
        if owners.policy().asks_rights:
            if check_folder(store, config).id != check_id:
                raise missing
            _check_hub_access(config)
    return job


def _check_hub_access(config: RunConfig) -> None:
    """Check that the Hub would give the checked pairs to the visitor who asks now."""
    public = catalog.find_dataset(config.dataset) or not catalog.is_hub_dataset(config.dataset)
    if public or not owners.policy().asks_rights:
        return
    cause = hub_access.refusal("dataset", config.dataset)
    if cause is not None and cause.name in hub_errors.NO_RIGHT:
        raise hub_errors.refusal("dataset", config.dataset, cause)


def check_config(
    config: RunConfig,
    root: Path,
    on_progress: Report = lambda phase, detail, done, total: None,
    on_partial: Callable[[CheckReport], None] = lambda report: None,
) -> CheckReport:
    """Return the report on a configuration's pairs, with the baselines that need no model."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    background.choose_offline(config.dataset, config.checkpoint)
    from finetune.data import checks, splits

    report = checks.check_pairs(config, root, on_progress, on_partial)
    if report.blocked:
        return report
    on_partial(report)
    on_progress(Phase.BASELINES, "", 0, 0)
    scores = {find_task(report.task).constant: report.majority}
    folds = [config.changed(fold=n) for n in range(1, config.folds + 1)] or [config]
    pairs = [splits.load_pairs(each, root) for each in folds]
    rows = [len(each.splits["validation"]) for each in pairs]
    if tfidf := baselines.mean_scores([*map(baselines.measure_tfidf, pairs)], rows):
        scores[baselines.TFIDF] = tfidf
    return replace(report, baselines=scores)


def status(report: CheckReport) -> int:
    """Return the exit status of a check: 0 fine, 1 blocked."""
    return int(bool(report.blocked))


def as_text(report: CheckReport) -> str:
    """Return a report in plain lines."""
    lines = [f"{report.source} {report.revision[:12]}"]
    lines += [
        f"  {check_report.describe_columns(report.columns)}",
        *(f"  {one}" for one in report.notes),
    ]
    for split in report.splits:
        classes = zip(report.labels, split.classes, strict=True)
        counts = ", ".join(f"{name} {count:,}" for name, count in classes)
        cut = f", cut from {split.origin}" if split.name != split.origin else ""
        if cut and report.folds:
            cut = f", each once in {report.folds} folds"
        counted = f" ({counts})" if counts else ""
        lines.append(f"  {split.name}: {split.rows:,} rows{cut}{counted}")
        lines += [f"    {rows:,} left out: {reason}" for reason, rows in split.left_out.items()]
    task = find_task(report.task)
    titles = {metric.name: metric_name(metric.name, len(report.labels)) for metric in task.metrics}
    for name, scores in report.baselines.items():
        values = ", ".join(f"{title} {scores[metric]:.3f}" for metric, title in titles.items())
        lines.append(f"  to beat, {name}: {values}")
    measured = {task.constant: report.majority, **report.baselines}
    if remark := baselines.why_no_training(
        measured, task, len(report.labels), report.validation_rows
    ):
        lines.append(f"  {remark}")
    for finding in report.findings:
        severity = "done" if finding.done else finding.severity
        lines.append(f"  {severity}: {finding.sentence} {finding.action}")
        for row in finding.examples:
            cells = filter(None, (row.sentence1, row.sentence2, row.label, row.note))
            lines.append(f"    {row.split} line {row.line}: {' | '.join(cells)}")
        lines += [f"    {remedy.text}: {remedy.option}" for remedy in finding.remedies]
    return "\n".join(lines)
