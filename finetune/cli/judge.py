"""Commands that judge a run's model: `evaluate`, `sure`, `rank`, `gate` and `monitor`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from finetune import api
from finetune.cli import options
from finetune.evaluation import file_shift, monitoring, ranking, release
from finetune.evaluation import gate as judgements
from finetune.evaluation.abstention import CONFIDENCE, ERROR
from finetune.jobs.evaluate import keep_when_sure, save_decision, score
from finetune.metrics.catalog import metric_title
from finetune.runs.store import RunStore, default_root, named_run


def evaluate(words: list[str] | None = None) -> int:
    """Score a run's model with the sentences swapped, or on the sealed test set."""
    parser = options.parser_of(evaluate)
    parser.add_argument("--run", type=Path, required=True, help="a run's name, id or folder")
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
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
    parser = options.parser_of(sure)
    parser.add_argument("--run", type=Path, required=True, help="a run's name, id or folder")
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
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
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
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
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
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
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
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
