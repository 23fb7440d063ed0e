"""Cross-validations that are trained: from a terminal, stopped, resumed, and corrected."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from finetune.__main__ import main as command_line
from finetune.config import RunConfig
from finetune.data import splits
from finetune.errors import ConfigError
from finetune.evaluation import corrections, report, test_set
from finetune.hub import model_card
from finetune.jobs import scheduler, service
from finetune.runs.queue import Queue
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.search import driver
from finetune.search.space import Budget, default_space
from tests.support import toys
from tests.support.waiting import until

LABELS = {
    "classes": ("no", "yes"), "scores": ("1.5", "4.2"), "labels": ("red", "red;blue"),
}  # fmt: skip


HEAD = ["sentence1", "sentence2", "label"]
COUNTS = {"train": 48, "validation": 12, "test": 12}


def rows(kind: str, count: int, seed: int) -> list[list[str]]:
    """Toy pairs with labels of a task; scores vary."""
    found = []
    for n, (first, second, same) in enumerate(toys.rows(count, seed)):
        label = LABELS[kind][same] + (str(n % 10) if kind == "scores" else "")
        found.append([f"{first} {n}", f"{second} {n}", label])
    return found


def files(folder: Path, kind: str) -> dict[str, Path]:
    found = {}
    for seed, (name, count) in enumerate(COUNTS.items()):
        found[name] = folder / f"{name}.csv"
        with found[name].open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([HEAD, *rows(kind, count, seed)])
    return found


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", LABELS)
def test_a_terminal_cross_validates_and_its_last_model_is_known_by_it(
    store: RunStore, toy_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:  # fmt: skip
    given = files(tmp_path, kind)
    command = ["train", "--runs", str(store.root), "--folds", "3", "--num_train_epochs", "2"]
    command += ["--checkpoint", str(toy_checkpoint), "--max_length", "48", "--positive_label"]
    command += ["yes" if kind == "classes" else "", "--learning_rate", "1e-3"]
    for name, path in given.items():
        command += [f"--{name}_file", str(path)]
    assert command_line(command) == 0
    printed = re.findall(r"cross-validated (\w+) (-?[0-9.]+)", capsys.readouterr().out)
    whole, *folds = store.runs()
    assert [run.config().fold for run in (whole, *folds)] == [0, 3, 2, 1]
    summary = whole.state()
    evaluation = report.evaluate_run(whole, summary)
    assert evaluation.analysis.examples == 60
    assert evaluation.analysis.order is not None
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
    assert sorted(texts) == sorted(row[0] for row in rows(kind, 48, 0) + rows(kind, 12, 1))
    assert "3-fold cross-validation" in model_card.card_text(whole, summary, "ada/pairs")
    test_set.open_test_set(whole)
    assert report.evaluate_run(whole, whole.state(), "test").analysis.folds == 0
    if kind == "classes":
        _check_corrections(store, whole)


def _check_corrections(store: RunStore, whole: Run) -> None:
    """Corrected pairs are one file again, cut into as many folds."""
    names = ["no", "yes"]
    truth = report.evaluate_run(whole, whole.state()).truth
    corrections.correct_label(whole, 7, names[1 - truth[7]], names)
    config = corrections.corrections_upload(store, whole)
    assert (config.folds, config.fold) == (3, 0)
    before, after = (splits.load_pairs(each, store.root) for each in (whole.config(), config))
    assert set(after.splits) == {"train", "validation", "test"}
    changed = {*zip(*before.splits["validation"][:].values(), strict=True)} ^ {
        *zip(*after.splits["validation"][:].values(), strict=True)
    }
    assert len(changed) == 2
    assert len({row[:2] for row in changed}) == 1


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_stopped_fold_is_resumed_and_then_the_run_on_all_rows(
    store: RunStore, toy_checkpoint: Path, tmp_path: Path
) -> None:
    config = RunConfig(
        dataset=store.uploads.add(files(tmp_path, "classes")), checkpoint=str(toy_checkpoint),
        max_length=48, num_train_epochs=1, folds=2,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="search"):
        driver.begin_search(store, config, default_space(), Budget(2, 0))
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
