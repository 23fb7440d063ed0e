"""Predict every row of a file in bounded memory. Each row is written with its prediction, every
class's probability and, if it cannot be predicted, the reason."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune import disk, text_hashes
from finetune.config import RunConfig
from finetune.data import review, table_formats
from finetune.data.columns import parts_of
from finetune.data.table import Table, is_filled, to_plain_value
from finetune.inference import decision_rule, result_files
from finetune.inference.file_request import PredictionRequest
from finetune.inference.other_answers import OtherAnswers
from finetune.inference.result_files import TRAINED_ON, Line, ShownRow, ShownRows
from finetune.inference.scorer import Scorer
from finetune.metrics import classification
from finetune.metrics.shared_rows import SharedRows
from finetune.runs import pair_index
from finetune.runs.run import Run
from finetune.tasks.base import Target, Targets
from finetune.tasks.cells import Columns
from finetune.tasks.registry import measured, task_of

WINDOW = 4096  # rows sorted by length together, and held at once
FIRST = 64  # rows of the first window, small to show results soon; each next has four times as many
CHARACTERS = 2**22  # a window ends early when its cells reach this many
ENOUGH = 30  # labelled rows needed for separate scores; fewer give intervals of 30 points or more
InputRow = tuple[Line, str]  # a row, and why it cannot be predicted; "" if it can


class PredictionStopped(BaseException):
    """Raised to end the prediction of a file; written rows are kept."""


class Window(NamedTuple):
    """Rows to predict together."""

    rows: list[InputRow]
    sentences: list[list[str]]  # of the rows without error, a list for each column


def predict_file(
    run: Run,
    request: PredictionRequest,
    path: Path,
    out: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_rows: Callable[[list[ShownRow]], None] = lambda rows: None,
    scorer: Scorer | None = None,
    review: Path | None = None,
    on_window: Callable[[Window], None] = lambda window: None,
) -> tuple[dict[str, Any], bool]:
    """Predict every row of a file; returns the report, and whether all rows were predicted.

    Args:
        path: the file to predict.
        out: where to write the result; its suffix is one of `result_files.SUFFIXES`.
        on_progress: called with the number of rows done and of all rows (0 if unknown). It may
            raise `PredictionStopped`.
        on_rows: called with the rows of the result to show on the page.
        scorer: the run's model; loaded by default.
        review: where to write the rows that the model is unsure of, as in `out`; written only if
            a bound kept with the model decides which these are.
        on_window: called with all rows as they were read.
    """
    table = table_formats.open_table(path, request.file, request)
    own = result_files.file_columns(table)
    scorer = scorer or Scorer.of_run(run)
    predictor = _RowPredictor(run, request, scorer, [*own, *table.unusable])
    row_count = table.row_count or 0  # about; 0 if the file would have to be parsed to know
    if not row_count and not path.name.endswith((".gz", ".json")):
        with path.open("rb") as file:
            lines = sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
        row_count = max(1, lines - 1)
    shown, complete = ShownRows(), True
    with contextlib.ExitStack() as opened:
        writers = []
        for path in (out, review) if review and predictor.decides else (out,):
            opened.enter_context(disk.writing(path))
            writer = result_files.open_writer(path, table, own, predictor.added)
            writers.append(opened.enter_context(writer))
        try:
            for window in windows(table, request):
                predicted = predictor.predict(window)
                on_window(window)
                writers[0]([row["cells"] for row in predicted])
                for write in writers[1:]:
                    write([row["cells"] for row in predicted if row["unsure"]])
                if shown.add(predicted):
                    on_rows(shown.rows)
                on_progress(predictor.rows, max(row_count, predictor.rows) if row_count else 0)
        except PredictionStopped:
            complete = False
    on_rows(shown.rows)
    left_out = [name for name in table.unusable if name not in own]
    return predictor.report() | {"precision": scorer.precision, "left_out": left_out}, complete


def _read_rows(table: Table, request: PredictionRequest) -> Iterator[InputRow]:
    """Yield every row of the file in its order, including those that cannot be read."""
    columns = None  # all that are usable, and a nested label
    if (label := request.label) in table.unusable:
        columns = [name for name in table.columns if name == label or name not in table.unusable]
    for record, error in table.every_row(columns):
        empty = [name for name in request.sentences if not _sentence(record.get(name)).strip()]
        yield record, error or (f"{empty[0]} is empty" if empty else "")


def _sentence(cell: Any) -> str:
    """Convert a cell to the text that training would read, without lone surrogates or NULs."""
    if isinstance(cell, dict | list):
        return ""
    return (text_hashes.clean_sentence(to_plain_value(cell)) or "").replace("\0", " ")


def windows(table: Table, request: PredictionRequest) -> Iterator[Window]:
    """Group rows into windows, small ones at first so that the first rows are predicted soon."""

    def window() -> Window:
        records = [record for record, error in read if not error]
        texts = [[_sentence(record.get(name)) for record in records] for name in request.sentences]
        return Window(read, texts)

    read: list[InputRow] = []
    most, size = FIRST, 0
    for row in _read_rows(table, request):
        read.append(row)
        size += sum(len(str(cell)) for cell in row[0].values())
        if len(read) == most or size >= CHARACTERS:
            yield window()
            most, size, read = min(most * 4, WINDOW), 0, []
    if read:
        yield window()


class _RowPredictor:
    """Adds predictions to rows, and counts them."""

    def __init__(
        self, run: Run, request: PredictionRequest, scorer: Scorer, taken: Sequence[str]
    ) -> None:
        self._request, self._scorer, target = request, scorer, scorer.target
        self._rule = decision_rule.read_rule(run.best)
        prepared = run.state().prepared
        if prepared and prepared.target.names == target.names:
            target = prepared.target
        if self._rule.positive in target.names:
            target = replace(target, positive=target.names.index(self._rule.positive))
        self._task, self._target = task_of(target), target
        self._metrics = measured(run.config(), target)
        self._labels = parts_of(request.label, taken) or [request.label] * bool(request.label)
        used = {*request.sentences, request.label, *self._labels}
        others = [one for one in taken if one not in used]
        self._others = OtherAnswers(self._task, target, others, request.label_map)
        self._pair_index = pair_index.read_pair_index(run)
        # Rows that are training pairs of the run, and rows that are only validation pairs of it.
        self._overlap = {TRAINED_ON: 0, "validated_on": 0} if self._pair_index else {}
        columns = self._task.columns(target, self._rule)
        self._decision_at = len(columns)
        orders = len(request.sentences)
        self.decides = decision_rule.is_bounded(target, self._rule, request.options, orders)
        columns |= {result_files.DECISION: str} if self.decides else {}
        self.added = result_files.added_columns(columns, bool(self._pair_index), taken)
        *self._answered, self._error = self.added  # the last column is for errors
        self.rows = self._errors = 0
        self._examples: list[str] = []  # of errors
        # Of the predicted rows: numbers in the file, answers, labels, if these could be read, if
        # the run was trained on them, and hashes of their sentences.
        self._predicted: list[tuple[NDArray[Any], ...]] = []
        self._answers: Counter[str] = Counter()
        self._without_label = 0  # rows whose answer is no label
        self._unsure: int | None = None  # None if answers have no margin

    def predict(self, window: Window) -> list[ShownRow]:
        predicted = iter(self._predictions(window) if window.sentences[0] else ())
        lines = []
        for number, (record, error) in enumerate(window.rows, self.rows):
            row = ShownRow(row=number, margin=None, unsure=False, cells={})
            cells = dict.fromkeys(self._answered)
            if not error:
                added, row["margin"], row["unsure"] = next(predicted)
                cells = dict(zip(self._answered, added, strict=False))
            row["cells"] = record | cells | {self._error: error}
            lines.append(row)
        errors = [error for _, error in window.rows if error]
        self.rows += len(window.rows)
        self._errors += len(errors)
        self._examples += errors[: 10 - len(self._examples)]
        return lines

    def _predictions(self, window: Window) -> Iterator[tuple[list[Any], float | None, bool]]:
        """Yield the added cells of the rows that can be predicted, their margin, and if the model
        is unsure of them."""
        task, target, rule, options = self._task, self._target, self._rule, self._request.options
        records = [record for record, error in window.rows if not error]
        numbers = [at for at, (_, error) in enumerate(window.rows, self.rows) if not error]
        logits, swapped = self._scorer.scores_of_orders(window.sentences, options.both_orders)
        answers = task.answers(logits, target, rule, options, swapped)
        margins = task.margins(answers, target, rule.under(options))
        hashes = text_hashes.row_hashes(*window.sentences)
        trained_on = self._trained_on(hashes)
        truth, known, labels = answers.values, np.zeros(len(records), bool), []
        if self._labels:
            truth, known = _read_labels(records, self._labels, self._request, target)
            labels = [record.get(self._request.label, "") for record in records]
        self._predicted.append(
            (np.array(numbers, np.int64), answers.values, truth, known, trained_on, hashes.T)
        )
        self._others.add(records, labels)
        self._answers.update(task.counted(answers.values, target))
        if answers.values.ndim > 1:
            self._without_label += int((~answers.values.any(axis=1)).sum())
        given = decision_rule.sure_answers(logits, target, rule, options, swapped)
        unsure = None if margins is None else margins < result_files.UNSURE
        unsure = unsure if given is None else ~given
        if unsure is not None:
            self._unsure = (self._unsure or 0) + int(unsure.sum())
        nothing = [None] * len(records)
        rows = zip(
            task.cells(answers, target, rule), trained_on.tolist(),
            nothing if margins is None else margins.tolist(),
            nothing if unsure is None else unsure.tolist(), strict=True,
        )  # fmt: skip
        for cells, trained, margin, is_unsure in rows:
            decision = [target.unsure if is_unsure else cells[0]] if self.decides else []
            yield [*cells, *decision, trained], margin, bool(is_unsure)

    def _trained_on(self, hashes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mask of the rows that are training pairs, shape (rows,); also counts them."""
        if self._pair_index is None:
            return np.zeros(hashes.shape[1], bool)
        pairs = text_hashes.unordered_pair_hash(*hashes)
        trained = self._pair_index.among("train", pairs)
        validated = self._pair_index.among("validation", pairs) & ~trained
        self._overlap[TRAINED_ON] += int(trained.sum())
        self._overlap["validated_on"] += int(validated.sum())
        return trained

    def report(self) -> dict[str, Any]:
        target = self._target
        report: dict[str, Any] = {
            "rows": self.rows, "errors": self._errors, "examples": self._examples,
            "labels": [*target.names], "choices": self._task.choices(target),
            "columns": [*self.added], "answers": dict(self._answers), **self._overlap,
        }  # fmt: skip
        if self._without_label:
            report["without_label"] = self._without_label
        if self._unsure is not None:
            report["unsure"] = self._unsure
        if self.decides and self._rule.sure:
            column = self._answered[self._decision_at]
            report["sure"] = asdict(self._rule.sure) | {"column": column}
        elif self._rule.sure:
            report["undecided"] = True
        if self._request.threshold and self._rule.threshold_for(target.names):
            report["threshold"] = self._rule.threshold
        if not self._predicted:
            return report
        gathered = [np.concatenate(parts) for parts in zip(*self._predicted, strict=True)]
        numbers, answers, truth, known, trained_on, hashes = gathered
        if self._labels:
            report |= self._scores(answers, truth, hashes, known, 1)
            report["unknown_labels"] = int((~known).sum())
            if self._overlap.get(TRAINED_ON):
                new = known & ~trained_on
                report["not_trained_on"] = self._scores(answers, truth, hashes, new, ENOUGH)
        if others := self._others.report(numbers, answers, truth, known, hashes):
            report["others"] = others
        return report

    def _scores(
        self, answers: Targets, truth: Targets, hashes: NDArray[np.int64],
        rows: NDArray[np.bool_], enough: int,
    ) -> dict[str, Any]:  # fmt: skip
        """The number of labelled rows and, if there are `enough`, their scores with intervals."""
        answers, truth, hashes = answers[rows], truth[rows], hashes[rows]
        if len(truth) < enough:
            return {"labelled": len(truth)}
        shared = SharedRows(*hashes.T)
        scores = self._task.intervals(answers, truth, self._target, self._metrics, shared)
        found: dict[str, Any] = {"labelled": len(truth)}
        found["scores"] = {name: [one.value, one.low, one.high] for name, one in scores.items()}
        if self._task.choices(self._target):
            confusion = classification.confusion_matrix(truth, answers, self._target.size)
            found["confusion"] = confusion.tolist()
        return found


