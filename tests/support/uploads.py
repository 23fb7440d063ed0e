"""Files of pairs: those that a test uploads, and those that are predicted."""

import csv

from finetune.config import RunConfig
from finetune.data import splits
from finetune.inference import file_request
from finetune.inference import files as predicting
from finetune.inference.file_request import PredictionRequest
from finetune.runs.summary import ColumnNames
from finetune.uploads import Uploads


def pairs(folder, head="sentence1,sentence2,label", *, train, validation=(), test=(), **values):
    """Load the pairs of an upload of these rows."""
    config = RunConfig(dataset=upload(folder, head, train, validation, test)).changed(**values)
    return splits.load_pairs(config, folder)


def upload(folder, head, train, validation, test):
    files = {}
    for name, rows in {"train": train, "validation": validation, "test": test}.items():
        if listed := list(rows):
            files[name] = write_csv(folder / f"{name}.csv", [head.split(","), *listed])
    return Uploads(folder / "uploads").add(files)


def texts(split):
    return [(row["sentence1"], row["sentence2"]) for row in split]


def some(count, classes=2):
    return [(f"left {n}", f"right {n}", n % classes) for n in range(count)]


def upload_file(folder, name, contents):
    path = folder / name
    path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    dataset = Uploads(folder / "uploads").add({"train": path})
    return RunConfig(dataset=dataset, checkpoint=str(folder / "none"))


PAIRS = [
    ("the cat sees a dog .", "a cat sees the dog .", "equivalent"),
    ("the cat sees a dog .", "a cat misses the dog .", "not_equivalent"),
    ("the owl likes a bee .", "a owl likes the bee .", "1"),
]
SIDES = ("sentence1", "sentence2")
PLAIN = ColumnNames()


def judged(run, path, out, columns=PLAIN, review=None, **values):
    request = file_request.check_columns(
        PredictionRequest(run.id, path.name, "", **values), path, columns, run.config()
    )
    report, whole = predicting.predict_file(run, request, path, out, review=review)
    assert whole
    return report


def write_csv(path, lines):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(lines)
    return path
