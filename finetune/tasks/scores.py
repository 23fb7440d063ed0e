"""The scores of a label column: how cells are read as numbers, which columns hold scores, and what
a person should know of them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.errors import some
from finetune.findings import Finding, Remedy, question
from finetune.messages import message as _
from finetune.tasks import cells
from finetune.tasks.base import LEFT_OUT, MISSING_LABEL, REGRESSION, SINGLE_LABEL, Targets, Task
from finetune.tasks.cells import COMMA, POINT, Number, to_number
from finetune.tasks.classes import LabelEncoder
from finetune.tasks.labels import LabelledRows, Reading, answered, impossible
from finetune.text_hashes import Integers

FAR = 3.0  # quartile ranges beyond the quartiles, Tukey's "far out" (1977)
_DIFFERS = 0.2  # Kolmogorov's distance of two splits' scores, if it is no chance either
_CHANCE = 0.001
MANY = 20  # different whole numbers; more may be scores, unless they count up
_MOST_SPELLINGS = 1000  # of cells that are no numbers, kept to be shown
_SCORE_NAME = re.compile(r"(?i)(?<![a-z])(rating|stars?|score|similarity|relatedness|grade|points)")


def spell(score: float) -> str:
    """Write a score with the digits that float32 keeps."""
    return f"{float(score):.6g}"


def cut_names(cut: float) -> list[str]:
    """Name the two classes of scores below a cut, and from it on."""
    return [f"below {spell(cut)}", f"from {spell(cut)}"]


def cut_of(names: Sequence[str]) -> float | None:
    """Return the cut that two classes are named by; None if they are not."""
    cut = to_number(names[-1].removeprefix("from ")) if len(names) == 2 else None
    return cut if cut is not None and cut_names(cut) == [*names] else None


class ScoreEncoder(LabelEncoder):
    """Reads a label column as numbers, four for a row: the first three fields of its `Number`, or
    infinity for a cell that is no number, and the place of its unit or of that cell among
    `spellings`. A missing score is nan."""

    no_labels: NDArray[Any] = np.zeros((0, 4))

    def __init__(self, column: str, names: Sequence[str] = ()) -> None:
        super().__init__(column)

    def code(self, cell: Any) -> tuple[float, float, int, int]:
        """Return a row's numbers."""
        value = cells.read_value(cell)
        number = cells.read_number(value)
        if number is None and cells.is_missing(value):
            return np.nan, np.nan, 0, -1
        text = number.unit if number else cells.label_text(value)[:200]
        number = number or Number(np.inf, np.inf)
        if text not in self._codes and len(self.spellings) < _MOST_SPELLINGS:
            self._codes[text] = len(self.spellings)
            self.spellings.append(text)
        return (*number[:3], self._codes.get(text, -1))


@dataclass(frozen=True)
class Scores(Reading):
    """The scores as they are read."""

    cut: float | None = None  # from which on they are the second of two classes
    missing: float = np.nan  # a score that stands for none
    decimal: str = POINT  # what precedes decimals where a number does not say it; "" if in doubt
    both: tuple[float, float] | None = None  # by point and by comma, the first that does not say it
    units: frozenset[int] = frozenset()  # spellings of units; an empty one for none

    def targets(self, codes: NDArray[Any]) -> Targets:
        """The scores or classes of rows, shape (rows,)."""
        numbers = codes[:, int(self.decimal == COMMA)]
        scores = np.where(numbers == self.missing, np.nan, numbers).astype(np.float32)
        if self.cut is None:
            return scores
        states = [np.isnan(scores), np.isinf(scores)]
        above = (scores >= np.float32(self.cut)).astype(np.int64)
        return np.select(states, [MISSING_LABEL, LEFT_OUT], above)


def read_scores(labels: LabelledRows, cut: float | None = None) -> Scores:
    """Read the numbers of each split; -1 is no score if a held-out split has no other number and
    the training rows have none below 0, as in GLUE's test split."""
    codes = labels.codes
    numbers = np.concatenate([*codes.values()])
    numbers = numbers[np.isfinite(numbers[:, 0])]
    values, train = numbers[:, 0], codes["train"][:, 0]
    hidden = any(
        len(held_out) and (held_out[:, 0] == -1).all()
        for split, held_out in codes.items()
        if split != "train"
    )
    meant = labels.config.changed_labels.get(cells.NO_LABEL)
    stands_for_none = meant == "" or (hidden and not (train < 0).any())
    whole = len(values) > 0 and bool((values % 1 == 0).all()) and values.min() == -1
    decimal = labels.config.decimal_mark
    either = numbers[numbers[:, 0] != numbers[:, 1], :2]
    return Scores(
        names=[] if cut is None else cut_names(cut),
        cut=cut,
        missing=-1.0 if stands_for_none else np.nan,
        unclear=cells.NO_LABEL if whole and meant is None and not stands_for_none else "",
        decimal=cells.find_decimal(numbers[:, :3]) if decimal == "auto" else decimal,
        both=(float(either[0, 0]), float(either[0, 1])) if len(either) else None,
        units=frozenset(numbers[:, 3].astype(int).tolist()),
    )


