"""Commands that need no module of their own: one function each, described by its docstring."""

import argparse
import contextlib
import json
import logging
import os
import shlex
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finetune import api, disk
from finetune.arguments import add_arguments, arguments_given
from finetune.cli import options
from finetune.config import RunConfig
from finetune.data import check_report, checkpoint_catalog, model_cache
from finetune.errors import ModelError
from finetune.evaluation import baselines, file_shift, monitoring, ranking, release
from finetune.evaluation import gate as judgements
from finetune.evaluation.abstention import CONFIDENCE, ERROR
from finetune.hub.client import stored_token
from finetune.hub.deploy import FREE, deploy_space
from finetune.inference import quantized
from finetune.inference.file_request import check_columns
from finetune.jobs import check as jobs
from finetune.jobs import memory as stored_models
from finetune.jobs import run_table
from finetune.jobs.evaluate import keep_when_sure, save_decision, score
from finetune.metrics.catalog import metric_name, metric_title
from finetune.runs.store import RunStore, named_run
from finetune.tasks.registry import find_task


def check(words: list[str] | None = None) -> int:
    """Look for what is wrong with the data before training on it."""
    parser = options.parser_of(check)  # exit status: 0 fine, 1 blocked
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
        cut = f", cut from {split.origin}" if split.name != split.origin else ""
        if cut and report.folds:
            cut = f", each once in {report.folds} folds"
        print(f"  {split.name}: {split.rows:,} rows{cut}" + (f" ({counts})" if counts else ""))
        for reason, rows in split.left_out.items():
            print(f"    {rows:,} left out: {reason}")
    task = find_task(report.task)
    titles = {metric.name: metric_name(metric.name, len(report.labels)) for metric in task.metrics}
    for name, scores in report.baselines.items():
        values = ", ".join(f"{title} {scores[metric]:.3f}" for metric, title in titles.items())
        print(f"  to beat, {name}: {values}")
    measured = {task.constant: report.majority, **report.baselines}
    if remark := baselines.why_no_training(
        measured, task, len(report.labels), report.validation_rows
    ):
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


def models(words: list[str] | None = None) -> int:
    """List the checkpoints to choose from and those on this disk, or remove one of the latter."""
    parser = options.parser_of(models)
    parser.add_argument("--size", choices=["small", "base", "large"], default="")
    parser.add_argument("--languages", choices=["english", "other"], default="")
    parser.add_argument("--remove", metavar="NAME", help="remove a checkpoint from this disk")
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


def evaluate(words: list[str] | None = None) -> int:
    """Score a run's model with the sentences swapped, or on the sealed test set."""
    parser = options.parser_of(evaluate, of_a_run=True)
    parser.add_argument("--open_test", action="store_true", help="open the test set")
    args = parser.parse_args(words)
    run = named_run(args.run, args.runs)
    score(run, args.open_test)
    if args.open_test:
        opened = run.state().opened[-1]
        print(json.dumps({"step": opened.step, **opened.metrics}))
    else:
        from finetune.evaluation import report

        summary = run.state()
        order = report.evaluate_run(run, summary).analysis.order
        assert order is not None, "it was just measured"
        changes = {"mean change": order.difference}
        if summary.task.has_right:
            changes = {"changed answers": order.flips}
        print(json.dumps({"pairs": order.pairs, **changes}))
    return 0


def sure(words: list[str] | None = None) -> int:
    """Find the confidence from which on a run's model gives an answer, so that at most a share of
    its answers is wrong, and keep it with the model; other rows are answered unsure. The exit
    status is 2 if no threshold keeps the bound: the error says how many rows would."""
    parser = options.parser_of(sure, of_a_run=True)
    for name, value, text in (
        ("error", ERROR, "share of the answers that may be wrong"),
        ("confidence", CONFIDENCE, "probability that the bound holds"),
    ):
        parser.add_argument(f"--{name}", type=float, default=value, help=f"{text} ({value:g})")
    text = "keep the bound for each class's answers"
    parser.add_argument("--per_class", action="store_true", help=text)
    text = "the rows to find it on; test only if it was opened"
    parser.add_argument("--split", choices=("validation", "test"), default="validation", help=text)
    parser.add_argument("--forget", action="store_true", help="answer every row again")
    args = parser.parse_args(words)
    run = named_run(args.run, args.runs)
    if args.forget:
        save_decision(run, run.state(), sure=None)
        print(f"{run.title()} answers every row again")
        return 0
    rule = keep_when_sure(
        run, error=args.error, confidence=args.confidence, per_class=args.per_class,
        split=args.split,
    )  # fmt: skip
    told = asdict(rule) | {"classes": dict(rule.classes), "coverage": rule.coverage}
    print(json.dumps(told, ensure_ascii=False))
    return 0


