"""What a cell of a label column says: a value, several values, or a mark for each of some names.

Programs, tools and people write that in many notations. `read_cell` knows them, for the cells of
every file format, and all tasks ask it.
"""

import ast
import csv
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.text_hashes import NULL

MISSING = {"", "nan", "null", "n/a", "#n/a", "<na>", NULL.lower()}
# Texts that may stand for no label, or be one.
DOUBTFUL = {"na", "n.a.", "k.a.", "?"}
NO_LABEL = "-1"  # in test files of GLUE and Jigsaw, and of Snorkel
MARKS = (";", "|", ",")  # plain separators of labels, the likelier ones first
_YES = {
    "1", "true", "yes", "y", "t", "on", "x", "checked", "selected", "ja", "j", "wahr",
    "是", "真", "예", "네", "참", "✓", "✔", "✅", "☑", "☒", "●", "■",
}  # fmt: skip
_NO = {
    "0", "false", "no", "n", "f", "off", "unchecked", "unselected", "nein", "falsch",
    "否", "假", "아니오", "거짓", "✗", "✘", "❌", "☐", "○", "□",
}  # fmt: skip
_WITHIN_NAMES = " -_."  # separators of labels that names of labels have, too
_MOST_CHARACTERS = 10_000  # of a cell
_MOST_TEXTS = 1000  # in which a separator is searched
_BRACKETS = ("[]", "{}", "()")
_NESTED = (list, tuple, set, dict)
_LABEL_KEYS = ("choices", "labels", "label", "classes", "class", "categories", "category")
_NAME_KEYS = ("name", "value", "title", "text")
_CALL = re.compile(r"^(?:c|set)\((.*)\)$", re.DOTALL)  # lists of R, and Python's empty set
_TAG = re.compile(r"<([^<>]+)>")  # as Stack Overflow writes them: <a><b>
_BETWEEN_TEXTS = re.compile(r"(?<=['\"])\s+(?=['\"])")  # of an array, as NumPy prints it
# Zero-width characters and direction marks. The joiners U+200C and U+200D stay in names, because
# scripts and emoji need them, but do not distinguish classes.
_INVISIBLE = dict.fromkeys(
    map(ord, "\u200b\u2060\ufeff\u00ad\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067"
             "\u2068\u2069")
)  # fmt: skip


class Columns(dict[str, Any]):
    """The cells of several columns that are one label column, by the names of the columns."""


@lru_cache(maxsize=4096, typed=True)  # True and 1 have the same hash
def label_text(cell: Any) -> str:
    """Spell a value with single blanks, except for line breaks and tabs, which may separate labels;
    `1.0` becomes `1`, and True becomes `true`."""
    if cell is None or cell != cell:  # NaN
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    text = re.sub(r"[^\S\n\t]+", " ", str(cell)).strip()[:_MOST_CHARACTERS]
    return text[:-2] if re.fullmatch(r"-?\d+\.0", text) else text