def sentences_at(path: str, request: Mapping[str, Any], rows: Sequence[int]) -> list[list[str]]:
    """Read the sentences of some rows of a file; `request` has a `PredictionRequest`'s fields."""
    asked, wanted = PredictionRequest(**request), set(rows)
    table = table_formats.open_table(Path(path), asked.file, asked)
    found = {
        number: [_sentence(record.get(name)) for name in asked.sentences]
        for number, (record, _) in enumerate(_read_rows(table, asked))
        if number in wanted
    }
    return [found[row] for row in rows]


def _read_labels(
    records: Sequence[Line], columns: Sequence[str], request: PredictionRequest, target: Target
) -> tuple[Targets, NDArray[np.bool_]]:
    """Return the targets of rows, by the `columns` of their labels, and a mask of those that could
    be read and passed review."""
    rows = [Columns({name: to_plain_value(record.get(name)) for name in columns})
            for record in records]  # fmt: skip
    cells = rows if len(columns) > 1 else [cell for row in rows for cell in row.values()]
    left_out = [""] * len(cells)
    if status := request.status:
        judged = [
            review.judge(cell, record.get(status), status, status == request.label)
            for cell, record in zip(cells, records, strict=True)
        ]
        cells, left_out = [cell for cell, _ in judged], [why for _, why in judged]
    changes = RunConfig(label_map=request.label_map).changed_labels
    truth, known = task_of(target).parse(cells, target, changes)
    return truth, known & [not why for why in left_out]