def _numbers_of(sample: Sequence[Any]) -> list[Number] | None:
    """Read cells as numbers, those that may be missing left out; None if one is none."""
    values = [value for value in map(cells.read_value, sample) if not cells.is_doubtful(value)]
    numbers = [*map(cells.read_number, values)]
    return None if None in numbers else [number for number in numbers if number is not None]


def _values(numbers: Sequence[Number]) -> set[float]:
    decimal = cells.find_decimal(np.array([number[:3] for number in numbers]))
    return {number.by_comma if decimal == COMMA else number.by_point for number in numbers}


def _count_up(values: set[float]) -> bool:
    """True for nearly all whole numbers from 0 or 1 on, of which a sample may lack a few."""
    low, high = min(values), max(values)
    return low >= 0 and high < 2 * len(values) + low and low < len(values)


def may_be_scores(names: Sequence[str], column: str) -> bool:
    """True if the names of classes are numbers that may be meant as scores: some with fractions,
    from 1 to 4 or more, such as stars, many that do not count up, or any in a column whose name
    says it."""
    values = _values(numbers) if (numbers := _numbers_of(names)) else set()
    if len(values) < max(3, len(names)):
        return False
    named = _SCORE_NAME.search(column) is not None
    starred = min(values) == 1 and 4 <= max(values) == len(values) <= 10
    many = len(values) > MANY and not _count_up(values)
    return named or starred or many or any(value % 1 for value in values)


class ReadsScores(Task):
    """Reads a label column as scores."""

    encoder: type[Any] = ScoreEncoder
    left_out = _("the label is no number")

    def recognises(self, cells: Sequence[Any]) -> bool:
        """True for numbers of which more than two have fractions, numbers with units or separated
        thousands, or whole numbers that hardly repeat and do not count up, as 0, 1, 2 ... do.

        Other whole numbers, such as 1 to 5 stars, may be either, and are classes until somebody
        says so.
        """
        numbers = _numbers_of(cells)
        if not numbers:
            return False
        values = _values(numbers)
        fractions = sum(value != int(value) for value in values)
        unlike = 2 * len(values) > len(cells) and len(values) > MANY and not _count_up(values)
        separated = any(number.by_point != number.by_comma for number in numbers)
        measured = len(values) > 2 and (separated or all(number.unit for number in numbers))
        return measured or fractions > 2 or (fractions == 0 and unlike)

    def cell(self, spellings: Sequence[str], code: Any) -> str:
        by_point, by_comma, _mark, spelling = code
        if np.isinf(by_point):
            return spellings[int(spelling)] if spelling >= 0 else ""
        if by_point != by_comma:
            return "" if np.isnan(by_point) else cells.spell_both(by_point, by_comma)
        return spell(by_point)

    def questions(self, labels: LabelledRows) -> list[Finding]:
        asked: list[Finding] = []
        column, reading = labels.column, labels.reading
        if labels.spellings and not any(
            np.isfinite(codes[:, 0]).any() for codes in labels.codes.values()
        ):
            text = _(
                "No cell of the column {column!r} is a number: {cells}. Clear task and score_cut "
                "to learn classes.",
                column=column, cells=some(labels.spellings, 3),
            )  # fmt: skip
            return impossible(text)
        if reading.both and not reading.decimal:
            title = _(
                "Is {number} of the column {column!r} {whole} or {fraction}?",
                number=cells.spell_both(*reading.both),
                column=column,
                whole=spell(max(reading.both, key=abs)),
                fraction=spell(min(reading.both, key=abs)),
            )
            ways = [_decimal(reading.both, mark) for mark in (POINT, COMMA)]
            asked.append(question("decimals", title, ways))
        if reading.unclear:
            rows = labels.where(lambda codes: codes[:, 0] == -1)
            asked.append(labels.no_label(rows, reading.unclear, _("It is a score")))
        return asked

    def findings(
        self, labels: LabelledRows, train: Targets, constant: Mapping[str, float]
    ) -> Iterator[Finding]:
        """Report cells that are no numbers, scores far from the others, and splits that differ."""
        config = labels.config
        if config.task == REGRESSION:
            title = _("The column {column!r} is read as a score.", column=labels.column)
            yield answered("score", title, Remedy("task", "", _("Undo")))
        title = _("Cells of the column {column!r} that are no numbers", column=labels.column)
        rows = labels.where(lambda codes: np.isinf(codes[:, 0]))
        yield Finding("no-number", "warns", title, _("They are left out."), rows)
        if self.blocks(labels):
            return
        yield from notation(labels)
        yield _offered_cut(labels)
        yield _outliers(labels)
        yield from _differing_splits(labels)
        if config.class_weights != "none" or config.label_smoothing_factor:
            title = _(
                "class_weights and label_smoothing_factor change nothing: there are no classes."
            )
            yield Finding("no-classes", "notes", title, _("No action is needed."))


def _decimal(both: tuple[float, float], mark: str) -> Remedy:
    """Make the button that reads a number of two readings in one way."""
    text = _("{number} is {value}", number=cells.spell_both(*both),
             value=spell(both[mark == COMMA]))  # fmt: skip
    return Remedy("decimal_mark", mark, text)


