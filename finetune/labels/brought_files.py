"""Read the texts of a brought file, and write its rows with the groups of their texts."""

from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from finetune import disk
from finetune.data import column_guess, table_formats
from finetune.data.columns import SAMPLE_ROWS
from finetune.errors import DataError, some
from finetune.inference import result_files

_GROUP = "group"  # the column of the result


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


def write_groups(path: Path, name: str, of_rows: Any, of_text: Any, out: Path) -> None:
    """Write a file's rows with the group of each; rows without a text have none."""
    table = table_formats.open_table(path, name)
    own = result_files.file_columns(table)
    added = f"{_GROUP}_2" if _GROUP in {column.casefold() for column in own} else _GROUP
    with disk.writing(out), result_files.open_writer(out, table, own, {added: pa.int64()}) as write:
        rows = zip(table.every_row([*own]), of_rows, strict=True)
        while block := list(islice(rows, 10_000)):
            write([
                {**{column: record.get(column) for column in own},
                 added: int(of_text[text]) + 1 if text >= 0 else None}
                for (record, _), text in block
            ])  # fmt: skip