def rank(words: list[str] | None = None) -> int:
    """Rank finished runs by their scores on the same validation rows. A star marks those that may
    be the best: the best is among them with a probability of 95%."""
    parser = options.parser_of(rank)
    names = "names, ids or folders; all finished runs on the newest one's rows if absent"
    parser.add_argument("names", nargs="*", type=Path, metavar="RUN", help=names)
    parser.add_argument(
        "--measure", action=argparse.BooleanOptionalAction, default=True,
        help="measure speeds that are not known on this machine (default)",
    )  # fmt: skip
    parser.add_argument("--csv", type=Path, help="a file to write the table to")
    args = parser.parse_args(words)
    options.check_outputs(parser, {"csv": args.csv}, [])
    runs = [named_run(name, args.runs) for name in args.names]
    ranked = api.rank(runs, args.measure, RunStore(args.runs))
    title, width = metric_title(ranked.metric.name, ranked.classes), 16
    print(f"  {title:>{width}} (95% interval)       ms a row      MB  run")
    for run in ranked.runs:
        shown = f"{run.score.value:.4f} ({run.score.low:.4f} to {run.score.high:.4f})"
        speed = "-" if run.milliseconds is None else f"{run.milliseconds:.2f}"
        mark = "*" if run.may_be_best else " "
        print(f"{mark} {shown:>{width + 16}} {speed:>13} {run.megabytes:7.1f}  {run.name}")
    print(ranked.sentence)
    if ranked.others:
        print(f"Runs that have not finished, or have other validation rows: {ranked.others}")
    if args.csv:
        options.write_output(args.csv, ranking.ranking_csv(ranked))
    return 0


