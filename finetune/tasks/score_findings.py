"""Findings about the scores of a label column: constant, doubtful, or far from all others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from finetune.config import RunConfig
from finetune.errors import some
from finetune.findings import Finding, Remedy, RowsFinding, how_to_answer
from finetune.messages import message as _
from finetune.tasks import cells, class_findings, scores
from finetune.tasks.base import REGRESSION, SINGLE_LABEL, Findings, LabelledRows
from finetune.tasks.cells import COMMA, POINT
from finetune.tasks.scores import Scores
from finetune.text_hashes import Integers

FAR = 3.0  # quartile ranges beyond the quartiles, Tukey's "far out" (1977)
_DIFFERS = 0.2  # Kolmogorov's distance of two splits' scores, if it is no chance either
_CHANCE = 0.001


def blocks(labels: LabelledRows) -> Findings:
    """The finding that makes training impossible, if there is one."""
    if none := no_numbers(labels) or class_findings.no_rows(labels, "train"):
        return none
    train = labels.of("train")
    if train.min() == train.max():
        text = _(
            "All {count:,} training rows have one score, {score}.",
            count=len(train), score=scores.spell(train[0]),
        )  # fmt: skip
        return class_findings.impossible(text, "constant")
    return class_findings.no_rows(labels, "validation")


def no_numbers(labels: LabelledRows) -> Findings:
    """The same if the column has texts alone."""
    column = labels.column
    if not column.spellings or any(
        np.isfinite(codes[:, 0]).any() for codes in column.codes.values()
    ):
        return []
    text = _(
        "No cell of the column {column!r} is a number: {cells}. Clear task and score_cut to learn "
        "classes.",
        column=column.name, cells=some(column.spellings, 3),
    )  # fmt: skip
    return class_findings.impossible(text)


def questions(config: RunConfig, labels: LabelledRows, reading: Scores) -> Findings:
    """What a person must say before these rows can be trained on."""
    asked: Findings = []
    column = labels.column
    if reading.both and not reading.decimal:
        title = _(
            "Is {number} of the column {column!r} {whole} or {fraction}?",
            number=cells.spell_both(*reading.both),
            column=column.name,
            whole=scores.spell(max(reading.both, key=abs)),
            fraction=scores.spell(min(reading.both, key=abs)),
        )
        ways = [_decimal(reading.both, mark) for mark in (POINT, COMMA)]
        asked.append(Finding("decimals", "blocks", title, 0, how_to_answer(ways), remedies=ways))
    if reading.unclear:
        rows = class_findings.rows_where(labels, lambda codes: codes[:, 0] == -1)
        text = _("It is a score")
        asked.append(class_findings.no_label(config, column.name, rows, cells.NO_LABEL, text))
    return asked


def _decimal(both: tuple[float, float], mark: str) -> Remedy:
    """Make the button that reads a number of two readings in one way."""
    text = _("{number} is {value}", number=cells.spell_both(*both),
             value=scores.spell(both[mark == COMMA]))  # fmt: skip
    return Remedy("decimal_mark", mark, text)


def findings(config: RunConfig, labels: LabelledRows) -> Iterator[Finding | RowsFinding]:
    """Report cells that are no numbers, scores far from the others, and splits that differ."""
    if config.task == REGRESSION:
        title = _("The column {column!r} is read as a score.", column=labels.column.name)
        yield class_findings.answered("score", title, Remedy("task", "", _("Undo")))
    title = _("Cells of the column {column!r} that are no numbers", column=labels.column.name)
    rows = class_findings.rows_where(labels, lambda codes: np.isinf(codes[:, 0]))
    yield RowsFinding("no-number", "warns", title, _("They are left out."), rows)
    if blocks(labels):
        return
    yield from notation(config, labels, labels.reading)
    yield _cut(labels)
    yield _outliers(labels)
    yield from _differing_splits(labels)
    if config.class_weights != "none" or config.label_smoothing_factor:
        title = _("class_weights and label_smoothing_factor change nothing: there are no classes.")
        yield Finding("no-classes", "notes", title, 0, _("No action is needed."))


def classes_or_score(config: RunConfig, labels: LabelledRows) -> Iterator[Finding]:
    """Ask whether whole numbers that are read as classes are scores."""
    names = labels.reading.names
    if labels.column.named or not scores.may_be_scores(names, labels.column.name):
        return
    title = _(
        "Are the numbers {low} to {high} of the column {column!r} classes or a score?",
        low=min(names, key=_as_number),
        high=max(names, key=_as_number),
        column=labels.column.name,
    )
    if config.task == SINGLE_LABEL:
        undo = Remedy("task", "", _("Undo"))
        action = _("You chose classes.")
        yield Finding("score", "notes", title, 0, action, remedies=[undo], done=True)
        return
    action = _(
        "They are read as classes, for which a 4 is as wrong as a 1 where 5 is right. As a score, "
        "a nearer answer is better."
    )
    remedies = [
        Remedy("task", REGRESSION, _("A score")),
        Remedy("task", SINGLE_LABEL, _("Classes")),
    ]
    yield Finding("score", "warns", title, 0, action, remedies=remedies)


def _as_number(name: str) -> float:
    return cells.to_number(name) or 0.0


def notation(config: RunConfig, labels: LabelledRows, reading: Scores) -> Iterator[Finding]:
    """Say that units differ, and how numbers are read that can be read in two ways, unless a point
    precedes decimals."""
    units = [labels.column.spellings[unit] for unit in sorted(reading.units) if unit >= 0]
    if len(units) > 1:
        shown = some([unit or "-" for unit in units])
        title = _("The numbers have different units: {units}", units=shown)
        action = _("Units are ignored, so the numbers are compared as they are.")
        yield Finding("units", "warns", title, 0, action)
    done = config.decimal_mark != "auto"
    if not reading.both or not reading.decimal:
        return
    by_point, by_comma = reading.both
    if done or reading.decimal == COMMA or abs(by_point) > abs(by_comma):
        chosen = _decimal(reading.both, reading.decimal)
        other = _decimal(reading.both, POINT if reading.decimal == COMMA else COMMA)
        action = _("You chose it.") if done else _("The other numbers of the column say so.")
        remedies = [Remedy("decimal_mark", "auto", _("Undo")) if done else other]
        yield Finding("decimals", "notes", chosen.text, 0, action, remedies=remedies, done=done)


def _cut(labels: LabelledRows) -> Finding:
    """Offer two classes: scores from the middle of their range on, and those below."""
    train = labels.of("train")
    low, high = float(train.min()), float(train.max())
    cut = scores.spell((low + high) / 2)
    above = int((train >= np.float32(cut)).sum())
    title = _(
        "Scores from {low} to {high} are learned as they are.",
        low=scores.spell(low),
        high=scores.spell(high),
    )
    action = _("To learn two classes instead, set score_cut to the number from which on it is one.")
    text = _("From {cut} on ({above:,} of {rows:,} rows)", cut=cut, above=above, rows=len(train))
    remedies = [Remedy("score_cut", cut, text)]
    return Finding("cut", "notes", title, 0, action, remedies=remedies)


def _rows_where(labels: LabelledRows, low: float, high: float, split: str) -> Integers:
    """The rows of a split, by their place in the source's split, with scores beyond these."""
    values = labels.of(split)
    rows = labels.rows[split][1]
    return rows[(values < low) | (values > high)]


