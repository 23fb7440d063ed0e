"""Text files with and without quotes, and what is read of them."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

from finetune.data import table_formats
from finetune.data.table import ReadOptions, Table

NAMES = ["first", "second", "label"]


WORDS = ["the", "old", "clerk", "praised", "soup", "before", "noon", "her", "cousin", "film"]


GLUE = Path(__file__).parents[3] / "shared" / "data" / "glue"


CASES = Path(__file__).parents[3] / "shared" / "cases"


def plain_rows(count: int = 60) -> list[list[str]]:
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(4, 9))) for _ in range(2 * count)]
    return [[*texts[2 * n : 2 * n + 2], str(n % 2)] for n in range(count)]


def read(path: Path, **options: str) -> tuple[list[list[Any]], list[int], Table]:
    """Return the cells of all rows, the lines that cannot be read, and the table."""
    bad: list[int] = []
    table = table_formats.open_table(path, options=ReadOptions(**options))
    table.keep_empty_rows = True
    rows = [list(row.values()) for _, row in table.rows(lambda line, reason: bad.append(line))]
    return rows, bad, table


def kinds(table: Table) -> set[str]:
    return {remark.kind for remark in table.remarks}


def write(path: Path, rows: list[list[str]], **dialect: Any) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, **dialect).writerows([NAMES, *rows])


def join(path: Path, rows: list[list[str]], delimiter: str = "\t", end: str = "\n") -> None:
    """Join cells without any quoting."""
    path.write_text("".join(delimiter.join(row) + end for row in [NAMES, *rows]), newline="")
