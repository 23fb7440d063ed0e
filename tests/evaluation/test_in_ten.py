"""How many of ten new examples a model gets right."""

from __future__ import annotations

import pytest

from finetune.evaluation import report
from finetune.evaluation.advice import InTen, in_ten, plainly
from finetune.metrics.intervals import Interval
from finetune.runs.store import RunStore
from finetune.tasks.single_label import SingleLabel
from tests.support.scored_runs import evaluated, sure


def test_accuracy_is_said_of_ten_examples_beside_guessing(store: RunStore) -> None:
    labels = [0] * 60 + [1] * 40
    answers = [0] * 52 + [1] * 8 + [1] * 32 + [0] * 8
    analysis = report.evaluate_run(*evaluated(store, {1: sure(answers)}, labels, 1)).analysis
    ten = in_ten(analysis, {SingleLabel.constant: {"accuracy": 0.6}})
    assert ten is not None
    assert ten.right.value == pytest.approx(8.4)
    assert ten.guessed == pytest.approx(6.0)
    assert 7 < ten.right.low < 8.4 < ten.right.high < 9.2
    assert in_ten(analysis, {}) is None
    plain = plainly(analysis, {SingleLabel.constant: {"accuracy": 0.6}})
    assert plain is not None
    assert plain.expected == pytest.approx(0.84)
    assert plain.constant == 0.6
    assert plain.words.format(value=plain.expected) == "right in 84%"
    assert plainly(analysis, {}) is None


@pytest.mark.parametrize(
    ("right", "about"), [((8.4, 7.6, 9.0), 8), ((8.48, 8.1, 8.8), 8.5), ((9.98, 9.9, 10), 10)]
)
def test_the_number_named_lies_in_its_interval(
    right: tuple[float, float, float], about: float
) -> None:
    assert InTen(Interval(*right), 5.0).about == about
