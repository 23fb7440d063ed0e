"""Judges from counts of rows if a model still holds on a file without labels."""

import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Literal, Self

import numpy as np
from pydantic.dataclasses import dataclass

from finetune.errors import DataError
from finetune.messages import message as _
from finetune.metrics import label_free
from finetune.metrics.intervals import Interval, wilson_interval

FEWEST_LABELS = 30  # labelled rows that suffice for an interval
Verdict = Literal["as before", "changed", "train anew"]
WHAT = {
    "answers": _("the answers"),
    "confidence": _("the confidence"),
    "lengths": _("the lengths"),
    "unknown": _("the pieces that the model does not know"),
    "words": _("the words"),
}


@dataclass(frozen=True)
class Aggregates:
    """All that is kept of a sample: counts of rows."""

    model: str  # the run's id, and the steps that its model had taken
    rows: int
    answers: dict[str, int]  # answer, or the bin of a score -> rows
    confidence: list[int]  # by `label_free.confidence_bins`; empty if answers have none
    lengths: list[int]  # by tokens, in steps of 4
    unknown: list[int]  # without, and with a piece that the tokenizer does not know; may be empty
    # How well a classifier of words tells the rows from the reference's (AUC), and the test's p.
    words: tuple[float, float] | None = None
    # Of a key of `WHAT`, or `right` answers -> the part of the rows that they are worth if it is
    # not all, because some share a sentence.
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """The same of the validation pairs, and how they were answered."""

    counts: Aggregates
    right: list[list[int]]  # rows answered wrong and right, by confidence; empty if none is right
    confusion: list[list[int]]  # rows by class and answer; empty if answers are no classes
    names: list[str]  # of the classes


@dataclass(frozen=True)
class Change:
    """One thing in which a file may differ from the reference."""

    of: str  # a key of `WHAT`
    distance: float  # largest difference of shares; of words the AUC
    p: float
    changed: bool  # with all of them together, seldom by chance


@dataclass(frozen=True)
class Estimate:
    """A share with its 95% interval, and that of the reference."""

    value: float
    low: float
    high: float
    before: float

    @classmethod
    def beside(cls, before: float, found: Interval) -> Self:
        """Set an interval beside the reference's value."""
        return cls(found.value, found.low, found.high, float(before))


@dataclass(frozen=True)
class Monitoring:
    """The findings on a file: does the model still hold on it?"""

    verdict: Verdict
    rows: int  # that were looked at
    reference: int  # validation pairs that they were compared with
    changes: list[Change]
    accuracy: Estimate | None = None  # estimated without labels; None if no answer is right
    shares: dict[str, Estimate] | None = None  # of the classes, also estimated; None if they cannot
    labelled: int = 0  # rows labelled by a person, from which the following are measured
    measured: Estimate | None = None  # accuracy
    measured_shares: dict[str, Estimate] | None = None


def sentence(judged: Monitoring) -> str:
    """Say in a sentence whether the model still holds."""
    differs: list[str] = [WHAT[one.of] for one in judged.changes if one.changed]
    what = ""
    for one in differs:
        what = _("{first}, {second}", first=what, second=one) if what else one
    if judged.verdict == "train anew":
        if judged.labelled:
            return _(
                "Train anew: by the labels, fewer answers are right than of the validation rows."
            )
        return _(
            "Train anew: the file differs from the validation rows in {what}, and fewer answers "
            "are estimated to be right.", what=what,
        )  # fmt: skip
    if differs and judged.labelled:
        return _(
            "Changed: the file differs from the validation rows in {what}. Its labels do not show "
            "that the model is worse.", what=what,
        )  # fmt: skip
    if differs:
        return _(
            "Changed: the file differs from the validation rows in {what}. Labels of some rows "
            "would show if the model is worse.", what=what,
        )  # fmt: skip
    return _("As before: nothing that was tested differs from the validation rows.")


def class_estimates(reference: Reference, intervals: list[Interval]) -> dict[str, Estimate]:
    """Set the shares of the classes beside those of the reference."""
    rows = np.array(reference.confusion).sum(axis=1)
    estimates = map(Estimate.beside, rows / rows.sum(), intervals)
    return dict(zip(reference.names, estimates, strict=True))


