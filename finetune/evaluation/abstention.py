"""Answering only when sure: the threshold of confidence above which a run's kept model errs no more
often than a person allows.

It is found on the rows of the run's evaluation; those that share a sentence count as the number of
independent ones that they are worth. A model picked as the best of several evaluations on these
rows errs more often on others; so that its bound holds whichever was picked, it is found for each
of them at once: the probability that it fails is divided by their number (Bonferroni).
"""

import math
import reprlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.errors import DataError, StoreError
from finetune.evaluation import picking, report
from finetune.messages import message
from finetune.metrics.classification import Floats, Probabilities, Truths
from finetune.metrics.shared_rows import rows_worth
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.base import SureRule
from finetune.tasks.registry import task_of

ERROR, CONFIDENCE = 0.02, 0.95  # what is offered first
ERRORS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)  # to choose from
_STEPS = 20  # a step of the tested thresholds is this part of the rows
_FIRST = 4  # steps: the strictest threshold answers a fifth; the first rows alone prove little
_MOST_ROWS = 10_000_000  # more are never asked for


@dataclass(frozen=True)
class AbstentionCurve:
    """The error of the surest answers, for rising shares of the rows."""

    coverage: Floats  # share of the rows that are answered, shape (points,)
    error: Floats  # share of these that are wrong
    upper: Floats  # upper confidence bound of that share, for each point alone


@dataclass(frozen=True)
class Abstention:
    """A threshold below which a model does not answer, and what that costs and gains."""

    error: float
    confidence: float
    rule: SureRule | None  # None if no threshold keeps the bound
    rows: int  # of the evaluation
    worth: float  # independent rows that tell as much as these
    candidates: int  # evaluations that the model was picked among
    needed: int | None  # rows it takes with errors as frequent as here; None if these are many
    possible: float | None  # without a rule, the least of `ERRORS` that has one
    curve: AbstentionCurve

    @property
    def refusal(self) -> DataError:
        """Why no threshold keeps the bound, and what is possible here or with more rows."""
        more = 0
        if self.needed and self.needed > self.rows:
            more = round(self.needed - self.rows, 2 - len(str(self.needed - self.rows)))
        return DataError(
            "These {rows:,} rows do not show, with {sure:g}% confidence, that at most {most:g}% of "
            "its surest answers are wrong.",
            _REMEDIES[self.possible is not None, bool(more)],
            rows=self.rows, most=100 * self.error, sure=100 * self.confidence, more=more,
            possible=100 * (self.possible or 0),
        )  # fmt: skip


_REMEDIES = {  # by whether a higher level is possible, and whether more rows would do
    (True, True): message(
        "At most {possible:g}% wrong is possible here; {most:g}% takes about {more:,} more rows "
        "like these."
    ),
    (True, False): message(
        "At most {possible:g}% wrong is possible here; for {most:g}% its surest answers err too "
        "often, however many rows there are."
    ),
    (False, True): message("About {more:,} more rows like these would do."),
    (False, False): message(
        "Its surest answers err too often, however many rows there are: train a better model."
    ),
}


def bound_of(rule: SureRule | None) -> dict[str, Any]:
    """Return the arguments of `answer_when_sure` that a kept rule was found by; none if it is
    None."""
    if rule is None:
        return {}
    return {
        "error": rule.error, "confidence": rule.confidence, "per_class": bool(rule.classes),
        "split": rule.split,
    }  # fmt: skip


def answer_when_sure(
    run: Run,
    error: float = ERROR,
    confidence: float = CONFIDENCE,
    per_class: bool = False,
    split: str = "validation",
) -> Abstention:
    """Find the lowest threshold of confidence above which a share of at most `error` of a run's
    answers to new pairs is wrong, with probability `confidence`. DataError if a value is out of
    range, or the model answers with scores; StoreError if the predictions were not kept.

    Args:
        per_class: True for a bound on the error of each class's answers.
        split: `validation`, or `test` if it was opened: the model was not picked on it.
    """
    for name, value, low, high in (("error", error, 0, 0.5), ("confidence", confidence, 0.5, 1)):
        if not (isinstance(value, int | float) and low < value < high):
            raise DataError(
                "The {name} {value} is out of range.",
                "Choose one between {low} and {high}.",
                name=name, value=reprlib.repr(value), low=low, high=high,
            )  # fmt: skip
    summary = run.state()
    best = summary.best.step if summary.best else None
    if split == "test" and (not summary.opened or summary.opened[-1].step != best):
        raise StoreError(
            "The test set of run {id} was not opened for this model.",
            "Open it first, or use the validation rows.",
            id=run.id,
        )
    candidates = 0
    if split == "validation":
        study = run.about().study
        trials = RunStore(run.folder.parent).runs() if study else []
        runs = [trial for trial in trials if trial.about().study == study] or [run]
        candidates = sum(len(picking.run_candidates(each)) for each in runs)
    evaluation = report.evaluate_run(run, summary, split)
    return measure(evaluation, error, confidence, per_class, split, max(1, candidates))


