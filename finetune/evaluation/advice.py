"""What a run's scores mean in plain words, and one piece of advice after it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from finetune import owners
from finetune.config import RunConfig
from finetune.evaluation.baselines import why_no_training
from finetune.evaluation.report import Analysis, Verdict
from finetune.metrics import catalog
from finetune.metrics.catalog import LOSS, Metric
from finetune.metrics.intervals import Interval
from finetune.runs.summary import RunSummary
from finetune.tasks.registry import deciding_metric, task_of

Kind = Literal[
    "resume", "perfect", "needless", "below", "once", "longer", "falls", "level", "whole"
]  # fmt: skip
# What its button does: fill the form with another run, list the errors, lead to the test set, ask
# the model.
Action = Literal["train", "errors", "test", "try"]

_LOSS_NOISE = 0.05  # of the best loss; a worse one within this is chance
_WIDTH = 3.92  # standard errors in a 95% interval
_PATIENCE = 3  # evaluations
_SEEDS = 3  # runs that show what is chance
_FEW_ERRORS = 20  # that are soon read
_WIDE = 0.15  # an interval with which little can be told
_WITHOUT_FOLDS = ("early_stopping_patience", "max_eval_samples")  # fields that folds exclude


@dataclass(frozen=True)
class Advice:
    """One advice after a run.

    `resume`: it did not reach its end. `perfect`: no error is left to learn from. `needless`: nor
    does a simple method make one. `below`: a simple method is better, or it always gives one
    answer. `once`: one evaluation shows no course.
    `longer`: the last evaluation was the best. `falls`: the score fell after the best one. `level`:
    it neither rose nor fell. `whole`: it was trained on all rows, so it has no course.
    """

    kind: Kind
    # Fields of the run's configuration to change in the next one; empty if there are none.
    changes: dict[str, Any] = field(default_factory=dict)
    action: Action = "train"
    seeds: int = 1  # runs to start, with as many seeds
    best_step: int = 0  # optimizer steps
    last_step: int = 0  # of the last evaluation


def advise(summary: RunSummary, config: RunConfig, verdict: Verdict) -> Advice:
    """Return the advice on a run of which a model was scored, by the verdict on the kept one."""
    best, metric = summary.best, deciding_metric(config, summary.task)
    curve = [scored for scored in summary.validation if metric in scored.metrics]
    if summary.status != "finished" or best is None or not curve:
        return Advice("resume")
    last = curve[-1]
    steps: dict[str, Any] = {"best_step": best.step, "last_step": last.step}
    rank = catalog.find(metric).rank
    if config.folds:  # the last model is kept, whatever its score
        best = max(curve, key=lambda scored: rank(scored.metrics[metric]))
    rising = len(curve) > 1 and best.step == last.step
    longer = _of_steps(summary, config, 2 * summary.total_steps) if rising else {}
    facts = summary.prepared.data if summary.prepared else {}
    again = {"seed": config.seed + 1}
    rows = summary.prepared.validation_examples if summary.prepared else 0
    needless = why_no_training(summary.baselines, summary.task, summary.classes, rows)
    if not verdict.errors and needless:
        return Advice("needless", action="try", **steps)
    if not verdict.errors and "test" in facts.get("rows", {}) and not summary.opened:
        return Advice("perfect", action="test", **steps)
    if not verdict.errors:
        return Advice("perfect", again, seeds=_SEEDS, **steps)
    if verdict.always is not None or (verdict.gain is not None and verdict.gain.high < 0):
        weights = {"class_weights": "balanced"}
        weighted = verdict.always is not None and config.class_weights == "none"
        changes = longer or (weights if weighted else {})
        return Advice("below", changes, "train" if changes else "errors", **steps)
    if config.trains_on_all:
        return Advice("whole", action="errors", **steps)
    if len(curve) < 2:
        return Advice("once", {"eval_steps": max(1, summary.total_steps // 10)}, **steps)
    if rising:
        return Advice("longer", longer, **steps)
    change = rank(last.metrics[metric]) - rank(best.metrics[metric])
    width = verdict.score.high - verdict.score.low
    noise = _LOSS_NOISE * best.metrics[metric] if metric == LOSS.name else width / _WIDTH
    if change < -noise and not summary.early:
        shorter = _of_steps(summary, config, best.step)
        patience = {} if config.folds else {"early_stopping_patience": _PATIENCE}
        return Advice("falls", shorter or patience, **steps)
    cut = "validation" not in facts.get("splits", {"validation": ""})
    follows_scores = config.lr_scheduler_type == "reduce_lr_on_plateau"
    folds = owners.policy().limits.folds
    if cut and width > _WIDE and folds > 1 and not (config.folds or follows_scores):
        others = {name: 0 for name in _WITHOUT_FOLDS if getattr(config, name)}
        return Advice("level", {"folds": folds, **others}, **steps)
    if needless or verdict.errors <= _FEW_ERRORS:
        return Advice("level", action="errors", **steps)
    return Advice("level", again, seeds=_SEEDS, **steps)


def _of_steps(summary: RunSummary, config: RunConfig, steps: int) -> dict[str, Any]:
    """Return the setting that makes a run take `steps`, in whole epochs unless `max_steps` is set.
    Empty if the epochs stay the same."""
    if config.max_steps > 0:
        return {"max_steps": steps}
    per_epoch = summary.prepared.steps_per_epoch if summary.prepared else 0
    if not per_epoch:
        return {}
    epochs = -(-steps // per_epoch)
    return {"num_train_epochs": epochs} if epochs * per_epoch != summary.total_steps else {}


class Plainly(NamedTuple):
    """A score that can be said in plain words, beside that of the best constant answer."""

    metric: Metric
    score: Interval  # expected of new examples
    constant: float

    @property
    def in_ten(self) -> float:
        """The right answers of ten to name: a whole number if it lies in the interval."""
        low, value, high = 10 * self.score.low, 10 * self.score.value, 10 * self.score.high
        return round(value) if low <= round(value) <= high else round(value, 1)


def plainly(analysis: Analysis, baselines: Mapping[str, Mapping[str, float]]) -> Plainly | None:
    """Return the first score of a task that can be said in plain words; None if it was not measured
    of the constant answer too."""
    task = task_of(analysis.target)
    constant = baselines.get(task.constant, {})
    for metric in task.metrics:
        if metric.plain and metric.name in analysis.scores and metric.name in constant:
            score = analysis.expected.get(metric.name, analysis.scores[metric.name])
            return Plainly(metric, score, constant[metric.name])
    return None
