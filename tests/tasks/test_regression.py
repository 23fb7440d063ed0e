"""Scores: read, trained as `Trainer` does, measured, answered, and loaded elsewhere."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from finetune.config import RunConfig
from finetune.data import splits
from finetune.tasks import cells
from finetune.tasks.base import NO_RULE, REGRESSION, DecisionRule, PredictOptions, Target
from finetune.tasks.regression import Regression
from finetune.tasks.single_label import SingleLabel
from finetune.training import model
from tests.support import trainer, uploads
from tests.support.graded import graded_rows
from tests.support.training import evaluations, fit, losses

HEAD = "sentence1,sentence2,score"
TARGET = Target((), task=REGRESSION, low=0.0, high=5.0)


@pytest.fixture
def pairs(tmp_path: Path) -> splits.Pairs:
    return uploads.pairs(tmp_path, HEAD, train=graded_rows(64), validation=graded_rows(24, 1))


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


def test_it_trains_as_the_trainer_does(
    toy_config: RunConfig, still_checkpoint: Path, pairs: splits.Pairs, tmp_path: Path
) -> None:
    config = toy_config.changed(
        checkpoint=str(still_checkpoint),
        metric_for_best_model="pearson",
        decay_biases_and_norms=False,
    )
    happened, trained = fit(config, pairs)
    expected, logits, weights = trainer.train(
        str(still_checkpoint), pairs.splits, tmp_path, outputs=1, problem_type=REGRESSION,
        epochs=2, batch_size=8, rate=1e-3, seed=7,
    )  # fmt: skip
    assert losses(happened) == pytest.approx(expected, abs=1e-5)
    for name, value in trained.state_dict().items():
        assert torch.allclose(value, weights[name], atol=1e-5), name
    truth, final = np.array(pairs.splits["validation"]["label"]), evaluations(happened)[-1].metrics
    assert final == pytest.approx(
        {
            "pearson": scipy.stats.pearsonr(logits[:, 0], truth).statistic,
            "spearmanr": scipy.stats.spearmanr(logits[:, 0], truth).statistic,
            "mae": np.abs(logits[:, 0] - truth).mean(),
            "rmse": np.sqrt(((logits[:, 0] - truth) ** 2).mean()),
            "loss": ((logits[:, 0] - truth) ** 2).mean(),
        },
        abs=1e-4,
    )


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


def test_cells_of_another_file_are_read_as_scores() -> None:
    targets, known = Regression().parse(["4,5", 3.25, None, "high", True], TARGET)
    assert known.tolist() == [True, True, False, False, False]
    assert targets[known].tolist() == [4.5, 3.25]


def test_cells_of_another_file_are_on_a_side_of_the_cut() -> None:
    target = Target(("below 3", "from 3"))
    cells = ["1", "0", 3, "2,9", "From 3", "below 3", "high", None]
    targets, known = SingleLabel().parse(cells, target)
    assert targets.tolist() == [0, 0, 1, 0, 1, 0, -1, -1]
    assert known.tolist() == [True] * 6 + [False] * 2


def test_details_are_of_every_example() -> None:
    draw = np.random.default_rng(0)
    truth = draw.uniform(0, 5, 400).astype(np.float32)
    answers = (truth * 0.5 + 1.5 + draw.normal(0, 0.1, 400)).astype(np.float32)
    answered = Regression().answers(answers[:, None], TARGET)
    details = Regression().details(answers[:, None], answered, truth, TARGET, None)
    rows, columns = (
        np.clip(np.searchsorted(details.edges, values, "right") - 1, 0, 19)
        for values in (truth, answers)
    )
    assert details.density[rows[7], columns[7]] > 0
    assert details.density.sum() == details.error_counts.sum() == 400
    assert details.slope == pytest.approx(2, abs=0.1)  # answers are drawn to the middle
    assert details.bias == pytest.approx((answers - truth).mean(), abs=1e-5)
    assert np.abs(answers - truth)[details.worst].min() >= np.sort(np.abs(answers - truth))[-20]
    assert sum(own.count for own in details.bins) == 400
    assert [own.high <= after.low for own, after in pairwise(details.bins)] == [True] * 3


def test_similarity_is_scaled_to_the_scores() -> None:
    similarity = np.linspace(0.2, 1, 30).astype(np.float32)
    answers = Regression().by_similarity(similarity, 5 * similarity - 1, similarity[:3], TARGET)
    assert answers == pytest.approx(5 * similarity[:3] - 1, abs=1e-5)
