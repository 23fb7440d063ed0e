"""`python -m tests.benchmarks.analysis`: what the evaluation of 100,000 examples costs.

In a process of its own: everything the page shows of a run's evaluation, computed from saved
logits of 100,000 validation pairs over five evaluations, both orders and the comparison with
another run included. Prints seconds and peak memory, and as its last line 10 s over the seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from finetune.evaluation import saved_predictions
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.benchmarks import machine

ALLOWED = 10.0  # seconds
EVALUATIONS = (100, 200, 300, 400, 500)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", help="measure the two runs of this store, in this process")
    args = machine.parsed(parser, examples=300, rounds=1)
    if args.store:
        print(json.dumps(measure(RunStore(args.store))))
        return
    print(machine.described())
    command = [sys.executable, "-m", "tests.benchmarks.analysis", "--store"]
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in (0, 1):
            make(RunStore(folder), args.examples, args.classes, seed)
        for _ in range(args.rounds):
            output = subprocess.run([*command, folder], stdout=subprocess.PIPE, check=True).stdout
            rounds.append(json.loads(output))
    print(f"{args.examples:,} examples, {args.classes} classes, {len(EVALUATIONS)} evaluations")
    for name in rounds[0]:
        values = sorted(figures[name] for figures in rounds)
        spread = f"(from {values[0]:.2f} to {values[-1]:.2f})"
        print(f"  {name:<28}{median(values):>10.2f}   {spread}")
    seconds = median(figures["seconds, all of it"] for figures in rounds)
    print(f"analysis: ratio {ALLOWED / seconds:.2f}")


def make(store: RunStore, examples: int, classes: int, seed: int) -> Run:
    """A run that was evaluated five times: its logits and its examples, nothing of them real."""
    from tests.support.scored_runs import evaluated

    draw = np.random.default_rng(seed)
    truth = np.random.default_rng(99).integers(0, classes, examples)
    noise = draw.normal(0, 1, (examples, classes)).astype(np.float32)
    right = np.eye(classes, dtype=np.float32)[truth]
    logits = {step: noise + right * (step / 200) for step in EVALUATIONS}
    names = tuple(f"class {n}" for n in range(classes))
    run, _ = evaluated(store, logits, truth.tolist(), EVALUATIONS[-1], names)
    saved_predictions.save_examples(run, "validation", texts(examples, truth))
    rows = np.arange(min(examples, 10_000))
    last = logits[EVALUATIONS[-1]][rows]
    other = last + draw.normal(0, 0.3, last.shape).astype(np.float32)
    both = saved_predictions.SwappedLogits(EVALUATIONS[-1], rows, last, other)
    saved_predictions.save_swapped_logits(run, both)
    run.append(events.Finished(step=500, seconds=1.0))
    return run


def texts(examples: int, truth: Any) -> pa.Table:
    """Pairs of about twenty words each, with numbers, names and negations among them."""
    draw = random.Random(0)
    words = [f"word{n}" for n in range(2000)] + ["not", "Berlin", "17", "never", "Ada"] * 40
    first = [" ".join(draw.choices(words, k=draw.randint(8, 30))) for _ in range(examples)]
    second = [" ".join(draw.choices(words, k=draw.randint(8, 30))) for _ in range(examples)]
    return pa.table({"sentence1": first, "sentence2": second, "label": truth})


def measure(store: RunStore) -> dict[str, float]:
    """Seconds and MB of studying both runs and comparing them."""
    from finetune.evaluation import examples, report
    from finetune.runs.summary import JobState
    from finetune.tasks.base import DecisionRule
    from finetune.ui import compare_view, evaluation_view

    second, first = store.runs()
    began = time.perf_counter()
    summary = first.state()
    study = report.evaluate_run(first, summary)
    drawn = evaluation_view.view(study, summary, DecisionRule(), JobState("none"))
    rows = examples.select_examples(study, "wrong", search="berlin")
    drawn += evaluation_view.examples(study, rows, 0, {}, summary.columns)
    one = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    drawn += compare_view.comparison(store, [first.id, second.id])
    return {
        "seconds, all of it": one,
        "seconds, two runs compared": time.perf_counter() - began,
        "MB at most, all of it": peak,
        "MB at most, two runs": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "KB of HTML": len(drawn) / 1024,
    }


if __name__ == "__main__":
    main()
