"""Sentence pairs from wherever they lie, in one shape: `sentence1`, `sentence2`, `label`.

Knows where pairs come from and how they are named; nothing of tokens (`batching`), of models or
of which datasets a page offers (`catalog`).
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets import ClassLabel, Dataset, DatasetDict, Features, Value, load_dataset

from finetune import catalog
from finetune.errors import DataError

BUNDLED = Path(__file__).resolve().parent.parent / "assets" / "pairs"
LABELS = ["not_equivalent", "equivalent"]
COLUMNS = ("sentence1", "sentence2", "label")


@dataclass(frozen=True)
class Pairs:
    """Splits of sentence pairs, ready to be tokenised.

    Args:
        splits: `train` and `validation`, perhaps `test`; columns as in `COLUMNS`, `label` a
            `ClassLabel`.
        labels: names of the classes, by index; of two, index 1 is the positive one.
        fingerprint: sha256 over every row of every split.
    """

    splits: DatasetDict
    labels: list[str]
    fingerprint: str


def load(name: str) -> Pairs:
    """The pairs a configuration's `dataset` names.

    Raises:
        DataError: when there is no such dataset, the Hub does not answer, or what was read
            cannot be trained on.
    """
    if name not in _LOADERS:
        offered = ", ".join(choice.name for choice in catalog.DATASETS)
        raise DataError(f"There is no dataset {name!r}.", f"Choose one of: {offered}.")
    splits = _LOADERS[name]()
    labels = splits["train"].features["label"].names
    return Pairs(splits, labels, fingerprint(splits))


def load_bundled(folder: Path = BUNDLED) -> DatasetDict:
    """The pairs that come with the app: one CSV a split in `folder`.

    Raises:
        DataError: when a file is missing or a row is not a pair with a known label.
    """
    return DatasetDict(
        {split: _read_csv(folder / f"{split}.csv") for split in ("train", "validation", "test")}
    )


def _read_csv(path: Path) -> Dataset:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        columns = {
            "sentence1": [row["sentence1"] for row in rows],
            "sentence2": [row["sentence2"] for row in rows],
            "label": [LABELS[int(row["label"])] for row in rows],
        }
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise DataError(
            f"The bundled pairs in {path.name} cannot be read: {error!r}.",
            "Install the app anew; its files are damaged.",
        ) from error
    text = Value("string")
    features = Features(sentence1=text, sentence2=text, label=ClassLabel(names=LABELS))
    return Dataset.from_dict(columns, features=features)


def load_mrpc() -> DatasetDict:
    """GLUE MRPC from the Hub.

    The test split's labels are those of the corpus; it is kept apart and never trained on.

    Raises:
        DataError: when the Hub does not answer or has no such dataset.
    """
    repo = "nyu-mll/glue"
    try:
        splits = load_dataset(repo, "mrpc")
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{repo} (mrpc) could not be read from {catalog.endpoint()}: {_first_line(error)}",
            "Check the network and try again, or train on the bundled pairs.",
        ) from error
    extra = [name for name in splits["train"].column_names if name not in COLUMNS]
    return splits.remove_columns(extra)


_LOADERS: dict[str, Callable[[], DatasetDict]] = {
    catalog.BUNDLED_DATASET: load_bundled,
    "glue/mrpc": load_mrpc,
}


def fingerprint(splits: DatasetDict) -> str:
    """sha256 over the splits' names and rows, in order, as 64 hex digits."""
    digest = hashlib.sha256()
    for name, split in splits.items():
        digest.update(f"{name}\n".encode())
        for batch in split.select_columns(list(COLUMNS)).iter(batch_size=1000):
            rows = zip(*(batch[column] for column in COLUMNS), strict=True)
            digest.update("".join(f"{row!r}\n" for row in rows).encode())
    return digest.hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
