"""`python -m finetune check`: look for what is wrong with pairs."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

from finetune.arguments import add_arguments, arguments_given
from finetune.cli import file_arguments
from finetune.config import RunConfig
from finetune.data import check_report
from finetune.evaluation import baselines
from finetune.jobs.check import check_config
from finetune.metrics.catalog import metric_name
from finetune.runs.store import default_root
from finetune.tasks.registry import find_task


def main(arguments: list[str] | None = None) -> int:
    """Check pairs from a terminal. Returns the exit status: 0 fine, 1 blocked."""
    about = "Look for what is wrong with pairs before training on them."
    parser = argparse.ArgumentParser("python -m finetune check", description=about)
    parser.add_argument("--runs", type=Path, default=default_root())
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    file_arguments.add_arguments(parser)
    add_arguments(parser)
    args = parser.parse_args(arguments)
    files = file_arguments.upload_from_arguments(args, args.runs)
    with contextlib.redirect_stdout(sys.stderr):  # a library's output is no part of the report
        report = check_config(RunConfig(**arguments_given(args) | files), args.runs)
    if args.json:
        print(json.dumps(check_report.summarise(report), ensure_ascii=False, indent=2))
        return 1 if report.blocked else 0
    print(report.source, report.revision[:12])
    print(f"  {check_report.describe_columns(report.columns)}")
    for note in report.notes:
        print(f"  {note}")
    for split in report.splits:
        classes = zip(report.labels, split.classes, strict=True)
        counts = ", ".join(f"{name} {count:,}" for name, count in classes)
        print(f"  {split.name}: {split.rows:,} rows" + (f" ({counts})" if counts else ""))
    task = find_task(report.task)
    titles = {metric.name: metric_name(metric.name, len(report.labels)) for metric in task.metrics}
    for name, scores in report.baselines.items():
        values = ", ".join(f"{title} {scores[metric]:.3f}" for metric, title in titles.items())
        print(f"  to beat, {name}: {values}")
    measured = {task.constant: report.majority, **report.baselines}
    if remark := baselines.why_no_training(measured, task, len(report.labels)):
        print(f"  {remark}")
    for finding in report.findings:
        severity = "done" if finding.done else finding.severity
        print(f"  {severity}: {finding.sentence} {finding.action}")
        for row in finding.examples:
            cells = filter(None, (row.sentence1, row.sentence2, row.label, row.note))
            print(f"    {row.split} line {row.line}: {' | '.join(cells)}")
        for remedy in finding.remedies:
            print(f"    {remedy.text}: {remedy.option}")
    return 1 if report.blocked else 0
