"""The release check: may a new model replace an old one? Both have answered the same rows.

Arrays in, a `Judgement` out, which is shown as plain text, or as Markdown for a pull request's
comment. `finetune.evaluation.release` gathers the answers.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import jinja2
import numpy as np
from numpy.typing import NDArray

from finetune import text_hashes
from finetune.errors import DataError
from finetune.evaluation import slices
from finetune.evaluation.slices import SliceChange
from finetune.findings import shorten
from finetune.messages import Text
from finetune.messages import message as _
from finetune.metrics import catalog, intervals, shared_rows
from finetune.metrics.catalog import Metric
from finetune.metrics.intervals import Interval
from finetune.tasks import comparison
from finetune.tasks.base import Target, Targets
from finetune.tasks.registry import task_of
from finetune.text_hashes import without_direction

Verdict = Literal["passed", "failed", "not judged"]
FEWEST = 30  # rows; with fewer nothing passes, whatever the interval
_LISTED = 1000  # changed answers kept in a judgement, lost and gained each
_MOST_CHARACTERS = 60_000  # of Markdown; GitHub takes 65,536 in a comment
_SHOWN = (50, 25, 12, 6, 3, 1, 0)  # changed answers of each kind: as many as there is room for
_CHARACTERS = 200  # of a text
_TITLES = {"passed": "passed", "failed": "failed", "not judged": "could not be judged"}
_WORTH_NAMING = 10_000_000  # rows; more are never collected


@dataclass(frozen=True)
class Limits:
    """The most that a new model may lose, and the least that it must gain."""

    max_lost: int = 0  # right answers that may become wrong; not used of scores: only near
    min_gain: float = -0.01  # of the deciding metric, more being better; below 0 it may lose

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
    numbers: NDArray[np.int64]  # lines of a golden file, or places from 1; of shape (rows,)
    sentences: list[list[str]] | None  # a list for each sentence; None if the texts were not kept


@dataclass(frozen=True)
class ChangedAnswer:
    """A row that only one of the models answered rightly, or whose error changed much."""

    row: int  # of `Rows.numbers`
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
    deciding = catalog.find(empty.metric)
    shared = text_hashes.shared_rows(*rows.sentences) if rows.sentences else None
    compared = comparison.compare(new, old, truth, target, [deciding], shared, bias)
    after, before = compared.misses
    gain = compared.difference[deciding.name]
    gain = gain if deciding.greater_is_better else -gain
    scores = [task.scores(answers, truth, target, metrics) for answers in (new, old)]
    found: list[SliceChange] = []
    if rows.sentences is not None:
        traits, names = slices.pair_traits(*rows.sentences), target.names
        found = slices.compare_slices(traits, truth, before, after, names, task.has_right, shared)
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
        lost_at_most=intervals.highest_share(before < after, shared),
        lost_rows=_most_changed(rows, new, old, after - before),
        gained_rows=_most_changed(rows, new, old, before - after),
        slices=found,
    )
    if empty.reasons:
        return judged
    best = task.scores(truth, truth, target, [deciding])[deciding.name]

    def lowest(times: float) -> float:
        """The lower end of the gain if there were so many times as many rows like these."""
        more = intervals.difference_intervals(
            new, old, truth, [deciding], target.meant, shared, times
        )
        plain = more[deciding.name] if deciding.greater_is_better else -more[deciding.name]
        return gain.value - (plain.value - plain.low)

    tells = best > 0 or not deciding.greater_is_better
    verdict, reasons = _decide(judged, gain, deciding.title, tells, lowest)
    return replace(judged, verdict=verdict, reasons=reasons)


def _most_changed(
    rows: Rows, new: Targets, old: Targets, worse: NDArray[Any]
) -> list[ChangedAnswer]:
    """Return the rows with the largest values above 0, and the answers of both models."""
    found = np.flatnonzero(worse > 0)
    found = found[np.argsort(-worse[found], kind="stable")][:_LISTED]
    task, target = task_of(rows.target), rows.target
    spelled = (task.spell(values[found], target) for values in (rows.truth, old, new))
    nothing = [""] * len(rows.truth)
    first, second = [*(rows.sentences or []), nothing, nothing][:2]
    return [
        ChangedAnswer(int(rows.numbers[row]), first[row], second[row], *texts)
        for row, *texts in zip(found.tolist(), *spelled, strict=True)
    ]


def _decide(
    judged: Judgement, gain: Interval, title: str, tells: bool, lowest: Callable[[float], float]
) -> tuple[Verdict, list[str]]:
    """Return the verdict, and its reasons; see `judge`. `tells` is False if the deciding metric is
    the same for all answers to these rows; `lowest` gets a number of times as many rows, and
    returns the lower end of the gain."""
    limits, rows = judged.limits, judged.examples
    low, high = (  # as they are shown, an end below the least gain remains below it
        math.floor(1000 * end) / 1000 if end < limits.min_gain else end
        for end in (gain.low, gain.high)
    )
    gained = _(
        "The gain in {metric} is {gain:+.3f} (95% {low:+.3f} to {high:+.3f}); it must be at least "
        "{least:+.3f}.",
        metric=title, gain=gain.value, low=low, high=high, least=limits.min_gain,
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
            metric=title,
        )
        return "not judged", [same]
    if gain.low >= limits.min_gain and rows >= FEWEST:
        return "passed", [gained]
    reasons = [_("{n:,} rows are too few to tell.", n=rows), gained]
    # How many rows would tell if answers change as often as among these?
    times = max(1.0, FEWEST / rows)
    while lowest(times) < limits.min_gain:
        times *= 1.1
        if gain.value <= limits.min_gain or rows * times > _WORTH_NAMING:
            return "not judged", reasons
    needed = math.ceil(round(rows * times, 6))
    unit = int(10 ** (math.floor(math.log10(needed)) - 1))
    needed = math.ceil(needed / unit) * unit
    return "not judged", [*reasons, _("About {n:,} rows like these would tell.", n=needed)]


def as_text(judged: Judgement) -> str:
    """Return the judgement in plain lines, with the first few lost answers."""
    lines = [f"Release check {_TITLES[judged.verdict]}: {judged.new} in place of {judged.old}"]
    lines += [*judged.reasons, *judged.remarks]
    if judged.gain is not None:
        unit = "line" if judged.golden else "row"
        lines.append(_counts(judged))
        lines += [
            f"{kind}, {unit} {row.row}: {' | '.join(filter(None, (row.sentence1, row.sentence2)))}"
            f" (label {row.label}, {judged.old}: {row.old}, {judged.new}: {row.new})"
            for kind, rows, _total in _changed(judged)
            for row in rows[:10]
        ]
    return "\n".join(without_direction(" ".join(line.split())) for line in lines)


def as_json(judged: Judgement) -> str:
    """Return the judgement, with the command's exit status."""
    values = asdict(judged) | {"status": judged.status}
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def as_markdown(judged: Judgement) -> str:
    """Return the judgement as GitHub's Markdown, at most 60,000 characters. Texts are escaped: they
    make no links, mentions or markup."""
    changed = [part for part in judged.slices if part.lost or part.gained]
    changed.sort(key=lambda part: (not part.worse, part.gained - part.lost))
    values = {
        "judged": judged, "title": _TITLES[judged.verdict], "counts": _counts(judged),
        "slices": changed, "changed": _changed(judged),
    }  # fmt: skip
    texts = (_template().render(values, shown=shown) for shown in _SHOWN)
    return next(text for text in texts if len(text) <= _MOST_CHARACTERS)