def gate(words: list[str] | None = None) -> int:
    """Say if a run's model may replace an older one. Exit status: 0 it passed; 1 it failed,
    because more right answers were lost than --max_lost, or the 95% interval of the gain is below
    --min_gain; 2 it could not be judged: other rows, rows that were trained on, or too few to tell
    (fewer than 30, or --min_gain lies within the interval)."""
    parser = options.parser_of(gate)
    parser.add_argument("--new", type=Path, required=True, help="a run's name, id or folder")
    parser.add_argument("--old", required=True, help="another one, or a Hub model: namespace/name")
    golden = (
        "labelled rows that both models answer; without it their validation rows are compared. "
        "Its hash is kept in uploads/.golden beside the runs, and training on it is refused"
    )
    parser.add_argument("--golden", type=Path, help=golden)
    lost = "right answers that may be lost (default 0); not used of scores"
    parser.add_argument("--max_lost", type=int, default=0, help=lost)
    gain = "of the metric that chooses the best model (default -0.01)"
    parser.add_argument("--min_gain", type=float, default=-0.01, help=gain)
    parser.add_argument("--json", type=Path, help="a file to write the judgement to")
    comment = "a file to write it to as Markdown, for a pull request's comment"
    parser.add_argument("--markdown", type=Path, help=comment)
    options.add_columns(parser, "of the golden file; ")
    args = parser.parse_args(words)
    options.check_outputs(parser, {"json": args.json, "markdown": args.markdown}, [args.golden])
    new, request = named_run(args.new, args.runs), None
    old = release.named_model(args.old, args.runs)
    if args.golden is not None:
        request = options.file_request(args, new, args.golden)
    judged = api.gate(new, old, args.golden, args.max_lost, args.min_gain, request)
    print(judgements.as_text(judged))
    if args.json:
        values = asdict(judged) | {"status": judged.status}
        options.write_output(args.json, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    if args.markdown:
        options.write_output(args.markdown, judgements.as_markdown(judged))
    return judged.status


def monitor(words: list[str] | None = None) -> int:
    """Say if a run's model still holds on a file without labels: a random sample of its rows is
    compared with the run's validation rows. Exit status: 0 as before; 1 changed, or train anew; 2
    it could not be judged."""
    parser = options.parser_of(monitor)
    parser.add_argument("run", type=Path, help="a run's name, id or folder")
    parser.add_argument("file", type=Path, help="the file, or the counts of one by --aggregates")
    counts = "a JSON file to write the file's counts to: all that a judgement needs, and no text"
    parser.add_argument("--aggregates", type=Path, help=counts)
    labels = (
        "a file of the same columns, with labels of at least 30 rows drawn from it at random; rows "
        "with an empty label are not labelled (of several labels, [] says that a row has none)"
    )
    parser.add_argument("--labels", type=Path, help=labels)
    options.add_columns(parser)
    args = parser.parse_args(words)
    options.check_outputs(parser, {"aggregates": args.aggregates}, [args.file, args.labels])
    os.environ["HF_HUB_OFFLINE"] = "1"
    run = named_run(args.run, args.runs)
    request = options.file_request(args, run, args.file)
    judged, found = monitoring.monitor_file(run, args.file, request, args.labels)
    if args.aggregates:
        options.write_output(args.aggregates, json.dumps(asdict(found), ensure_ascii=False) + "\n")
    print(file_shift.sentence(judged), file=sys.stderr)
    print(json.dumps(asdict(judged), indent=2, ensure_ascii=False))
    return 0 if judged.verdict == "as before" else 1


def predict(words: list[str] | None = None) -> int:
    """Predict every row of a file with a run's model. The result has the file's columns as they
    are, then prediction, a probability_ of each class, trained_on, error, and decision (the answer
    or unsure) if a bound is kept with the model; if the file has one of these, all those added end
    in _2 (or _3, ...)."""
    parser = options.parser_of(predict, of_a_run=True)
    formats = "CSV, TSV, JSONL, JSON (these also as .gz), Parquet, XLSX, XLS or ODS"
    parser.add_argument("--file", type=Path, required=True, help=formats)
    result = "where the result goes; its ending says as what: .csv, .tsv, .jsonl, .json, .parquet"
    parser.add_argument("--out", type=Path, required=True, help=result)
    about = "where the rows go that the model is unsure of, by what `sure` has kept with it"
    parser.add_argument("--review", type=Path, help=about)
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    options.add_columns(parser)
    for name in ("both_orders", "calibrated"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument(
        "--threshold", action=argparse.BooleanOptionalAction, default=True,
        help="use the threshold saved with the model (default)",
    )  # fmt: skip
    args = parser.parse_args(words)
    from tqdm import tqdm

    from finetune.inference.files import predict_file
    from finetune.inference.result_files import ERROR, SUFFIXES

    outputs = {"out": args.out, "review": args.review}
    for name, path in outputs.items():
        if path and path.suffix.lower() not in SUFFIXES:
            parser.error(f"--{name} is {path}: end its name in one of {', '.join(SUFFIXES)}")
    options.check_outputs(parser, outputs, [args.file])
    os.environ["HF_HUB_OFFLINE"] = "1"
    run = named_run(args.run, args.runs)
    request = options.file_request(
        args, run, args.file, args.both_orders, args.threshold, args.calibrated
    )
    request = check_columns(request, args.file, run.state().columns, run.config())
    with tqdm(unit="row") as bar:
        report, _ = predict_file(
            run, request, args.file, args.out,
            lambda done, total: bar.update(done - bar.n), review=args.review,
        )  # fmt: skip
    if args.review and "sure" not in report:
        bound = shlex.join(["--runs", str(args.runs), f"--run={args.run}"])
        print(
            f"{args.review} is not written: the model has no bound on such answers; keep one with "
            f"python -m finetune sure {bound}",
            file=sys.stderr,
        )
    if report["columns"][-1] != ERROR:
        names = ", ".join(report["columns"])
        print(f"{args.file} keeps its own columns; those added are {names}", file=sys.stderr)
    if args.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return 0
    tell_predictions(report, args.out)
    return 0


def tell_predictions(report: dict[str, Any], out: Path) -> None:
    """Print what came of a predicted file."""
    counts = report["answers"] | {"none": report.get("without_label", 0)}
    answers = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    print(f"{out}: {report['rows']:,} rows" + (f" ({answers})" if answers else ""))
    if report["errors"]:
        first = "; ".join(map(str, report["examples"][:3]))
        print(f"  {report['errors']:,} have no answer: {report['columns'][-1]} says why ({first})")
    if report.get("unsure"):
        print(f"  the model is unsure of {report['unsure']:,}")
    for part in (report, report.get("not_trained_on", {})):
        if "scores" in part:
            scores = ", ".join(
                f"{metric_name(name, len(report['labels']))} {value:.3f} ({low:.3f} to {high:.3f})"
                for name, (value, low, high) in part["scores"].items()
            )
            which = "" if part is report else " that were not trained on"
            print(f"  on {part['labelled']:,} labelled rows{which}: {scores}")
    if unknown := report.get("unknown_labels"):
        print(f"  {unknown:,} rows with a label that the model does not know are in no score")
    if lost := report.get("left_out"):
        print(f"  nested columns that the result lacks: {', '.join(lost)}")
    if trained := report.get("trained_on"):
        print(f"  {trained:,} rows were trained on: their scores say nothing about new rows")
    for other in report.get("others", []):
        agreed = ", ".join(f"{name} {value[0]:.3f}" for name, value in other["agreement"].items())
        print(f"  compared with {other['column']}: {agreed}")


def runs(words: list[str] | None = None) -> int:
    """List the runs as the page does, the newest first. A cross-validation, a search, a grid or
    seeds are one line, whose name stands for its model in other commands."""
    parser = options.parser_of(runs)
    parser.add_argument("words", nargs="*", metavar="WORD", help="list those with all these words")
    args = parser.parse_args(words)
    store = RunStore(args.runs)
    rows = run_table.run_rows(store)
    found = run_table.filter_rows(rows, " ".join(args.words))
    table = [("RUN", "WHEN", "STATUS", "SCORE (95% interval)")]
    for line in run_table.sort_rows(found, "created", True, rows):
        if isinstance(line, run_table.BundleRow):
            status, model = f"{line.finished} of {len(line.members)} finished", line.model
        else:
            status, model = line.status, line
        shown = "-"
        if model and (score := run_table.score_interval(store, model)):
            name = metric_name(model.headline, model.classes)
            shown = f"{name} {score.value:.3f} ({score.low:.3f} to {score.high:.3f})"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(line.created))
        table.append((line.name, when, status, shown))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        row = zip(cells, widths, strict=True)
        print("  ".join(cell.ljust(width) for cell, width in row).rstrip())
    return 0


def export(words: list[str] | None = None) -> int:
    """Write a saved model as ONNX, and verify it; of a run in int8 too, where that is as good and
    faster."""
    parser = options.parser_of(export)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, help="a from_pretrained folder")
    source.add_argument("--run", type=Path, help="a run's name, id or folder")
    parser.add_argument(
        "--to",
        type=Path,
        required=True,
        help="the file to make; a run's int8 lies beside it, as a.int8.onnx beside a.onnx",
    )
    args = parser.parse_args(words)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # names every missing package
    run, to = named_run(args.run, args.runs) if args.run else None, args.to
    folder = (run.best if run else args.model).resolve()
    if folder in to.resolve().parents and (run or to.suffix != ".onnx"):
        raise ModelError("{to} is in the folder of the model.", "Name another file.", to=to)
    from finetune.hub.onnx import export_onnx

    step = run.best_step() if run else 0
    difference = export_onnx(run.best if run else args.model, to)
    print(f"{to}: its logits differ from PyTorch's by at most {difference:.1g}")
    if run is None:
        return 0
    from finetune.evaluation import quantization

    report = quantization.quantize_model(run, to, step)
    small = to.with_name(f"{to.stem}.int8{to.suffix}")
    scores = ", ".join(
        f"{metric_name(name, report.classes)} {before:.3f} -> {after:.3f}"
        for name, (before, after) in report.scores.items()
    )
    p = f" (p = {report.p:.2g})" if report.p is not None else ""
    speed, speed8 = report.pairs_per_second
    print(
        f"int8 ({report.kind}) on {report.pairs:,} validation rows: {scores}{p}, {speed:.0f} -> "
        f"{speed8:.0f} rows/s; {'it is used' if quantized.serves(run.best) else 'it is not used'}"
    )
    if report.kept:
        with disk.writing(small, ModelError, ""), disk.replacing(small) as new:
            shutil.copy2(run.best / quantized.MODEL, new)
        print(f"{small}: the model in int8")
    elif small.exists():
        print(f"{small} was there before and is left as it is: it is not of this export")
    return 0


