"""Any number of labels for each example: transformers' `multi_label_classification`.

The best model is chosen by micro F1: a label of a few rows moves macro F1 by much with each answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.findings import Finding, RowsFinding
from finetune.messages import message
from finetune.metrics import catalog, intervals, selection
from finetune.metrics.calibration import Logits
from finetune.metrics.catalog import Metric
from finetune.metrics.classification import Counts, Floats
from finetune.metrics.intervals import Interval
from finetune.metrics.modules import ScoreModules
from finetune.metrics.selection import CrossFittedThresholds
from finetune.metrics.shared_rows import SharedRows, rows_worth
from finetune.tasks import class_findings, label_lists
from finetune.tasks.base import (
    LEFT_OUT,
    MISSING_LABEL,
    MULTI_LABEL,
    NO_CHANGES,
    Answers,
    DecisionRule,
    Findings,
    LabelColumn,
    LabelledRows,
    PredictOptions,
    Target,
    Targets,
    Task,
)
from finetune.tasks.label_lists import LabelLists, ListEncoder
from finetune.text_hashes import Integers

if TYPE_CHECKING:
    import torch


from finetune.errors import some
from finetune.findings import Remedy, shorten
from finetune.messages import message as _
from finetune.tasks.base import SINGLE_LABEL
from finetune.tasks.cells import MARKS
from finetune.tasks.classes import MAX_CLASSES

_HALF = 0.5  # the probability from which a label is given, if no other is kept with the model
_RARE = 10  # examples; of a label with fewer, no score says much


class MultiLabel(Task):
    """Answers with each label whose probability reaches its threshold."""

    name = problem_type = MULTI_LABEL
    title = message("Any number of labels for each row")
    metrics: tuple[Metric, ...] = catalog.OF_LABELS
    headline = catalog.OF_LABELS[0]
    template = "labels"
    constant = message("always the commonest labels")
    has_right = True
    left_out = message("the label is left out or cannot be read")

    def recognises(self, cells: Sequence[Any]) -> bool:
        return label_lists.are_lists(cells)

    def encoder(self, column: str, names: Sequence[str] = ()) -> ListEncoder:
        return ListEncoder(column, names)

    def cell(self, spellings: Sequence[str], code: Any) -> str:
        return label_lists.shown(spellings[code]) if code >= 0 else ""

    def read(self, column: LabelColumn, config: RunConfig) -> LabelLists:
        codes = np.concatenate(list(column.codes.values()))
        rows = np.bincount(codes[codes >= 0], minlength=len(column.spellings))
        return label_lists.read_lists(column.spellings, rows, config)

    def states(self, targets: Targets) -> Integers:
        states = np.where(np.isinf(targets).any(axis=1), MISSING_LABEL, 0)
        return np.where(np.isnan(targets).any(axis=1), LEFT_OUT, states)

    def strata(self, targets: Targets) -> Integers:
        """One for each label, and one of the rows without any."""
        return np.column_stack([targets > 0, ~(targets > 0).any(axis=1)]).astype(np.int64)

    def count(self, targets: Targets, names: Sequence[str]) -> list[int]:
        return [int(rows) for rows in np.nansum(targets, axis=0)]

    def problems(self, labels: LabelledRows, config: RunConfig) -> Findings:
        return questions(config, labels) or blocks(labels)

    def findings(
        self, labels: LabelledRows, config: RunConfig, train: Targets,
        constant: Mapping[str, float],
    ) -> Iterator[Finding | RowsFinding]:  # fmt: skip
        return findings(config, labels, constant)

    def target(self, labels: LabelledRows, config: RunConfig) -> Target:
        class_findings.refuse(self.problems(labels, config))
        return Target(tuple(labels.reading.names), task=self.name)

    def constant_answer(self, train: Targets, target: Target) -> Any:
        """As many of the commonest labels as are best on the training rows."""
        order, best = np.argsort(-train.sum(axis=0), kind="stable"), (-1.0, 0)
        for most in range(1, target.size + 1):
            given = train[:, order[:most]].sum()
            score = 2 * given / (most * len(train) + train.sum())  # micro F1
            best = max(best, (float(score), most))
        return np.isin(np.arange(target.size), order[: best[1]]).astype(train.dtype)

    def feature(self, target: Target) -> Any:
        from datasets import List, Value

        return List(Value("float32"), length=target.size)

    def word_model(self) -> Any:
        from sklearn.linear_model import LogisticRegression
        from sklearn.multiclass import OneVsRestClassifier

        return OneVsRestClassifier(LogisticRegression(max_iter=200))

    def spell(self, values: Targets, target: Target, between: str = ", ") -> list[str]:
        """A row without labels is an empty text."""
        return [between.join(target.names[at] for at in np.flatnonzero(row)) for row in values]

    def parse(
        self, cells: Sequence[Any], target: Target, changes: Mapping[str, str] = NO_CHANGES
    ) -> tuple[Targets, NDArray[np.bool_]]:
        return label_lists.parse(cells, target.names, changes)

    def counted(self, values: Targets, target: Target) -> Mapping[str, int]:
        counts = (int(rows) for rows in values.sum(axis=0, dtype=np.int64))
        return dict(zip(target.names, counts, strict=True))

    def explained_output(self, answers: Answers) -> int:
        return int(answers.probabilities[0].argmax())

    def check_targets(self, targets: Targets, target: Target) -> None:
        if targets.ndim != 2 or targets.shape[1] != target.size:
            raise ValueError(f"there are not {target.size} labels")
        if not np.isin(targets, (0, 1)).all():
            raise ValueError("a label is neither 0 nor 1")

    def outputs(self, logits: Logits, temperature: float = 1.0) -> NDArray[np.float32]:
        from scipy.special import expit

        return np.asarray(expit(np.asarray(logits, np.float32)))

    def decide(
        self, outputs: NDArray[np.float32], target: Target, rule: DecisionRule,
        options: PredictOptions,
    ) -> Answers:  # fmt: skip
        return Answers(outputs, _given(outputs, _levels(target, rule, options)))

    def margins(
        self, answers: Answers, target: Target, rule: DecisionRule, options: PredictOptions
    ) -> NDArray[np.float32] | None:
        away = np.abs(answers.probabilities - _levels(target, rule, options)).min(axis=1)
        return np.asarray(np.minimum(1, 2 * away), np.float32)

    def plain_answers(self, logits: Logits) -> Targets:
        return _given(self.outputs(logits), _HALF)

    def score_modules(self, target: Target, metrics: Sequence[Metric]) -> ScoreModules:
        names = [metric.name for metric in metrics]
        return ScoreModules(names, target.size, answer=self.plain_answers, shares=self.outputs)

    def changed_loss(
        self, outputs: Any, labels: torch.Tensor, weights: torch.Tensor | None, smoothing: float
    ) -> torch.Tensor:
        from torch.nn.functional import binary_cross_entropy_with_logits

        aims = labels * (1 - smoothing) + smoothing / 2
        return binary_cross_entropy_with_logits(outputs.logits.float(), aims, weights)

    def losses(self, logits: Logits, labels: Targets) -> Floats:
        scores = np.asarray(logits, np.float64)
        return np.asarray((np.logaddexp(0, scores) - labels * scores).mean(axis=1))

    def right(self, answers: Targets, truth: Targets) -> NDArray[np.bool_]:
        return np.asarray((answers == truth).all(axis=1))

    def errors(self, answers: Targets, truth: Targets) -> Floats:
        """The share of labels that are wrongly given or not given."""
        return np.asarray((answers != truth).mean(axis=1))

    def details(
        self, logits: Logits, answers: Answers, truth: Targets, target: Target,
        shared: SharedRows | None,
    ) -> LabelDetails:  # fmt: skip
        shares = self.outputs(logits)  # those of the given order, without kept thresholds
        given, true = answers.values > 0, truth > 0
        missed, wrong = (part.astype(np.float64) for part in (true & ~given, given & ~true))
        whole = true.astype(np.float64)
        support = true.sum(axis=0)
        labels = []
        counts = np.array([(given & true).sum(axis=0), given.sum(axis=0), support])
        for label, (hits, called, meant) in enumerate(counts.T.tolist()):
            part = rows_worth(given[:, label] != true[:, label], shared) / len(true)

            def share_of(all_of_them: int, hits: int = hits, part: float = part) -> Interval:
                return intervals.wilson_interval(hits * part, all_of_them * part)

            # F1 is 2 J / (1 + J), where J is the share of hits among what is of it or given it.
            share = share_of(called + meant - hits)
            value, low, high = (2 * end / (1 + end) for end in (share.value, share.low, share.high))
            labels.append(
                LabelScores(
                    precision=share_of(called),
                    recall=share_of(meant),
                    f1=Interval(value, low, high),
                    support=meant,
                    given=called,
                    missed=meant - hits,
                    wrong=called - hits,
                )
            )
        return LabelDetails(
            labels=labels,
            together=(whole.T @ whole).astype(np.int64),
            confused=(missed.T @ wrong).astype(np.int64),
            rare=np.flatnonzero(support < _RARE).tolist(),
            mean_labels=(float(true.sum(axis=1).mean()), float(given.sum(axis=1).mean())),
            thresholds=selection.cross_fit_thresholds(shares, true, shared),
            errors=int((given != true).any(axis=1).sum()),
        )


def _levels(target: Target, rule: DecisionRule, options: PredictOptions) -> Floats:
    """The threshold of each label, shape (labels,)."""
    kept = dict(rule.thresholds) if options.threshold else {}
    return np.array([kept.get(name, _HALF) for name in target.names])


def _given(shares: NDArray[np.float32], levels: Floats | float) -> NDArray[np.int8]:
    return (shares.astype(np.float64) >= levels).astype(np.int8)


@dataclass(frozen=True)
class LabelScores:
    """The scores of one label."""

    precision: Interval  # nan if it was never given
    recall: Interval  # nan if it does not occur
    f1: Interval
    support: int  # examples that have it
    given: int  # examples that it was given to
    missed: int  # examples that have it and were not given it
    wrong: int  # examples that were given it and do not have it


@dataclass(frozen=True)
class LabelDetails:
    """The figures of a model that answers with labels, besides those that every task has."""

    labels: list[LabelScores]
    together: Counts  # examples that have both labels, or on the diagonal the one
    # Examples that have a label (row) which was missed, and were given another (column) wrongly.
    confused: Counts
    rare: list[int]  # labels of fewer than ten examples
    mean_labels: tuple[float, float]  # of an example, and of an answer
    thresholds: CrossFittedThresholds | None  # None if every label has too few examples
    errors: int  # examples of which a label is wrong or missing
    always: None = None
    fitted: None = None


RARE = 5  # a label of fewer training rows is named


def blocks(labels: LabelledRows) -> Findings:
    """The finding that makes training impossible, if there is one."""
    none = class_findings.unknown_changes(labels) or class_findings.no_rows(labels, "train")
    return none or _no_labels(labels) or class_findings.no_rows(labels, "validation")


def _no_labels(labels: LabelledRows) -> Findings:
    column, count = labels.column.name, len(labels.reading.names)
    one = Remedy("task", SINGLE_LABEL, _("One class for each row"))
    if count < 2:
        text = _("The column {column!r} has fewer than two labels.", column=column)
        return class_findings.impossible(text, "one-label", one)
    text = _(
        "The column {column!r} has {count:,} different labels: rather texts or ids.",
        column=column,
        count=count,
    )
    return class_findings.impossible(text, "too-many-labels", one) if count > MAX_CLASSES else []


def questions(config: RunConfig, labels: LabelledRows) -> Findings:
    """What a person must say before these rows can be trained on."""
    if not labels.reading.unclear:
        return []
    rows = class_findings.rows_spelled(labels, sorted(labels.reading.unlabelled))
    text = _("It means 0: the label is not given")
    return [class_findings.no_label(config, labels.column.name, rows, "0", text)]


def findings(
    config: RunConfig, labels: LabelledRows, constant: Mapping[str, float]
) -> Iterator[Finding | RowsFinding]:
    """Report how cells are read, cells that cannot be, and labels of few, all or no rows.

    Args:
        constant: the scores of always giving the commonest labels, by name.
    """
    column, members = labels.column, labels.reading.members
    yield _several_labels(config, labels)
    yield from class_findings.changed_labels(config)
    if labels.reading.notation == "shares":
        title = _("The column {column!r} has numbers between 0 and 1.", column=column.name)
        action = _("A row has a label from 0.5 on. For another limit, write 0 and 1.")
        yield Finding("shares", "warns", title, 0, action)
    yield class_findings.unreadable(labels, [n for n, of in enumerate(members) if of is None])
    yield from _names(config, labels)
    if not blocks(labels):
        yield from _few_rows(config, labels)
    if f"{constant.get(catalog.OF_LABELS[0].name, 0):.3f}" == "1.000":
        title = _("Always giving the same labels already reaches micro F1 1.000.")
        action = _("No model can do better, so its score says nothing.")
        yield Finding("constant", "warns", title, 0, action)


def _several_labels(config: RunConfig, labels: LabelledRows) -> Finding:
    """Say how labels are read, with buttons for the other possibilities."""
    reading, column, kind = labels.reading, labels.column, "several-labels"
    if column.joined:
        title = _("Each of these columns is a label: {columns}", columns=column.name)
        action = _(
            "A row has those in whose column it has 1 or a mark such as x. An empty cell is 0."
        )
        if reading.notation == "labels":
            title = _("The labels of a row are in these columns: {columns}", columns=column.name)
            action = _("Each cell that is not empty is a label.")
        return Finding(kind, "notes", title, 0, action)
    title = _(
        "The column {column!r} holds several labels per row, such as {listed!r}.",
        column=column.name,
        listed=shorten(reading.example, 60),
    )
    action, others = _("Each is read as a list of labels."), []
    if reading.notation == "text":
        action = _("Each is read as one label.")
        others = [mark for mark in MARKS if mark != reading.separator and mark in reading.example]
    if reading.separator:
        mark = label_lists.NAMES.get(reading.separator, reading.separator)
        action = _("The labels between {mark!r} are learned each by itself.", mark=mark)
    remedies = [
        Remedy("label_separator", mark, _("They are separated by {mark!r}", mark=mark))
        for mark in others
    ]
    done = config.label_separator != "auto"
    if done:
        remedies = [Remedy("label_separator", "auto", _("Undo"))]
    else:
        remedies.append(Remedy("task", SINGLE_LABEL, _("Each combination is a class of its own")))
    return Finding(kind, "notes", title, 0, action, remedies=remedies, done=done)


def _names(config: RunConfig, labels: LabelledRows) -> Iterator[Finding]:
    """Ask for the names of labels that are called by their places."""
    if labels.reading.notation != "places" or config.label_map:
        return
    title = _(
        "The column {column!r} has 0 or 1 for each of {count} labels, but not their names.",
        column=labels.column.name,
        count=len(labels.reading.names),
    )
    action = _(
        "They are called by their places, from 1. Name them by label_map, such as {names}.",
        names="'1=first 2=second'",
    )
    yield Finding("label-names", "warns", title, 0, action)


def _few_rows(config: RunConfig, labels: LabelledRows) -> Iterator[Finding]:
    names = labels.reading.names
    counts = {split: (labels.of(split) > 0).sum(axis=0) for split in labels.rows}
    every, train = sum(counts.values()), counts["train"]
    rare = np.flatnonzero((train < RARE) & (every > 0))
    if len(rare):
        title = _(
            "Labels of fewer than {few} training rows: {names}",
            few=RARE,
            names=some([f"{names[label]!r} ({train[label]})" for label in rare]),
        )
        action = _(
            "A model hardly learns them. Merge them with others or leave them out (label_map), or "
            "bring more rows."
        )
        yield Finding("rare-labels", "warns", title, 0, action)
    for kind, found in (
        ("label-of-none", np.flatnonzero(every == 0)),
        ("label-of-all", np.flatnonzero(train == len(labels.of("train")))),
    ):
        if len(found):
            yield _nothing_to_learn(config, kind, [names[label] for label in found])
    for split, rows in counts.items():
        missing = np.flatnonzero((rows == 0) & (train > 0))
        if len(missing) and len(labels.of(split)):
            title = _(
                "Labels that no row of {split} has: {names}",
                split=split,
                names=some([repr(names[label]) for label in missing]),
            )
            action = _("How well they are found is not measured there.")
            yield Finding("missing-labels", "warns", title, 0, action)
    unlabelled = int((~(labels.of("train") > 0).any(axis=1)).sum())
    if unlabelled:
        title = _("Training rows without any label")
        action = _("They are learned from: none of the labels is right for them.")
        yield Finding("no-labels", "notes", title, unlabelled, action)


def _nothing_to_learn(config: RunConfig, kind: str, names: list[str]) -> Finding:
    """Report labels that no row has, or that every training row has."""
    shown = some([*map(repr, names)])
    title = {
        "label-of-none": _("Labels that no row has: {names}", names=shown),
        "label-of-all": _("Labels that every training row has: {names}", names=shown),
    }
    action = {
        "label-of-none": _("A model learns never to give them, and each counts as 0 in macro F1."),
        "label-of-all": _("A model learns to give them to every row, whatever it says."),
    }
    text = _("Leave them out")
    remedies = class_findings.change(config, dict.fromkeys(names, ""), text)
    return Finding(kind, "warns", title[kind], 0, action[kind], remedies=remedies)
