"""Numbers as people write them: with a decimal point or comma, separated thousands, and units.

`1,022` is 1022 or 1.022. The other numbers of its column decide.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.tasks import cells

POINT, COMMA = ".", ","  # which precede decimals
_LARGEST = float(np.finfo(np.float32).max)
_CURRENCIES = (
    "AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|INR|JPY|KRW|MXN|NOK|NZD|PLN|RMB|RUB|SEK|SGD|THB|"
    "TRY|USD|ZAR|Fr\\.|Ft|Kč|kr\\.?|Rs\\.?|zł|元|円|원"
)
_UNIT = rf"(?:%|‰|[A-Z]{{0,2}}\$|[€£¥₩₹₽₺₫฿₴₪₱₦¢]|{_CURRENCIES})"
_NUMBER = re.compile(
    rf"([+-]?)\s?({_UNIT})?\s?([+-]?)(\d[\d.,'_ ]*|[.,]\d+)([eE][+-]?\d+)?\s?({_UNIT})?"
)
_THOUSANDS = r"[1-9]\d{{0,2}}(?:([{marks}'_ ])\d{{3}})(?:\1\d{{3}})*"
_INDIAN = r"[1-9]\d?(?:,\d\d)+,\d{3}"
_BY_POINT = re.compile(rf"(?:{_THOUSANDS.format(marks=COMMA)}|{_INDIAN}|\d*)(?:\.\d*)?")
_BY_COMMA = re.compile(rf"(?:{_THOUSANDS.format(marks=POINT)}|\d*)(?:,\d*)?")


class Number(NamedTuple):
    """A number as it was written."""

    by_point: float  # its value if decimals follow a point
    by_comma: float  # its value if they follow a comma
    mark: int = 0  # 1 if decimals can only follow a point, 2 if only a comma; 0 if it does not say
    unit: str = ""  # a currency or %

    @property
    def is_measure(self) -> bool:
        """True if it is written with decimals, separated thousands or a unit, unlike an id."""
        marked = self.mark > 0 or self.by_point != self.by_comma
        return marked or self.unit != "" or self.by_point % 1 != 0


def read_number(cell: Any) -> Number | None:
    """Read a number without its unit; None if a cell is none, such as a date."""
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return Number(cell, cell) if abs(cell) <= _LARGEST else None
    return _read_text(cells.label_text(cell))


def to_number(cell: Any, decimal: str = POINT) -> float | None:
    """Read a number, of which `decimal` precedes the decimals if it does not say so itself; None if
    a cell is none."""
    number = read_number(cell)
    if number is None:
        return None
    return number.by_comma if decimal == COMMA else number.by_point


def find_decimal(numbers: NDArray[Any]) -> str:
    """Return what precedes the decimals of a column, a point or a comma; "" if that is in doubt.

    Args:
        numbers: the first three fields of each `Number`, shape (numbers, 3).
    """
    by_point, by_comma, marks = numbers[np.isfinite(numbers[:, 0])].T
    either = by_point != by_comma
    said = set(marks[marks > 0].tolist())
    if not either.any() or len(said) == 1:
        return COMMA if said == {2} else POINT
    written = {COMMA if comma else POINT for comma in (abs(by_point) > abs(by_comma))[either]}
    if said or len(written) > 1:
        return ""
    (mark,) = written
    whole = abs(by_point[~either])
    if (whole >= 1000).any():  # so it does not separate thousands
        return mark
    if len(whole) and np.median(whole) > np.minimum(abs(by_point), abs(by_comma))[either].max():
        return POINT if mark == COMMA else COMMA
    return mark if mark == POINT else ""


def spell_both(by_point: float, by_comma: float) -> str:
    """Write a number that can be read in two ways, as `1,022` for 1022 and 1.022."""
    whole = max(by_point, by_comma, key=abs)
    return f"{whole:,.0f}" if whole == by_point else f"{whole:,.0f}".replace(",", ".")


@lru_cache(maxsize=4096)
def _read_text(text: str) -> Number | None:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).replace("\u2212", "-").replace("\u2019", "'")
    found = _NUMBER.fullmatch(text.strip())
    if found is None or (found[1] and found[3]):
        return None
    sign, digits, exponent = found[1] + found[3], found[4].strip(), found[5] or ""
    plain = re.sub("['_ ]", "", digits)
    values = []
    if _BY_POINT.fullmatch(digits):
        values.append(float(sign + plain.replace(",", "") + exponent))
    if _BY_COMMA.fullmatch(digits):
        values.append(float(sign + plain.replace(".", "").replace(",", ".") + exponent))
    if not values or max(map(abs, values)) > _LARGEST:
        return None
    mark = 0 if len(values) == 2 else 1 if _BY_POINT.fullmatch(digits) else 2
    return Number(values[0], values[-1], mark, found[2] or found[6] or "")
