"""Choose the columns of a source that hold the texts and the label, or guess them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finetune.config import NO_COLUMN, RunConfig
from finetune.data.column_guess import ROLES, Guess, Role, guess_columns, named_label, plain_name
from finetune.data.label_columns import BETWEEN, NESTED, parts_of
from finetune.errors import DataError, some
from finetune.messages import message as _
from finetune.runs.summary import ColumnNames

SAMPLE_ROWS = 1000  # from which columns are guessed


@dataclass(frozen=True)
class Columns:
    """The columns of a source that are read; `sentence2` is empty for single sentences."""

    sentence1: str
    sentence2: str
    label: str

    @property
    def sentences(self) -> list[str]:
        return [self.sentence1, self.sentence2] if self.sentence2 else [self.sentence1]


def match_columns(
    names: Sequence[str], trained: ColumnNames, cells: Mapping[str, Sequence[Any]] | None = None
) -> tuple[str, str, str]:
    """Match the columns of a file to predict to those that a model was trained on.

    Columns match by name. Texts that do not are guessed, from a sample of cells if there is one; a
    label is found by its name alone, or by those of its parts. "" if a column is missing or in
    doubt.
    """
    by_name = {plain_name(name): name for name in reversed(names)}
    first, second, label = (by_name.get(plain_name(name), "") for name in trained)
    parts = [by_name.get(plain_name(part), "") for part in trained.label.split(BETWEEN)]
    if not label and all(parts):
        label = BETWEEN.join(parts)
    label = label or named_label([name for name in names if name not in (first, second)])
    if not first or (trained.sentence2 and not second):
        others = [name for name in names if name not in (label, *parts)]
        said: dict[Role, str] = {
            "sentence2": "" if trained.sentence2 else NO_COLUMN,
            "label": label or NO_COLUMN,
        }
        guess = guess_columns(others, cells, said)
        first, second = guess.sentence1, guess.sentence2
        if guess.doubts:
            first = second = ""
    return first, second if trained.sentence2 else "", label


def choices_of(config: RunConfig) -> dict[Role, str]:
    """The columns that a configuration chooses; "" for a column to guess."""
    return {role: getattr(config, f"{role}_column") for role in ROLES}


def choose_columns(
    columns: Mapping[str, str],
    source: str,
    config: RunConfig,
    cells: Mapping[str, Sequence[Any]],
) -> Columns:
    """Return the columns that a configuration chooses, and guess the others.

    Args:
        columns: name -> why it cannot be used, or "".
        source: its name, for errors.
        cells: a sample of the cells of each column.

    Raises:
        DataError: if a column is missing, unusable or chosen twice, or the guess is in doubt.
    """
    said = choices_of(config)
    for role, column in said.items():
        if column and (role, column) != ("sentence2", NO_COLUMN):
            _check_column(role, column, columns, source)
    used = [part for name in said.values() if name for part in parts_of(name, columns) or [name]]
    if len(set(used)) < len(used):
        raise DataError(
            "One column is chosen twice: {used}.",
            "Choose a different one for each.",
            used=some(used),
        )
    parts = parts_of(said["label"], columns)
    guess = guess_columns([name for name in columns if name not in parts], cells, said)
    for role in guess.doubts:
        raise DataError(*question(guess, role, source))
    for role in ROLES:
        if column := getattr(guess, role):
            _check_column(role, column, columns, source)
    return Columns(guess.sentence1, guess.sentence2, guess.label)


def are_usable(said: Mapping[Role, str], columns: Mapping[str, str]) -> bool:
    """True if every chosen column exists and is usable, and none is chosen twice."""
    used = [column for column in said.values() if column not in ("", NO_COLUMN)]
    used = [part for name in used for part in parts_of(name, columns) or [name]]
    usable = ["", NESTED] if said["label"] in used else [""]
    return len(set(used)) == len(used) and all(columns.get(name) in usable for name in used)


def question(guess: Guess, role: Role, source: str) -> tuple[str, str]:
    """Return the question about a role in doubt, with its candidates, and how to answer it."""
    candidates = guess.doubts[role]
    names = some([repr(name) for name in candidates], 6)
    if not candidates:
        return (
            _("No column of {source} can hold the answer.", source=source)
            if role == "label"
            else _("No column of {source} can hold a text.", source=source),
            _("Choose other columns, or bring a file with more of them."),
        )
    if role == "sentence2":
        text = _(
            "Is a row of {source} one text or a pair? Columns with texts: {names}.",
            source=source,
            names=names,
        )
        remedy = _(
            "Choose sentence1_column and sentence2_column; for one text choose {none!r} as "
            "sentence2_column. In a terminal: --sentence1_column {first!r} --sentence2_column "
            "{second!r}, or --sentence1_column {first!r} --sentence2_column {none!r}.",
            none=NO_COLUMN,
            first=guess.sentence1 or candidates[0],
            second=guess.sentence2 or candidates[-1],
        )
        return text, remedy
    text = _("Which column of {source} holds the first text: {names}?", source=source, names=names)
    if role == "label":
        text = _("Which column of {source} holds the answer: {names}?", source=source, names=names)
    remedy = _("Choose the column; in a terminal, give it as --{role}_column.", role=role)
    return text, remedy


def _check_column(role: Role, column: str, columns: Mapping[str, str], source: str) -> None:
    if role == "label" and (parts := parts_of(column, columns)):
        for part in parts:
            _check_column("label", part, columns, source)
        return
    if column not in columns:
        raise DataError(
            "{source} has no column {column!r}; it has {columns}.",
            "Choose one of them as {field}.",
            source=source,
            column=column,
            columns=some(list(columns)),
            field=f"{role}_column",
        )
    reason = columns[column]
    if reason and (role, reason) != ("label", NESTED):
        raise DataError(
            "The column {column!r} {reason}.",
            "Choose another one as {field}.",
            column=column,
            reason=reason,
            field=f"{role}_column",
        )
