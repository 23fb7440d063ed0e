"""The release check: may a new model replace an old one? Both have answered the same rows.

Arrays in, a `Judgement` out. `finetune.evaluation.release` gathers the answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from finetune import text_hashes
from finetune.errors import DataError
from finetune.evaluation import slices
from finetune.evaluation.slices import SliceChange
from finetune.messages import Text
from finetune.messages import message as _
from finetune.metrics import intervals, shared_rows
from finetune.metrics.catalog import Metric
from finetune.metrics.intervals import Interval
from finetune.tasks import comparison
from finetune.tasks.base import Target, Targets
from finetune.tasks.registry import task_of

Verdict = Literal["passed", "failed", "not judged"]
# Rows below which a bootstrap interval of a difference is too short to be relied on.
FEWEST = 30
_LISTED = 1000  # changed answers kept in a judgement, lost and gained each
_WORTH_NAMING = 10_000_000  # rows; more are never collected


@dataclass(frozen=True)
class Limits:
    """The most that a new model may lose, and the least that it must gain.

    Attributes:
        max_lost: right answers that may become wrong; not used of scores, which are only near.
        min_gain: of the deciding metric, in its unit, more being better; below 0 it may lose.
    """

    max_lost: int = 0
    min_gain: float = -0.01

    def __post_init__(self) -> None:
        whole = isinstance(self.max_lost, int) and not isinstance(self.max_lost, bool)
        if not whole or self.max_lost < 0:
            raise DataError(
                "max_lost is {value}.", "Give a whole number from 0 on.", value=self.max_lost
            )
        if not isinstance(self.min_gain, int | float) or not math.isfinite(self.min_gain):
            raise DataError("min_gain is {value}.", "Give a number.", value=self.min_gain)


@dataclass(frozen=True, eq=False)
class Rows:
    """Labelled rows that both models answered."""

    target: Target
    truth: Targets  # of shape (rows, ...)
    numbers: NDArray[np.int64]  # of the rows as a person counts them, from 1, of shape (rows,)
    sentences: list[list[str]] | None  # a list for each sentence; None if the texts were not kept


@dataclass(frozen=True)
class ChangedAnswer:
    """A row that only one of the models answered rightly, or whose error changed much."""

    row: int  # from 1
    sentence1: str  # "" if the texts were not kept
    sentence2: str
    label: str
    old: str  # answers as a person reads them
    new: str


@dataclass(frozen=True)
class Judgement:
    """The result of a release check."""

    verdict: Verdict
    reasons: list[Text]  # why, in sentences
    new: str  # names of the models
    old: str
    source: Text  # what the rows are
    limits: Limits
    metric: str  # the deciding one
    remarks: list[Text]  # what a reader should know besides
    examples: int = 0  # rows
    golden: str = ""  # sha256 of the golden file's contents; "" without one
    seen: bool = False  # True if one of the models was trained on some of the golden rows
    # Metric -> of the new model, and of the old one.
    scores: Mapping[str, tuple[float, float]] | None = None
    gain: Interval | None = None  # of the deciding metric; more is better
    has_right: bool = True  # False if answers are only near
    # Rows that only the old, and only the new model answered rightly, or more nearly.
    lost: int = 0
    gained: int = 0
    p: float = 1.0  # exact McNemar test; of answers that are only near, the sign test
    lost_at_most: float = 1.0  # share of new rows like these that may be lost, with 97.5%
    # The first 1,000 of them; of answers that are only near, those that changed most.
    lost_rows: Sequence[ChangedAnswer] = ()
    gained_rows: Sequence[ChangedAnswer] = ()
    slices: Sequence[SliceChange] = ()

    @property
    def status(self) -> int:
        """Exit status: 0 passed, 1 failed, 2 could not be judged."""
        return {"passed": 0, "failed": 1}.get(self.verdict, 2)


def not_judged(
    names: tuple[str, str], source: str, limits: Limits, metric: str, reasons: Sequence[str]
) -> Judgement:
    """Return the judgement on models that cannot be compared. `names`: of the new and the old."""
    return Judgement("not judged", [*reasons], *names, source, limits, metric, [])


def judge(
    empty: Judgement, rows: Rows, new: Targets, old: Targets, metrics: Sequence[Metric],
    bias: Mapping[str, float] | None = None,
) -> Judgement:  # fmt: skip
    """Judge a new model by both models' answers to the same rows.

    It fails if more than `max_lost` answers were lost, or if the whole 95% interval of the gain is
    below `min_gain`. It passes if the whole interval is at `min_gain` or above, which is the test
    of non-inferiority with at most 2.5% of error (Blackwelder 1982, Controlled Clinical Trials
    3(4), 345-353): the interval has exact bounds of how many answers may have changed among rows
    that were not seen. If `min_gain` lies within the interval, or there are fewer than 30 rows,
    these are too few to tell.

    Args:
        empty: names, limits and metric; its reasons keep the models from being judged.
        new, old: answers as indices of `rows.target`, of shape (rows, ...).
        metrics: of the task; the deciding one is among them.
        bias: metric -> what being picked has added to the new model more than to the old one.
    """
    target, truth, task = rows.target, rows.truth, task_of(rows.target)
    deciding = next(metric for metric in metrics if metric.name == empty.metric)
    shared = text_hashes.shared_rows(*rows.sentences) if rows.sentences else None
    compared = comparison.compare(new, old, truth, target, [deciding], shared, bias)
    after, before = compared.misses
    lost, gained, changed = before < after, after < before, after - before
    gain = _more_is_better(compared.difference[deciding.name], deciding)
    scores = [task.scores(answers, truth, target, metrics) for answers in (new, old)]
    listed = []
    for members, order in ((lost, -changed), (gained, changed)):
        found = np.flatnonzero(members)
        found = found[np.argsort(order[found], kind="stable")][:_LISTED]
        listed.append(changed_answers(rows, new, old, found))
    found_slices: list[SliceChange] = []
    if rows.sentences is not None:
        traits = slices.pair_traits(*rows.sentences)
        found_slices = slices.compare_slices(
            traits, truth, before, after, target.names, task.has_right, shared
        )
    counted = shared_rows.note(len(truth), compared.worth)
    judged = replace(
        empty,
        remarks=[*empty.remarks, *filter(None, [counted])],
        examples=len(truth),
        scores={name: (value, scores[1][name]) for name, value in scores[0].items()},
        gain=gain,
        has_right=task.has_right,
        lost=compared.second_only,
        gained=compared.first_only,
        p=compared.p,
        lost_at_most=intervals.highest_share(lost, shared),
        lost_rows=listed[0],
        gained_rows=listed[1],
        slices=found_slices,
    )
    best = task.scores(truth, truth, target, [deciding])[deciding.name]
    tells = best > 0 or not deciding.greater_is_better

    def lowest(times: float) -> float:
        """The lower end of the gain if there were so many times as many rows like these."""
        more = task.difference(new, old, truth, target, [deciding], shared, times)
        plain = _more_is_better(more[deciding.name], deciding)
        return gain.value - (plain.value - plain.low)

    verdict, reasons = decide(judged, deciding, tells, lowest)
    if empty.reasons:
        verdict, reasons = "not judged", empty.reasons
    return replace(judged, verdict=verdict, reasons=reasons)


def _more_is_better(gain: Interval, metric: Metric) -> Interval:
    if metric.greater_is_better:
        return gain
    return replace(gain, value=-gain.value, low=-gain.high, high=-gain.low)


def decide(
    judged: Judgement, deciding: Metric, tells: bool, lowest: Callable[[float], float]
) -> tuple[Verdict, list[str]]:
    """Return the verdict on two models whose answers were compared, and its reasons; see
    `judge`.

    Args:
        tells: False if the deciding metric is the same for all answers to these rows.
        lowest: of a number of times as many rows -> the lower end of the gain.
    """
    gain, limits = judged.gain, judged.limits
    assert gain is not None, "it was just computed"
    gained = _(
        "The gain in {metric} is {gain:+.3f} (95% {low:+.3f} to {high:+.3f}); it must be at least "
        "{least:+.3f}.",
        metric=deciding.title, gain=gain.value, low=gain.low, high=gain.high, least=limits.min_gain,
    )  # fmt: skip
    failures = []
    if judged.has_right and judged.lost > limits.max_lost:
        failures.append(
            _(
                "Right answers lost: {lost:,}; at most {most:,} may be.",
                lost=judged.lost, most=limits.max_lost,
            )
        )  # fmt: skip
    if gain.high < limits.min_gain:
        failures.append(gained)
    if failures:
        return "failed", failures
    if not tells:
        same = _(
            "{metric} tells nothing about these rows, whose labels are all alike: even answers "
            "without an error have {metric} 0. Add rows with other labels.",
            metric=deciding.title,
        )
        return "not judged", [same]
    if gain.low >= limits.min_gain and judged.examples >= FEWEST:
        return "passed", [gained]
    reasons = [_("{n:,} rows are too few to tell.", n=judged.examples), gained]
    if needed := rows_needed(judged.examples, gain, limits.min_gain, lowest):
        reasons.append(_("About {n:,} rows like these would tell.", n=needed))
    return "not judged", reasons


def rows_needed(
    rows: int, gain: Interval, least: float, lowest: Callable[[float], float]
) -> int | None:
    """Return how many rows would suffice for the lower end of the gain to reach `least` if answers
    change as often as among these, rounded up to two digits; None if no number would.

    Args:
        lowest: as `decide` takes it. The distance to the gain shrinks at least as fast as with the
            square root of the rows.
    """
    away, times = gain.value - least, 1.0
    if gain.low < least:
        if away <= 0:
            return None
        few, times = 1.0, min(1.1 * ((gain.value - gain.low) / away) ** 2, _WORTH_NAMING / rows)
        if lowest(times) < least:
            return None
        for _step in range(9):
            middle = math.sqrt(few * times)
            few, times = (few, middle) if lowest(middle) >= least else (middle, times)
    needed = max(FEWEST, rows * times)
    unit = int(10 ** max(0, math.floor(math.log10(needed)) - 1))  # two digits count
    return math.ceil(needed / unit) * unit


def changed_answers(
    rows: Rows, new: Targets, old: Targets, indices: NDArray[np.int64]
) -> list[ChangedAnswer]:
    """Return the rows of some indices with the answers of both models."""
    task, target = task_of(rows.target), rows.target
    spelled = (task.spell(values[indices], target) for values in (rows.truth, old, new))
    first, second = [*(rows.sentences or []), None, None][:2]
    return [
        ChangedAnswer(
            int(rows.numbers[row]), first[row] if first else "", second[row] if second else "",
            *texts,
        )
        for row, *texts in zip(indices.tolist(), *spelled, strict=True)
    ]  # fmt: skip
