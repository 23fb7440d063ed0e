"""Cross-validations that are trained: from a terminal, stopped, resumed, and corrected."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from finetune.__main__ import main as command_line
from finetune.config import RunConfig
from finetune.data import splits
from finetune.evaluation import corrections, report
from finetune.hub import model_card
from finetune.jobs import scheduler, service
from finetune.runs.queue import Queue
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from tests.support import toys
from tests.support.waiting import until

COUNTS = {"train": 48, "validation": 12, "test": 12}
ROWS = {
    name: [(f"{first} {n}", f"{second} {n}", ("no", "yes")[same])
           for n, (first, second, same) in enumerate(toys.rows(count, seed))]
    for seed, (name, count) in enumerate(COUNTS.items())
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / f"{name}.csv" for name in ROWS}
    for name, path in paths.items():
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["sentence1", "sentence2", "label"], *ROWS[name]])
    return paths


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_terminal_cross_validates_and_its_last_model_is_known_by_it(
    store: RunStore, toy_checkpoint: Path, files: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    command = ["train", "--runs", str(store.root), "--folds", "3", "--num_train_epochs", "2"]
    command += ["--checkpoint", str(toy_checkpoint), "--max_length", "48", "--positive_label"]
    command += ["yes", "--learning_rate", "1e-3"]
    command += [f"--{name}_file={path}" for name, path in files.items()]
    assert command_line(command) == 0
    printed = re.findall(r"cross-validated (\w+) (-?[0-9.]+)", capsys.readouterr().out)
    whole, *folds = store.runs()
    assert [run.config().fold for run in (whole, *folds)] == [0, 3, 2, 1]
    summary = whole.state()
    evaluation = report.evaluate_run(whole, summary)
    assert evaluation.analysis.examples == 60
    for name, value in printed:
        assert whole.metrics[name] == pytest.approx(float(value), abs=1e-4)
    # By the last models of the folds, each asked about its own.
    assert summary.prepared is not None
    assert summary.prepared.train_examples == 60
    assert [scored.step for scored in summary.validation] == [summary.total_steps]
    for fold in folds:
        last = fold.state()
        assert last.prepared is not None
        assert last.prepared.train_examples + last.prepared.validation_examples == 60
        assert last.saved_step == last.total_steps
    texts = evaluation.table.column("sentence1").to_pylist()  # type: ignore[union-attr]
    assert sorted(texts) == sorted(row[0] for row in ROWS["train"] + ROWS["validation"])
    assert "3-fold cross-validation" in model_card.card_text(whole, summary, "ada/pairs")
    # Corrected pairs are one file again, cut into as many folds.
    names = ["no", "yes"]
    corrections.correct_label(whole, 7, names[1 - evaluation.truth[7]], names)
    config = corrections.corrections_upload(store, whole)
    assert (config.folds, config.fold) == (3, 0)
    before, after = (
        {*zip(*splits.load_pairs(each, store.root).splits["validation"][:].values(), strict=True)}
        for each in (whole.config(), config)
    )
    assert len(before ^ after) == 2
    assert len({row[:2] for row in before ^ after}) == 1


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_stopped_fold_is_resumed_and_then_the_run_on_all_rows(
    store: RunStore, toy_checkpoint: Path, files: dict[str, Path]
) -> None:
    config = RunConfig(
        dataset=store.uploads.add(files), checkpoint=str(toy_checkpoint), max_length=48,
        num_train_epochs=1, folds=2,
    )  # fmt: skip
    whole = service.start_run(store, config)
    second = next(run for run in store.runs() if run.config().fold == 2)
    service.stop_run(store, second)
    assert "have not finished: 2" in _ended(store, whole).error
    service.resume_run(store, second)
    service.resume_run(store, whole)
    assert _ended(store, whole).status == "finished"
    assert report.evaluate_run(whole, whole.state()).analysis.folds == 2


def _ended(store: RunStore, run: Run) -> RunSummary:
    """Wait for a run's end; no app is here to start what waits."""

    def ended() -> bool:
        scheduler.dispatch_queue(store)
        return run.id not in Queue(store.root).waiting() and run.state().status in ENDED

    until(ended)
    return run.state()
