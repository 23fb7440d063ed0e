"""A run's model answers only when it is sure: the rule is found, kept, applied and forgotten."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import finetune
from finetune.errors import DataError, StoreError
from finetune.evaluation import abstention, report, saved_predictions
from finetune.inference import decision_rule
from finetune.jobs import evaluate as jobs
from finetune.metrics.calibration import probabilities
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.base import MULTI_LABEL, REGRESSION, DecisionRule, PredictOptions, Target
from tests.support.scored_runs import evaluated

NAMES = ("no", "yes")
PLAIN = PredictOptions()


def draw_logits(rows: int, classes: int = 2, seed: int = 0) -> tuple[np.ndarray, list[int]]:
    """Logits of a model that is right as often as it says, and what is right."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 4, (rows, classes)).astype(np.float32)
    shares = probabilities(logits).cumsum(axis=1)
    truth = (draw.random((rows, 1)) > shares).sum(axis=1).clip(0, classes - 1)
    return logits, truth.tolist()


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    """A run that has ended with a model, evaluated three times."""
    logits, truth = draw_logits(1500)
    steps = {step: logits + np.float32(step) for step in (1, 2, 3)}
    run, _ = evaluated(store, steps, truth, 3, NAMES)
    shutil.copytree(toy_checkpoint, run.best)
    run.append(events.Finished(step=3, seconds=1))
    return run


def test_a_rule_is_found_kept_and_followed(run: Run) -> None:
    rule = finetune.answer_when_sure(run, error=0.05)
    found = abstention.answer_when_sure(run, error=0.05)
    assert found.rule == rule
    assert (found.rows, found.worth, found.candidates) == (1500, 1500, 3)
    assert 0.4 < rule.coverage < 1
    kept = decision_rule.read_rule(run.best)
    assert kept.sure == rule
    for rows, seed in ((1500, 0), (4000, 9)):  # also new rows: the model is as good there
        logits, truth = draw_logits(rows, seed=seed)
        given = decision_rule.sure_answers(logits, Target(NAMES), kept, PLAIN)
        assert given is not None
        assert seed or given.sum() == rule.answered
        assert (logits.argmax(axis=1) != truth)[given].mean() < 0.05
        assert decision_rule.sure_answers(logits, Target(NAMES), DecisionRule(), PLAIN) is None


def test_each_class_has_a_threshold_of_its_own(store: RunStore, toy_checkpoint: Path) -> None:
    logits, truth = draw_logits(3000, 3)
    names = ("a", "b", "c")
    wrong = np.flatnonzero(logits.argmax(axis=1) == 2)[::3]
    for row in wrong:
        truth[row] = 0  # a third of the answers "c" is wrong, however sure
    run, _ = evaluated(store, {1: logits}, truth, 1, names)
    found = abstention.answer_when_sure(run, 0.05, per_class=True).rule
    assert found is not None
    assert (found.above, [name for name, _ in found.classes]) == (1, ["a", "b"])
    rule, answers = DecisionRule(sure=found), logits.argmax(axis=1)
    given = decision_rule.sure_answers(logits, Target(names), rule, PLAIN)
    assert given is not None
    assert set(answers[given]) == {0, 1}
    for index in (0, 1):
        assert (np.array(truth) != answers)[given & (answers == index)].mean() < 0.05


def test_the_bound_holds_only_of_answers_like_those_it_was_found_on(run: Run) -> None:
    """Another threshold forgets the rule, a temperature does not."""
    sure = finetune.answer_when_sure(run, error=0.05)
    rule, target = decision_rule.read_rule(run.best), Target(NAMES)
    logits, _ = draw_logits(100, seed=5)
    plain = decision_rule.sure_answers(logits, target, rule, PLAIN)
    for options in (PredictOptions(calibrated=True), PredictOptions(threshold=False)):
        same = decision_rule.sure_answers(logits, target, replace(rule, temperature=3.0), options)
        np.testing.assert_array_equal(same, plain)
    both = PredictOptions(both_orders=True)
    assert decision_rule.sure_answers(logits, target, rule, both, logits) is None
    single = decision_rule.sure_answers(logits, target, rule, both)  # has no other order
    np.testing.assert_array_equal(single, plain)
    lower, without = replace(rule, threshold=0.4, positive="yes"), PredictOptions(threshold=False)
    assert decision_rule.sure_answers(logits, target, lower, PLAIN) is not None
    assert decision_rule.sure_answers(logits, target, lower, without) is None
    for values, kept in (({"temperature": 1.4}, sure), ({"threshold": None}, sure),
                         ({"threshold": 0.4}, None)):  # fmt: skip
        jobs.save_decision(run, run.state(), **values)
        assert decision_rule.read_rule(run.best).sure == kept


