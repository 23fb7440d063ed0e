"""What needs a GPU: `python -m tests.benchmarks.gpu [--check | --quick | --rehearse]`.

`--check` (90 s) is what to run first on a new card: it says whether runs and answers are right
there (`gpu_check.py`). `--quick` and the whole measure how fast they are. The model is of BERT
base's size with random weights and the bundled tokenizer: it is as fast as bert-base-uncased, and
nothing is fetched; `--model` names another. It is trained on MRPC if its files are there, or on the
bundled pairs. `--rehearse` needs no GPU: it runs a tiny model through all that, and lets the check
find a wrong step.

- Training as `training` measures it, at batches of 32 and of 128, once every shape of a batch was
  seen: the course's loop in fp32 and Recommended. The whole also takes `Trainer`.
- Answers as `prediction` measures them.
- Three epochs from the command to the end, and how much of that is training. The whole also takes
  the bundled checkpoint.

Every figure is printed as it comes. The last line is `gpu: ratio X`, Recommended over the course's
loop at batch 32. The exit status is 1 if a part failed; the others go on.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import datasets
import torch
import transformers

from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.environment import devices
from tests.benchmarks import machine, prediction, quality, training

EPOCH = 115  # batches of 32 of MRPC


def main() -> None:
    args = machine.parsed(__doc__, check=bool, rehearse=bool, model=Path)
    if not args.rehearse and (reason := missing()):
        sys.exit(reason)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    quiet()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.rehearse or args.check:
            from tests.benchmarks import gpu_check

            os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # before CUDA, for equal bits
            if args.check:
                sys.exit(gpu_check.check(folder))
            os.environ[machine.QUICK] = "yes"
            model = machine.tiny_bert(folder)
            sys.exit(gpu_check.rehearse(folder, model) or measure(folder, model, True, True))
        print(machine.described(), flush=True)
        model = args.model or machine.random_bert(folder / "bert")
        sys.exit(measure(folder, model, args.quick))


def missing() -> str:
    """Say what this machine lacks; empty if it has a GPU that can be used."""
    if devices.list_accelerators() and torch.cuda.is_available():
        return ""
    found = "nvidia-smi lists one" if devices.list_accelerators() else "nvidia-smi lists none"
    return (
        f"This needs an NVIDIA GPU ({found}) and a PyTorch with CUDA (torch {torch.__version__} "
        f"{'sees' if torch.cuda.is_available() else 'does not see'} one)."
    )


def quiet() -> None:
    """Leave out progress bars and what transformers says of new weights."""
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def measure(folder: Path, model: Path, quick: bool, rehearsal: bool = False) -> int:
    """Print all figures; a rehearsal takes few steps at one batch size, and no answers, which
    `prediction --quick` runs through. Returns the exit status."""
    rounds, sides = (2, ["course", "recommended"]) if quick else (3, [*training.SIDES])
    rounds, steps, warm = (1, 2, 1) if rehearsal else (rounds, 200, 2 * EPOCH)
    ratios: list[float] = []

    def train(batch: int) -> None:
        file = next(machine.MRPC.glob("train-*"), None)
        args = argparse.Namespace(
            steps=steps, warm=warm, batch=batch, checkpoint=model, train_file=file
        )
        medians = training.measure(sides, rounds, args)
        ratios.append(medians["recommended"] / medians["course"])

    def answer() -> None:
        repeat = 1 if quick else 9  # of 408 pairs
        prediction.compare(
            argparse.Namespace(
                folder=folder, mrpc=machine.MRPC, rounds=rounds, repeat=repeat, alone=60,
                seconds=1.0,
            ),
            model,
        )  # fmt: skip

    parts: dict[str, Callable[[], object]] = {
        "training, 32": lambda: train(32),
        "training, 128": lambda: train(128),
        "answers": answer,
        "a run of BERT base": lambda: whole_run(folder, str(model)),
    }
    if rehearsal:
        del parts["training, 128"], parts["answers"]
    if not quick:
        parts["a run of the bundled checkpoint"] = lambda: whole_run(folder, BUNDLED_CHECKPOINT)
    failed = [name for name, part in parts.items() if not carried_out(name, part)]
    print(f"failed: {', '.join(failed)}" if failed else "every part has its figures", flush=True)
    print(f"gpu: ratio {ratios[0] if ratios else 0:.2f}", flush=True)
    return bool(failed)


def carried_out(name: str, part: Callable[[], object]) -> bool:
    """Carry out a part, and print how long it took, or why it failed."""
    began = time.monotonic()
    try:
        part()
    except Exception:
        traceback.print_exc()
        return False
    print(f"({name}: {time.monotonic() - began:.0f} s)", flush=True)
    return True


def whole_run(folder: Path, checkpoint: str) -> None:
    """Seconds of three epochs from the command to its end, those of training, and the F1."""
    runs = folder / "runs"
    config = machine.on_mrpc(RunConfig(checkpoint=checkpoint, num_train_epochs=3), runs)
    run, worker = machine.train(config, runs)
    *_, trained = quality.times_of_training(run).values()
    print(
        f"three epochs of {Path(checkpoint).name}: {worker.seconds:.1f} s from the command to the "
        f"end, training {trained:.1f} s, F1 {run.metrics['f1']:.3f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
