"""How good is Recommended on pairs that chose nothing, and how much sooner than the published loop?

Both train the bundled checkpoint on MRPC's training pairs (or the bundled ones where `--mrpc` is no
folder), in turns and by the command line: the course's recipe its three epochs at 5e-5 in batches
of 8 in fp32, and the Recommended preset. Each seed holds out other pairs, which share no sentence
with those trained on: three tenths of all, on which both sides are compared, and a tenth of the
rest, on which the step is picked whose model is kept. The pairs compared on have chosen neither,
and MRPC's own validation split, on which Recommended was once chosen, is not read.

The time is that of training alone: evaluations are left out on both sides. The goal is the F1 of
the course's last epoch, mean over the seeds; Recommended has reached it at the first evaluation
from which on its own F1, mean over the seeds, is no lower. The ratio is the seconds of the one over
the seconds of the other; 0 where it is not reached.

Without options it ends within ten minutes: one seed and 1,200 training pairs. The figure meant is
that of `--seeds 5 --pairs 0`, which takes an hour and more. `--change dropout=0.1` tries another
recipe in the place of Recommended: one is chosen so, on both datasets and with several seeds, and
never on MRPC's validation split.

    python -m tests.benchmarks.quality [--mrpc FOLDER] [--seeds 1] [--pairs 1200]
        [--change NAME=VALUE ...] [--quick]
"""

import statistics
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from finetune.config import RunConfig, preset
from finetune.data import splits
from finetune.data.catalog import BUNDLED_PAIRS
from finetune.evaluation import saved_predictions
from finetune.metrics import catalog, intervals
from finetune.metrics.catalog import F1
from finetune.runs import events
from finetune.tasks.base import Target
from finetune.uploads import Uploads
from tests.benchmarks import machine

SIDES = {"course": "As the course", "recommended": "Recommended"}
UNSEEN, PICKING = 0.3, 0.1  # shares: compared on, of all pairs; picks the step, of the rest
Curve = list[tuple[float, float]]  # seconds of training, and F1 on unseen pairs, by evaluation


class Trained(NamedTuple):
    """What a side came to with one seed."""

    curve: Curve
    labels: Any  # of the unseen pairs, and
    answers: Any  # those of the model of the picked step
    last: Any  # and of the last


def main():
    args = machine.parsed(
        __doc__, mrpc=(machine.MRPC, Path("absent")), seeds=1, pairs=(1200, 40),
        change=(list, ["num_train_epochs=1"]),
    )  # fmt: skip
    trained = {side: [] for side in SIDES}
    with machine.begun() as folder:
        for seed in range(1, args.seeds + 1):
            for side in list(SIDES)[:: -1 if seed % 2 else 1]:
                config = RunConfig(seed=seed, data_seed=seed).changed(**preset(SIDES[side]))
                if side == "recommended" or args.quick:
                    config = machine.changed(config, args.change)
                if args.quick:
                    config = config.changed(checkpoint=str(machine.tiny_bert(folder)))
                own = folder / f"{seed} {side}"
                trained[side].append(train(config, args.mrpc, args.pairs, own))
                curve = ", ".join(
                    f"{seconds:.0f} s {f1:.3f}" for seconds, f1 in trained[side][-1].curve
                )
                print(f"seed {seed} {side}: {curve}", flush=True)
    print(f"model of the picked step: {difference(trained, 'answers')}")
    print(f"model of the last step: {difference(trained, 'last')}")
    curves = {side: mean_curve([each.curve for each in trained[side]]) for side in SIDES}
    (seconds, goal), reached = curves["course"][-1], float("inf")
    for at, f1 in reversed(curves["recommended"]):
        if f1 < goal:
            break
        reached = at
    print(f"the course: F1 {goal:.3f} after {seconds:.0f} s")
    print(f"Recommended: as good after {reached:.0f} s, F1 {curves['recommended'][-1][1]:.3f}")
    print(f"quality: ratio {seconds / reached:.2f}")


def train(config, mrpc, count, folder):
    """Train on `count` pairs, and score the unseen ones by the logits that the run has kept."""
    files, picking = hold_out(config, mrpc, folder)
    dataset = Uploads(folder / "runs" / "uploads").add(files)
    config = config.changed(dataset=dataset, max_train_samples=count, max_eval_samples=0)
    run, _ = machine.train(config, folder / "runs")
    times = times_of_training(run)
    prepared = run.state().prepared
    target = Target(tuple(prepared.labels))
    kept = [saved_predictions.read_logits(run, step, target) for step in times]
    labels, answers = kept[0].labels, [each.logits.argmax(axis=1) for each in kept]
    picked, unseen = (
        [catalog.scores(each[part], labels[part])["f1"] for each in answers]
        for part in (slice(picking), slice(picking, None))
    )
    return Trained(
        list(zip(times.values(), unseen, strict=True)),
        labels[picking:],
        answers[int(np.argmax(picked))][picking:],
        answers[-1][picking:],
    )


def hold_out(config, mrpc, folder):
    """Files of the pairs trained on and of those that are not: first so many that pick the step,
    then the unseen ones. All are of the training file, cut as the app cuts a validation split."""
    from datasets import concatenate_datasets

    uploads = Uploads(folder / "uploads")
    left = next(mrpc.glob("train-*"), BUNDLED_PAIRS / "train.csv")
    cut = []
    for share in (UNSEEN, PICKING):
        dataset = uploads.add({"train": left})
        parts = splits.load_pairs(
            config.changed(dataset=dataset, validation_share=share, max_train_samples=0), folder
        ).splits
        left = folder / f"train-{len(cut)}.parquet"
        parts["train"].to_parquet(left)
        cut.append(parts["validation"])
    unseen, picking = cut
    validation = folder / "validation.parquet"
    concatenate_datasets([picking, unseen.cast(picking.features)]).to_parquet(validation)
    return {"train": left, "validation": validation}, len(picking)


def times_of_training(run):
    """Seconds of training alone until each evaluated step, the untrained model's left out."""
    times, trained, began = {}, 0.0, None
    for event in run.tail()[0]:
        if isinstance(event, events.PhaseStarted):
            trained += event.time - began if began is not None else 0.0
            began = event.time if event.phase == events.Phase.TRAIN else None
        elif isinstance(event, events.Evaluated) and event.step:
            times[event.step] = trained
    return times


def difference(trained, which):
    """F1 of both sides' `answers` or `last` on the unseen pairs of all seeds together, and their
    difference with its 95% interval."""
    labels = np.concatenate([each.labels for each in trained["course"]])
    answers = [np.concatenate([getattr(each, which) for each in trained[side]]) for side in SIDES]
    course, recommended = (catalog.scores(of_side, labels)["f1"] for of_side in answers)
    gain = intervals.difference_intervals(answers[1], answers[0], labels, [F1], 1)["f1"]
    return (
        f"F1 on {len(labels):,} unseen pairs {course:.3f}, Recommended {recommended:.3f}, "
        f"{gain.value:+.3f} (95% {gain.low:+.3f} to {gain.high:+.3f})"
    )


def mean_curve(curves):
    """The mean curve of several seeds, from the last evaluation back to the first that all have."""
    points = []
    for each in zip(*map(reversed, curves), strict=False):
        seconds, scores = zip(*each, strict=True)
        points.append((statistics.mean(seconds), statistics.mean(scores)))
    return points[::-1]


if __name__ == "__main__":
    main()
