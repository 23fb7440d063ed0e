"""Pairs that a test uploads."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from finetune.config import RunConfig
from finetune.data import splits
from finetune.uploads import Uploads

Row = tuple[Any, ...]


def pairs(
    folder: Path,
    head: str = "sentence1,sentence2,label",
    *,
    train: Iterable[Row],
    validation: Iterable[Row] = (),
    test: Iterable[Row] = (),
    **values: object,
) -> splits.Pairs:
    """Load the pairs of an upload of these rows."""
    config = RunConfig(dataset=upload(folder, head, train, validation, test)).changed(**values)
    return splits.load_pairs(config, folder)


def upload(
    folder: Path, head: str, train: Iterable[Row], validation: Iterable[Row], test: Iterable[Row]
) -> str:
    files = {}
    for name, rows in {"train": train, "validation": validation, "test": test}.items():
        if listed := list(rows):
            files[name] = folder / f"{name}.csv"
            with files[name].open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([head.split(","), *listed])
    return Uploads(folder / "uploads").add(files)


def texts(split: object) -> list[tuple[str, str]]:
    rows = list(split)  # type: ignore[call-overload]
    return [(row["sentence1"], row["sentence2"]) for row in rows]


def some(count: int, classes: int = 2) -> list[Row]:
    return [(f"left {n}", f"right {n}", n % classes) for n in range(count)]


def upload_file(folder: Path, name: str, contents: str | bytes) -> RunConfig:
    path = folder / name
    path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    dataset = Uploads(folder / "uploads").add({"train": path})
    return RunConfig(dataset=dataset, checkpoint=str(folder / "none"))
