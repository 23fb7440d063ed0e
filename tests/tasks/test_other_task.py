"""A task is one class: one that the project does not know goes the whole way, as its own would."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.data import checks
from finetune.evaluation import report
from finetune.hub import model_card, onnx, script_bundle
from finetune.inference import files
from finetune.inference.file_request import PredictionRequest
from finetune.inference.predictor import Predictor
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState
from finetune.tasks import registry
from finetune.tasks.base import DecisionRule
from finetune.ui import evaluation_view, run_view
from finetune.ui.html import macro
from tests.support import installed, running, toys, uploads
from tests.support.other_task import GRADES, Ordinal

HEAD = "left,right,grade"


@pytest.fixture
def ordinal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the task."""
    installed.install(tmp_path / "installed", "finetune.tasks", Ordinal, monkeypatch)
    registry.tasks.cache_clear()
    yield
    registry.tasks.cache_clear()


def graded(count: int, seed: int) -> list[uploads.Row]:
    """Pairs of which the alike are never low."""
    rows = enumerate(toys.rows(count, seed))
    return [(first, second, GRADES[n % 2 + same]) for n, (first, second, same) in rows]


@pytest.fixture
def config(store: RunStore, toy_config: RunConfig, tmp_path: Path, ordinal: None) -> RunConfig:
    store.root.mkdir()
    dataset = uploads.upload(store.root, HEAD, graded(64, 0), graded(24, 1), ())
    return toy_config.changed(dataset=dataset, max_steps=8, eval_steps=4, mixed_precision="no")


def test_the_pairs_are_recognised_and_checked(store: RunStore, config: RunConfig) -> None:
    found = checks.check_pairs(config, store.root)
    assert not found.blocked
    assert found.labels == GRADES  # in their order, which is not that of their names
    named = checks.check_pairs(config.changed(task="single_label_classification"), store.root)
    assert named.labels == sorted(GRADES)
    wrong = checks.check_pairs(config.changed(task="ranking"), store.root)
    assert [finding.title for finding in wrong.blocked] == ["There is no task 'ranking'."]


@pytest.mark.long
def test_it_is_trained_shown_asked_and_exported(
    store: RunStore, config: RunConfig, tmp_path: Path
) -> None:
    subprocess.run(running.command(store, config, [sys.executable]), check=True, cwd=running.ROOT)
    (run,) = store.runs()
    state = run.state()
    assert state.status == "finished"
    # 1. The evaluation
    study = report.evaluate_run(run, state)
    off = study.answers - study.truth
    best = state.best
    assert best is not None
    assert best.metrics["loss"] == pytest.approx((off**2).mean())
    assert best.metrics["accuracy"] == pytest.approx((off == 0).mean())
    score = study.analysis.scores["accuracy"]
    assert score.low < score.value == best.metrics["accuracy"] < score.high
    # 2. The page and the card
    shown = evaluation_view.view(study, state, DecisionRule(), JobState("none"))
    card = model_card.card_text(run, state, "ada/grades")
    for text in (str(shown), card):
        assert all(grade in text for grade in GRADES)
    assert f"{score.value:.3f}" in str(run_view.cards(run, state))
    assert f"{score.value:.4f} ({score.low:.3f} to {score.high:.3f})" in card
    # 3. Answers: by the task's rule, not the most probable class
    pairs = graded(24, 1)
    predictor = Predictor.from_run(run)
    answers = [predictor(first, second) for first, second, _ in pairs]
    assert [GRADES.index(answer.label) for answer in answers] == study.answers.tolist()
    assert "grade =" in str(macro("answer/classes.html", "answer")(answers[0], state.columns.label))
    predicted = predict(run, pairs, tmp_path)
    assert [row["prediction"] for row in predicted] == [answer.label for answer in answers]
    # 4. Exports
    assert onnx.export_onnx(run.best, tmp_path / "model.onnx") <= onnx.TOLERANCE
    pieces = b"".join(script_bundle.script_zip(run, store))
    with zipfile.ZipFile(io.BytesIO(pieces)) as bundle:
        values = json.loads(bundle.read(f"{run.id}/config.json"))
    assert values["not_repeated"] == ["task"]


def predict(run: Run, pairs: list[uploads.Row], folder: Path) -> list[dict[str, str]]:
    file, out = folder / "pairs.csv", folder / "out.csv"
    with file.open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened).writerows([HEAD.split(","), *pairs])
    request = PredictionRequest(run.id, file.name, "left", "right", "grade")
    figures, whole = files.predict_file(run, request, file, out)
    assert whole
    right = np.mean([row["prediction"] == row["grade"] for row in read(out)])
    assert figures["scores"]["accuracy"][0] == pytest.approx(right)
    return read(out)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