@dataclass(frozen=True)
class LabelledRows:
    """The rows of a file with their labels."""

    lines: NDArray[np.int64]  # in the file, from 1; shape (rows,)
    sentences: list[list[str]]  # of each column
    truth: Targets  # shape (rows, ...)
    incomplete: int  # rows without a sentence, which are left out
    unlabelled: int  # rows that have no label, or one that the target does not know; left out, too


def read_labelled(
    path: Path, request: PredictionRequest, target: Target, empty_is_none: bool = True
) -> LabelledRows:
    """Read the rows of a file that have all sentences and a label. A row without any of several
    labels has none of them if `empty_is_none`; otherwise it is not labelled yet, and one that has
    none says so by an empty list."""
    table = table_formats.open_table(path, request.file, request)
    labels = parts_of(request.label, table.columns) or [request.label]
    rows = [(table.line, *row) for row in _read_rows(table, request)]
    read = [(line, record) for line, record, error in rows if not error]
    # Lines that could not be read have no cells, and empty ones only empty cells.
    incomplete = sum(
        bool(error) and (not record or any(map(is_filled, record.values())))
        for _, record, error in rows
    )
    truth, known = _read_labels([record for _, record in read], labels, request, target)
    if not empty_is_none:
        known &= [any(is_filled(record.get(name)) for name in labels) for _, record in read]
    kept = [row for row, is_known in zip(read, known, strict=True) if is_known]
    return LabelledRows(
        np.array([line for line, _ in kept], np.int64),
        [[_sentence(record.get(name)) for _, record in kept] for name in request.sentences],
        truth[known],
        incomplete,
        len(read) - len(kept),
    )
