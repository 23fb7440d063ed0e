"""How good is Recommended on pairs that chose nothing, and how much sooner than the published loop?

Both train the bundled checkpoint on MRPC's training pairs (or the bundled ones where `--mrpc` is no
folder), in turns and in processes of their own: the published loop its three epochs at 5e-5 in
batches of 8 in fp32, and the app's loop with the Recommended preset. Each seed holds out other
pairs, which share no sentence with those trained on: three tenths of all, on which both sides are
compared, and a tenth of the rest, on which the step is picked whose model is kept. The pairs
compared on have chosen neither, and MRPC's own validation split, on which Recommended was once
chosen, is not read.

The time is that of training alone: evaluations are left out on both sides. The goal is the F1 of
the published loop's last epoch, mean over the seeds; Recommended has reached it at the first
evaluation from which on its own F1, mean over the seeds, is no lower. The ratio is the seconds of
the one over the seconds of the other; 0 where it is not reached.

Without options it ends within ten minutes: one seed and 1,200 training pairs. The figure meant is
that of `--seeds 5 --pairs 0`, which takes an hour and more. `--change dropout=0.1` tries another
recipe in the place of Recommended: one is chosen so, on both datasets and with several seeds, and
never on MRPC's validation split.

    python -m tests.benchmarks.quality [--mrpc FOLDER] [--seeds 1] [--pairs 1200]
        [--change NAME=VALUE ...] [--quick]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.config import RunConfig, preset
from finetune.data.catalog import BUNDLED_PAIRS
from finetune.metrics.calibration import Logits
from finetune.metrics.classification import Indices
from tests.benchmarks import machine

if TYPE_CHECKING:
    from finetune.data import splits

SIDES = ("course", "recommended")
UNSEEN, PICKING = 0.3, 0.1  # shares: compared on, of all pairs; picks the step, of the rest
Curve = list[tuple[float, float]]  # seconds of training, and F1 on unseen pairs, by evaluation


class Trained(NamedTuple):
    """What a side came to with one seed."""

    curve: Curve
    labels: list[int]  # of the unseen pairs, and
    answers: list[int]  # those of the model of the picked step
    last: list[int]  # and of the last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mrpc", type=Path, default=machine.MRPC, help="folder of its files")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=1200, help="trained on; 0 for all")
    parser.add_argument("--change", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--checkpoint", default=RunConfig().checkpoint)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--seed", type=int, default=1)
    short = ["num_train_epochs=1"]
    args = machine.parsed(parser, pairs=40, mrpc=Path("absent"), change=short)
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    if args.side:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(_train(config_of(args), args.side, args.mrpc, Path(folder))))
        return
    print(machine.described())
    with tempfile.TemporaryDirectory() as folder:
        if args.quick:
            args.checkpoint = str(machine.random_bert(Path(folder), **machine.TINY))
        _compare(args)


def _compare(args: argparse.Namespace) -> None:
    trained: dict[str, list[Trained]] = {side: [] for side in SIDES}
    for seed in range(1, args.seeds + 1):
        for side in SIDES[:: -1 if seed % 2 else 1]:
            trained[side].append(_measured(side, seed, args))
            curve = trained[side][-1].curve
            shown = ", ".join(f"{seconds:.0f} s {f1:.3f}" for seconds, f1 in curve)
            print(f"seed {seed} {side}: {shown}", flush=True)
    print(f"model of the picked step: {difference(trained, 'answers')}")
    print(f"model of the last step: {difference(trained, 'last')}")
    curves = {side: [each.curve for each in trained[side]] for side in SIDES}
    (seconds, goal), reached = _mean(curves["course"])[-1], _reached(curves)
    print(f"the published loop: F1 {goal:.3f} after {seconds:.0f} s")
    print(
        f"Recommended: as good after {reached:.0f} s, F1 {_mean(curves['recommended'])[-1][1]:.3f}"
    )
    print(f"quality: ratio {seconds / reached:.2f}")


def difference(trained: dict[str, list[Trained]], which: str) -> str:
    """F1 of both sides' `answers` or `last` on the unseen pairs of all seeds together, and their
    difference with its 95% interval."""
    from finetune.metrics import intervals
    from finetune.metrics.catalog import F1, tallied_scores

    labels = np.concatenate([each.labels for each in trained["course"]])
    answers = {
        side: np.concatenate([getattr(each, which) for each in trained[side]]) for side in SIDES
    }
    course, recommended = (tallied_scores(labels, answers[side], 2)["f1"] for side in SIDES)
    gain = intervals.difference_intervals(
        answers["recommended"], answers["course"], labels, [F1], 1
    )["f1"]
    return (
        f"F1 on {len(labels):,} unseen pairs {course:.3f}, Recommended {recommended:.3f}, "
        f"{gain.value:+.3f} (95% {gain.low:+.3f} to {gain.high:+.3f})"
    )


def _measured(side: str, seed: int, args: argparse.Namespace) -> Trained:
    command = [sys.executable, "-m", "tests.benchmarks.quality", "--side", side]
    command += ["--seed", str(seed), "--pairs", str(args.pairs), "--mrpc", str(args.mrpc)]
    command += ["--checkpoint", args.checkpoint, "--change", *args.change]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    curve, *rest = json.loads(output.strip().splitlines()[-1])
    return Trained([(seconds, f1) for seconds, f1 in curve], *rest)


def _mean(curves: list[Curve]) -> Curve:
    """The mean curve of several seeds, which are evaluated at the same steps."""
    seconds, scores = (
        [statistics.mean(values) for values in zip(*column, strict=True)]
        for column in ([[point[at] for point in curve] for curve in curves] for at in (0, 1))
    )
    return list(zip(seconds, scores, strict=True))


def _reached(curves: dict[str, list[Curve]]) -> float:
    """Seconds after which Recommended is no worse any more than the published loop's end."""
    goal, reached = _mean(curves["course"])[-1][1], float("inf")
    for seconds, f1 in reversed(_mean(curves["recommended"])):
        if f1 < goal:
            break
        reached = seconds
    return reached


