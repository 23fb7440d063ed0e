"""One advice after a run, as its curve and its scores have it."""

from __future__ import annotations

from typing import Any

import pytest

from finetune.config import RunConfig
from finetune.evaluation.advice import advise
from finetune.evaluation.report import Verdict
from finetune.metrics.intervals import Interval
from finetune.runs import events
from finetune.runs.summary import RunSummary

FINISHED = events.Finished(step=40, seconds=1)


def summary_of(
    scores: list[float], metric: str = "f1", end: events.Event = FINISHED, every: int = 10
) -> RunSummary:
    """A run of four epochs of ten steps, evaluated at its end and regularly before."""
    steps = range(40 - every * (len(scores) - 1), 41, every)
    stream: list[events.Event] = [
        events.Prepared(
            train_examples=80, validation_examples=100, steps_per_epoch=10, total_steps=40,
            labels=["no", "yes"], parameters=1, precision="no",
        )
    ]  # fmt: skip
    best: float | None = None
    for step, score in zip(steps, scores, strict=True):
        better = best is None or (score < best if metric == "loss" else score > best)
        best = score if better else best
        stream.append(
            events.Evaluated(
                step=step, epoch=step / 10, metrics={metric: score}, seconds=1, best=better
            )
        )
        stream += [events.Saved(step=step)] if better else []
    return RunSummary().fold([*stream, end])


def verdict(errors: int = 30, gain: float | None = 0.1, always: str | None = None) -> Verdict:
    """Of a model of F1 0.9, give or take 0.04."""
    around = None if gain is None else Interval(gain, gain - 0.05, gain + 0.05)
    score = Interval(0.9, 0.86, 0.94)
    return Verdict("F1", score, "TF-IDF", around, always, errors, 100, None, None)


LONGER, SEED = {"num_train_epochs": 8}, {"seed": 43}


@pytest.mark.parametrize(
    ("scores", "judged", "kind", "changes"),
    [
        ([0.6, 0.7, 0.8, 0.9], {}, "longer", LONGER),
        ([0.6, 0.9, 0.8, 0.7], {}, "falls", {"num_train_epochs": 2}),
        ([0.9, 0.8, 0.8, 0.85], {}, "falls", {"num_train_epochs": 1}),
        ([0.6, 0.9, 0.9, 0.9], {}, "level", SEED),  # the first of equals is kept
        ([0.6, 0.9, 0.89, 0.885], {}, "level", SEED),  # no more than chance
        ([0.6, 0.9, 0.7, 0.89], {}, "level", SEED),  # it came back
        ([0.9], {}, "once", {"eval_steps": 4}),
        ([0.6, 1.0, 1.0, 1.0], {"errors": 0}, "perfect", SEED),
        ([0.6, 0.7, 0.8, 1.0], {"errors": 0}, "perfect", SEED),
        ([1.0], {"errors": 0}, "perfect", SEED),
        ([0.6, 0.7, 0.8, 0.9], {"gain": -0.1}, "below", LONGER),
        ([0.6, 0.9, 0.8, 0.7], {"gain": -0.1}, "below", {}),
        ([0.6, 0.6, 0.6, 0.6], {"always": "yes"}, "below", {"class_weights": "balanced"}),
        ([0.6, 0.7, 0.8, 0.9], {"gain": -0.04}, "longer", LONGER),  # not surely below
        ([0.6, 0.7, 0.8, 0.9], {"gain": None}, "longer", LONGER),
    ],
)
def test_the_advice_follows_from_the_curve(
    scores: list[float], judged: dict[str, Any], kind: str, changes: dict[str, Any]
) -> None:
    advice = advise(summary_of(scores), RunConfig(), verdict(**judged))
    assert (advice.kind, advice.changes) == (kind, changes)
    assert (advice.last_step, advice.seeds) == (40, 3 if changes == SEED else 1)


@pytest.mark.parametrize(
    ("losses", "kind"),
    [([0.9, 0.7, 0.5, 0.4], "longer"), ([0.9, 0.4, 0.5, 0.7], "falls"),
     ([0.9, 0.4, 0.41, 0.41], "level"), ([0.9, 0.4, 0.4, 0.4], "level"), ([0.4], "once")],
)  # fmt: skip
def test_a_loss_is_better_the_lower_it_is(losses: list[float], kind: str) -> None:
    config = RunConfig(metric_for_best_model="loss")
    assert advise(summary_of(losses, "loss"), config, verdict()).kind == kind


def test_a_run_limited_by_steps_is_changed_by_steps_and_one_without_its_end_is_resumed() -> None:
    config = RunConfig(max_steps=40)
    assert advise(summary_of([0.6, 0.9]), config, verdict()).changes == {"max_steps": 80}
    assert advise(summary_of([0.9, 0.6]), config, verdict()).changes == {"max_steps": 30}
    failed, training = events.Failed(error="x"), events.PhaseStarted(phase=events.Phase.TRAIN)
    for end in (events.Stopped(step=40, seconds=1), failed, training):
        advice = advise(summary_of([0.6, 0.7, 0.8, 0.9], end=end), RunConfig(), verdict())
        assert (advice.kind, advice.changes) == ("resume", {})
