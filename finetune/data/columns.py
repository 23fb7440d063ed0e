"""Which columns hold the sentences and the label, and the classes of a label column."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from finetune.config import NO_COLUMN, RunConfig
from finetune.errors import DataError, some
from finetune.runs.summary import ColumnNames

MAX_CLASSES = 1000

_PAIRS = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"),
    ("texta", "textb"), ("text1", "text2"), ("sentencea", "sentenceb"), ("sent1", "sent2"),
    ("question", "sentence"), ("query", "passage"), ("query", "document"), ("q1", "q2"),
    ("s1", "s2"), ("title1", "title2"), ("a", "b"), ("first", "second"), ("left", "right"),
    ("source", "paraphrase"),
)  # fmt: skip
_OTHER = ("{}2", "other{}", "second{}", "andere{}", "zweite{}")  # the second column of a kind
_SINGLES = ("sentence", "text", "review", "content", "comment", "question", "body", "title")
_LABELS = (
    "label", "labels", "isduplicate", "duplicate", "goldlabel", "isparaphrase", "paraphrase",
    "isequivalent", "equivalent", "class", "category", "target", "quality", "entailmentjudgment",
    "sentiment", "intent", "answer", "same", "match", "score", "similarity", "y",
)  # fmt: skip

# Of the page's languages: English, German, Chinese, Korean.
_NEGATIVES = {
    "0", "no", "n", "false", "f", "neg", "negative", "different", "none", "-1", "contradiction",
    "nein", "falsch", "verschieden", "ungleich", "negativ", "否", "不是", "假",
    "错", "不同", "负面", "아니오", "아니요", "거짓", "다름", "부정",
}  # fmt: skip
_POSITIVES = {
    "1", "yes", "y", "true", "t", "pos", "positive", "same", "duplicate", "equivalent",
    "paraphrase", "entailment", "match", "ja", "j", "wahr", "richtig", "gleich", "duplikat",
    "positiv", "是", "真", "对", "相同", "重复", "正面", "예", "네", "참", "같음", "중복", "긍정",
}  # fmt: skip
# Before the name of a class it denies it: not_duplicate, unacceptable.
_NOT = "(?:not?|non|un|in|im|ir|dis|nicht|kein|keine|不|非|未|비|불)"
_MISSING = {"", "nan", "null", "n/a"}


@dataclass(frozen=True)
class Columns:
    """The columns of a source that are read; `sentence2` is empty for single sentences."""

    sentence1: str
    sentence2: str
    label: str

    @property
    def sentences(self) -> list[str]:
        return [self.sentence1, self.sentence2] if self.sentence2 else [self.sentence1]


def guess_columns(names: Sequence[str]) -> tuple[str, str, str]:
    """Guess the columns of sentence1, sentence2 and label by their names; "" where unclear. Three
    columns of unknown names are taken to be those, two a text and its label."""
    plain = _by_plain_name(names)
    label = next((plain[key] for key in _LABELS if key in plain), "")
    others = {key: name for key, name in plain.items() if name != label}
    alike = [(key, form.format(key)) for key in others for form in _OTHER]
    pairs = [(others[a], others[b]) for a, b in (*_PAIRS, *alike) if a in others and b in others]
    singles = [(others[key], "") for key in _SINGLES if key in others]
    if pairs or singles:
        sentences = [*pairs, *singles][0]
        rest = [name for name in others.values() if name not in sentences]
        return *sentences, label or (rest[0] if len(rest) == 1 else "")
    rest = list(others.values())
    if not label and len(names) == len(rest) and len(rest) in (2, 3):
        label = rest.pop()
    if label and len(rest) in (1, 2):
        return rest[0], rest[1] if len(rest) == 2 else "", label
    return "", "", label


def match_columns(names: Sequence[str], trained: ColumnNames) -> tuple[str, str, str]:
    """The columns of a file to predict: those that the model was trained on, by their names; else
    sentences are guessed, and a label only by its name. "" where unclear, or there is none."""
    plain = _by_plain_name(names)
    first, second, label = (plain.get(_plain_name(name), "") for name in trained)
    rest = _by_plain_name([name for name in names if name not in (first, second)])
    label = label or next((rest[key] for key in _LABELS if key in rest), "")
    if not first or (trained.sentence2 and not second):
        first, second, _ = guess_columns([name for name in names if name != label] + ["label"])
    return first, second if trained.sentence2 else "", label


def _plain_name(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


def _by_plain_name(names: Sequence[str]) -> dict[str, str]:
    """Names in small letters and figures only -> the first column of that name."""
    plain: dict[str, str] = {}
    for name in names:
        plain.setdefault(_plain_name(name), name)
    return plain


def choose_columns(columns: Mapping[str, str], source: str, config: RunConfig) -> Columns:
    """The columns that a configuration asks for, else those guessed from their names; DataError
    where one is missing, unusable or unclear. `columns`: name -> why it cannot be used, or ""."""
    names = some(list(columns))
    roles = dict(zip(("sentence1", "sentence2", "label"), guess_columns([*columns]), strict=True))
    for role, guess in roles.items():
        column = getattr(config, f"{role}_column") or guess
        if role == "sentence2" and column in ("", NO_COLUMN):
            column = ""
        elif not column:
            raise DataError(
                "No column of {source} is clearly the {noun}: it has {columns}.",
                "Choose it as {role}_column.",
                source=source,
                noun="label" if role == "label" else "sentences",
                columns=names,
                role=role,
            )
        elif column not in columns:
            raise DataError(
                "{source} has no column {column!r}; it has {columns}.",
                "Choose one of them as {role}_column.",
                source=source,
                column=column,
                columns=names,
                role=role,
            )
        elif reason := columns[column]:
            raise DataError(
                "The column {column!r} {reason}.",
                "Choose another one as {role}_column.",
                column=column,
                reason=reason,
                role=role,
            )
        roles[role] = column
    used = [column for column in roles.values() if column]
    if len(set(used)) < len(used):
        raise DataError(
            "One column is chosen twice: {used}.",
            "Choose a different one for each.",
            used=some(used),
        )
    return Columns(**roles)


class LabelEncoder:
    """Numbers the classes of a label column in the order of their first appearance; `names` are
    those known before any row is read."""

    def __init__(self, column: str, names: Sequence[str] = ()) -> None:
        self._column = column
        self.names = list(names)
        self._codes = {name.lower(): code for code, name in enumerate(names)}

    def code(self, cell: Any) -> int:
        """The number of a label; -1 for a missing one. `TRUE` and `true` are one class, and so are
        `1` and `1.0`; too many classes, or fractions, raise DataError."""
        text = label_text(cell)
        if text.lower() in _MISSING:
            return -1
        if text.lower() not in self._codes:
            self._add(text)
        return self._codes[text.lower()]

    def _add(self, text: str) -> None:
        self._codes[text.lower()] = len(self.names)
        self.names.append(text)
        fractions = [name for name in self.names if re.fullmatch(r"-?\d*[.,]\d+", name)]
        if len(fractions) > 2:
            raise DataError(
                "The column {column!r} holds numbers with fractions ({fractions}): scores, not "
                "classes.",
                "Choose another label_column, or turn the scores into classes first.",
                column=self._column,
                fractions=some(sorted(fractions)),
            )
        if len(self.names) > MAX_CLASSES:
            raise DataError(
                "The column {column!r} has more than {max_classes:,} different values, such as "
                "{names}: text or ids rather than classes.",
                "Choose another label_column.",
                column=self._column,
                max_classes=MAX_CLASSES,
                names=some(self.names),
            )

    def order(self) -> list[int]:
        """The codes in the final order of the classes: integers by value, of two classes the
        negative one first, others by name."""
        lower = [name.lower() for name in self.names]
        codes = range(len(lower))
        if all(re.fullmatch(r"-?\d+", name) for name in lower):
            return sorted(codes, key=lambda code: int(lower[code]))
        if len(lower) == 2:
            return sorted(codes, key=lambda code: _positiveness(lower[code], lower[1 - code]))
        return sorted(codes, key=lambda code: lower[code])


@lru_cache(maxsize=4096, typed=True)  # True and 1 have the same hash
def label_text(cell: Any) -> str:
    """The name of a label's class: `1` and `1.0` are one, and so are `True` and `true`."""
    if cell is None or cell != cell:  # NaN
        return ""
    text = str(cell).lower() if isinstance(cell, bool) else " ".join(str(cell).split())[:200]
    return text[:-2] if re.fullmatch(r"-?\d+\.0", text) else text


def _positiveness(name: str, other: str) -> tuple[int, str]:
    if name in _POSITIVES or other in _NEGATIVES:
        return 1, name
    if name in _NEGATIVES or other in _POSITIVES or name.endswith(other):  # not_duplicate
        return -1, name
    return (1, name) if other.endswith(name) else (0, name)


def is_positive_plain(labels: Sequence[str]) -> bool:
    """Whether the names of two classes say which is the positive one; of more none is asked for."""
    names = [label.lower() for label in labels]
    return len(names) != 2 or _affirms(*names) != _affirms(*names[::-1])


def _affirms(name: str, other: str) -> bool:
    denied = re.fullmatch(rf"{_NOT}[\W_]*{re.escape(name)}", other)
    return bool(denied) or (name in _POSITIVES and other in _NEGATIVES)


def positive_class(labels: list[str], requested: str) -> int:
    """The index of the class whose F1 is reported: the requested one, else the last of two;
    DataError where there is none of that name."""
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
