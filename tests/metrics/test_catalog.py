"""Metrics by name: what is measured of a task, and modules of `evaluate` of anybody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.data import catalog as datasets_offered
from finetune.metrics import catalog, classification, intervals, modules, selection
from finetune.metrics.catalog import OF_LABELS, OF_SCORES
from finetune.metrics.example_metrics import conformal_margin
from finetune.tasks.base import REGRESSION, SINGLE_LABEL, Target
from finetune.tasks.registry import deciding_metric, find_task, measured, task_of
from finetune.tasks.single_label import SingleLabel
from tests.metrics.test_libraries import logits_of, scores_of
from tests.support.hub import LoopbackHub

TALLIED = [metric for metric in catalog.METRICS.values() if metric.of_tally is not None]
SCORES = Target((), task=REGRESSION)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("metric", TALLIED, ids=lambda metric: metric.name)
@pytest.mark.parametrize("classes", [2, 3])
def test_of_right_answers_alone_the_interval_reaches_below(
    metric: catalog.Metric, classes: int
) -> None:
    truth, positive = np.repeat(np.arange(classes), 5), 1 if classes == 2 else None
    interval = intervals.score_intervals(truth, truth, [metric], positive)[metric.name]
    assert (interval.value, interval.high) == (1.0, 1.0)
    assert 0 < interval.low < 0.9


FOREIGN = """
import datasets
import evaluate


class Hits(evaluate.Metric):
    def _info(self):
        label = datasets.Value("int64")
        features = datasets.Features({"predictions": label, "references": label})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        hits = sum(a == b for a, b in zip(predictions, references))
        return {"hits": hits, "all": [hits], "undefined": float("nan")}
"""


def test_a_folder_or_a_module_of_the_hub_is_a_metric_and_what_is_no_number_is_left_out(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    (folder := tmp_path / "hits").mkdir()
    (folder / "hits.py").write_text(FOREIGN)
    hub.add_repo("ada/hits", "space", {"hits.py": FOREIGN.encode()})
    labels, logits = logits_of(20, 2)
    hits = float((logits.argmax(axis=1) == labels).sum())
    for name in (str(folder), "ada/hits"):
        scored = modules.ScoreModules(["accuracy", name], 2)
        scored.add_batch(predictions=logits, references=labels)
        assert scored.compute() == {"accuracy": hits / 20, "hits": hits}
    assert datasets_offered.needs_hub("bundled", BUNDLED_CHECKPOINT, ["ada/hits"])
    assert not datasets_offered.needs_hub("bundled", BUNDLED_CHECKPOINT, [str(modules.FOLDER)])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([np.float32, np.float64]),
)
def test_no_threshold_has_a_better_f1_than_the_best(
    rows: list[tuple[float, bool]], kind: type[np.floating]
) -> None:
    scores = np.array([score for score, _ in rows], dtype=kind)
    positives = np.array([positive for _, positive in rows])
    best = classification.threshold_sweep(scores, positives).best
    reached, *others = (
        sklearn.metrics.f1_score(positives, scores.astype(float) >= threshold, zero_division=np.nan)
        for threshold in (best["threshold"], *scores.astype(float))
    )
    assert best["f1"] == pytest.approx(reached, nan_ok=True)
    if positives.any():
        assert best["f1"] == pytest.approx(max(others))


def test_the_majority_is_that_of_training_and_in_a_tie_the_positive_class() -> None:
    def scores(train: list[int], validation: list[int]) -> dict[str, float]:
        """Of always answering the majority, from the number of rows of each class."""
        rows = [np.repeat(np.arange(len(counts)), counts) for counts in (train, validation)]
        target = Target(tuple("abc"[: len(train)]))
        return SingleLabel().constant_scores(rows[0], rows[1], target, catalog.STANDARD)

    assert scores([5, 5], [3, 3]) == {"accuracy": 0.5, "f1": pytest.approx(2 / 3)}
    assert scores([6, 5], [1, 3]) == {"accuracy": 0.25, "f1": 0}
    assert scores([4, 1, 4], [2, 1, 1])["accuracy"] == 0.5


def test_thresholds_are_fitted_to_each_label_and_judged_on_others() -> None:
    """The first label's probabilities are too low, those of the second too high."""
    draw = np.random.default_rng(0)
    truth = draw.random((600, 3)) < 0.4
    signal = np.where(truth, 1.0, -1.0) + draw.normal(0, 0.7, truth.shape)
    shares = 1 / (1 + np.exp(-(signal * 2 + [-3, 3, 0])))
    fitted = selection.cross_fit_thresholds(shares, truth)
    assert fitted is not None
    low, high, _ = fitted.thresholds
    assert low < 0.3
    assert high > 0.7
    assert fitted.is_recommended
    apparent = catalog.example_scores(shares >= fitted.thresholds, truth, OF_LABELS)["micro_f1"]
    assert fitted.f1.value <= apparent + 1e-9
    rare = truth.copy()
    rare[:, 1] = False
    few = selection.cross_fit_thresholds(shares, rare)
    assert few is not None
    assert few.thresholds[1] == 0.5
    assert selection.cross_fit_thresholds(shares, np.zeros_like(truth)) is None


def test_an_interval_holds_the_true_value_as_often_as_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 200 intervals 95% would be 190; 12 fewer are four standard deviations."""
    monkeypatch.setattr(intervals, "_RESAMPLES", 600)
    metrics = [OF_SCORES[0], OF_SCORES[3]]
    true = {"pearson": 0.7, "rmse": np.sqrt(1 / 0.49 - 1)}
    hits = dict.fromkeys(true, 0)
    for seed in range(200):
        truth, answers = scores_of(120, seed, decimals=9)
        found = intervals.score_intervals(answers, truth, metrics)
        for name, value in true.items():
            hits[name] += found[name].low <= value <= found[name].high
    assert all(count >= 178 for count in hits.values()), hits


def test_a_conformal_interval_covers_new_scores() -> None:
    """95% or a little more of new examples, whatever the errors are like."""
    for n, low in ((19, 0.93), (100, 0.935), (400, 0.94)):
        covered = []
        for seed in range(400):
            draw = np.random.default_rng(seed)
            errors = draw.standard_t(2, n + 50)
            margin = conformal_margin(errors[:n])
            assert margin is not None
            covered.append((np.abs(errors[n:]) <= margin).mean())
        assert low <= np.mean(covered) <= 0.97
    assert conformal_margin(np.zeros(18)) is None
    assert conformal_margin(np.arange(19.0) - 9) == 9


def test_metrics_of_other_answers_are_not_measured_of_scores() -> None:
    config = RunConfig(metrics="matthews_correlation")
    assert [metric.name for metric in measured(config, SCORES)] == [
        metric.name for metric in OF_SCORES
    ]
    decided = {"f1": "pearson", "roc_auc": "pearson", "mae": "mae", "loss": "loss"}
    for name, decides in decided.items():
        by_name = config.changed(metric_for_best_model=name)
        assert deciding_metric(by_name, task_of(SCORES)) == decides
    by_error = config.changed(metric_for_best_model="mae")
    assert deciding_metric(by_error, find_task(SINGLE_LABEL)) == "f1"
