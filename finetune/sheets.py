"""CSV files written for people, who open them in a spreadsheet. Standard library only.

Every CSV the project writes goes through here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

_STARTS = ("=", "+", "-", "@", "\t", "\r")


def neutral(cell: object) -> object:
    """A cell no spreadsheet takes for a formula: texts that begin like one get an apostrophe.

    Source: OWASP, CSV Injection, https://owasp.org/www-community/attacks/CSV_Injection
    """
    if isinstance(cell, str) and cell.lstrip(" ").startswith(_STARTS):
        return "'" + cell
    return cell


def text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The text of a CSV file, every cell neutral."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([neutral(name) for name in header])
    writer.writerows([neutral(cell) for cell in row] for row in rows)
    return out.getvalue()
