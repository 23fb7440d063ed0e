"""The classes of a label column: which spellings each has, their order, and the positive one."""

import difflib
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from finetune.errors import ConfigError, DataError, some
from finetune.messages import message
from finetune.tasks import cells
from finetune.tasks.base import LEFT_OUT, MISSING_LABEL
from finetune.tasks.cells import NO_LABEL, clean_label, read_number
from finetune.tasks.labels import MOST_CHANGES, Reading, changeable, label_map
from finetune.text_hashes import Integers

MAX_CLASSES = 1000
EMPTY = "(empty)"  # the class of empty cells, if they are one

# Of the page's languages: English, German, Chinese, Korean.
NEGATIVES = {
    "0", "no", "n", "false", "f", "neg", "negative", "different", "none", "-1", "contradiction",
    "nein", "falsch", "verschieden", "ungleich", "negativ", "否", "不是", "假",
    "错", "不同", "负面", "아니오", "아니요", "거짓", "다름", "부정",
}  # fmt: skip
POSITIVES = {
    "1", "yes", "y", "true", "t", "pos", "positive", "same", "duplicate", "equivalent",
    "paraphrase", "entailment", "match", "ja", "j", "wahr", "richtig", "gleich", "duplikat",
    "positiv", "是", "真", "对", "相同", "重复", "正面", "예", "네", "참", "같음", "중복", "긍정",
}  # fmt: skip
# Negates the class name that follows: not_duplicate, unacceptable.
_NOT = "(?:not?|non|un|in|im|ir|dis|nicht|kein|keine|不|非|未|비|불)"
_JOINERS = dict.fromkeys(map(ord, "\u200c\u200d"))  # they do not distinguish classes


class LabelEncoder:
    """Numbers the spellings of a label column in the order of their appearance. `names` are the
    spellings known before any row is read."""

    no_labels: NDArray[Any] = np.zeros(0, np.int64)  # the type and the shape of a column's numbers

    def __init__(self, column: str, names: Sequence[str] = ()) -> None:
        self._column = column
        self.spellings = list(names)
        self._codes = {name: code for code, name in enumerate(names)}
        self._fractions: list[str] = []

    def code(self, cell: Any) -> Any:
        """Return the number of a cell's spelling, or `MISSING_LABEL`. DataError if there are too
        many spellings, or they are fractions."""
        text = self._spell(cell)
        if text not in self._codes:
            if self._is_missing(cell, text):
                return MISSING_LABEL
            self._codes[text] = len(self.spellings)
            self.spellings.append(text)
            self._check(text)
        return self._codes[text]

    def _spell(self, cell: Any) -> str:
        return cells.label_text(cells.read_value(cell))

    def _is_missing(self, cell: Any, text: str) -> bool:
        return cells.is_missing(text)

    def _check(self, text: str) -> None:
        """Raise DataError if a new spelling shows that these are no classes."""
        number = read_number(text)
        if number is not None and number.by_point % 1 and number.by_comma % 1:
            self._fractions.append(text)
        if len(self._fractions) > 2:
            raise DataError(
                "The column {column!r} holds numbers with fractions ({fractions}): scores, not "
                "classes.",
                "Choose another label_column, or learn them as scores: set task to regression.",
                column=self._column,
                fractions=some(sorted(self._fractions)),
            )
        if len(self.spellings) > MAX_CLASSES:
            raise DataError(
                "The column {column!r} has more than {max_classes:,} different values, such as "
                "{names}: text or ids rather than classes.",
                "Choose another label_column.",
                column=self._column,
                max_classes=MAX_CLASSES,
                names=some(self.spellings),
            )


@lru_cache(maxsize=4096)
def class_key(text: str) -> str:
    """Reduce a label to what the spellings of one class share: without case, width, form of Unicode
    and invisible characters."""
    name = clean_label(text)
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFKC", name.translate(_JOINERS)).lower()


@dataclass(frozen=True)
class Classes(Reading):
    """The classes made of the spellings of a label column."""

    no_agreement: list[str] = field(default_factory=list)  # labels of annotators who disagreed
    # Class of few training rows -> their number, also after it was left out.
    rare: dict[str, int] = field(default_factory=dict)
    separator: str = ""  # a character that may separate several labels of a row

    def without(self, names: Collection[str]) -> Self:
        """Return the classes without some of them."""
        kept = [code for code, name in enumerate(self.names) if name not in names]
        final = np.append(np.full(len(self.names), LEFT_OUT), [LEFT_OUT, MISSING_LABEL])
        final[kept] = np.arange(len(kept))  # the states are places from the end
        return replace(self, names=[self.names[code] for code in kept], table=final[self.table])


