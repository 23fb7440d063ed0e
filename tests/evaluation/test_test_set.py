"""Measuring a run's model: with its training, and afterwards in processes of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.data import splits
from finetune.errors import DataError
from finetune.evaluation import corrections, report, saved_predictions, test_set
from finetune.jobs import evaluate, train
from finetune.jobs.evaluate import EvaluationJob
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support import toy_runs, toys
from tests.support.hub import LoopbackHub
from tests.support.judging import judged, write_csv
from tests.support.toy_runs import ToyRuns
from tests.support.training import work_in_this_process
from tests.support.waiting import until


@pytest.fixture
def run(trained: ToyRuns, store: RunStore) -> Run:
    """A copy of a run of the toy, to do anything with."""
    return toy_runs.runs_by_name(trained.store(store.root))[toy_runs.CLASSES]


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


def test_the_test_set_is_sealed_until_it_is_opened(store: RunStore, run: Run) -> None:
    assert not (run.predictions / "test.npz").exists()
    assert run.state().opened == ()
    EvaluationJob.of(run, "test").start(store)
    until(lambda: not EvaluationJob.of(run, "test").state().running, 60)
    assert EvaluationJob.of(run, "test").state().error == ""
    summary = run.state()
    (opened,) = summary.opened
    analysis = report.evaluate_run(run, summary, "test").analysis
    assert (summary.status, analysis.examples) == ("finished", 40)
    assert analysis.scores["accuracy"].value == pytest.approx(opened.metrics["accuracy"])
    test_set.open_test_set(run)
    assert len(run.state().opened) == 2  # each time is written down


def test_corrected_labels_become_pairs_to_train_on(store: RunStore, run: Run) -> None:
    names = ["no", "yes"]
    table = saved_predictions.read_examples(run)
    assert table is not None
    before = [names[label] for label in table.column("label").to_pylist()]
    other = names[1 - names.index(before[3])]
    assert corrections.correct_label(run, 3, other, names) == {3: other}
    for row, label in ((80, other), (3, "maybe")):
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


def test_a_hub_dataset_that_has_moved_is_read_as_the_run_read_it(
    hub: LoopbackHub, store: RunStore, toy_checkpoint: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    work_in_this_process(monkeypatch)

    def files(count: int) -> dict[str, bytes]:
        folder = toys.write_pairs(tmp_path / str(count), train=count)
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    repo = hub.add_repo("ada/moving", "dataset", files(48))
    config = RunConfig(checkpoint=str(toy_checkpoint), max_length=32, max_steps=4)
    run = store.create(config.changed(dataset="ada/moving", mixed_precision="no"))
    assert train.carry_out_run(run, lambda event: None) == 0
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
    assert train.carry_out_run(run, lambda event: None) == 0
    again = run.state().prepared
    assert again is not None
    assert again.fingerprint == first.fingerprint
    assert run.config().dataset_revision == ""
