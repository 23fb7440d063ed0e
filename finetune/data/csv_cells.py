"""Write CSV files whose cells no spreadsheet takes for formulas."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")  # a class may be called -1


def escape_formula(cell: object) -> object:
    """Put an apostrophe before a text that a spreadsheet would take for a formula.

    Source: OWASP, CSV Injection, https://owasp.org/www-community/attacks/CSV_Injection
    """
    if not isinstance(cell, str) or not cell.lstrip(" ").startswith(_FORMULA_STARTS):
        return cell
    return cell if _NUMBER.fullmatch(cell) else "'" + cell


def to_csv(rows: Iterable[Sequence[object]]) -> str:
    """Format rows as CSV, with every cell escaped. Every CSV that the app writes is made here."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([escape_formula(cell) for cell in row] for row in rows)
    return out.getvalue()
