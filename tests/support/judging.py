"""Files of pairs, and their answers."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finetune.inference import file_request, files
from finetune.inference.file_request import PredictionRequest
from finetune.runs.run import Run
from finetune.runs.summary import ColumnNames

PAIRS = [
    ("the cat sees a dog .", "a cat sees the dog .", "equivalent"),
    ("the cat sees a dog .", "a cat misses the dog .", "not_equivalent"),
    ("the owl likes a bee .", "a owl likes the bee .", "1"),
]


SIDES = ("sentence1", "sentence2")
PLAIN = ColumnNames()


def judged(
    run: Run,
    path: Path,
    out: Path,
    columns: ColumnNames = PLAIN,
    review: Path | None = None,
    **values: Any,
) -> dict[str, Any]:
    request = file_request.check_columns(
        PredictionRequest(run.id, path.name, "", **values), path, columns
    )
    report, whole = files.predict_file(run, request, path, out, review=review)
    assert whole
    return report


def write_csv(path: Path, lines: Sequence[tuple[Any, ...]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(lines)
    return path
