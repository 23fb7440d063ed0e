"""Runs of each task: their scores are of their saved answers, and transformers loads the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from finetune.evaluation import report, saved_predictions
from finetune.inference import decision_rule, file_request, files
from finetune.inference.file_request import PredictionRequest
from finetune.inference.scorer import Scorer
from finetune.metrics.example_metrics import conformal_margin
from finetune.runs.summary import ColumnNames
from finetune.tasks.base import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from finetune.tasks.registry import task_of
from tests.support import toy_runs
from tests.support.graded import LABELS, labelled_rows
from tests.support.judging import judged, write_csv
from tests.support.toy_runs import ToyRuns

FUNCTIONS = {SINGLE_LABEL: "softmax", REGRESSION: "none", MULTI_LABEL: "sigmoid"}


@pytest.mark.parametrize("kind", toy_runs.KINDS)
def test_a_model_answers_alike_by_itself(kind: str, trained: ToyRuns, tmp_path: Path) -> None:
    """As transformers loads it, as a `CrossEncoder` reads it, and as its run was evaluated."""
    run = toy_runs.runs_by_name(trained.store(tmp_path / "runs"))[kind]
    state = run.state()
    assert state.prepared is not None
    assert state.best is not None
    target, study = state.prepared.target, report.evaluate_run(run, state)
    for name, score in study.analysis.scores.items():
        assert score.value == pytest.approx(state.best.metrics[name], abs=1e-6)
        assert score.low <= score.value <= score.high
    assert all(measured for measured in state.baselines.values())
    model = AutoModelForSequenceClassification.from_pretrained(run.best)
    ask = pipeline(
        "text-classification", top_k=None, function_to_apply=FUNCTIONS[target.task], model=model,
        tokenizer=AutoTokenizer.from_pretrained(run.best),
    )  # fmt: skip
    assert study.table is not None
    rows = study.table.to_pylist()[:20]
    inputs: list[dict[str, Any]] = [
        {"text": row["sentence1"]} | ({"text_pair": row["sentence2"]} if "sentence2" in row else {})
        for row in rows
    ]
    logits = saved_predictions.read_logits(run, state.best.step, target).logits[:20]
    answers = task_of(target).answers(logits, target)
    expected = answers.probabilities if target.names else answers.values[:, None]
    for row, values in zip(ask(inputs), expected.tolist(), strict=True):
        found = {one["label"]: one["score"] for one in row}
        names = target.names or tuple(model.config.id2label.values())
        assert found == pytest.approx(dict(zip(names, values, strict=True)), abs=2e-3)
    assert Scorer(run.best, 32).target == target
    if target.task == REGRESSION:  # no sigmoid behind the only output
        activation = {"activation_fn": "torch.nn.modules.linear.Identity"}
        assert model.config.sentence_transformers == activation
        margin = conformal_margin(study.answers - study.truth)
        assert decision_rule.read_rule(run.best).margin == pytest.approx(margin, rel=1e-5)


def test_a_file_with_a_column_for_each_label_is_measured_as_one_with_lists(
    trained: ToyRuns, tmp_path: Path
) -> None:
    """A row whose cells say neither yes nor no is left out."""
    run = toy_runs.runs_by_name(trained.store(tmp_path / "runs"))[toy_runs.LABELS]
    given, names = labelled_rows(24, 2), " | ".join(LABELS)
    marks = [(text, *(int(name in cell.split(";")) for name in LABELS)) for text, cell in given]
    rows = [("text", *LABELS), *marks, (given[0][0], "likes", 0, 1)]
    file = write_csv(tmp_path / "columns.csv", [tuple(map(str, row)) for row in rows])
    columns = ColumnNames("text", "", names)
    asked = file_request.check_columns(PredictionRequest(run.id, file.name, ""), file, columns)
    assert (asked.sentence1, asked.label) == ("text", names)
    by_columns, _whole = files.predict_file(run, asked, file, tmp_path / "out.csv")
    file = write_csv(tmp_path / "lists.csv", [("sentence1", "label"), *given])
    by_lists = judged(run, file, tmp_path / "out.csv", ColumnNames("sentence1", "", "label"))
    assert by_columns["scores"] == by_lists["scores"]
    assert (by_columns["labelled"], by_columns["unknown_labels"]) == (len(given), 1)
