"""What needs a GPU, in ten minutes: `python -m tests.benchmarks.gpu`.

Training over the published loop and over `Trainer` at batch 32, the share of the device's matrix
rate and the tokens a second that it reaches, and files and single pairs answered beside `pipeline`.
The model is of BERT base's size with random weights and the bundled tokenizer: it is as fast as
bert-base-uncased, and nothing is fetched. It is trained on MRPC where its files are there, else on
the bundled pairs.

What the parts print is passed on as it comes. Training's ratio is the ratio, printed when it is
known and again as the last line; the exit status is 1 where a part failed or took too long.

    python -m tests.benchmarks.gpu [--model FOLDER] [--steps 60] [--rounds 2]
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from finetune.config import RunConfig
from finetune.data import checkpoints
from finetune.environment import devices
from tests.benchmarks import machine

LIMITS = {"training": 340, "prediction": 200}  # seconds of each part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a saved classifier; BERT base by default")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    if not devices.list_accelerators():
        sys.exit("Needs a GPU.")
    print(machine.described(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        problems = measure(args.model or random_bert(Path(folder)), args.steps, args.rounds)
    if problems:
        sys.exit("\n".join(problems))


def measure(model: Path, steps: int, rounds: int, repeat: int = 20) -> list[str]:
    """Train a saved classifier and ask it, each pair so many times; what went wrong."""
    training = ["--checkpoint", str(model), "--batch", "32", "--steps", str(steps)]
    asking = ["--model", str(model), "--repeat", str(repeat), "--alone", "30", "--seconds", "3"]
    problems, ratios = [], []
    for part, words in (("training", training), ("prediction", asking)):
        lines, problem = run(
            [f"tests.benchmarks.{part}", "--rounds", str(rounds), *words], LIMITS[part]
        )
        problems += [f"{part}: {problem}"] if problem else []
        if part == "training":
            # Of its table, which is printed before the device's share is measured.
            ratios = re.findall(r"^recommended +[\d.]+ +([\d.]+)$", "".join(lines), re.MULTILINE)
        for ratio in ratios:
            print(f"gpu: ratio {ratio}", flush=True)
    return problems


def random_bert(folder: Path, **shape: int) -> Path:
    """A folder with a classifier of BERT base's size, or of another shape, and the bundled
    checkpoint's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(
        checkpoints.resolve_checkpoint(RunConfig().checkpoint)
    )
    tokenizer.save_pretrained(folder)
    config = BertConfig(vocab_size=len(tokenizer), **shape)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def run(module: list[str], limit: float) -> tuple[list[str], str]:
    """Run a module, and print its lines as they come; returns them, and what went wrong."""
    command = [sys.executable, "-u", "-m", *module]
    late = threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:

        def end() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)  # its children too

        timer = threading.Timer(limit, end)
        timer.start()
        lines = []
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
        process.wait()
        timer.cancel()
    if late.is_set():
        return lines, f"took more than {limit:g} s"
    return lines, f"exit status {process.returncode}" if process.returncode else ""


if __name__ == "__main__":
    main()
