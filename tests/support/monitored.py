"""Runs whose validation pairs are kept, and files to compare with them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from finetune.data.sources import LABELS
from finetune.evaluation import saved_predictions
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support import toys
from tests.support.judging import write_csv

HEAD = ("sentence1", "sentence2", "label")
Rows = list[tuple[str, str, int]]


def rows(count: int, seed: int, words: str = "", long: int = 0) -> Rows:
    """Pairs that share no sentence, with further words and letters."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        first, second = draw.sample(toys.ANIMALS, 2)
        name = f"{words} {draw.randrange(10**6)} {'a ' * draw.randint(0, 5 + long)}"
        texts = f"the {first} {name} sees a {second} .", f"a {first} {name} hears the {second} ."
        pairs.append((*texts, draw.randint(0, 1)))
    return pairs


def monitored_run(store: RunStore, checkpoint: Path, count: int = 200) -> Run:
    """A finished run of the toy that kept so many validation pairs."""
    run = toys.finished_run(store, checkpoint)
    columns = map(list, zip(*rows(count, 1), strict=True))
    table = pa.table(dict(zip(HEAD, columns, strict=True)))
    saved_predictions.save_examples(run, "validation", table)
    return run


def write_rows(path: Path, pairs: Rows, labelled: bool = False) -> Path:
    names = LABELS
    lines: list[Any] = [(*texts, names[label]) for *texts, label in pairs]
    return write_csv(
        path, [HEAD, *lines] if labelled else [HEAD[:2], *(line[:2] for line in lines)]
    )
