"""Four runs of the toy, trained once for all tests: `python -m tests.support.toy_runs FOLDER`.

They are trained in fp32 by the command line, in a process of their own. Tests get copies.
"""

import csv
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from finetune.__main__ import main
from finetune.environment import devices
from finetune.runs.store import RunStore
from tests.support import toys

ROOT = Path(__file__).resolve().parent.parent.parent
CLASSES, AGAIN, SCORE, LABELS = NAMES = ("classes", "again", "score", "labels")
KINDS = (CLASSES, SCORE, LABELS)  # a run of each task
ROWS = {"train": 240, "validation": 80, "test": 40}
NEW = {"new": 80}  # of a file that no run has seen
BEGUN = 1.7e9  # when the first run was begun; each next one a second later
OPTIONS = {
    "preset": "As the course", "max_length": 32, "learning_rate": 4e-3, "num_train_epochs": 2,
    "logging_steps": 10, "eval_steps": 15, "mixed_precision": "no",
}  # fmt: skip
# Kernels that all x86 processors have: those of AVX2 and AVX-512 round differently, and sixty steps
# make 1e-2 of it.
KERNELS = {
    "OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
}  # fmt: skip


@dataclass(frozen=True)
class ToyRuns:
    """The folder of the trained runs."""

    folder: Path

    @property
    def checkpoint(self):
        return self.folder / "toy"

    def file(self, name, split):
        """The rows of a run's split, as a CSV."""
        return self.folder / (CLASSES if name == AGAIN else name) / f"{split}.csv"

    def store(self, folder):
        """A store of a test's own with copies of all runs."""
        shutil.copytree(self.folder / "runs", folder, dirs_exist_ok=True)
        return RunStore(folder)


def runs_by_name(store):
    return {run.title(): run for run in store.runs()}


def shared(root):
    """The runs below a folder that all workers of the tests share; whoever asks first has them
    trained."""
    made = ToyRuns(root / "toy-runs")
    with FileLock(f"{made.folder}.lock"):
        if not (made.folder / "made").exists():
            shutil.rmtree(made.folder, ignore_errors=True)
            done = subprocess.run(
                [sys.executable, "-m", __name__, made.folder], cwd=ROOT, capture_output=True,
                text=True, env=os.environ | KERNELS,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            (made.folder / "made").touch()
    return made


def _judged(count, seed):
    """Pairs with classes, a tenth of them wrong."""
    draw = random.Random(100 + seed)
    return [
        (first, second, ("no", "yes")[same ^ (draw.random() < 0.1)])
        for first, second, same in toys.rows(count, seed)
    ]


def _graded(count, seed):
    return [(first, second, round(score / 5, 2)) for first, second, score in
            toys.graded_rows(count, seed)]  # fmt: skip


Rows = Callable[[int, int], Sequence[Sequence[Any]]]
FILES = {
    CLASSES: (["sentence1", "sentence2", "same"], _judged),
    SCORE: (["first", "second", "score"], _graded),
    LABELS: (["text", "verbs"], toys.labelled_rows),
}


def _numbered(rows, seed):
    """The rows with a number in each text, so that no text is twice there."""
    draw = random.Random(50 + seed)
    return [
        [*(f"{text} {draw.randrange(100, 1000)}" for text in texts), answer]
        for *texts, answer in rows
    ]


def make(folder):
    """Write checkpoint and rows, and train on them."""
    made = ToyRuns(folder)
    devices.prefers_bf16 = lambda device=None: False  # the kept model is scored in fp32 everywhere
    toys.overwrite(
        toys.write_checkpoint(made.checkpoint),
        lambda weights: [part.mul_(6) for part in weights.values() if part.dim() > 1],
    )
    for name, (head, rows) in FILES.items():
        for seed, (split, count) in enumerate((ROWS | NEW).items()):
            file = made.file(name, split)
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("w", encoding="utf-8", newline="") as opened:
                csv.writer(opened).writerows([head, *_numbered(rows(count, seed), seed)])
    for seed, name in enumerate(NAMES):
        options = OPTIONS | {"name": name, "seed": seed, "checkpoint": made.checkpoint}
        options |= {f"{split}_file": made.file(name, split) for split in ROWS}
        words = [f"--{option}={value}" for option, value in options.items()]
        assert main(["train", f"--runs={folder / 'runs'}", *words]) == 0, name
    for run in RunStore(folder / "runs").runs():
        set_clock(run.folder / "events.jsonl")
        about = run.about().model_copy(update={"created": BEGUN + NAMES.index(run.title())})
        (run.folder / "about.json").write_text(about.model_dump_json())


def set_clock(file):
    """Let a tenth of a second pass from event to event: no run is longer than another."""
    happened = [json.loads(line) for line in file.read_text().splitlines()]
    for number, event in enumerate(happened):
        event["time"] = happened[0]["time"] + number / 10
        if event["event"] == "finished":
            event["seconds"] = 3.0
    file.write_text("".join(json.dumps(event) + "\n" for event in happened))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
