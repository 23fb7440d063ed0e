"""Measuring a run's model: with its training, and afterwards in processes of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from finetune.__main__ import main as command_line
from finetune.config import RunConfig
from finetune.data import splits
from finetune.errors import DataError, JobError
from finetune.evaluation import corrections, report, saved_predictions, test_set
from finetune.jobs import evaluate
from finetune.jobs.evaluate import EvaluationJob
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.uploads import Uploads
from tests.support import toys
from tests.support.hub import LoopbackHub
from tests.support.judging import judged, write_csv
from tests.support.waiting import until


def train(run: Run) -> None:
    command = [sys.executable, "-m", "finetune", "train", "--run", str(run.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def trained(toy_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A toy run, trained on somebody's files."""
    folder = tmp_path_factory.mktemp("trained")
    store = RunStore(folder / "runs")
    pairs = toys.write_pairs(folder / "pairs")
    files = {split: pairs / f"{split}.csv" for split in ("train", "validation", "test")}
    run = store.create(
        RunConfig(
            dataset=Uploads(store.root / "uploads").add(files), checkpoint=str(toy_checkpoint),
            max_length=32, num_train_epochs=2, mixed_precision="no", learning_rate=1e-3,
        )
    )  # fmt: skip
    train(run)
    return run


@pytest.fixture
def run(trained: Run, store: RunStore) -> Run:
    """A copy of it, to do anything with."""
    shutil.copytree(trained.folder.parent, store.root)
    return store.get(trained.id)


@pytest.mark.slow
def test_a_training_leaves_all_that_an_evaluation_needs(store: RunStore, run: Run) -> None:
    summary = run.state()
    assert summary.status == "finished"
    assert set(summary.baselines) == {"always the commonest answer", "counting words (TF-IDF)"}
    stream = run.tail()[0]
    kinds = [event.event for event in stream]  # type: ignore[attr-defined]
    assert kinds.index("baselines") < kinds.index("evaluated") < kinds.index("step")
    assert kinds.count("baselines") == 1
    assert summary.untrained in stream
    for evaluated in summary.validation:
        low, high = evaluated.intervals["accuracy"]
        assert low <= evaluated.metrics["accuracy"] <= high
    study = report.evaluate_run(run, summary)
    assert study.table is not None
    assert summary.best is not None
    assert study.analysis.scores["f1"].value == pytest.approx(summary.best.metrics["f1"])
    assert study.analysis.order is not None
    assert study.analysis.order.pairs == study.analysis.examples == 24
    # Scored from the saved model, as answers are, in both orders.
    assert kinds.count("kept_model_scored") == 1
    swapped = saved_predictions.read_swapped_logits(run)
    assert swapped is not None
    assert summary.prepared is not None
    best = saved_predictions.read_logits(run, summary.best.step, summary.prepared.target)
    np.testing.assert_array_equal(swapped.given, best.logits)


@pytest.mark.slow
def test_a_split_has_one_score_whoever_computes_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop evaluates in the precision of training. What it found is replaced by what the model
    answers when it is asked: in the evaluation, in the run's curve and in a predicted file."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):  # as the job sets them
        monkeypatch.setenv(name, "1")
    summary = run.state()
    assert summary.prepared is not None
    assert summary.best is not None
    step, target = summary.best.step, summary.prepared.target
    rough = saved_predictions.read_logits(run, step, target)
    noise = np.random.default_rng(0).normal(0, 2, rough.logits.shape).astype(np.float32)
    saved_predictions.save_logits(run, step, rough.logits + noise, rough.labels)
    evaluate.score(run, test=False)
    table = saved_predictions.read_examples(run)
    assert table is not None
    rows = [*zip(*(map(str, column) for column in table.to_pydict().values()), strict=True)]
    file = write_csv(tmp_path / "validation.csv", [tuple(table.column_names), *rows])
    predicted = judged(run, file, tmp_path / "out.csv", label="label")["scores"]
    summary = run.state()
    assert summary.best is not None
    (point,) = (one for one in summary.validation if one.step == step)
    analysis = report.evaluate_run(run, summary).analysis
    for name, score in analysis.scores.items():
        found = summary.best.metrics[name], point.metrics[name], predicted[name][0]
        assert found == pytest.approx([score.value] * 3, abs=1e-9)
        ends = [summary.best.intervals[name], predicted[name][1:]]
        assert ends == [pytest.approx([score.low, score.high], abs=1e-9)] * 2


@pytest.mark.slow
def test_the_test_set_is_sealed_until_it_is_opened(store: RunStore, run: Run) -> None:
    assert not (run.predictions / "test.npz").exists()
    assert run.state().opened == ()
    EvaluationJob.of(run, "test").start(store)
    until(lambda: not EvaluationJob.of(run, "test").state().running, 60)
    assert EvaluationJob.of(run, "test").state().error == ""
    summary = run.state()
    (opened,) = summary.opened
    analysis = report.evaluate_run(run, summary, "test").analysis
    assert (summary.status, analysis.examples) == ("finished", 8)
    assert analysis.scores["accuracy"].value == pytest.approx(opened.metrics["accuracy"])
    test_set.open_test_set(run)
    assert len(run.state().opened) == 2  # each time is written down