def measure(
    evaluation: report.RunEvaluation,
    error: float,
    confidence: float,
    per_class: bool = False,
    split: str = "validation",
    candidates: int = 1,
) -> Abstention:
    """Find the threshold on the rows of an evaluation, as above."""
    target = evaluation.analysis.target
    task = task_of(target)
    if not task.has_right:
        raise DataError(
            "A score is never left out: the interval around it is as wide for every row.",
            "Read the score with its interval.",
        )
    if per_class and not task.choices(target):
        raise DataError(
            "A bound of each class is for rows of one class.", "Ask for one of all answers."
        )
    sure, right, shared = evaluation.confidence, evaluation.right, evaluation.shared
    rows, delta, members = len(right), (1 - confidence) / candidates, [np.ones(len(right), bool)]
    if per_class:
        delta /= target.size
        members = [evaluation.answers == index for index in range(target.size)]
    groups = []
    for member in members:
        part = rows_worth(right[member], shared and shared.of(member)) / max(1, member.sum())
        groups.append((sure[member], right[member], part))

    def thresholds(level: float) -> list[tuple[float, int] | None]:
        return [sure_threshold(own, hits, level, delta, part) for own, hits, part in groups]

    found = thresholds(error)
    kept = [threshold for threshold in found if threshold is not None]
    rule, needed, possible = None, [], None
    if kept:
        names = zip(target.names, found, strict=False) if per_class else ()
        rule = SureRule(
            error, confidence, 1.0 if per_class else kept[0][0],
            tuple((name, own[0]) for name, own in names if own is not None),
            rows, sum(answered for _above, answered in kept), split,
        )  # fmt: skip
    else:
        for own, hits, part in groups:
            count = rows_needed(own, hits, error, delta, part)
            needed += [round(count * rows / len(own))] if count else []
        levels = (level for level in ERRORS if level > error)
        possible = next((level for level in levels if any(thresholds(level))), None)
    worth = rows_worth(right, shared)
    return Abstention(
        error, confidence, rule, rows, worth, candidates,
        min(needed, default=None), possible, abstention_curve(sure, right, delta, worth / rows),
    )  # fmt: skip


def fewest_rows(error: float, delta: float) -> int:
    """Return how many answers without an error show that at most a share `error` is wrong, with
    confidence `1 - delta`."""
    return math.ceil(math.log(delta) / math.log1p(-error))


def sure_threshold(
    confidence: Probabilities, right: Truths, error: float, delta: float, part: float = 1.0
) -> tuple[float, int] | None:
    """Find the lowest threshold above which at most a share `error` of new answers is wrong, and
    how many rows are above it.

    This is Learn then Test (Angelopoulos et al. 2021, https://arxiv.org/abs/2110.01052) with fixed
    sequence testing: the thresholds are tested from the strictest on until one fails, so that all
    tests together err with a probability of at most `delta`. The thresholds are those that answer a
    fifth of the rows, a fourth and so on, chosen without a look at `right`; those with fewer rows
    than `fewest_rows` above them are left out. The level is exact if a lower threshold never has
    the smaller error; the tests simulate other cases too. None if no tested threshold keeps the
    bound. `part`: of the rows that they are worth.
    """
    above, answered, errors = _tested(confidence, right)
    last = _kept(part * answered, part * errors, error, delta)
    return None if last is None else (float(above[last]), int(answered[last]))


def rows_needed(
    confidence: Probabilities, right: Truths, error: float, delta: float, part: float = 1.0
) -> int | None:
    """Estimate how many rows like these would suffice for a threshold that keeps the bound, if the
    errors stay as frequent as they are; None if no number of rows would."""
    _, answered, errors = _tested(confidence, right)
    times, enough = 1.0, None  # `enough`: from this many times the rows on all would suffice
    while 0 < len(right) * times < _MOST_ROWS:
        kept = _kept(part * answered * times, part * errors * times, error, delta)
        enough = None if kept is None else enough or times
        times *= 1.02
    return math.ceil(len(right) * enough) if enough else None


def abstention_curve(
    confidence: Probabilities, right: Truths, delta: float, part: float = 1.0
) -> AbstentionCurve:
    """Return the error of the surest answers at every share of the rows. `part`: as above."""
    from scipy.special import betaincinv

    ranked = np.argsort(-confidence, kind="stable")
    # Rows of equal confidence are answered together.
    last = np.flatnonzero(np.diff(confidence[ranked], append=-np.inf))
    answered, errors = last + 1, np.cumsum(~right[ranked])[last]
    hits = part * np.maximum(answered - errors, 1.0)
    bound = betaincinv(part * errors + 1.0, hits, 1 - delta)
    upper = np.where(errors == answered, 1.0, bound)
    return AbstentionCurve(answered / max(1, len(right)), errors / answered, upper)


def _tested(confidence: Probabilities, right: Truths) -> tuple[Floats, NDArray[Any], NDArray[Any]]:
    """The tested thresholds from the strictest on, the rows above each, and the errors of these."""
    rows = len(right)
    counts = np.unique(np.arange(_FIRST, _STEPS) * rows // _STEPS)
    ranked = -np.sort(-np.asarray(confidence, np.float64))
    above = np.unique(ranked[counts[counts < rows]])[::-1]
    # Half-way to the next confidence: a row asked again, with another rounding, is decided alike.
    place = np.searchsorted(-ranked, -above)  # of the first that is not above
    above = np.append((above + ranked[np.maximum(place - 1, 0)]) / 2, 0.0)
    answered = np.searchsorted(-ranked, -above)
    wrong = np.sort(-np.asarray(confidence, np.float64)[~right])
    return above, answered, np.searchsorted(wrong, -above)


def _kept(answered: Floats, errors: Floats, error: float, delta: float) -> int | None:
    """The index of the last threshold before a test fails; None if the first one does."""
    from scipy.special import betainc

    tested = np.flatnonzero(answered >= fewest_rows(error, delta))
    hits = np.maximum(answered - errors, 1e-9)[tested]
    failed = betainc(hits, errors[tested] + 1, 1 - error) > delta  # P(so few errors) at the bound
    passed = int(failed.argmax()) if failed.any() else len(tested)
    return int(tested[passed - 1]) if passed else None


def as_values(rule: SureRule) -> dict[str, Any]:
    """Return a kept rule as JSON has it."""
    return asdict(rule) | {"classes": dict(rule.classes), "coverage": rule.coverage}
