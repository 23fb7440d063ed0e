"""`python -m finetune probe`: which checkpoint to train first."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from finetune.arguments import add_arguments, arguments_given
from finetune.cli import file_arguments
from finetune.config import RunConfig
from finetune.jobs import probe
from finetune.metrics.catalog import metric_name
from finetune.runs.store import RunStore, default_root


def main(arguments: list[str] | None = None) -> int:
    """Rank checkpoints from a terminal. Returns the exit status."""
    about = "Rank checkpoints on your pairs by a linear model on their vectors, before training."
    parser = argparse.ArgumentParser("python -m finetune probe", description=about)
    parser.add_argument("--runs", type=Path, default=default_root())
    parser.add_argument(
        "--checkpoints", nargs="+", default=[], metavar="CHECKPOINT",
        help="offered names, Hub ids or folders; by default the offered ones on this disk",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    file_arguments.add_arguments(parser)
    add_arguments(parser)
    args = parser.parse_args(arguments)
    config = RunConfig(
        **arguments_given(args) | file_arguments.upload_from_arguments(args, args.runs)
    )
    names = args.checkpoints or probe.candidates(config)
    chosen = probe.check_request(RunStore(args.runs), config, names)
    begun: list[str] = []

    def tell(name: str, _done: int, _total: int) -> None:
        if name not in begun:
            begun.append(name)
            print(f"{name} ...", flush=True)

    with contextlib.redirect_stdout(sys.stderr):  # a library's output is no part of the report
        report = probe.probe_checkpoints(config, chosen, args.runs, tell)
    if args.json:
        print(report.to_json(), end="")
        return 0
    title = metric_name(report.metric, report.classes)
    print(f"{title} of a linear model on {report.pairs:,} training pairs, cross-validated:")
    for one in report.candidates:
        if one.score is None:
            print(f"  {one.checkpoint}: {one.problem}")
            continue
        parts = [f"{one.score.value:.3f} ({one.score.low:.3f} to {one.score.high:.3f})"]
        if one.similarity is not None:
            parts.append(f"cosine {one.similarity.value:.3f}")
        parts.append(f"{one.milliseconds:.1f} ms a pair")
        parts.append(f"{one.parameters / 1e6:.0f}M parameters")
        print(f"  {one.checkpoint}: {', '.join(parts)}")
    if report.words is not None:
        print(f"  counting words (TF-IDF): {report.words.value:.3f}")
    print(f"  {report.verdict}")
    return 0