@pytest.mark.slow
def test_an_evaluation_from_a_terminal_prints_what_it_found(
    store: RunStore, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):  # as the command sets them
        monkeypatch.setenv(name, "1")
    command = ["evaluate", "--runs", str(store.root), "--run"]
    assert command_line([*command, run.id]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == 24
    assert command_line([*command, run.id, "--open_test"]) == 0
    (opened,) = run.state().opened
    assert json.loads(capsys.readouterr().out) == {"step": opened.step, **opened.metrics}
    assert command_line([*command, "nonsense"]) == 2
    assert "There is no such run." in capsys.readouterr().err


@pytest.mark.slow
def test_corrected_labels_become_pairs_to_train_on(store: RunStore, run: Run) -> None:
    names = ["0", "1"]
    table = saved_predictions.read_examples(run)
    assert table is not None
    before = [names[label] for label in table.column("label").to_pylist()]
    other = names[1 - names.index(before[3])]
    assert corrections.correct_label(run, 3, other, names) == {3: other}
    for row, label in ((24, other), (3, "maybe")):
        with pytest.raises(DataError, match="no such example or class"):
            corrections.correct_label(run, row, label, names)
    lines = corrections.corrections_csv(run, names).splitlines()
    assert [n for n, line in enumerate(lines[1:]) if line.endswith(f",{before[3]}")] == [3]
    config = corrections.corrections_upload(store, run)
    assert (config.sentence2_column, config.label_column) == ("sentence2", "label")
    pairs = splits.load_pairs(config, store.root)
    after = [pairs.target.names[label] for label in pairs.splits["validation"]["label"]]
    assert after == [*before[:3], other, *before[4:]]
    original = splits.load_pairs(run.config(), store.root).splits["train"]
    assert pairs.splits["train"]["sentence2"][:] == original["sentence2"][:]
    assert corrections.correct_label(run, 3, before[3], names) == {}  # taken back
    with pytest.raises(DataError, match="No label was corrected"):
        corrections.corrections_upload(store, run)


@pytest.mark.long
def test_a_hub_dataset_that_has_moved_is_read_as_the_run_read_it(
    hub: LoopbackHub, store: RunStore, toy_checkpoint: Path, tmp_path: Path
) -> None:
    def files(count: int) -> dict[str, bytes]:
        folder = toys.write_pairs(tmp_path / str(count), train=count)
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    repo = hub.add_repo("ada/moving", "dataset", files(48))
    run = store.create(
        RunConfig(
            dataset="ada/moving", checkpoint=str(toy_checkpoint), max_length=32, max_steps=4,
            mixed_precision="no",
        )
    )  # fmt: skip
    train(run)
    first = run.state().prepared
    assert first is not None
    assert run.pinned_config().dataset_revision == repo.head
    assert len(list((store.root / "data").glob("*/"))) == 1  # read once
    repo.commit("other rows", {**files(60)})
    assert splits.load_pairs(run.config(), store.root).fingerprint != first.fingerprint
    shutil.rmtree(run.predictions)
    test_set.score_kept_model(run)
    test_set.open_test_set(run)
    table = saved_predictions.read_examples(run)
    assert table is not None
    label = first.labels[1 - table.column("label")[0].as_py()]
    corrections.correct_label(run, 0, label, first.labels)
    assert corrections.corrections_upload(store, run).dataset.startswith("upload/")
    run.append(events.Stopped(step=4, seconds=0.0))  # only such a run goes on
    train(run)
    again = run.state().prepared
    assert again is not None
    assert again.fingerprint == first.fingerprint
    assert run.config().dataset_revision == ""


def test_what_cannot_be_measured_is_said(
    store: RunStore, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):  # as the job sets them
        monkeypatch.setenv(name, "1")
    run = store.create(RunConfig())
    with pytest.raises(DataError, match="were not kept"):
        corrections.correct_label(run, 0, "a", ["a"])
    with pytest.raises(JobError, match="no model"):
        EvaluationJob.of(run, "orders").start(store)
    toys.copy_model(toy_checkpoint, run.best)
    run.append(events.Started(device="CPU"))
    single = pa.table({"sentence1": ["a"], "label": [0]})
    saved_predictions.save_examples(run, "validation", single)
    run.append(
        events.Prepared(
            train_examples=1, validation_examples=1, steps_per_epoch=1, total_steps=1,
            labels=["a"], parameters=1, precision="no", data={"columns": {"sentence2": ""}},
        )
    )  # fmt: skip
    with pytest.raises(DataError, match="single sentences"):
        evaluate.score(run, test=False)
    assert EvaluationJob.of(run, "orders").state().status == "none"
