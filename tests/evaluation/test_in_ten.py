"""How many of ten new examples a model gets right."""

from __future__ import annotations

import pytest

from finetune.evaluation import report
from finetune.evaluation.in_ten import in_ten
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
