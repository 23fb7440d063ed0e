"""What needs a GPU: `python -m tests.benchmarks.gpu [--check | --quick | --rehearse]`.

`--check` (90 s) is what to run first on a new card: it says whether runs and answers are right
there (`gpu_check.py`). `--quick` (150 s) and the whole (420 s) measure how fast they are. The model
is of BERT base's size with random weights and the bundled tokenizer: it is as fast as
bert-base-uncased, and nothing is fetched. It is trained on MRPC if its files are there, or on the
bundled pairs. `--rehearse` needs no GPU: it runs a tiny model through all that, and lets the check
find a wrong step.

- Training, medians of rounds in this process: the course's loop in fp32 over the rows of
  `datasets` with its collator, then Recommended with batches of 32 and of 128. The share of the
  device's matrix rate, the time to the first step, the peak of memory.
- Answers of the `Scorer` in fp32 and in bf16: many pairs, and one pair after another.
- Three epochs from the command to the end, and how much of that is training. The whole also takes
  the bundled checkpoint, `Trainer` with its best flags, and `pipeline`.

Every figure is printed as it comes. The last line is `gpu: ratio X`, Recommended over the course's
loop at batch 32. The exit status is 1 if a part failed; the others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.environment import devices
from tests.benchmarks import machine

REPORT = 10  # steps between the reports of a run, each of which waits for the device
COURSE, BATCHES = "the course's loop, 32", (32, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="see that runs are right, and end")
    parser.add_argument("--quick", action="store_true", help="leave out the longer parts")
    parser.add_argument("--rehearse", action="store_true", help="run through without a GPU")
    parser.add_argument("--model", type=Path, help="a saved classifier; BERT base by default")
    args = parser.parse_args()
    if not args.rehearse and (reason := missing()):
        sys.exit(reason)
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    quiet()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.rehearse:
            from tests.benchmarks import gpu_check

            model = machine.random_bert(folder / "bert", **machine.TINY)
            sys.exit(gpu_check.rehearse(folder, model) or measure(folder, model, True, 10, 64))
        if args.check:
            from tests.benchmarks import gpu_check

            os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # before CUDA, for equal bits
            sys.exit(gpu_check.check(folder))
        print(machine.described(), flush=True)
        sys.exit(measure(folder, args.model or machine.random_bert(folder / "bert"), args.quick))


def missing() -> str:
    """Say what this machine lacks; empty if it has a GPU that can be used."""
    import torch

    if devices.list_accelerators() and torch.cuda.is_available():
        return ""
    found = "nvidia-smi lists one" if devices.list_accelerators() else "nvidia-smi lists none"
    return (
        f"This needs an NVIDIA GPU ({found}) and a PyTorch with CUDA (torch {torch.__version__} "
        f"{'sees' if torch.cuda.is_available() else 'does not see'} one)."
    )


def quiet() -> None:
    """Leave out progress bars and what transformers says of new weights."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def measure(folder: Path, model: Path, quick: bool, steps: int = 100, pairs: int = 3668) -> int:
    """Print all figures. Returns the exit status."""
    ratios: list[float] = []
    rounds = 2 if quick else 3
    parts: list[tuple[str, Callable[[], object]]] = [
        ("training", lambda: ratios.append(training(folder, model, rounds, steps))),
        ("answers", lambda: answers(folder, model, rounds, pairs)),
        ("a run of BERT base", lambda: whole_run(folder, str(model))),
    ]
    if not quick:
        parts += [
            ("a run of the bundled checkpoint", lambda: whole_run(folder, BUNDLED_CHECKPOINT)),
            ("Trainer", lambda: other("training", model, "--side", "trainer", "--batch", "32")),
            ("pipeline", lambda: pipeline(folder, model, pairs)),
        ]
    failed = [name for name, part in parts if not carried_out(name, part)]
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


def mrpc_config(folder: Path, **values: Any) -> RunConfig:
    """Recommended on MRPC, or on the bundled pairs if its files are not there."""
    from finetune.uploads import Uploads

    names = ("train", "validation")
    files = {name: path for name in names for path in machine.MRPC.glob(f"{name}-*")}
    if files:
        values = {"dataset": Uploads(folder / "uploads").add(files)} | values
    return RunConfig(**values)


