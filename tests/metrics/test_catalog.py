"""Metrics by name: equal to scikit-learn's and GLUE's, by arrays and as modules of `evaluate`."""

from __future__ import annotations

import warnings
from typing import Any

import evaluate
import numpy as np
import pytest
import sklearn.metrics
from numpy.typing import NDArray

from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.data import catalog as datasets_offered
from finetune.errors import ConfigError
from finetune.metrics import catalog, intervals, modules, selection
from finetune.metrics.calibration import probabilities
from finetune.metrics.classification import confusion_matrix
from finetune.tasks.base import Target
from finetune.tasks.registry import measured
from tests.support.hub import LoopbackHub

ALL = [metric for metric in catalog.METRICS.values() if metric is not catalog.LOSS]
TALLIED = [metric for metric in ALL if metric.of_tally is not None]
# What GLUE's module of `evaluate` computes of each of its tasks of classes, by scikit-learn.
GLUE = {
    "cola": ["matthews_correlation"], "mrpc": ["accuracy", "f1"], "qqp": ["accuracy", "f1"],
    "mnli": ["accuracy"], "qnli": ["accuracy"], "rte": ["accuracy"], "sst2": ["accuracy"],
    "wnli": ["accuracy"],
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def drawn(classes: int, n: int = 200, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Logits that tell something of the labels, and the labels."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(classes, size=n)
    logits = draw.normal(size=(n, classes)).astype(np.float32)
    logits[np.arange(n), labels] += 1
    return logits, labels


def by_sklearn(metric: catalog.Metric, logits: Any, labels: Any, positive: int) -> float:
    classes = logits.shape[1]
    if metric.of_tally is None:
        shares = probabilities(logits)
        if classes == 2:
            return float(sklearn.metrics.roc_auc_score(labels == positive, shares[:, positive]))
        one_by_one = [
            sklearn.metrics.roc_auc_score(labels == label, shares[:, label])
            for label in np.unique(labels)
        ]
        return float(np.mean(one_by_one))
    function = getattr(sklearn.metrics, metric.library.removeprefix("sklearn.metrics."))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that do not occur
        options = metric.library_options(classes, positive)
        return float(function(labels, logits.argmax(axis=1), **options))


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
@pytest.mark.parametrize(("classes", "positive"), [(2, 0), (2, 1), (3, 1), (40, 1)])
def test_a_module_equals_scikit_learn(metric: catalog.Metric, classes: int, positive: int) -> None:
    """Handed in batches, the last one shorter; twice, for it begins anew after each result."""
    scored = modules.ScoreModules([metric.name], classes, positive)
    for seed in range(2):
        logits, labels = drawn(classes, 90, seed)
        for rows in np.array_split(np.arange(90), [32, 64]):
            scored.add_batch(predictions=logits[rows], references=labels[rows])
        expected = by_sklearn(metric, logits, labels, positive)
        assert scored.compute() == {metric.name: pytest.approx(expected, abs=1e-6)}


@pytest.mark.parametrize("metric", TALLIED, ids=lambda metric: metric.name)
@pytest.mark.parametrize("classes", [2, 4])
def test_arrays_intervals_and_resamples_score_alike(metric: catalog.Metric, classes: int) -> None:
    logits, labels = drawn(classes)
    answers, expected = logits.argmax(axis=1), by_sklearn(metric, logits, labels, 1)
    confusion = confusion_matrix(labels, answers, classes)
    assert metric.score(confusion) == pytest.approx(expected)
    positive = 1 if classes == 2 else None
    interval = intervals.score_intervals(answers, labels, [metric], positive)[metric.name]
    assert interval.value == pytest.approx(expected)
    assert metric.range[0] <= interval.low < interval.value < interval.high <= metric.range[1]
    both = np.stack([answers, labels])
    statistic = selection.statistics([metric], labels, both, positive)[metric.name]
    scores = statistic.of(np.ones((len(labels), 1)))
    assert scores[:, 0] == pytest.approx([expected, metric.range[1]], rel=1e-5)


@pytest.mark.parametrize("metric", TALLIED, ids=lambda metric: metric.name)
@pytest.mark.parametrize("classes", [2, 3])
def test_of_right_answers_alone_the_interval_reaches_below(
    metric: catalog.Metric, classes: int
) -> None:
    truth, positive = np.repeat(np.arange(classes), 5), 1 if classes == 2 else None
    interval = intervals.score_intervals(truth, truth, [metric], positive)[metric.name]
    assert (interval.value, interval.high) == (1.0, 1.0)
    assert 0 < interval.low < 0.9


@pytest.mark.parametrize("task", GLUE)
def test_what_glue_defines_is_measured(task: str) -> None:
    """By scikit-learn's functions, as https://huggingface.co/spaces/evaluate-metric/glue has it."""
    logits, labels = drawn(3 if task == "mnli" else 2)
    answers = logits.argmax(axis=1)
    expected = {
        "accuracy": float((answers == labels).mean()),
        "matthews_correlation": sklearn.metrics.matthews_corrcoef(labels, answers),
    }
    if task in ("mrpc", "qqp"):
        expected["f1"] = sklearn.metrics.f1_score(y_true=labels, y_pred=answers)
    config = RunConfig(metrics="matthews_correlation" if task == "cola" else "")
    names = [metric.name for metric in measured(config, Target(("no", "yes")))]
    scored = modules.ScoreModules(names, logits.shape[1])
    scored.add_batch(predictions=logits, references=labels)
    found = scored.compute()
    assert {name: found[name] for name in GLUE[task]} == pytest.approx(
        {name: expected[name] for name in GLUE[task]}
    )


def test_every_task_of_glue_that_is_offered_is_defined_here() -> None:
    offered = {entry.config for entry in datasets_offered.DATASETS if "glue" in entry.repo}
    assert offered <= {*GLUE, "stsb"}  # whose scores are in test_regression


def test_a_notebook_can_load_ours() -> None:
    metric = evaluate.combine(
        [evaluate.load(str(modules.FOLDER), name) for name in ("accuracy", "f1")]
    )
    found = metric.compute(predictions=[0, 1, 1, 1], references=[0, 1, 0, 1])
    assert found == {"accuracy": 0.75, "f1": pytest.approx(0.8)}


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


def test_a_folder_is_a_metric_and_what_is_no_number_is_left_out(tmp_path: Any) -> None:
    folder = tmp_path / "hits"
    folder.mkdir()
    (folder / "hits.py").write_text(FOREIGN)
    scored = modules.ScoreModules(["accuracy", str(folder)], 2)
    logits, labels = drawn(2, 20)
    scored.add_batch(predictions=logits, references=labels)
    hits = float((logits.argmax(axis=1) == labels).sum())
    assert scored.compute() == {"accuracy": hits / 20, "hits": hits}


def test_a_module_of_the_hub_is_fetched(hub: LoopbackHub) -> None:
    hub.add_repo("ada/hits", "space", {"hits.py": FOREIGN.encode()})
    scored = modules.ScoreModules(["accuracy", "ada/hits"], 2)
    logits, labels = drawn(2, 20)
    scored.add_batch(predictions=logits, references=labels)
    assert scored.compute()["hits"] == float((logits.argmax(axis=1) == labels).sum())
    assert datasets_offered.needs_hub("bundled", BUNDLED_CHECKPOINT, ["ada/hits"])
    assert not datasets_offered.needs_hub("bundled", BUNDLED_CHECKPOINT, [str(modules.FOLDER)])


def test_a_module_of_the_hub_without_a_network_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError) as raised:
        modules.ScoreModules(["accuracy", "somebody/some_metric"], 2)
    assert str(raised.value) == (
        "metrics names somebody/some_metric, a module of the Hub, which does not answer."
    )


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        ("roc_auc nonsense", "must be names out of .*, got 'nonsense'"),
        ("'unclosed", "must be names out of"),
    ],
)
def test_names_that_mean_nothing_are_refused(metrics: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        RunConfig(metrics=metrics)


def test_what_is_measured_is_the_standard_and_what_is_asked_for() -> None:
    config = RunConfig(metrics="roc_auc f1", metric_for_best_model="recall")
    names = [metric.name for metric in measured(config, Target(("no", "yes")))]
    assert names == ["accuracy", "f1", "roc_auc", "recall"]
    assert [
        m.name for m in measured(RunConfig(metric_for_best_model="loss"), Target(("no", "yes")))
    ] == ["accuracy", "f1"]
