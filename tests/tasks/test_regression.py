"""Scores: cells are numbers, splits are cut, answers have intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from finetune.tasks import cells
from finetune.tasks.base import NO_RULE, REGRESSION, DecisionRule, PredictOptions, Target
from finetune.tasks.regression import Regression
from finetune.tasks.single_label import SingleLabel
from finetune.training import model
from tests.support import uploads

TARGET = Target((), task=REGRESSION, low=0.0, high=5.0)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4", 4), ("-2.5", -2.5), ("3,75", 3.75), (",5", 0.5), ("1.234,5", 1234.5),
        ("1,234.5", 1234.5), ("1.234.567", 1234567), ("1,234,567", 1234567), ("85 %", 85),
        ("1e-3", 0.001), ("\u22124", -4), ("\uff13.5", 3.5), ("+.25", 0.25), ("1.234", 1.234),
        ("1,234", 1234), ("0,123", 0.123), ("1 234,5", 1234.5), ("1\u2019234", 1234),
        ("12,34,567", 1234567), ("-$5", -5), ("US$ 1,000", 1000), ("5 kr", 5), ("\u20ac5", 5),
        ("four", None), ("4 of 5", None), ("", None), ("1-2", None), ("1e99", None), ("inf", None),
        ("1.234.567,8", 1234567.8), ("1.2.3", None), ("12.05.2024", None), ("1,5,3", None),
        ("4,,5", None), ("1.234.56", None), ("A12", None), ("No 5", None), ("1 2", None),
    ],
)  # fmt: skip
def test_a_cell_is_a_number_with_point_or_comma(text: str, number: float | None) -> None:
    assert cells.to_number(text) == number


def test_a_cut_split_has_its_share_of_low_and_high_scores(tmp_path: Path) -> None:
    rows = [(f"text {n}", n / 1000) for n in range(1000)]
    cut = uploads.pairs(tmp_path, "text,score", train=rows).splits["validation"]
    found = np.histogram(cut["label"], np.linspace(0, 1, 11))[0]
    assert found.sum() == 100
    assert set(found) <= {9, 10, 11}


def test_a_checkpoint_that_answers_with_a_score_keeps_its_output_layer(
    toy_checkpoint: Path, tmp_path: Path
) -> None:
    tokenizer, scored, head = model.load_classifier(str(toy_checkpoint), TARGET, 32)
    assert head.text == ""  # it was a classifier of two classes
    model.save_model(scored, tokenizer, tmp_path / "scored")
    _, again, kept = model.load_classifier(str(tmp_path / "scored"), TARGET, 32)
    for name in ("classifier.weight", "classifier.bias"):
        assert torch.equal(again.state_dict()[name], scored.state_dict()[name])
    assert "its output layer is kept" in kept.text


def test_an_answer_is_a_score_with_its_interval() -> None:
    task, logits = Regression(), np.array([[4.25], [1.0], [123456.7]], np.float32)
    answers = task.answers(logits, TARGET)
    assert answers.values.dtype == np.float32
    assert answers.probabilities.shape == (3, 0)
    assert np.isnan(answers.probability_of(answers.values)).all()
    both = task.answers(logits, TARGET, swapped=logits + 1)
    assert both.values == pytest.approx(answers.values + 0.5)
    given = task.answers(logits, TARGET, options=PredictOptions(), swapped=logits + 1)
    assert given.values.tolist() == answers.values.tolist()
    assert task.spell(answers.values, TARGET) == ["4.25", "1", "123457"]
    rule = DecisionRule(margin=0.5)
    assert list(task.columns(TARGET, rule)) == ["prediction", "prediction_low", "prediction_high"]
    assert task.cells(answers, TARGET, rule)[0] == [4.25, 3.75, 4.75]
    assert list(task.columns(TARGET, NO_RULE)) == ["prediction"]
    assert task.cells(answers, TARGET, NO_RULE)[1] == [1.0]


def test_cells_of_another_file_are_on_a_side_of_the_cut() -> None:
    target = Target(("below 3", "from 3"))
    cells = ["1", "0", 3, "2,9", "From 3", "below 3", "high", None]
    targets, known = SingleLabel().parse(cells, target)
    assert targets.tolist() == [0, 0, 1, 0, 1, 0, -1, -1]
    assert known.tolist() == [True] * 6 + [False] * 2


def test_similarity_is_scaled_to_the_scores() -> None:
    similarity = np.linspace(0.2, 1, 30).astype(np.float32)
    answers = Regression().by_similarity(similarity, 5 * similarity - 1, similarity[:3], TARGET)
    assert answers == pytest.approx(5 * similarity[:3] - 1, abs=1e-5)