@cache
def _template() -> jinja2.Template:
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=folder, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.globals["find"] = catalog.find
    environment.filters |= {"plain": _escaped, "number": "{:,}".format}
    return environment.get_template("gate.md.jinja")


def _changed(judged: Judgement) -> list[tuple[str, Sequence[ChangedAnswer], int]]:
    """Return the rows whose answers got worse, and better: their name, the first, and how many."""
    names = ("Lost", "Gained") if judged.has_right else ("Worse", "Nearer")
    rows, counts = (judged.lost_rows, judged.gained_rows), (judged.lost, judged.gained)
    return [*zip(names, rows, counts, strict=True)]


def _counts(judged: Judgement) -> str:
    p = "p < 0.001" if judged.p < 0.001 else f"p = {judged.p:.2g}"
    if not judged.has_right:
        worse, nearer = judged.lost, judged.gained
        return f"Answers further off: {worse:,}, nearer: {nearer:,} (sign test, {p})."
    return (
        f"Right answers lost: {judged.lost:,}, gained: {judged.gained:,} (exact McNemar test, {p})."
        f" Of new rows like these at most {judged.lost_at_most:.1%} may be lost (with 97.5%)."
    )


def _escaped(text: str) -> str:
    """Escape a text for a line or a cell. A character by its number is no markup; a joiner keeps
    GitHub from making links of addresses and names, and pictures of words."""
    plain = " ".join(without_direction(shorten(text, _CHARACTERS)).split())
    linked = r"[@#](?=\w)|:(?=//|[\w+-]+:)|\bwww(?=\.)|\bGH(?=-\d)"
    marked = re.sub(linked, "\\g<0>\u2060", plain)
    return re.sub(r"[&<>@#\[\]`*_|~$\\]", lambda found: f"&#{ord(found[0])};", marked)
