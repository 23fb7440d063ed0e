"""Read the texts of a brought file, and write its rows with what was found of their texts."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from finetune import disk
from finetune.data import column_guess, table_formats
from finetune.data.columns import SAMPLE_ROWS
from finetune.errors import DataError, some
from finetune.inference import result_files


def text_column(path: str, name: str, column: str) -> str:
    """Return the column of a file with its texts, guessed if it is empty. DataError if there is
    none, or no such."""
    table = table_formats.open_table(Path(path), name)
    usable = [own for own in table.columns if own not in table.unusable]
    if not column:
        rows = [row for row, _ in islice(table.every_row(usable), SAMPLE_ROWS)]
        cells = {own: [row.get(own) for row in rows] for own in usable}
        column = column_guess.guess_columns(usable, cells)[0].sentence1
    if column not in usable:
        raise DataError(
            "{file} has no column {column!r}; it has {columns}." if column
            else "No column of {file} clearly holds texts; it has {columns}.",
            "Choose the column with the texts.",
            file=name, column=column, columns=some(usable),
        )  # fmt: skip
    return column


def write_rows(
    path: Path, name: str, of_rows: Any, column: str, kind: Any, of_text: Sequence[Any], out: Path
) -> tuple[str, list[str]]:
    """Write a file's rows with a new column, of a pyarrow type: the value of each row's text. Rows
    without a text have none. Returns the column's name, which has `_2` at its end if the file has
    one of that name, and why rows could not be read; all of their cells are empty."""
    table = table_formats.open_table(path, name)
    own = result_files.file_columns(table)
    added, taken = column, {name.casefold() for name in own}
    while added in taken:
        added += "_2"
    with disk.writing(out), result_files.open_writer(out, table, own, {added: kind}) as write:
        rows, unread = zip(table.every_row([*own]), of_rows, strict=True), list[str]()
        while block := list(islice(rows, 10_000)):
            write([
                {**{name: record.get(name) for name in own},
                 added: of_text[text] if text >= 0 else None}
                for (record, _), text in block
            ])  # fmt: skip
            unread += [reason for (_, reason), _ in block if reason]
    return added, unread