def judge(reference: Reference, file: Aggregates) -> Monitoring:
    """Judge from counts alone.

    It has `changed` if one of the tests rejects; together they do so for at most 5% of files like
    the reference (Holm). It is to be trained anew if then the estimated accuracy is surely lower.
    Both counts are of one model.
    """
    before = reference.counts
    names = sorted({*before.answers, *file.answers}, key=lambda name: (len(name), name))
    if not reference.names:
        names.sort(key=int)

    def parts(of: str) -> tuple[float, float]:
        return before.parts.get(of, 1.0), file.parts.get(of, 1.0)

    tests = {}
    for of in ("answers", "confidence", "lengths", "unknown"):
        cells, ordered = [getattr(counts, of) for counts in (before, file)], True
        if of == "answers":
            cells = [[rows.get(name, 0) for name in names] for rows in cells]
            ordered = not reference.names
        if all(cells):
            first, second = map(np.array, cells)
            tests[of] = label_free.counts_test(first, second, ordered, parts(of))
    if file.words:
        tests["words"] = label_free.TwoSample(*file.words)
    rejected = label_free.holm([test.p for test in tests.values()])
    changes = [
        Change(of, test.distance, test.p, changed)
        for (of, test), changed in zip(tests.items(), rejected, strict=True)
    ]
    verdict: Verdict = "changed" if any(rejected) else "as before"
    accuracy = shares = None
    if reference.right:
        right = np.array(reference.right)
        worth = before.parts.get("right", 1.0), file.parts.get("confidence", 1.0)
        found, change = label_free.estimated_accuracy(right, np.array(file.confidence), worth)
        accuracy = Estimate.beside(right[1].sum() / right.sum(), found)
        if any(rejected) and change.high < 0:
            verdict = "train anew"
    if reference.confusion:
        confusion = np.array(reference.confusion)
        answers = np.array([file.answers.get(name, 0) for name in reference.names])
        if known := label_free.estimated_shares(confusion, answers, parts("answers")):
            shares = class_estimates(reference, known)
    return Monitoring(verdict, file.rows, before.rows, changes, accuracy, shares)


def with_labels(
    judged: Monitoring, reference: Reference, file: Aggregates, given: Sequence[str],
    answered: Sequence[str], confidence: Sequence[int],
) -> Monitoring:  # fmt: skip
    """Let the accuracy decide that a person's labels of random rows show, `given` as answers are
    spelled, beside the bins of these rows' confidence. DataError if they are fewer than 30, or
    answers are neither right nor wrong."""
    if not reference.right:
        raise DataError("Answers of this model are neither right nor wrong: labels add nothing.")
    if len(given) < FEWEST_LABELS:
        raise DataError(
            "{n} labels are too few for an interval.", "Label at least {least} random rows.",
            n=len(given), least=FEWEST_LABELS,
        )  # fmt: skip
    names = reference.names if reference.confusion else []
    labels, answers = np.array(given), np.array(answered)
    known = np.stack([labels == answers, *(labels == name for name in names)], axis=1)
    scale = -np.expm1(-(np.arange(label_free.CONFIDENCE_BINS) + 0.5) / 8)
    expected = np.stack([scale[[*confidence]], *(answers == name for name in names)], axis=1)
    counts = np.array(file.confidence)
    shares = np.array([file.answers.get(name, 0) for name in names]) / file.rows
    mean = np.average(scale, weights=counts)
    spread = np.average((scale - mean) ** 2, weights=counts)
    accuracy, *found = label_free.share_intervals(
        known, expected, np.array([mean, *shares]), np.array([spread, *shares * (1 - shares)]),
        file.parts.get("confidence", 1.0) * file.rows,
    )  # fmt: skip
    right = reference.counts.parts.get("right", 1.0) * np.array(reference.right)
    before = wilson_interval(float(right[1].sum()), float(right.sum()))
    at_most = math.hypot(before.value - before.low, accuracy.high - accuracy.value)
    verdict: Verdict = "changed" if any(one.changed for one in judged.changes) else "as before"
    if accuracy.value - before.value + at_most < 0:
        verdict = "train anew"
    return replace(
        judged, verdict=verdict, labelled=len(labels),
        measured=Estimate.beside(before.value, accuracy),
        measured_shares=class_estimates(reference, found) if found else None,
    )  # fmt: skip
