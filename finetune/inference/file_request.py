"""The request to predict a file: its columns, and the options for reading and answering."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from finetune import messages
from finetune.config import READING_FIELDS, RunConfig
from finetune.data import columns as column_names
from finetune.data.table import ReadOptions
from finetune.environment import child_process
from finetune.environment.confinement import Confinement
from finetune.errors import DataError
from finetune.runs.run import Run
from finetune.runs.summary import ColumnNames
from finetune.tasks.base import PredictOptions

NONE = "(none)"
COLUMNS = ("sentence1", "sentence2", "label")


@dataclass(frozen=True)
class PredictionRequest(ReadOptions):
    """A request to predict a file with the best model of a run, and how to read the file."""

    run: str
    file: str  # the person's name of it
    sentence1: str  # a column of the file; empty for none
    sentence2: str = ""
    label: str = ""
    both_orders: bool = False
    threshold: bool = True  # use the saved threshold
    calibrated: bool = False
    ending: str = field(default="", kw_only=True)  # of the result; empty for the file's own
    status: str = field(default="", kw_only=True)  # the column that says which labels count
    label_map: str = field(default="", kw_only=True)  # `RunConfig.label_map` of the run

    @property
    def sentences(self) -> list[str]:
        """The columns of the sentences, one or two."""
        return [name for name in (self.sentence1, self.sentence2) if name]

    @property
    def options(self) -> PredictOptions:
        return PredictOptions(self.both_orders, self.threshold, self.calibrated)


class FileColumns(NamedTuple):
    """The columns and sheets of a file to choose from."""

    usable: list[str]
    matches: tuple[str, str, str]  # the sentences and the label; "" if in doubt
    sheets: list[str]  # of a workbook
    doubt: str = ""  # why its encoding must be chosen before it is read, or ""


def of_file(run: Run, path: Path, request: PredictionRequest | None) -> PredictionRequest:
    """Return the request to predict a file with a run; `request` gives columns and reading."""
    request = request or PredictionRequest(run.id, path.name, "")
    return replace(request, run=run.id, file=path.name)


def file_columns(
    path: Path, name: str, trained: ColumnNames, options: ReadOptions | None = None
) -> FileColumns:
    """Read the columns of a file, and match them to those that a model was trained on."""
    read, options = "finetune.data.table_formats:usable_columns", options or ReadOptions()
    values = {option: getattr(options, option) for option in READING_FIELDS}
    usable, sheets, doubt = child_process.call(
        read, str(path), name, values, about=name, confinement=Confinement((str(path),))
    )
    matches = column_names.match_columns(usable, trained)
    return FileColumns(usable, matches, sheets, messages.decode(doubt))


def check_columns(
    request: PredictionRequest, path: Path, trained: ColumnNames, config: RunConfig
) -> PredictionRequest:
    """Fill in what a request leaves open, by what the model was trained on: the columns, and with
    its configuration the changed labels and, if the file's is in doubt, the encoding. DataError if
    the file lacks a column, or no column matches a sentence."""
    found = file_columns(path, request.file, trained, request)
    if found.doubt and config.encoding:
        request = replace(request, encoding=config.encoding)
        found = file_columns(path, request.file, trained, request)
    if found.doubt:
        raise DataError(found.doubt)
    usable, matches = found.usable, found.matches
    columns = ", ".join(usable[:20])
    first = request.sentence1 or matches[0]
    second = (request.sentence2 or matches[1]) if trained.sentence2 else ""
    second = "" if second == NONE else second
    label = request.label or (matches[2] if matches[2] not in (first, second) else "")
    label = "" if label == NONE else label
    labels = column_names.parts_of(label, usable) or [label]
    for column in filter(None, (first, second, *labels)):
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
    status = trained.status if label and trained.status in usable else ""
    return replace(
        request, sentence1=first, sentence2=second, label=label, status=status,
        label_map=config.label_map,
    )  # fmt: skip
