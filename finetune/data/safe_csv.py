"""CSV files written for people, who open them in a spreadsheet. Standard library only.

Every CSV the project writes goes through here.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

_STARTS = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")  # a class may be called -1


def escape_formula(cell: object) -> object:
    """A cell no spreadsheet takes for a formula: texts that begin like one, and are no number, get
    an apostrophe.

    Source: OWASP, CSV Injection, https://owasp.org/www-community/attacks/CSV_Injection
    """
    if not isinstance(cell, str) or not cell.lstrip(" ").startswith(_STARTS):
        return cell
    return cell if _NUMBER.fullmatch(cell) else "'" + cell


def to_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The text of a CSV file, every cell neutral."""
    return _written([header, *rows])


def to_csv_rows(more: Iterable[Sequence[object]]) -> str:
    """Further rows of such a file, every cell neutral."""
    return _written(more)


def _written(lines: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([escape_formula(cell) for cell in line] for line in lines)
    return out.getvalue()
