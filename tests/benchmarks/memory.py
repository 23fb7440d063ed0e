"""Does a file of a million pairs fit where one of fifty thousand does?

Two CSV files of made pairs, of 50,000 and of 1,000,000 rows. Each is checked and then trained on
for a few steps by the real workers, and predicted whole by a toy of two layers (a real model has
the same rows and takes hours over them); the largest resident memory of each process is taken
(Linux, `VmHWM`). The ratio is the peak at the small file over the peak at the large one, of the
worst of them: 1 means that the rows cost nothing, 0.8 that they cost a quarter more.

    python -m tests.benchmarks.memory [--small 50000] [--rows 1000000] [--quick]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from finetune.config import RunConfig
from finetune.runs.store import RunStore
from tests.benchmarks import machine
from tests.support import toys

WORDS = [a + b for a in ("ba", "ke", "li", "mo", "nu", "pra", "so", "ti") for b in "bdfglmnrstvx"]


class Measured(NamedTuple):
    """One worker: seconds it ran, largest resident memory in MiB."""

    seconds: float
    peak: float


def write(path: Path, rows: int) -> None:
    """A CSV of so many pairs of 6 to 14 words; half of the pairs share most of them."""
    draw = random.Random(rows)
    with path.open("w", encoding="utf-8") as file:
        file.write("question1,question2,is_duplicate\n")
        for number in range(rows):
            first = draw.choices(WORDS, k=draw.randint(6, 14))
            same = draw.random() < 0.5
            second = [*first[1:], first[0]] if same else draw.choices(WORDS, k=len(first))
            file.write(f"{' '.join(first)} {number},{' '.join(second)} {number},{int(same)}\n")


def measure(command: list[str]) -> Measured:
    """Run a worker to its end; a RuntimeError when it fails."""
    began, peak = time.monotonic(), 0.0
    with tempfile.TemporaryFile() as output:
        process = psutil.Popen(
            [sys.executable, "-m", *command], stdout=output, stderr=subprocess.STDOUT
        )
        while process.poll() is None:
            peak = max(peak, _peak(process.pid))
            time.sleep(0.05)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(output.read().decode(errors="replace")[-2000:])
    return Measured(time.monotonic() - began, peak)


def _peak(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(lines[0].split()[1]) / 1024 if lines else 0.0


def toy_run(runs: Path) -> Path:
    """A run folder with a model of two layers, and the training pairs of the run before it."""
    store = RunStore(runs)
    trained = store.runs()
    run = store.create(RunConfig(max_length=48))
    toys.write_checkpoint(run.best)
    for before in trained:
        shutil.copytree(before.folder / "seen", run.folder / "seen", dirs_exist_ok=True)
    return run.folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=50_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=20)
    args = machine.parsed(parser, small=300, rows=300, steps=2)
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    print(machine.described())
    print(f"{'worker':<10}{'rows':>12}{'MiB':>8}{'seconds':>10}")
    peaks: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for rows in sorted({args.small, args.rows}):
            path, runs = f"{folder}/{rows}.csv", f"{folder}/runs-{rows}"
            write(Path(path), rows)
            source = ["--runs", runs, "--train_file", path]
            steps = ["--max_steps", str(args.steps), "--max_eval_samples", "200"]
            workers = {
                "check": ["check", *source],
                "again": ["check", *source],
                "train": ["train", *source, *steps],
                "predict": ["predict", "--file", path, "--out", f"{path}.out.csv", "--run"],
            }
            if args.quick:
                del workers["again"]
            for name, command in workers.items():
                run = [str(toy_run(Path(runs)))] if name == "predict" else []
                seconds, peak = measure(["finetune", *command, *run])
                peaks.setdefault(name, []).append(peak)
                print(f"{name:<10}{rows:>12,}{peak:>8.0f}{seconds:>10.1f}", flush=True)
    print(f"memory: ratio {min(sizes[0] / sizes[-1] for sizes in peaks.values()):.2f}")


if __name__ == "__main__":
    main()
