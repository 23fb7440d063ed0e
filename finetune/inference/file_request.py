"""Which file a model is to predict, which of its columns, and how."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from finetune.data import columns as column_names
from finetune.environment import child_process
from finetune.errors import DataError
from finetune.inference.decision_rule import PredictOptions

NONE = "(none)"
COLUMNS = ("sentence1", "sentence2", "label")


@dataclass(frozen=True)
class PredictionRequest:
    """A file to predict with the kept model of a run."""

    run: str
    file: str  # what the person calls it
    sentence1: str  # its columns; empty where there is none
    sentence2: str = ""
    label: str = ""
    both_orders: bool = False
    threshold: bool = False
    calibrated: bool = False
    # Of a workbook; empty for its first with a table.
    sheet: str = field(default="", kw_only=True)

    @property
    def options(self) -> PredictOptions:
        return PredictOptions(self.both_orders, self.threshold, self.calibrated)


def file_columns(path: Path, name: str, sheet: str = "") -> tuple[list[str], tuple[str, str, str]]:
    """The columns of a file that can be used, and the guess which are sentence1, sentence2 and
    label; "" for what is not clear."""
    read = "finetune.data.tables:usable_columns"
    usable: list[str] = child_process.call(read, str(path), name, sheet, about=name)
    return usable, column_names.guess_columns(usable)


def check_columns(request: PredictionRequest, path: Path, paired: bool = True) -> PredictionRequest:
    """The request with its columns guessed where they were left open; a DataError names a column
    that the file does not have, or a sentence that has no column."""
    usable, guesses = file_columns(path, request.file, request.sheet)
    columns = ", ".join(usable[:20])
    first, second, label = (
        getattr(request, name) or guess for name, guess in zip(COLUMNS, guesses, strict=True)
    )
    second = second if paired and second != NONE else ""
    label = "" if label == NONE else label
    for column in filter(None, (first, second, label)):
        if column not in usable:
            raise DataError(
                "{file} has no column {column!r}; it has {columns}.",
                "Choose another.",
                file=request.file,
                column=column,
                columns=columns,
            )
    if not first or (paired and not second):
        raise DataError(
            "No column of {file} is clearly {missing}: it has {columns}.",
            "Choose it, or a model of single sentences." if first else "Choose it.",
            file=request.file,
            missing="sentence2" if first else "sentence1",
            columns=columns,
        )
    return replace(request, sentence1=first, sentence2=second, label=label)
