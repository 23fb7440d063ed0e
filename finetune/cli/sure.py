"""`python -m finetune sure`: let a run's model answer only when it is sure."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from finetune.evaluation.abstention import CONFIDENCE, ERROR
from finetune.jobs.evaluate import keep_when_sure, save_decision
from finetune.runs.store import default_root, named_run


def main(arguments: list[str] | None = None) -> int:
    """Keep a bound on the error with a run's model from a terminal."""
    about = (
        "Find the confidence from which on a run's model gives an answer, so that at most a share "
        "of its answers is wrong, and keep it with the model; other rows are answered unsure. The "
        "exit status is 2 if no threshold keeps the bound: the error says how many rows would."
    )
    parser = argparse.ArgumentParser("python -m finetune sure", description=about)
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
    args = parser.parse_args(arguments)
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
