"""Commands before a training: `check` data, `probe` checkpoints, list the `models` there are."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

from finetune.arguments import add_arguments, arguments_given
from finetune.cli import options
from finetune.config import RunConfig
from finetune.data import check_report, checkpoint_catalog, model_cache
from finetune.evaluation import baselines
from finetune.jobs import check as jobs
from finetune.jobs import memory as stored_models
from finetune.jobs import probe as probes
from finetune.metrics.catalog import metric_name
from finetune.runs.store import RunStore, default_root
from finetune.tasks.registry import find_task


def check(words: list[str] | None = None) -> int:
    """Look for what is wrong with the data before training on it."""
    parser = options.parser_of(check)  # exit status: 0 fine, 1 blocked
    parser.add_argument("--runs", type=Path, default=default_root())
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_files(parser)
    add_arguments(parser)
    args = parser.parse_args(words)
    files = options.upload_of(args, args.runs)
    with contextlib.redirect_stdout(sys.stderr):  # a library's output is no part of the report
        report = jobs.check_config(RunConfig(**arguments_given(args) | files), args.runs)
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


def probe(words: list[str] | None = None) -> int:
    """Rank checkpoints on your data by a linear model on their vectors, before training."""
    parser = options.parser_of(probe)
    parser.add_argument("--runs", type=Path, default=default_root())
    parser.add_argument(
        "--checkpoints", nargs="+", default=[], metavar="CHECKPOINT",
        help="offered names, Hub ids or folders; by default the offered ones on this disk",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_files(parser)
    add_arguments(parser)
    args = parser.parse_args(words)
    config = RunConfig(**arguments_given(args) | options.upload_of(args, args.runs))
    names = args.checkpoints or probes.candidates(config)
    chosen = probes.check_request(RunStore(args.runs), config, names)
    begun: list[str] = []

    def tell(name: str, _done: int, _total: int) -> None:
        if name not in begun:
            begun.append(name)
            print(f"{name} ...", flush=True)

    with contextlib.redirect_stdout(sys.stderr):  # a library's output is no part of the report
        report = probes.probe_checkpoints(config, chosen, args.runs, tell)
    if args.json:
        print(report.to_json(), end="")
        return 0
    title = metric_name(report.metric, report.classes)
    print(f"{title} of a linear model on {report.pairs:,} training rows, cross-validated:")
    for one in report.candidates:
        if one.score is None:
            print(f"  {one.checkpoint}: {one.problem}")
            continue
        parts = [f"{one.score.value:.3f} ({one.score.low:.3f} to {one.score.high:.3f})"]
        if one.similarity is not None:
            parts.append(f"cosine {one.similarity.value:.3f}")
        parts.append(f"{one.milliseconds:.1f} ms a row")
        parts.append(f"{one.parameters / 1e6:.0f}M parameters")
        print(f"  {one.checkpoint}: {', '.join(parts)}")
    if report.words is not None:
        print(f"  counting words (TF-IDF): {report.words.value:.3f}")
    print(f"  {report.verdict}")
    return 0


def models(words: list[str] | None = None) -> int:
    """List the checkpoints to choose from and those on this disk, or remove one of the latter."""
    parser = options.parser_of(models)
    parser.add_argument("--size", choices=["small", "base", "large"], default="")
    parser.add_argument("--languages", choices=["english", "other"], default="")
    parser.add_argument("--remove", metavar="NAME", help="remove a checkpoint from this disk")
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
    args = parser.parse_args(words)
    if args.remove:
        removed = stored_models.remove_model(RunStore(args.runs), args.remove)
        print(f"{removed.name}: {removed.bytes / 1e6:,.0f} MB removed; the Hub still has it")
        return 0
    for entry in checkpoint_catalog.matching(args.size, args.languages):
        checked = "" if entry.known else "; safetensors checked when chosen"
        print(
            f"{entry.name}\n  {entry.size}, {entry.millions:,.0f}M parameters, {entry.languages}, "
            f"up to {entry.tokens:,} tokens, {entry.licence}, at most "
            f"{entry.weight_bytes / 1e6:,.0f} MB to download{checked}\n  {entry.purpose}"
        )
    for model in model_cache.list_models():
        used = time.strftime("%Y-%m-%d", time.localtime(model.used))
        print(f"on this disk: {model.name}, {model.bytes / 1e6:,.0f} MB, last used {used}")
    return 0
