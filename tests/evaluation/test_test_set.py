"""Measuring a run's model: with its training, and afterwards in processes of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from finetune.config import NO_COLUMN, RunConfig
from finetune.data import splits
from finetune.errors import DataError, JobError
from finetune.evaluation import corrections, report, saved_predictions, test_set
from finetune.jobs import evaluate, service
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import fold_events
from finetune.uploads import Uploads
from tests.jobs.test_service import until
from tests.support import toys
from tests.support.hub import LoopbackHub


@pytest.fixture(scope="module")
def trained(toy_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A toy run, trained on somebody's files."""
    place = tmp_path_factory.mktemp("trained")
    store = RunStore(place / "runs")
    folder = toys.write_pairs(place / "pairs")
    files = {split: folder / f"{split}.csv" for split in ("train", "validation", "test")}
    made = store.create(
        RunConfig(
            dataset=Uploads(store.root / "uploads").add(files), checkpoint=str(toy_checkpoint),
            max_length=32, num_train_epochs=2, mixed_precision="no", learning_rate=1e-3,
        )
    )  # fmt: skip
    command = [sys.executable, "-m", "finetune", "train", "--run", str(made.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture
def run(trained: Run, store: RunStore) -> Run:
    """A copy of it, to do anything with."""
    shutil.copytree(trained.folder.parent, store.root)
    return store.get(trained.id)


@pytest.mark.slow
def test_a_training_leaves_all_that_an_evaluation_needs(store: RunStore, run: Run) -> None:
    summary = service.run_summary(store, run)
    assert summary.status == "finished"
    assert set(summary.baselines) == {"majority class", "TF-IDF + logistic regression"}
    for one in summary.validation:
        low, high = one.intervals["accuracy"]
        assert low <= one.metrics["accuracy"] <= high
    study = report.evaluate_run(run, summary)
    assert study.table is not None
    assert study.analysis.examples == 24
    assert summary.best is not None
    assert study.analysis.scores["f1"].value == pytest.approx(summary.best.metrics["f1"])
    order = study.analysis.order
    assert order is not None
    assert order.pairs == 24
    # Scored from the saved model: what the loop saw, read the other way round.
    found = saved_predictions.read_swapped_logits(run)
    assert found is not None
    kept = saved_predictions.read_logits(run, summary.best.step)
    np.testing.assert_allclose(found.given, kept.logits, atol=0.05)
    kinds = [type(one).__name__ for one in run.tail()[0]]
    assert kinds.count("BaselinesMeasured") == 1
    assert kinds[-1] == "Finished"


@pytest.mark.slow
def test_the_test_set_is_sealed_until_it_is_opened(store: RunStore, run: Run) -> None:
    assert not (run.predictions / "test.npz").exists()
    assert service.run_summary(store, run).opened == ()
    evaluate.start_evaluation(store, run, "test")
    until(lambda: not evaluate.evaluation_state(run, "test").running, 60)
    assert evaluate.evaluation_state(run, "test").error == ""
    once = service.run_summary(store, run)
    assert len(once.opened) == 1
    assert once.status == "finished"
    scores = once.opened[0].metrics
    found = report.evaluate_run(run, once, "test").analysis
    assert found.examples == 8
    assert found.scores["accuracy"].value == pytest.approx(scores["accuracy"])
    test_set.open_test_set(run)
    assert len(service.run_summary(store, run).opened) == 2  # each time is written down


@pytest.mark.slow
def test_corrected_labels_become_pairs_to_train_on(store: RunStore, run: Run) -> None:
    labels = ["0", "1"]
    table = saved_predictions.read_examples(run)
    assert table is not None
    before = table.column("label").to_pylist()
    other = labels[1 - before[3]]
    assert corrections.correct_label(run, 3, other, labels) == {3: other}
    with pytest.raises(DataError, match="no validation example 25"):
        corrections.correct_label(run, 24, other, labels)
    with pytest.raises(DataError, match="no class 'maybe'"):
        corrections.correct_label(run, 3, "maybe", labels)
    lines = "".join(corrections.corrections_csv(run, labels)).splitlines()
    assert len(lines) == 25
    assert [n for n, line in enumerate(lines[1:]) if line.endswith(labels[before[3]])] == [3]
    chosen = corrections.corrections_upload(store, run)
    assert (chosen.sentence2_column, chosen.label_column) == ("sentence2", "label")
    pairs = splits.load_pairs(chosen, store.root)
    now = pairs.splits["validation"]["label"][:]
    names = pairs.labels
    assert [names[n] for n in now] == [
        other if n == 3 else labels[label] for n, label in enumerate(before)
    ]
    assert pairs.splits["train"].num_rows == 64
    assert chosen.sentence2_column != NO_COLUMN
    corrections.correct_label(run, 3, labels[before[3]], labels)  # taken back
    assert corrections.read_corrections(run) == {}
    with pytest.raises(DataError, match="No label was corrected"):
        corrections.corrections_upload(store, run)


@pytest.mark.long
def test_a_hub_dataset_that_has_moved_is_read_as_the_run_read_it(
    hub: LoopbackHub, store: RunStore, toy_checkpoint: Path
) -> None:
    def rows(count: int, seed: int) -> bytes:
        found = toys.rows(count, seed)
        return (
            "sentence1,sentence2,label\n" + "".join(f"{a},{b},{c}\n" for a, b, c in found)
        ).encode()

    repo = hub.add_repo(
        "ada/moving", "dataset", {"train.csv": rows(48, 0), "test.csv": rows(12, 1)}
    )
    made = store.create(
        RunConfig(
            dataset="ada/moving", checkpoint=str(toy_checkpoint), max_length=32, max_steps=4,
            mixed_precision="no",
        )
    )  # fmt: skip
    command = [sys.executable, "-m", "finetune", "train", "--run", str(made.folder)]

    def trained() -> events.Prepared:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        prepared = fold_events(made.tail()[0]).prepared
        assert prepared is not None
        return prepared

    first = trained()
    assert made.pinned_config().dataset_revision == repo.head
    assert len(list((store.root / "data").glob("*/"))) == 1  # read once
    repo.commit("other rows", {"train.csv": rows(60, 2), "test.csv": rows(9, 3)})
    assert splits.load_pairs(made.config(), store.root).fingerprint != first.fingerprint
    shutil.rmtree(made.predictions)
    test_set.score_both_orders(made)
    test_set.open_test_set(made)
    labels = first.labels
    table = saved_predictions.read_examples(made)
    assert table is not None
    was = labels[table.column("label").to_pylist()[0]]
    corrections.correct_label(made, 0, labels[1 - labels.index(was)], labels)
    assert corrections.corrections_upload(store, made).dataset.startswith("upload/")
    assert trained().fingerprint == first.fingerprint
    assert made.config().dataset_revision == ""


def test_what_cannot_be_measured_is_said(store: RunStore, toy_checkpoint: Path) -> None:
    run = store.create(RunConfig())
    with pytest.raises(JobError, match="no model"):
        evaluate.start_evaluation(store, run, "orders")
    toys.copy_model(toy_checkpoint, run.best)
    run.append(events.Started(device="CPU"))
    saved_predictions.save_examples(run, "validation", _single())
    with pytest.raises(DataError, match="single sentences"):
        test_set.score_both_orders(run)
    assert evaluate.evaluation_state(run, "orders").status == "none"
    with pytest.raises(DataError, match="were not kept"):
        corrections.correct_label(store.create(RunConfig()), 0, "a", ["a"])


def _single() -> object:
    import pyarrow as pa

    return pa.table({"sentence1": ["a"], "label": [0]})
