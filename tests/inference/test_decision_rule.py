"""A decision rule is stored in the model's `config.json`, where `transformers` ignores it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from finetune.errors import DataError
from finetune.inference import decision_rule
from finetune.metrics import calibration
from finetune.tasks.base import DecisionRule, PredictOptions, Target
from finetune.tasks.single_label import SingleLabel


@pytest.fixture
def best(toy_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(toy_checkpoint, tmp_path / "best"))


def test_it_is_kept_with_the_model_and_the_model_loads_as_before(best: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    assert decision_rule.read_rule(best) == DecisionRule()
    decision_rule.write_rule(best, threshold=0.43, positive="equivalent")
    decision_rule.write_rule(best, temperature=1.5)
    assert decision_rule.read_rule(best) == DecisionRule(0.43, 1.5, "equivalent")
    AutoModelForSequenceClassification.from_pretrained(best).save_pretrained(best)
    assert decision_rule.read_rule(best).threshold == 0.43
    decision_rule.write_rule(best, threshold=None, temperature=None, positive="")
    assert "finetune" not in json.loads((best / "config.json").read_text())


@pytest.mark.parametrize(
    ("name", "value"), [("threshold", 0.0), ("threshold", 1.0), ("temperature", -2.0)]
)
def test_what_cannot_be_used_is_refused(best: Path, name: str, value: float) -> None:
    with pytest.raises(DataError, match=f"The {name} {value:g} is out of range"):
        decision_rule.write_rule(best, **{name: value})
    assert decision_rule.read_rule(best) == DecisionRule()


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.83])
def test_a_temperature_changes_no_answer_of_a_threshold(threshold: float) -> None:
    logits = np.random.default_rng(0).normal(0, 3, (500, 2)).astype(np.float32)
    plain = calibration.probabilities(logits)[:, 1]
    clear = np.abs(plain - threshold) > 1e-5  # but for rounding at the very edge
    for temperature in (None, 0.5, 1.0, 2.5):
        rule = DecisionRule(threshold, temperature, "yes")
        shares, answers = SingleLabel().answers(
            logits, Target(("no", "yes")), rule, PredictOptions(False, True, True)
        )
        expected = calibration.probabilities(logits, temperature or 1.0)
        np.testing.assert_array_equal(shares, expected)
        np.testing.assert_array_equal(answers[clear], (plain >= threshold)[clear])
    other = SingleLabel().answers(
        logits, Target(("yes", "no")), rule, PredictOptions(threshold=True)
    )[1]
    assert (other == np.where(1 - plain >= threshold, 0, 1))[clear].mean() > 0.99
