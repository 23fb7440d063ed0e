"""How much sooner does Recommended reach what the published loop ends with?

Both train the bundled checkpoint on MRPC (or the bundled pairs where `--mrpc` is no folder), in
turns and in processes of their own: the published loop its three epochs at 5e-5 in batches of 8 in
fp32, and the app's loop with the Recommended preset. What is compared is the training time alone:
evaluations are left out on both sides. The published loop's score is the F1 of its last epoch, mean
over the seeds; Recommended has reached it at the first evaluation from which on its own F1, mean
over the seeds, is no lower. The ratio is the seconds of the one over the seconds of the other; 0
where it is not reached.

Without options it ends within ten minutes: one seed and 1,200 training pairs. The figure meant is
that of `--seeds 5 --pairs 0`, which takes an hour and more.

    python -m tests.benchmarks.quality [--mrpc FOLDER] [--seeds 1] [--pairs 1200]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks import machine

SIDES = ("course", "recommended")
Curve = list[tuple[float, float]]  # seconds of training, and F1, of each evaluation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mrpc", type=Path, default=machine.MRPC, help="folder of its files")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=1200, help="trained on; 0 for all")
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    if args.side:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(_train(args.side, args.seed, args.pairs, args.mrpc, Path(folder))))
        return
    print(machine.described())
    curves: dict[str, list[Curve]] = {side: [] for side in SIDES}
    for seed in range(1, args.seeds + 1):
        for side in SIDES[:: -1 if seed % 2 else 1]:
            curves[side].append(_measured(side, seed, args))
            shown = ", ".join(f"{seconds:.0f} s {f1:.3f}" for seconds, f1 in curves[side][-1])
            print(f"seed {seed} {side}: {shown}", flush=True)
    (seconds, goal), reached = _mean(curves["course"])[-1], _reached(curves)
    print(f"the published loop: F1 {goal:.3f} after {seconds:.0f} s")
    print(
        f"Recommended: as good after {reached:.0f} s, F1 {_mean(curves['recommended'])[-1][1]:.3f}"
    )
    print(f"quality: ratio {seconds / reached:.2f}")


def _measured(side: str, seed: int, args: argparse.Namespace) -> Curve:
    command = [sys.executable, "-m", "tests.benchmarks.quality", "--side", side]
    command += ["--seed", str(seed), "--pairs", str(args.pairs), "--mrpc", str(args.mrpc)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [(seconds, f1) for seconds, f1 in json.loads(output.strip().splitlines()[-1])]


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


def _train(side: str, seed: int, pairs: int, mrpc: Path, folder: Path) -> Curve:
    from finetune.config import RunConfig, preset
    from finetune.data import splits
    from finetune.runs import events
    from finetune.training import accelerator as engine
    from finetune.training import dataloaders, loop
    from finetune.training import model as models
    from finetune.uploads import Uploads

    name = "Recommended" if side == "recommended" else "As the course"
    config = RunConfig(seed=seed, max_train_samples=pairs).changed(**preset(name))
    files = {split: file for split in ("train", "validation") for file in mrpc.glob(f"{split}-*")}
    if files:
        config = config.changed(dataset=Uploads(folder / "uploads").add(files))
    loaded = splits.load_pairs(config, folder)
    accelerator = engine.make_accelerator(config)
    attention = "auto"
    if side == "recommended":
        engine.keep_freed_memory()
        half = accelerator.mixed_precision == "bf16"
        attention = models.choose_attention("auto", accelerator.device, half, config.max_length)
    tokenizer, classifier, _ = models.load_classifier(
        config.checkpoint, loaded.labels, config.max_length, config.dropout, attention
    )
    classifier = models.apply_config(classifier, config)
    batches = dataloaders.build_loaders(loaded, tokenizer, config)
    curve: Curve = []
    began, evaluated = time.perf_counter(), 0.0
    interval = 0 if side == "course" else -(-len(batches.train) // 5)
    for event in loop.fit(
        config, accelerator, classifier, batches, positive=loaded.positive, interval=interval
    ):
        if isinstance(event, events.Evaluated):
            evaluated += event.seconds
            if not event.step:  # before the first, which needs no part of the time
                began, evaluated = time.perf_counter(), 0.0
                continue
            curve.append((time.perf_counter() - began - evaluated, event.metrics["f1"]))
    return curve


if __name__ == "__main__":
    main()