@pytest.mark.parametrize(("alike", "fewest", "most"), [(True, 730, 760), (False, 1300, 1500)])
def test_rows_that_share_a_sentence_count_as_they_go_together(
    alike: bool, fewest: int, most: int, store: RunStore, toy_checkpoint: Path
) -> None:
    """Each sentence stands in two rows, which are right and wrong together, or independently."""
    logits, truth = draw_logits(1500)
    if alike:
        logits, truth = np.repeat(logits[::2], 2, axis=0), np.repeat(truth[::2], 2).tolist()
    run, _ = evaluated(store, {1: logits}, truth, 1, NAMES)
    shared = [f"question {row // 2}" for row in range(1500)]
    columns = {"sentence1": shared, "sentence2": [f"answer {row}" for row in range(1500)]}
    saved_predictions.save_examples(run, "validation", pa.table(columns | {"label": truth}))
    found = abstention.answer_when_sure(run, error=0.05)
    assert found.rows == 1500
    assert fewest <= found.worth <= most
    unknown = replace(report.evaluate_run(run, run.state()), table=None)
    plain = abstention.measure(unknown, 0.05, 0.95)
    assert (found.curve.upper[-1] > plain.curve.upper[-1] + 0.004) == alike
    assert found.curve.error[-1] == plain.curve.error[-1]


def test_the_test_set_serves_once_it_is_opened(run: Run) -> None:
    with pytest.raises(StoreError, match="was not opened for this model"):
        abstention.answer_when_sure(run, split="test")
    logits, truth = draw_logits(500, seed=4)
    saved_predictions.save_logits(run, 3, logits, np.array(truth), "test")
    run.append(events.TestSetOpened(step=3, metrics={}))
    found = abstention.answer_when_sure(run, 0.05, split="test")
    assert (found.rows, found.candidates) == (500, 1)
    assert found.rule is not None
    assert found.rule.split == "test"


def test_the_rows_of_several_labels_are_answered_whole_and_scores_have_none(run: Run) -> None:
    study = report.evaluate_run(run, run.state())
    target = Target((), task=REGRESSION)
    with pytest.raises(DataError, match="A score is never left out"):
        abstention.measure(
            replace(study, analysis=replace(study.analysis, target=target)), 0.1, 0.9
        )
    labels = Target(("x", "y"), task=MULTI_LABEL)
    draw = np.random.default_rng(2)
    logits = draw.normal(0, 9, (800, 2)).astype(np.float32)
    shares = 1 / (1 + np.exp(-logits))
    truth = (draw.random(shares.shape) < shares).astype(np.int8)
    given = (logits > 0).astype(np.int8)
    sure = np.where(given > 0, shares, 1 - shares).prod(axis=1)
    several = replace(
        study, analysis=replace(study.analysis, target=labels), truth=truth, answers=given,
        errors=(given != truth).mean(axis=1), confidence=sure.astype(np.float32),
    )  # fmt: skip
    found = abstention.measure(several, 0.05, 0.95).rule
    assert found is not None
    answered = decision_rule.sure_answers(logits, labels, DecisionRule(sure=found), PLAIN)
    assert answered is not None
    assert abs(int(answered.sum()) - found.answered) <= 1  # a probability is rounded
    with pytest.raises(DataError, match="A bound of each class is for rows of one class"):
        abstention.measure(several, 0.05, 0.95, per_class=True)
