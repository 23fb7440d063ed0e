"""Does a file of a million pairs fit where one of fifty thousand does?

Two CSV files of made pairs, of 50,000 and of 1,000,000 rows. Each is examined and then trained on
for a few steps by the real workers, and judged whole by a toy of two layers (a real model has the
same rows and takes hours over them); the largest resident memory of each process is taken (Linux,
`VmHWM`). The ratio is the peak at 50,000 rows over the peak at
1,000,000, of the worst of them: 1 means that the rows cost nothing, 0.8 that they cost a quarter
more.

    python -m tests.benchmarks.memory [--rows 1000000]
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
from dataclasses import dataclass
from pathlib import Path

import psutil

from finetune.config import RunConfig
from finetune.runs.store import RunStore
from tests.benchmarks import machine
from tests.support import toys

SMALL = 50_000
WORDS = [a + b for a in ("ba", "ke", "li", "mo", "nu", "pra", "so", "ti") for b in "bdfglmnrstvx"]


@dataclass
class Measured:
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
    """Run a worker to its end.

    Raises:
        RuntimeError: when it fails.
    """
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = psutil.Popen(
            [sys.executable, "-m", *command], stdout=output, stderr=subprocess.STDOUT
        )
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, _peak(process.pid))
            time.sleep(0.05)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(output.read().decode(errors="replace")[-2000:])
    return Measured(time.monotonic() - began, peak)


def judging(runs: Path) -> Path:
    """A run folder with a model of two layers, which judges a million pairs in minutes; to be told
    from them are as many that it was trained on, those of the run before it."""
    store = RunStore(runs)
    trained = store.runs()
    run = store.create(RunConfig(max_length=48))
    toys.write_checkpoint(run.best)
    for one in trained:
        shutil.copytree(one.folder / "seen", run.folder / "seen", dirs_exist_ok=True)
    return run.folder


def _peak(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(lines[0].split()[1]) / 1024 if lines else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    large = parser.parse_args().rows
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    print(machine.described())
    print(
        "judge: by an untrained toy of two layers; its own memory is that much less than a model's"
    )
    print(f"{'worker':<10}{'rows':>12}{'MiB':>8}{'seconds':>10}")
    with tempfile.TemporaryDirectory() as folder:
        peaks: dict[str, list[float]] = {"examine": [], "again": [], "train": [], "judge": []}
        for rows in (SMALL, large):
            path, runs = Path(folder) / f"{rows}.csv", Path(folder) / f"runs-{rows}"
            write(path, rows)
            common = ["--runs", str(runs), "--train_file", str(path)]
            steps = ["--max_steps", "20", "--max_eval_samples", "200"]
            for name, command in (
                ("examine", ["finetune", "check", *common]),
                ("again", ["finetune", "check", *common]),
                ("train", ["finetune", "train", *common, *steps]),
                (
                    "judge",
                    ["finetune", "predict", "--file", str(path), "--out", f"{path}.out.csv"],
                ),
            ):
                if name == "judge":
                    command += ["--run", str(judging(runs))]
                found = measure(command)
                peaks[name].append(found.peak)
                print(f"{name:<10}{rows:>12,}{found.peak:>8.0f}{found.seconds:>10.1f}", flush=True)
        ratios = [small / big for small, big in peaks.values()]
    print(f"memory: ratio {min(ratios):.2f}")


if __name__ == "__main__":
    main()