def make_classes(
    spellings: Sequence[str], rows: Integers, named: bool, changes: Mapping[str, str]
) -> Classes:
    """Make classes of the spellings of a label column. A class is named by its commonest spelling:
    `rows` says how often each occurs, shape (spellings,). If the source names its classes, each
    spelling is one, in that order. `changes` are `RunConfig.changed_labels`, label -> new name: a
    label with its own name stays a class of its own; "" leaves its rows out."""
    cleaned = [clean_label(text) for text in spellings]
    apart = {name for name, other in changes.items() if name == other}
    # Annotators disagreed about `-`, as in SNLI.
    none = set() if named or "+" in cleaned else {"-"} & set(cleaned)
    members: dict[str, list[int]] = {}
    called: dict[str, str] = {}
    codes = np.full(len(spellings), LEFT_OUT)
    for index, text in enumerate(cleaned):
        name = changeable(text)
        other = changes.get(name, "" if text in none else text)
        if not other or cells.is_nested(spellings[index]):
            continue
        key = f"={other}" if named or other in apart else class_key(other)
        members.setdefault(key, []).append(index)
        if name in changes:
            called[key] = other
    names = [
        called.get(key) or cleaned[max(indices, key=lambda index: rows[index])]
        for key, indices in members.items()
    ]
    order = range(len(names)) if named else _order(names)
    groups = list(members.values())
    for code, group in enumerate(order):
        codes[groups[group]] = code
    unknown = sorted(changes.keys() - set(map(changeable, cleaned)))
    left_out = sorted(name for name in none if changeable(name) not in changes)
    table, ordered = np.append(codes, MISSING_LABEL), [names[group] for group in order]
    return Classes(ordered, table, unknown, no_agreement=left_out)


def changed(label: str, changes: Mapping[str, str] | None) -> str:
    """Return the name of a label after `changes`; empty if its rows are left out."""
    return changes.get(changeable(clean_label(label)), label) if changes else label


def mended(changed: Mapping[str, str], name: str, new: str) -> str:
    """Return a `label_map` with one more change than `RunConfig.changed_labels`: rows of a class
    get the label `new`, or are left out if it is empty. ConfigError if a configuration cannot hold
    so many changes."""
    if name in changed.values():  # its rows have other labels in the file
        changes = {old: new if now == name else now for old, now in changed.items()}
    else:
        changes = {**changed, changeable(name): new}
    value = label_map(changes)
    if len(value) > MOST_CHANGES:
        problem = message("cannot hold so many changes; make them in the file")
        raise ConfigError({"label_map": problem})
    return value


def may_be_unlabelled(names: Sequence[str]) -> bool:
    """True if -1 may stand for no label: all names are whole numbers, and the others are not
    negative, nor 1 alone."""
    numbers = {int(name) for name in names if re.fullmatch(r"-?\d+", name)}
    others = numbers - {int(NO_LABEL)}
    return (
        len(numbers) == len(set(names)) > len(others)
        and min(others, default=-1) >= 0
        and (others != {1})
    )


def similar_class(name: str, others: Sequence[str]) -> str:
    """The class of which a name may be a misspelling; "" if there is none."""
    keys = {class_key(other): other for other in others if not other.isdecimal()}
    found = difflib.get_close_matches(class_key(name), keys, n=1, cutoff=0.75)
    return keys[found[0]] if found and not name.isdecimal() else ""


def _order(names: Sequence[str]) -> list[int]:
    """Order classes: integers by value, the negative one of two first, others by name."""
    lower = [name.lower() for name in names]
    codes = range(len(lower))
    if all(re.fullmatch(r"-?\d+", name) for name in lower):
        return sorted(codes, key=lambda code: int(lower[code]))
    if len(lower) == 2:
        return sorted(codes, key=lambda code: _positiveness(lower[code], lower[1 - code]))
    return sorted(codes, key=lambda code: lower[code])


def _positiveness(name: str, other: str) -> tuple[int, str]:
    if name in POSITIVES or other in NEGATIVES:
        return 1, name
    if name in NEGATIVES or other in POSITIVES or name.endswith(other):  # not_duplicate
        return -1, name
    return (1, name) if other.endswith(name) else (0, name)


def is_positive_plain(labels: Sequence[str]) -> bool:
    """True if the names of two classes say which is the positive one, or there are not two."""
    names = [label.lower() for label in labels]
    return len(names) != 2 or _affirms(*names) != _affirms(*names[::-1])


def _affirms(name: str, other: str) -> bool:
    denied = re.fullmatch(rf"{_NOT}[\W_]*{re.escape(name)}", other)
    return bool(denied) or (name in POSITIVES and other in NEGATIVES)


def positive_class(labels: list[str], requested: str) -> int:
    """Return the index of the class whose F1 is reported: the requested one, or the positive one of
    two. DataError if the requested one does not exist."""
    if not requested:
        # `entailment`, the class of interest, is the first of GLUE's names.
        first = len(labels) == 2 and _positiveness(labels[0].lower(), labels[1].lower())[0] > 0
        return 0 if first else min(1, len(labels) - 1)
    for index, name in enumerate(labels):
        if name.lower() == requested.lower():
            return index
    raise DataError(
        "positive_label is {requested!r}, but the classes are {labels}.",
        "Choose one of them.",
        requested=requested,
        labels=some(labels),
    )