def training(folder: Path, model: Path, rounds: int, steps: int) -> float:
    """Samples/s of each side. Returns Recommended over the course's loop at batch 32."""
    import torch

    from finetune.data import splits

    config = mrpc_config(folder, checkpoint=str(model), max_steps=10**6, eval_steps=10**7)
    pairs = splits.load_pairs(config, folder)
    sides: dict[str, Iterator[float]] = {COURSE: course_rates(config, pairs, steps)}
    for batch in BATCHES:
        own = config.changed(per_device_train_batch_size=batch, logging_steps=REPORT)
        sides[f"Recommended, {batch}"] = own_rates(own, pairs, steps)
    figures: dict[str, list[float]] = {}
    for side, rates in sides.items():  # one after another: Accelerate has one state a process
        figures[side] = []
        for rate in itertools.islice(rates, rounds):
            figures[side].append(rate)
            print(f"round {len(figures[side])}, {side}: {rate:.0f} samples/s", flush=True)
        rates.close()  # type: ignore[attr-defined]
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    medians = {side: statistics.median(rates) for side, rates in figures.items()}
    flops, precision = flops_of_a_pair(config, pairs), devices.trains_in().replace("no", "fp32")
    rate = machine.matmul_rate(precision)
    for side, value in medians.items():
        print(
            f"{side}: {value:.0f} samples/s, {value / medians[COURSE]:.2f} times the course's, "
            f"{value * flops / 1e12:.0f} TFLOP/s, {value * flops / rate:.2f} of "
            f"{rate / 1e12:.0f} in {precision}",
            flush=True,
        )
    return medians["Recommended, 32"] / medians[COURSE]