def classes_or_score(labels: LabelledRows) -> Iterator[Finding]:
    """Ask whether whole numbers that are read as classes are scores."""
    names = labels.reading.names
    if labels.named or not may_be_scores(names, labels.column):
        return
    ordered = sorted(names, key=lambda name: to_number(name) or 0.0)
    title = _(
        "Are the numbers {low} to {high} of the column {column!r} classes or a score?",
        low=ordered[0],
        high=ordered[-1],
        column=labels.column,
    )
    if labels.config.task == SINGLE_LABEL:
        undo = Remedy("task", "", _("Undo"))
        yield Finding("score", "notes", title, _("You chose classes."), remedies=[undo], done=True)
        return
    action = _(
        "They are read as classes, for which a 4 is as wrong as a 1 where 5 is right. As a score, "
        "a nearer answer is better."
    )
    remedies = [
        Remedy("task", REGRESSION, _("A score")),
        Remedy("task", SINGLE_LABEL, _("Classes")),
    ]
    yield Finding("score", "warns", title, action, remedies=remedies)


def notation(labels: LabelledRows) -> Iterator[Finding]:
    """Say that units differ, and how numbers are read that can be read in two ways, unless a point
    precedes decimals."""
    reading, decimal = labels.reading, labels.config.decimal_mark
    units = [labels.spellings[unit] for unit in sorted(reading.units) if unit >= 0]
    if len(units) > 1:
        shown = some([unit or "-" for unit in units])
        title = _("The numbers have different units: {units}", units=shown)
        action = _("Units are ignored, so the numbers are compared as they are.")
        yield Finding("units", "warns", title, action)
    done = decimal != "auto"
    if not reading.both or not reading.decimal:
        return
    by_point, by_comma = reading.both
    if done or reading.decimal == COMMA or abs(by_point) > abs(by_comma):
        chosen = _decimal(reading.both, reading.decimal)
        other = _decimal(reading.both, POINT if reading.decimal == COMMA else COMMA)
        action = _("You chose it.") if done else _("The other numbers of the column say so.")
        remedies = [Remedy("decimal_mark", "auto", _("Undo")) if done else other]
        yield Finding("decimals", "notes", chosen.text, action, remedies=remedies, done=done)


def _offered_cut(labels: LabelledRows) -> Finding:
    """Offer two classes: scores from the middle of their range on, and those below."""
    train = labels.of("train")
    low, high = float(train.min()), float(train.max())
    cut = spell((low + high) / 2)
    above = int((train >= np.float32(cut)).sum())
    title = _(
        "Scores from {low} to {high} are learned as they are.", low=spell(low), high=spell(high)
    )
    action = _("To learn two classes instead, set score_cut to the number from which on it is one.")
    text = _("From {cut} on ({above:,} of {rows:,} rows)", cut=cut, above=above, rows=len(train))
    return Finding("cut", "notes", title, action, remedies=[Remedy("score_cut", cut, text)])


def _beyond(labels: LabelledRows, split: str, low: float, high: float) -> tuple[str, Integers]:
    """The rows of a split with scores beyond these, by their place in the source's split."""
    values, (source_split, rows) = labels.of(split), labels.rows[split]
    return source_split, rows[(values < low) | (values > high)]


def _outliers(labels: LabelledRows) -> Finding:
    lower, upper = np.quantile(labels.of("train").astype(np.float64), [0.25, 0.75])
    reach = FAR * (upper - lower) or np.inf  # half of them are equal: nothing is far
    low, high = float(lower - reach), float(upper + reach)
    title = _(
        "Scores far from all others: half of them are from {lower} to {upper}",
        lower=spell(lower),
        upper=spell(upper),
    )
    action = _(
        "They are kept, and a single one can outweigh hundreds in the loss. Mend them in the file "
        "if they are typing errors."
    )
    rows = [_beyond(labels, split, low, high) for split in labels.rows]
    return Finding("outliers", "warns", title, action, rows)


def _differing_splits(labels: LabelledRows) -> Iterator[Finding]:
    from scipy.stats import ks_2samp

    train = labels.of("train")
    low, high = float(train.min()), float(train.max())
    for split in labels.rows:
        if split == "train" or not len(labels.of(split)):
            continue
        title = _(
            "Scores of {split} beyond those of train, which go from {low} to {high}",
            split=split,
            low=spell(low),
            high=spell(high),
        )
        action = _("They are kept; a model seldom answers beyond what it has seen.")
        yield Finding("range", "warns", title, action, [_beyond(labels, split, low, high)])
        test = ks_2samp(train, labels.of(split))
        if test.statistic > _DIFFERS and test.pvalue < _CHANCE:
            middles = [spell(np.median(labels.of(name))) for name in ("train", split)]
            title = _(
                "Scores of {split} are distributed otherwise than those of train: half of them are "
                "below {own}, in train below {other}",
                split=split,
                own=middles[1],
                other=middles[0],
            )
            action = _("What is measured on it says little of rows like those of train.")
            yield Finding("distribution", "warns", title, action, count=len(labels.of(split)))
