"""Which file a model shall judge, by which of its columns, and how."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from finetune.environment import child_process
from finetune.errors import DataError

NONE = "(none)"


COLUMNS = ("sentence1", "sentence2", "label")


@dataclass(frozen=True)
class PredictionRequest:
    """What shall be judged, and how.

    Args:
        run: id of the run whose kept model judges.
        file: what the person calls the file.
        sentence1, sentence2, label: its columns; `sentence2` empty for single sentences, `label`
            empty where there is none.
        both_orders: average both orders of the sentences.
        threshold, calibrated: use what was saved with the model.
        owner: who asked.
    """

    run: str
    file: str
    sentence1: str
    sentence2: str = ""
    label: str = ""
    both_orders: bool = False
    threshold: bool = False
    calibrated: bool = False
    owner: str = ""


def file_columns(path: Path, name: str) -> tuple[list[str], tuple[str, str, str]]:
    """The columns of a file that can be used, and the guess which are sentence1, sentence2 and
    label; "" for what is not clear.

    Raises:
        DataError: when it is no table.
    """
    from finetune.data import columns

    read = "finetune.data.tables:usable_columns"
    usable: list[str] = child_process.call(read, str(path), name, about=name)
    return usable, columns.guess_columns(usable)


def check_columns(asked: PredictionRequest, path: Path, paired: bool = True) -> PredictionRequest:
    """The same with its columns guessed where they were left open.

    Args:
        path: where the file lies.
        paired: whether the model reads two sentences; of one that reads single ones
            `sentence2` is left out.

    Raises:
        DataError: naming a column that the file does not have, or the second of a pair's.
    """
    known, guessed = file_columns(path, asked.file)
    first, second, label = (
        given or guess
        for given, guess in zip(
            (asked.sentence1, asked.sentence2, asked.label), guessed, strict=True
        )
    )
    if not first:
        raise DataError(
            f"No column of {asked.file} is clearly the first sentence: it has "
            f"{', '.join(known[:20])}.",
            "Choose it.",
        )
    second, label = ("" if one == NONE else one for one in (second, label))
    second = second if paired else ""
    for column in filter(None, (first, second, label)):
        if column not in known:
            raise DataError(
                f"{asked.file} has no column {column!r}; it has {', '.join(known[:20])}.",
                "Choose another.",
            )
    if paired and not second:
        raise DataError(
            f"This model compares two sentences, and no column of {asked.file} is chosen as "
            f"sentence2: it has {', '.join(known[:20])}.",
            "Choose the column of the second sentences, or a model of single sentences.",
        )
    return replace(asked, sentence1=first, sentence2=second, label=label)