def deploy(words: list[str] | None = None) -> int:
    """Make or update a Space with this project. Signs in with `hf auth login`'s token or HF_TOKEN.
    Hardware other than cpu-basic is billed while the Space is awake; you are told its price and
    asked first. Such a Space sleeps after an hour without visitors."""
    parser = options.parser_of(deploy, of_runs=False)
    parser.add_argument("name", help="the Space, as user/name")
    hardware_help = f"such as t4-small (default: what the Space has, {FREE} for a new one)"
    parser.add_argument("--hardware", default="", help=hardware_help)
    parser.add_argument("--yes", action="store_true", help="agree to the price; for scripts")
    parser.add_argument("--private", action="store_true", help="make a new Space private")
    bucket_help = "keep runs in this bucket, as user/name; made if need be"
    parser.add_argument("--bucket", default="", help=bucket_help)
    args = parser.parse_args(words)
    agrees = (lambda price: True) if args.yes else _agrees
    address = deploy_space(
        args.name, stored_token(), agrees, args.hardware, args.private, args.bucket
    )
    print(f"The Hub builds it now, which takes some minutes; its page shows the log.\n{address}")
    return 0


def _agrees(price: str) -> bool:
    """Ask in the terminal; True if the answer is yes, False without a terminal."""
    if not sys.stdin.isatty():
        return False
    print("That is billed by the Hub: https://huggingface.co/docs/hub/spaces-gpus", flush=True)
    return input("Go on? [y/N] ").strip().lower() in ("y", "yes")
