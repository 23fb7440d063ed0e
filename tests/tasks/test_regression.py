"""Scores: read, trained as `Trainer` does, measured, answered, and loaded elsewhere."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats
import torch

from finetune.config import RunConfig
from finetune.data import catalog, checks, splits
from finetune.data.check_report import CheckReport
from finetune.errors import ConfigError, DataError
from finetune.findings import Finding
from finetune.tasks import cells
from finetune.tasks.base import NO_RULE, REGRESSION, DecisionRule, PredictOptions, Target
from finetune.tasks.registry import recognise
from finetune.tasks.regression import Regression
from finetune.tasks.single_label import SingleLabel
from finetune.training import model
from tests.support import trainer, uploads
from tests.support.graded import graded_rows
from tests.support.hub import LoopbackHub
from tests.support.training import evaluations, fit, losses

HEAD = "sentence1,sentence2,score"
TARGET = Target((), task=REGRESSION, low=0.0, high=5.0)


@pytest.fixture
def pairs(tmp_path: Path) -> splits.Pairs:
    return uploads.pairs(tmp_path, HEAD, train=graded_rows(64), validation=graded_rows(24, 1))


def check(folder: Path, labels: list[Any], name: str = "score", **values: Any) -> CheckReport:
    rows = [(f"text {n} of many", label) for n, label in enumerate(labels)]
    validation = rows[: len(rows) // 2]
    dataset = uploads.upload(folder, f"text,{name}", rows, validation, ())
    return checks.check_pairs(RunConfig(dataset=dataset).changed(**values), folder)


def found(checked: CheckReport, kind: str) -> Finding | None:
    return next((finding for finding in checked.findings if finding.kind == kind), None)


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


@pytest.mark.parametrize(
    ("cells", "task"),
    [
        (["3.8", "4.2", "0.6", "5.0", "1.25"], REGRESSION),
        (["3,8", "4,2", "0,6", ""], REGRESSION),
        (["0%", "50%", "100%"], REGRESSION),
        (["50%", "100%"], "single_label_classification"),
        (["1,000", "5,000", "250"], REGRESSION),
        ([3.8, 4.2, 0.6, None], REGRESSION),
        ([n * 7 + 3 for n in range(60)], REGRESSION),  # prices
        (["1", "2", "3", "4", "5"], "single_label_classification"),  # stars
        ([1.0, 2.0, 3.0, 4.0, 5.0], "single_label_classification"),
        ([0.0, 0.5, 1.0], "single_label_classification"),
        (list(range(77)), "single_label_classification"),  # numbers of classes
        ([n for n in range(150) if n % 7], "single_label_classification"),
        ([101 + 13 * (n % 30) for n in range(600)], "single_label_classification"),  # codes
        (["3.8", "4.2", "bad", "0.6"], "single_label_classification"),
        ([], "single_label_classification"),
    ],
)
def test_scores_are_recognised(cells: list[Any], task: str) -> None:
    assert recognise(cells).name == task


def test_scores_are_no_classes_unless_they_are_cut(tmp_path: Path) -> None:
    rows = [(f"text {n}", f"{n % 50 / 10:.1f}".replace(".", ",")) for n in range(200)]
    dataset = uploads.upload(tmp_path, "text,score", rows, (), ())
    config = RunConfig(dataset=dataset, task="single_label_classification")
    with pytest.raises(DataError, match=r"fractions.*scores, not classes"):
        splits.load_pairs(config, tmp_path)
    plain = checks.check_pairs(RunConfig(dataset=dataset), tmp_path)
    offered = found(plain, "cut")
    assert offered is not None
    assert [(remedy.field, remedy.value) for remedy in offered.remedies] == [("score_cut", "2.45")]
    cut = RunConfig(dataset=dataset, score_cut="4,0")
    checked = checks.check_pairs(cut, tmp_path)
    assert checked.labels == ["below 4", "from 4"]
    assert np.sum([split.classes for split in checked.splits], axis=0).tolist() == [160, 40]
    loaded = splits.load_pairs(cut, tmp_path)
    assert loaded.target == Target(("below 4", "from 4"), 1, decimal=",")
    with pytest.raises(ConfigError, match="score_cut must be a number"):
        RunConfig(score_cut="high")


def test_doubtful_scores_are_reported(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    labels = [*draw.normal(3, 0.5, 79).round(3), 400.0]
    outliers = found(check(tmp_path, labels), "outliers")
    assert outliers is not None
    assert outliers.rows == {"train": [81]}
    constant = check(tmp_path, [2.5] * 20, task=REGRESSION)
    assert "one score, 2.5" in constant.blocked[0].title
    with pytest.raises(DataError, match=r"one score, 2\.5"):
        uploads.pairs(tmp_path, HEAD, train=[("a", "b", 2.5)] * 9, task=REGRESSION)
    low, high = ([(f"t{n}", value) for n, value in enumerate(draw.normal(at, 1, 60))]
                 for at in (0, 9))  # fmt: skip
    dataset = uploads.upload(tmp_path, "text,score", low, high, ())
    checked = checks.check_pairs(RunConfig(dataset=dataset), tmp_path)
    beyond = found(checked, "range")
    assert beyond is not None
    assert beyond.count == 60
    assert found(checked, "distribution") is not None
    twice = [("same text", 3.1), ("same text", 3.4), *((f"text {n}", n / 7) for n in range(40))]
    dataset = uploads.upload(tmp_path, "text,score", twice, low, ())
    rated = found(checks.check_pairs(RunConfig(dataset=dataset), tmp_path), "conflicts")
    assert rated is not None
    assert (rated.title, rated.count) == ("The same pair has different scores", 2)


def test_a_cut_split_has_its_share_of_low_and_high_scores(tmp_path: Path) -> None:
    rows = [(f"text {n}", n / 1000) for n in range(1000)]
    cut = uploads.pairs(tmp_path, "text,score", train=rows).splits["validation"]
    found = np.histogram(cut["label"], np.linspace(0, 1, 11))[0]
    assert found.sum() == 100
    assert set(found) <= {9, 10, 11}


def test_stsb_is_offered_and_read(hub: LoopbackHub, tmp_path: Path) -> None:
    assert "GLUE STS-B (Hub)" in [entry.label for entry in catalog.DATASETS]
    paths = "".join(
        f"  - split: {split}\n    path: stsb/{split}.parquet\n"
        for split in ("train", "validation", "test")
    )
    card = f"---\nconfigs:\n- config_name: stsb\n  data_files:\n{paths}---\n"
    files = {"README.md": card.encode()}
    for split, rows in {"train": 40, "validation": 12, "test": 6}.items():
        first, second, labels = zip(*graded_rows(rows, rows), strict=True)
        scores = pa.array([-1.0] * rows if split == "test" else labels, pa.float32())
        columns = {"sentence1": first, "sentence2": second, "label": scores, "idx": range(rows)}
        out = pa.BufferOutputStream()
        pq.write_table(pa.table({name: pa.array(cells) for name, cells in columns.items()}), out)
        files[f"stsb/{split}.parquet"] = out.getvalue().to_pybytes()
    hub.add_repo("nyu-mll/glue", "dataset", files)
    loaded = splits.load_pairs(RunConfig(dataset="glue/stsb"), tmp_path)
    assert {name: len(split) for name, split in loaded.splits.items()} == {
        "train": 40, "validation": 12,
    }  # fmt: skip
    assert (loaded.target.task, loaded.target.low, loaded.target.high) == (REGRESSION, 0.0, 5.0)


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