def course_rates(config: RunConfig, pairs: Any, steps: int, batch: int = 32) -> Iterator[float]:
    """Yield samples/s of the course's loop: fp32, shuffled, padded batch by batch."""
    import torch
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithPadding

    from finetune.training import dataloaders, model

    tokenizer, classifier, _ = model.load_classifier(config.checkpoint, pairs.target, 128)
    rows: Any = dataloaders.tokenize(pairs.splits["train"], tokenizer, 128)
    collator = DataCollatorWithPadding(tokenizer)
    loader = DataLoader(rows, batch, shuffle=True, collate_fn=collator)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classifier.to(device).train()
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=5e-5)
    torch.set_float32_matmul_precision("highest")
    endless = itertools.chain.from_iterable(itertools.repeat(loader))
    samples, began = 0, 0.0
    for step, values in enumerate(endless):
        if step >= REPORT and (step - REPORT) % steps == 0:
            if step > REPORT:
                yield samples / (machine.clock() - began)
            samples, began = 0, machine.clock()
        classifier(**values.to(device)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        samples += len(values["labels"])


def own_rates(config: RunConfig, pairs: Any, steps: int) -> Iterator[float]:
    """Yield samples/s of the app's loop, each over so many steps, once every shape was seen in an
    epoch. Prints the time to its first report and the peak of its memory."""
    import torch

    from finetune.runs import events
    from tests.support.training import stream

    batch, reports = config.per_device_train_batch_size, max(1, steps // REPORT)
    epoch = -(-len(pairs.splits["train"]) // batch)
    began = machine.clock()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    happened, _ = stream(config, pairs)
    marks: list[float] = []
    with contextlib.closing(happened):  # type: ignore[type-var]
        for event in happened:
            if not isinstance(event, events.Stepped):
                continue
            now = machine.clock()
            if event.step == 1:
                print(f"batch {batch}: first step after {now - began:.1f} s", flush=True)
            if event.step > epoch and event.step % REPORT == 0:
                marks.append(now)
                if len(marks) > reports:
                    if torch.cuda.is_available():
                        peak = torch.cuda.max_memory_reserved() / 2**30
                        print(f"batch {batch}: at most {peak:.1f} GiB", flush=True)
                    yield batch * REPORT * reports / (marks[-1] - marks[0])
                    marks = [machine.clock()]


def flops_of_a_pair(config: RunConfig, pairs: Any) -> float:
    """FLOP to train on a pair, unpadded on average: three times those of its forward pass."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from finetune.training import model

    tokenizer, classifier, _ = model.load_classifier(config.checkpoint, pairs.target, 128)
    options = {"truncation": True, "max_length": 128, "return_tensors": "pt"}
    count = 32
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for row in pairs.splits["train"].select(range(count)):
            classifier(**tokenizer(row["sentence1"], row["sentence2"], **options))
    return float(3 * counter.get_total_flops() / count)


def answers(folder: Path, model: Path, rounds: int, count: int) -> None:
    """Pairs/s and milliseconds of a pair, in fp32 and in bf16 in turns."""
    from finetune.inference.scorer import Scorer

    rows = _rows(folder, count)
    names = ["fp32", *(["bf16"] if devices.prefers_bf16() else [])]
    scorers = {name: Scorer(model, 128, name) for name in names}  # type: ignore[arg-type]
    many: dict[str, list[float]] = {name: [] for name in scorers}
    alone: dict[str, list[float]] = {name: [] for name in scorers}
    for _ in range(rounds + 1):  # the first is to warm up
        for name, scorer in scorers.items():
            began = time.perf_counter()
            scorer.scores(*zip(*rows, strict=True))
            many[name].append(len(rows) / (time.perf_counter() - began))
            times = []
            for one, two in rows[:60]:
                began = time.perf_counter()
                scorer.scores([one], [two])
                times.append(1e3 * (time.perf_counter() - began))
            alone[name].append(statistics.median(times))
            print(
                f"round {len(alone[name]) - 1}, answers in {name}: {many[name][-1]:.0f} pairs/s, "
                f"one pair {alone[name][-1]:.1f} ms",
                flush=True,
            )
    for name, scorer in scorers.items():
        rate, single = statistics.median(many[name][1:]), statistics.median(alone[name][1:])
        print(f"answers in {name}: {rate:.0f} pairs/s, one pair {single:.1f} ms", flush=True)
        scorer.free()


def _rows(folder: Path, count: int) -> list[tuple[str, str]]:
    from finetune.data import splits

    split = splits.load_pairs(mrpc_config(folder), folder).splits["train"]
    rows = zip(split["sentence1"], split["sentence2"], strict=True)
    return list(itertools.islice(itertools.cycle(rows), count))


def pipeline(folder: Path, model: Path, count: int) -> None:
    """Pairs/s of `pipeline`, in fp32 and batches of 32."""
    import torch
    from transformers import pipeline as make

    classify = make("text-classification", str(model), batch_size=32, device=torch.device("cuda"))
    rows = [{"text": one, "text_pair": two} for one, two in _rows(folder, count)]
    classify(rows[:64], truncation=True, max_length=128)
    began = machine.clock()
    classify(rows, truncation=True, max_length=128)
    print(f"answers of pipeline, fp32: {count / (machine.clock() - began):.0f} pairs/s", flush=True)


def whole_run(folder: Path, checkpoint: str, *options: str) -> None:
    """Seconds of three epochs from the command to its end, those of training, and the F1."""
    from finetune.runs import events
    from finetune.runs.store import RunStore

    words = [sys.executable, "-m", "finetune", "train", "--runs", str(folder / "runs")]
    words += ["--checkpoint", checkpoint, "--num_train_epochs", "3", *options]
    for name in ("train", "validation"):
        for path in machine.MRPC.glob(f"{name}-*"):
            words += [f"--{name}_file", str(path)]
    began = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-2000:])
    (run,) = sorted(RunStore(folder / "runs").runs(), key=lambda run: run.id)[-1:]
    happened, _ = run.tail(0)
    trained = sum(
        after.time - event.time
        for event, after in itertools.pairwise(
            [e for e in happened if isinstance(e, events.PhaseStarted | events.Finished)]
        )
        if isinstance(event, events.PhaseStarted) and event.phase == events.Phase.TRAIN
    )
    print(
        f"three epochs of {Path(checkpoint).name}: {seconds:.1f} s from the command to the end, "
        f"training {trained:.1f} s, F1 {run.metrics['f1']:.3f}",
        flush=True,
    )


def other(benchmark: str, model: Path, *options: str) -> None:
    """Pass on the last line of another benchmark's side."""
    command: Sequence[str] = [
        sys.executable, "-m", f"tests.benchmarks.{benchmark}", "--checkpoint", str(model), *options,
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=100)
    print(f"{benchmark} {' '.join(options)}: {done.stdout.splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    main()
