"""How soon is a training batch there? Needs no GPU.

Both sides are iterated by the same `DataLoader` in the same order, in this process: rows of
`datasets` in torch's format, padded by `DataCollatorWithPadding`; and `TokenizedSplit`. They take
turns, and the median of a batch's milliseconds counts. The ratio is the collator's over ours.

    python -m tests.benchmarks.batches [--train_file FILE] [--batch 32] [--rounds 5] [--quick]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import datasets
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, DataCollatorWithPadding

from finetune.config import RunConfig
from finetune.data import checkpoints, splits
from finetune.training import dataloaders
from finetune.uploads import Uploads
from tests.benchmarks import machine

COLLATOR, OURS = "datasets and the collator", "token_batches"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--train_file", type=Path, default=next(machine.MRPC.glob("train-*"), None),
        help="pairs; MRPC's by default if they are there, or the bundled ones",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    args = machine.parsed(parser, train_file=None, rounds=1)
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    datasets.disable_progress_bars()
    print(machine.described())
    with tempfile.TemporaryDirectory() as folder:
        loaders = both_sides(Path(folder), args.train_file, args.batch)
    figures = machine.alternate(
        [COLLATOR, OURS], args.rounds, lambda side: milliseconds(loaders[side]), "ms a batch"
    )
    medians = {side: statistics.median(times) for side, times in figures.items()}
    print(f"{medians[COLLATOR]:.2f} and {medians[OURS]:.2f} ms a batch of {args.batch}")
    print(f"batches: ratio {medians[COLLATOR] / medians[OURS]:.1f}")


def both_sides(folder: Path, train_file: Path | None, size: int) -> dict[str, Any]:
    """Return the loaders of the same batches by side, under Recommended."""
    config = RunConfig(per_device_train_batch_size=size)
    if train_file is not None:
        config = config.changed(dataset=Uploads(folder / "uploads").add({"train": train_file}))
    pairs = splits.load_pairs(config, folder)
    tokenizer = AutoTokenizer.from_pretrained(checkpoints.resolve_checkpoint(config.checkpoint))
    ours = dataloaders.build_loaders(pairs, tokenizer, config).train
    texts = dataloaders.both_orders(pairs, config, dataloaders.reads_either_order(pairs, config))
    rows: Any = dataloaders.tokenize(texts, tokenizer, config.max_length)
    collator = DataCollatorWithPadding(tokenizer)
    collated: Any = DataLoader(rows, size, sampler=ours.sampler, collate_fn=collator)
    return {COLLATOR: collated, OURS: ours}


def milliseconds(loader: Any, batches: int = 50) -> float:
    """Return the median time of a batch; the draw of the epoch's order is left out."""
    iterator = iter(loader)
    times = []
    for _ in range(min(batches, len(loader))):
        began = time.perf_counter()
        next(iterator)
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times[1:])


if __name__ == "__main__":
    main()
