"""A cross-validation: where it is offered, and what the page and the card say of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.config import RunConfig
from finetune.data import checks
from finetune.evaluation import cross_validation, report
from finetune.hub import model_card
from finetune.jobs import cost, run_table
from finetune.jobs.check import check_folder
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState
from finetune.tasks.base import DecisionRule
from finetune.ui import evaluation_view, run_view
from tests.support.folded_runs import finish, folded
from tests.support.uploads import some, upload

HEAD = "sentence1,sentence2,label"


@pytest.fixture
def whole(store: RunStore) -> Run:
    """The finished run on all rows."""
    *_, run = folded(store, RunConfig(folds=4))
    cross_validation.gather(run, store.runs())
    finish(run)
    return run


def test_every_place_says_that_others_answered_the_pairs(store: RunStore, whole: Run) -> None:
    summary = whole.state()
    study = report.evaluate_run(whole, summary)
    html = evaluation_view.view(study, summary, DecisionRule(), JobState("none"))
    assert "one of 4 models that had not seen it" in html
    assert "this model" not in html.split('id="cross-validated"')[0]
    assert "It was trained on all pairs" in run_view.verdict(whole, summary)
    assert "accuracy, cross-validated" in run_view.cards(whole, summary)
    fold = next(run for run in store.runs() if run.config().fold == 2)
    assert "accuracy, last model" in run_view.cards(fold, fold.state())
    card = model_card.card_text(whole, summary, "ada/pairs")
    score = summary.best.metrics["accuracy"]  # type: ignore[union-attr]
    assert "(4-fold cross-validation)" in card.split("---")[1]
    assert f"value: {round(score, 4)}" in card.split("---")[1]
    assert "models trained on about 75% of the rows" in card
    assert f"| cross-validated | {score:.4f}" in card
    assert "this model |" not in card
    single = model_card.card_text(fold, fold.state(), "ada/fold")
    assert "fold 2 of 4 of a cross-validation" in single
    assert "the best by" not in single
    rows = run_table.run_rows(store)
    (group,) = run_table.sort_rows(rows, "created", True, rows)
    assert isinstance(group, run_table.RunGroup)
    assert (group.count, group.finished, group.folds) == (5, 5, 4)
    spread = group.scores["accuracy"]
    assert spread is not None
    assert (spread.count, spread.interval) == (4, None)
    assert spread.mean == pytest.approx(report.kept_metrics(whole, summary)["accuracy"])
    table = run_view.table(rows, "created", True)
    assert "cross-validation in 4 folds, 5 finished" in table


def test_few_rows_are_offered_as_many_folds_as_find_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offered(rows: int, validation: int = 0) -> object:
        held = some(validation) if validation else ()
        name = upload(tmp_path, HEAD, some(rows), held, ())
        config = RunConfig(dataset=name, checkpoint=str(tmp_path))
        few = checks.check_pairs(config, tmp_path).few_held_out
        return few and few.remedies[0].value

    assert [offered(300), offered(600), offered(300, 20)] == ["5", None, None]
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    for waiting, value in (("4", "3"), ("9", "5"), ("2", None)):
        monkeypatch.setenv("FINETUNE_MAX_WAITING", waiting)
        assert offered(200) == value


def test_costs_count_the_rows_that_are_trained_on(tmp_path: Path, toy_checkpoint: Path) -> None:
    (tmp_path / "runs").mkdir()
    store = RunStore(tmp_path / "runs")
    name = upload(store.root, HEAD, some(300), (), ())
    config = RunConfig(dataset=name, folds=5, max_length=32, checkpoint=str(toy_checkpoint))
    job = check_folder(store, config)  # the pairs are examined, as Data does
    job.folder.mkdir(parents=True)
    job.describe_job("check", "", config.to_dict())
    (job.folder / "report.json").write_text(checks.check_pairs(config, store.root).to_json())
    steps = [cost.estimate_cost(store, config.changed(fold=fold)).steps for fold in (1, 0)]
    assert [each and each.pairs for each in steps] == [240, 300]