def _outliers(labels: LabelledRows) -> RowsFinding:
    lower, upper = np.quantile(labels.of("train").astype(np.float64), [0.25, 0.75])
    reach = FAR * (upper - lower) or np.inf  # half of them are equal: nothing is far
    low, high = float(lower - reach), float(upper + reach)
    title = _(
        "Scores far from all others: half of them are from {lower} to {upper}",
        lower=scores.spell(lower),
        upper=scores.spell(upper),
    )
    action = _(
        "They are kept, and a single one can outweigh hundreds in the loss. Mend them in the file "
        "if they are typing errors."
    )
    rows = [(labels.rows[split][0], _rows_where(labels, low, high, split)) for split in labels.rows]
    return RowsFinding("outliers", "warns", title, action, rows)


def _differing_splits(labels: LabelledRows) -> Iterator[Finding | RowsFinding]:
    from scipy.stats import ks_2samp

    train = labels.of("train")
    low, high = float(train.min()), float(train.max())
    for split in labels.rows:
        if split == "train" or not len(labels.of(split)):
            continue
        title = _(
            "Scores of {split} beyond those of train, which go from {low} to {high}",
            split=split,
            low=scores.spell(low),
            high=scores.spell(high),
        )
        action = _("They are kept; a model seldom answers beyond what it has seen.")
        rows = [(labels.rows[split][0], _rows_where(labels, low, high, split))]
        yield RowsFinding("range", "warns", title, action, rows)
        test = ks_2samp(train, labels.of(split))
        if test.statistic > _DIFFERS and test.pvalue < _CHANCE:
            middles = [scores.spell(np.median(labels.of(name))) for name in ("train", split)]
            title = _(
                "Scores of {split} are distributed otherwise than those of train: half of them are "
                "below {own}, in train below {other}",
                split=split,
                own=middles[1],
                other=middles[0],
            )
            action = _("What is measured on it says little of rows like those of train.")
            yield Finding("distribution", "warns", title, len(labels.of(split)), action)