def held_out(mrpc: Path, config: RunConfig, folder: Path) -> tuple[splits.Pairs, NDArray[np.bool_]]:
    """Pairs whose validation split has those that pick the step and the unseen ones, and which of
    its rows are unseen; all of the training file, cut as the app cuts a validation split."""
    from datasets import DatasetDict, concatenate_datasets

    from finetune.data import splits
    from finetune.uploads import Uploads

    files = list(mrpc.glob("train-*")) or [BUNDLED_PAIRS / "train.csv"]
    uploads = Uploads(folder / "uploads")
    everything = config.changed(
        dataset=uploads.add({"train": files[0]}), validation_share=UNSEEN, max_train_samples=0
    )
    unseen = splits.load_pairs(everything, folder).splits
    unseen["train"].to_parquet(folder / "rest.parquet")
    rest = config.changed(
        dataset=uploads.add({"train": folder / "rest.parquet"}), validation_share=PICKING
    )
    pairs = splits.load_pairs(rest, folder)
    picking = pairs.splits["validation"]
    validation = concatenate_datasets([picking, unseen["validation"].cast(picking.features)])
    is_unseen = np.arange(len(validation)) >= len(picking)
    both = DatasetDict(train=pairs.splits["train"], validation=validation)
    return dataclasses.replace(pairs, splits=both), is_unseen


def config_of(args: argparse.Namespace) -> RunConfig:
    """The configuration of a side: each seed holds out other pairs."""
    values = preset("Recommended" if args.side == "recommended" else "As the course")
    if args.side == "recommended":
        values |= dict(change.split("=", 1) for change in args.change)
    return RunConfig(seed=args.seed, max_train_samples=args.pairs).changed(
        **values, data_seed=args.seed, checkpoint=args.checkpoint
    )


def _train(config: RunConfig, side: str, mrpc: Path, folder: Path) -> Trained:
    from finetune.metrics.catalog import tallied_scores
    from finetune.runs import events
    from finetune.tasks.registry import task_of
    from finetune.training import accelerator as engine
    from finetune.training import dataloaders, loop, recipe
    from finetune.training import model as models

    loaded, is_unseen = held_out(mrpc, config, folder)
    accelerator = engine.make_accelerator(config)
    attention = "auto"
    if side == "recommended":
        engine.keep_freed_memory()
        half = accelerator.mixed_precision == "bf16"
        attention = models.choose_attention("auto", accelerator.device, half, config.max_length)
    # With the rate of a small model, which the bundled checkpoint is.
    gpu, rows = engine.gpu_memory(accelerator.device), len(loaded.splits["train"])
    config = recipe.resolve(config, parameters=0, pairs=rows, gpu_memory=gpu, processes=1)
    tokenizer, classifier, _ = models.load_classifier(
        config.checkpoint, loaded.target, config.max_length, config.dropout, attention
    )
    classifier = models.apply_config(classifier, config)
    batches = dataloaders.build_loaders(loaded, tokenizer, config, accelerator.device)
    logits: list[Logits] = []

    def keep(step: int, scored: Logits, labels: Indices) -> dict[str, list[float]]:
        logits.append(scored)
        return {}

    seconds, began, evaluated = [], time.perf_counter(), 0.0
    interval = 0 if side == "course" else -(-len(batches.train) // 5)
    hooks = loop.Hooks(save_predictions=keep)
    task = task_of(loaded.target)
    metric = task.score_modules(loaded.target, task.metrics)
    for event in loop.fit(
        config, accelerator, classifier, batches, task, metric, hooks, interval=interval
    ):
        if isinstance(event, events.Evaluated):
            evaluated += event.seconds
            if not event.step:  # before the first, which needs no part of the time
                began, evaluated = time.perf_counter(), 0.0
                continue
            seconds.append(time.perf_counter() - began - evaluated)
    labels = np.array(loaded.splits["validation"]["label"][:])

    def f1(scored: Logits, rows: NDArray[np.bool_]) -> float:
        return tallied_scores(labels[rows], scored.argmax(axis=1)[rows], 2)["f1"]

    picked = max(logits, key=lambda scored: f1(scored, ~is_unseen))
    return Trained(
        [(at, f1(scored, is_unseen)) for at, scored in zip(seconds, logits, strict=True)],
        labels[is_unseen].tolist(),
        *(scored.argmax(axis=1)[is_unseen].tolist() for scored in (picked, logits[-1])),
    )


if __name__ == "__main__":
    main()
