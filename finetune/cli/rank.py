"""`python -m finetune rank`: which of the runs, by score, speed and size."""

from __future__ import annotations

import argparse
from pathlib import Path

from finetune import api
from finetune.cli.outputs import check_outputs, write_output
from finetune.evaluation import ranking
from finetune.metrics.catalog import metric_title
from finetune.runs.store import RunStore, default_root, named_run


def main(arguments: list[str] | None = None) -> int:
    """Rank runs from a terminal."""
    about = (
        "Rank finished runs by their scores on the same validation pairs. A star marks those that "
        "may be the best: the best is among them with a probability of 95%."
    )
    parser = argparse.ArgumentParser("python -m finetune rank", description=about)
    names = "names, ids or folders; all finished runs on the newest one's pairs if absent"
    parser.add_argument("names", nargs="*", type=Path, metavar="RUN", help=names)
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
    parser.add_argument(
        "--measure", action=argparse.BooleanOptionalAction, default=True,
        help="measure speeds that are not known on this machine (default)",
    )  # fmt: skip
    parser.add_argument("--csv", type=Path, help="a file to write the table to")
    args = parser.parse_args(arguments)
    check_outputs(parser, {"csv": args.csv}, [])
    runs = [named_run(name, args.runs) for name in args.names]
    ranked = api.rank(runs, args.measure, RunStore(args.runs))
    title, width = metric_title(ranked.metric.name, ranked.classes), 16
    print(f"  {title:>{width}} (95% interval)      ms a pair      MB  run")
    for run in ranked.runs:
        score = f"{run.score.value:.4f} ({run.score.low:.4f} to {run.score.high:.4f})"
        speed = "-" if run.milliseconds is None else f"{run.milliseconds:.2f}"
        mark = "*" if run.may_be_best else " "
        print(f"{mark} {score:>{width + 16}} {speed:>13} {run.megabytes:7.1f}  {run.name}")
    print(ranked.sentence)
    if ranked.others:
        print(f"Runs that have not finished, or have other validation pairs: {ranked.others}")
    if args.csv:
        write_output(args.csv, ranking.ranking_csv(ranked))
    return 0
