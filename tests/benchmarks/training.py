"""How much faster is the Recommended preset than the loop the course publishes?

Three sides train the bundled checkpoint on the same pairs with the same batch size and learning
rate: the published loop written out straight (fp32), `finetune`'s loop under Recommended, and
`Trainer` with its best equivalent flags. Each measurement is a process of its own, the sides
alternate, and the median of training samples a second counts. The ratio is Recommended over the
published loop.

    python -m tests.benchmarks.training [--train_file MRPC.parquet] [--steps 120] [--rounds 3]
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
from typing import Any

BATCH, RATE, SEED, MAX_LENGTH = 8, 5e-5, 42, 128
WARM = 10  # steps before the clock starts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train_file", type=Path, help="pairs; the bundled ones by default")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES)
    given = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    if given.side:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(SIDES[given.side](Path(folder), given.train_file, given.steps)))
        return
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(given.rounds):
        order = list(SIDES)[:: 1 if number % 2 else -1]
        for side in order:
            rates[side].append(_measure(side, given.train_file, given.steps))
            print(f"round {number + 1} {side:<12}{rates[side][-1]:>8.1f} samples/s", flush=True)
    medians = {side: statistics.median(found) for side, found in rates.items()}
    print(f"\n{'side':<14}{'samples/s':>10}{'over course':>14}")
    for side, value in medians.items():
        print(f"{side:<14}{value:>10.1f}{value / medians['course']:>14.2f}")
    print(f"training: ratio {medians['recommended'] / medians['course']:.2f}")


def _measure(side: str, train_file: Path | None, steps: int) -> float:
    command = [sys.executable, "-m", "tests.benchmarks.training", "--side", side]
    command += ["--steps", str(steps), *(["--train_file", str(train_file)] if train_file else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def _prepared(folder: Path, train_file: Path | None, chosen: Any) -> tuple[Any, Any, Any, Any]:
    """Pairs, tokenizer, model and batches of a configuration."""
    from finetune import batching, data, model
    from finetune.uploads import Uploads

    if train_file is not None:
        chosen = chosen.changed(dataset=Uploads(folder / "uploads").add({"train": train_file}))
    pairs = data.load(chosen, folder)
    tokenizer, classifier = model.load(chosen.checkpoint, pairs.labels, chosen.max_length)
    classifier = model.adapt(classifier, chosen)
    return pairs, tokenizer, classifier, batching.build(pairs, tokenizer, chosen)


def course(folder: Path, train_file: Path | None, steps: int) -> float:
    """The published loop: fp32, shuffled, padded batch by batch."""
    from accelerate import Accelerator
    from accelerate.utils import set_seed
    from torch.optim import AdamW
    from transformers import get_scheduler

    from finetune.config import PRESETS, RunConfig

    accelerator = Accelerator()
    set_seed(SEED)
    chosen = RunConfig(learning_rate=RATE, per_device_train_batch_size=BATCH, seed=SEED)
    chosen = chosen.changed(**PRESETS["As the course"])
    _, _, model, batches = _prepared(folder, train_file, chosen)
    optimizer = AdamW(model.parameters(), lr=RATE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, batches.train)
    scheduler = get_scheduler("linear", optimizer, 0, WARM + steps)
    model.train()
    taken, seen, began = 0, 0, 0.0
    while True:
        for batch in loader:
            if taken == WARM:
                seen, began = 0, time.perf_counter()
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            taken += 1
            seen += len(batch["labels"])
            if taken == WARM + steps:
                return seen / (time.perf_counter() - began)


def recommended(folder: Path, train_file: Path | None, steps: int) -> float:
    """`finetune`'s own loop and preset, as the app runs it."""
    from finetune import config, events, loop, metrics, train
    from finetune.config import RunConfig

    values = config.preset("Recommended") | {
        "learning_rate": RATE, "per_device_train_batch_size": BATCH, "max_length": MAX_LENGTH,
        "max_steps": WARM + steps, "logging_steps": 10, "eval_steps": 10 * steps,
    }  # fmt: skip
    chosen = RunConfig(seed=SEED).changed(**values, max_eval_samples=8)
    accelerator = train.make_accelerator(chosen)
    pairs, _, classifier, batches = _prepared(folder, train_file, chosen)
    stream = loop.fit(chosen, accelerator, classifier, batches, metrics.AccuracyAndF1(pairs.labels))
    times = {
        event.step: time.perf_counter() for event in stream if isinstance(event, events.Stepped)
    }
    first, last = WARM, WARM + steps
    return BATCH * steps / (times[last] - times[first])


def trainer(folder: Path, train_file: Path | None, steps: int) -> float:
    """`Trainer` with its best equivalent flags."""
    import torch
    from transformers import (
        DataCollatorWithPadding,
        Trainer,
        TrainerCallback,
        TrainingArguments,
        set_seed,
    )

    from finetune import batching, train
    from finetune.config import RunConfig

    set_seed(SEED)
    chosen = RunConfig(learning_rate=RATE, per_device_train_batch_size=BATCH, seed=SEED)
    pairs, tokenizer, model, _ = _prepared(folder, train_file, chosen)
    half = train.precision("auto") == "bf16"
    moments: dict[int, float] = {}

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            moments[state.global_step] = time.perf_counter()

    arguments = TrainingArguments(
        str(folder / "trainer"), max_steps=WARM + steps, per_device_train_batch_size=BATCH,
        learning_rate=RATE, bf16=half, optim="adamw_torch_fused", report_to="none",
        train_sampling_strategy="group_by_length", logging_steps=10, save_strategy="no",
        warmup_steps=0.06, disable_tqdm=True, seed=SEED, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    Trainer(
        model, arguments, DataCollatorWithPadding(tokenizer),
        batching.tokenise(pairs.splits["train"], tokenizer, MAX_LENGTH), callbacks=[Clock()],
    ).train()  # fmt: skip
    return BATCH * steps / (moments[WARM + steps] - moments[WARM])


SIDES = {"course": course, "recommended": recommended, "trainer": trainer}

if __name__ == "__main__":
    main()