@lru_cache(maxsize=4096)
def clean_label(text: str) -> str:
    """Put a label into Unicode's composed form (NFC), with single blanks and without invisible
    characters."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text.translate(_INVISIBLE))
    return " ".join(text.split())[:200]


def is_missing(cell: Any) -> bool:
    """True if a cell is empty, or says that its value is missing."""
    return clean_label(label_text(cell)).lower() in MISSING


def is_doubtful(cell: Any) -> bool:
    """True if a cell is missing, or may say so."""
    return clean_label(label_text(cell)).lower() in MISSING | DOUBTFUL


def read_cell(cell: Any) -> Any:
    """Return what a cell says.

    Lists and objects may be values of a typed file, or texts as JSON, Python, NumPy, R and
    PostgreSQL write them, `[a, b]` without quotes, or `<a><b>`. Of an object with a key such as
    `choices` or `label`, only that part counts.

    That is a list of texts; an object (name -> text) if all its values are marks; otherwise the
    cell itself, which is a value, or a list or object that cannot be read.
    """
    try:
        if isinstance(cell, _NESTED) and not isinstance(cell, Columns):
            return _said(cell)
        if isinstance(cell, str):
            text = _CALL.sub(r"[\1]", cell.strip())
            if text[:1] == "<" and not _TAG.sub("", text) and not is_missing(text):
                return _TAG.findall(text)
            if text[:1] + text[-1:] in _BRACKETS and len(text) <= _MOST_CHARACTERS:
                return _read_brackets(text)
    except ValueError:
        return str(cell)
    except RecursionError:
        return "{...}"
    return cell


def read_value(cell: Any) -> Any:
    """Return the only value of a cell. Several are joined by semicolons; none are an empty text."""
    said = read_cell(cell)
    if isinstance(said, list) and are_places([said]):
        said = by_place(said)
    if isinstance(said, dict):
        said = given(said)
    return ";".join(said) if isinstance(said, list) else said


def is_nested(text: str) -> bool:
    """True for a list or an object that `read_cell` could not read."""
    return text[:1] + text[-1:] in _BRACKETS[:2]


def are_places(lists: Sequence[Sequence[str]]) -> bool:
    """True if lists have a 0 or 1 for each of two or more labels, which their places name."""
    lengths = set(map(len, lists))
    marks = set().union(*lists)
    return len(lengths) == 1 and min(lengths) > 1 and marks <= {"0", "1", NO_LABEL}


def by_place(values: Sequence[str]) -> dict[str, str]:
    """Name the values of a list by their places, from 1."""
    return {str(place): value for place, value in enumerate(values, 1)}


@lru_cache(maxsize=4096, typed=True)
def mark_of(cell: Any) -> bool | None:
    """Return whether a cell says yes or no to its name; None if neither. An empty one says no, and
    a number from 0 to 1 says yes from a half on."""
    text = clean_label(label_text(cell)).lower().removesuffix("\ufe0f")  # of an emoji
    if text in _YES:
        return True
    if text in _NO or text in MISSING:
        return False
    return float(text) >= 0.5 if is_share(text) else None


def is_share(text: str) -> bool:
    """True for a number between 0 and 1."""
    return bool(re.fullmatch(r"0?\.\d+|\d(\.\d+)?e-\d+", text))


def given(marks: Mapping[str, Any]) -> list[str]:
    """Return the names to which marks say yes. A cell that is no mark is itself a name."""
    answers = {name: mark_of(label_text(read_value(cell))) for name, cell in marks.items()}
    return [
        name if answer else label_text(read_value(marks[name]))
        for name, answer in answers.items()
        if answer is not False
    ]


def find_separator(texts: Sequence[str]) -> str:
    """Return the mark that plainly separates the labels of texts, the different cells of a column;
    "" if there is none."""
    # A name that merely has a comma hardly shares all its parts with other names.
    return next((mark for mark in MARKS if _recur(texts, mark, all if mark == "," else any)), "")


def suggest_separator(texts: Sequence[str]) -> str:
    """Return what separates the labels of texts plainly, or any character between parts that recur;
    "" if there is none. One that names have, too, counts if its parts are also cells of their
    own."""
    if plain := find_separator(texts):
        return plain
    texts = texts[:_MOST_TEXTS]
    found = Counter(character for text in texts for character in set(text))
    marks = [mark for mark, _ in found.most_common() if unicodedata.category(mark)[0] in "PSZC"]
    for mark in sorted(marks, key=lambda mark: (mark not in "\n\t", mark in _WITHIN_NAMES)):
        if mark not in "\"'()[]{}" and _recur(texts, mark, all, mark in _WITHIN_NAMES):
            return mark
    return ""


def split_text(text: str, separator: str) -> list[str]:
    """Return the labels of a text, each once."""
    parts = map(clean_label, text.split(separator) if separator else [text])
    return list(dict.fromkeys(part for part in parts if part))


def _recur(
    texts: Sequence[str], mark: str, most: Callable[[Iterable[bool]], bool], strict: bool = False
) -> bool:
    """True if most texts with a mark have parts that are in other texts too, as labels are and
    parts of sentences are not, and there are hardly more parts than texts.

    `most` is `all` or `any`, of the parts of one text. If `strict`, a part counts only if it is a
    text of its own, or not always at one place, as the first word of `very good` is.
    """
    if mark == "," and all(map(read_number, texts)):  # a comma before decimals
        return False
    split = [split_text(text.lower(), mark) for text in texts]
    counts = Counter(part for parts in split for part in parts)
    places = {  # from 1, and 0 for a text of its own
        (part, place * (len(parts) > 1)) for parts in split for place, part in enumerate(parts, 1)
    }
    recurring = Counter(part for part, _ in places) if strict else counts
    several = [parts for parts in split if len(parts) > 1]
    shared = [parts for parts in several if most(recurring[part] > 1 for part in parts)]
    return 2 * len(shared) > len(several) and len(counts) <= len(texts) + 1


@lru_cache(maxsize=4096)
def _read_brackets(text: str) -> Any:
    """Read a text in brackets. ValueError if it is a list or an object that cannot be read."""
    for parse, written in ((json.loads, text), (ast.literal_eval, _BETWEEN_TEXTS.sub(", ", text))):
        try:
            value = parse(written)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            continue
        return _said(value) if isinstance(value, _NESTED) else text
    inner = text[1:-1].strip()
    if text[0] == "(":
        return text
    if re.search(r"[\[\]{}]|^'|['\"]\s*:", inner):
        raise ValueError(text)
    if re.fullmatch(r"[\d.\s]+", inner):  # as NumPy prints numbers
        return [number.removesuffix(".") for number in inner.split()]
    mark = next((mark for mark in ",;|" if mark in inner), ",")
    return _said(next(csv.reader([inner], delimiter=mark, skipinitialspace=True), []))


def _said(value: Any) -> Any:
    """Read a value of JSON or Python as `read_cell` does. ValueError if it is nested otherwise than
    labels are."""
    if isinstance(value, dict):
        return _said_by_object(value)
    if not isinstance(value, _NESTED):
        return value
    if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
        return _said_by_object(dict(value))  # as Parquet's maps are read
    parts: list[Any] = []
    for item in value:
        said = _said(item) if isinstance(item, dict) else item
        parts += said if isinstance(item, dict) and isinstance(said, list) else [said]
    if len(parts) == 1 and isinstance(parts[0], dict | float):
        return parts[0]
    if any(isinstance(part, _NESTED) or (isinstance(part, float) and part % 1) for part in parts):
        raise ValueError(value)
    parts = [int(part) if isinstance(part, bool) else part for part in parts]
    return [label_text(part) for part in parts if not is_missing(part)]


def _said_by_object(value: Mapping[Any, Any]) -> Any:
    parts = {str(key): part for key, part in value.items()}
    keys = {key.lower(): key for key in reversed(parts)}
    for key in _LABEL_KEYS:
        if key in keys:
            return _said(parts[keys[key]])
    plain = [part for part in parts.values() if not isinstance(part, _NESTED)]
    marks = [part for part in plain if mark_of(part) is not None or label_text(part) == NO_LABEL]
    if len(marks) == len(parts) and not (len(parts) == 1 and isinstance(marks[0], str)):
        return {name: label_text(mark) for name, mark in parts.items()}
    only = [part for part in parts.values() if isinstance(part, list)]
    only = only or [parts[keys[key]] for key in _NAME_KEYS if key in keys][:1] or [*parts.values()]
    if len(only) > 1:
        raise ValueError(value)
    return _said(only[0])


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
    return _read_text(label_text(cell))


def to_number(cell: Any, decimal: str = POINT) -> float | None:
    """Read a number, of which `decimal` precedes the decimals if it does not say so itself; None if
    a cell is none."""
    number = read_number(cell)
    if number is None:
        return None
    return number.by_comma if decimal == COMMA else number.by_point


def find_decimal(numbers: NDArray[Any]) -> str:
    """Return what precedes the decimals of a column, a point or a comma; "" if that is in doubt.
    `numbers` has the first three fields of each `Number`, shape (numbers, 3)."""
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
