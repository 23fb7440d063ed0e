"""`python -m finetune evaluate`: score a run's model again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from finetune.jobs.evaluate import score
from finetune.runs.store import default_root, named_run


def main(arguments: list[str] | None = None) -> int:
    """Score a run's model from a terminal."""
    about = "Score a run's model with the sentences swapped, or on the sealed test set."
    parser = argparse.ArgumentParser("python -m finetune evaluate", description=about)
    parser.add_argument("--run", type=Path, required=True, help="a run's name, id or folder")
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
    parser.add_argument("--open_test", action="store_true", help="open the test set")
    args = parser.parse_args(arguments)
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
