"""Which file a model is to predict, which of its columns, and how."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from finetune import messages
from finetune.data import columns as column_names
from finetune.data.tables import ReadOptions
from finetune.environment import child_process
from finetune.environment.confinement import Confinement
from finetune.errors import DataError
from finetune.runs.summary import ColumnNames
from finetune.tasks.base import PredictOptions

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
    threshold: bool = True  # use the saved one
    calibrated: bool = False
    # How the file is read, as `ReadOptions` says it.
    sheet: str = field(default="", kw_only=True)
    delimiter: str = field(default="", kw_only=True)
    quote: str = field(default="", kw_only=True)
    encoding: str = field(default="", kw_only=True)
    header: str = field(default="auto", kw_only=True)

    @property
    def options(self) -> PredictOptions:
        return PredictOptions(self.both_orders, self.threshold, self.calibrated)

    @property
    def reading(self) -> ReadOptions:
        return ReadOptions(self.sheet, self.delimiter, self.quote, self.encoding, self.header)


class FileColumns(NamedTuple):
    """What can be chosen of a file."""

    usable: list[str]
    matches: tuple[str, str, str]  # of these the sentences and the label; "" for what is not clear
    sheets: list[str]  # of a workbook
    doubt: str = ""  # why it cannot be read before its encoding is chosen; empty if it can


def file_columns(
    path: Path, name: str, trained: ColumnNames, options: ReadOptions | None = None
) -> FileColumns:
    """The columns of a file, matched to those that a model was trained on."""
    read, values = "finetune.data.tables:usable_columns", vars(options or ReadOptions())
    usable, sheets, doubt = child_process.call(
        read, str(path), name, values, about=name, confinement=Confinement((str(path),))
    )
    matches = column_names.match_columns(usable, trained)
    return FileColumns(usable, matches, sheets, messages.decode(doubt))


def check_columns(
    request: PredictionRequest, path: Path, trained: ColumnNames, encoding: str = ""
) -> PredictionRequest:
    """The request with its columns matched to those that the model was trained on, where they were
    left open; a DataError names a column that the file does not have, or a sentence that has no
    column. `encoding`: of the files that the model was trained on, taken if that is in doubt."""
    found = file_columns(path, request.file, trained, request.reading)
    if found.doubt and encoding:
        request = replace(request, encoding=encoding)
        found = file_columns(path, request.file, trained, request.reading)
    if found.doubt:
        raise DataError(found.doubt)
    usable, matches = found.usable, found.matches
    columns = ", ".join(usable[:20])
    first = request.sentence1 or matches[0]
    second = (request.sentence2 or matches[1]) if trained.sentence2 else ""
    second = "" if second == NONE else second
    label = request.label or (matches[2] if matches[2] not in (first, second) else "")
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
    if not first or (trained.sentence2 and not second):
        raise DataError(
            "No column of {file} is clearly {missing}: it has {columns}.",
            "Choose it, or a model of single sentences." if first else "Choose it.",
            file=request.file,
            missing=trained.sentence2 if first else trained.sentence1,
            columns=columns,
        )
    return replace(request, sentence1=first, sentence2=second, label=label)
