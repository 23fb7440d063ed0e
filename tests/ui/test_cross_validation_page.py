"""A cross-validation on the page, in the table of runs and on the card."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from finetune.config import RunConfig
from finetune.data import checks
from finetune.evaluation import cross_validation, report
from finetune.hub import model_card
from finetune.jobs import cost, run_table
from finetune.jobs.check import CheckJob, check_folder
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, JobState
from finetune.tasks.base import DecisionRule
from finetune.ui import evaluation_view, run_view
from tests.support import toys
from tests.support.browser import App, fill_toy, press_train
from tests.support.folded_runs import finish, folded
from tests.support.uploads import some, upload
from tests.support.waiting import until


@pytest.fixture
def whole(store: RunStore) -> Run:
    """The finished run on all rows."""
    *_, run = folded(store, RunConfig(folds=4))
    cross_validation.gather(run, store.runs())
    finish(run)
    return run


def test_the_evaluation_says_that_others_answered_the_pairs(whole: Run) -> None:
    summary = whole.state()
    study = report.evaluate_run(whole, summary)
    html = evaluation_view.view(study, summary, DecisionRule(), JobState("none"))
    assert 'id="cross-validated"' in html
    assert "one of 4 models that had not seen it" in html
    assert "this model" not in html.split('id="cross-validated"')[0]
    assert "It was trained on all pairs" in run_view.verdict(whole, summary)
    assert "accuracy, cross-validated" in run_view.cards(whole, summary)
    fold = next(run for run in RunStore(whole.folder.parent).runs() if run.config().fold)
    assert "accuracy, last model" in run_view.cards(fold, fold.state())


def test_the_card_states_the_cross_validated_score_and_what_it_is(whole: Run) -> None:
    summary = whole.state()
    card = model_card.card_text(whole, summary, "ada/pairs")
    score = summary.best.metrics["accuracy"]  # type: ignore[union-attr]
    assert "(4-fold cross-validation)" in card.split("---")[1]
    assert f"value: {round(score, 4)}" in card.split("---")[1]
    assert "answered by one of 4 models that had not seen it" in card
    assert "models trained on about 75% of the rows" in card
    assert f"| cross-validated | {score:.4f}" in card
    assert "| words |" in card
    assert "this model |" not in card
    fold = next(run for run in RunStore(whole.folder.parent).runs() if run.config().fold == 2)
    single = model_card.card_text(fold, fold.state(), "ada/fold")
    assert "fold 2 of 4 of a cross-validation" in single
    assert "the best by" not in single


def test_the_table_has_the_spread_over_folds_and_the_score_of_all_rows(
    store: RunStore, whole: Run
) -> None:
    rows = run_table.run_rows(store)
    (group,) = run_table.sort_rows(rows, "created", True, rows)
    assert isinstance(group, run_table.RunGroup)
    assert (group.count, group.finished, group.folds) == (5, 5, 4)
    spread = group.scores["accuracy"]
    assert spread is not None
    assert (spread.count, spread.interval) == (4, None)
    assert spread.mean == pytest.approx(report.kept_metrics(whole, whole.state())["accuracy"])
    html = run_view.table(rows, "created", True)
    assert "cross-validation in 4 folds, 5 finished" in html


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """Beside nothing else: uploads of the helpers lie in its root."""
    (tmp_path / "runs").mkdir()
    return RunStore(tmp_path / "runs")


def checked(store: RunStore, config: RunConfig) -> RunConfig:
    """Examine the pairs of a configuration, as Data does."""
    job: CheckJob = check_folder(store, config)
    job.folder.mkdir(parents=True)
    job.describe_job("check", "", config.to_dict())
    report = checks.check_pairs(config, store.root)
    (job.folder / "report.json").write_text(report.to_json())
    return config


def test_few_rows_are_offered_a_cross_validation(store: RunStore, tmp_path: Path) -> None:
    for rows, validation, offered in (
        (some(300), (), True), (some(600), (), False), (some(300), some(20), False),
    ):  # fmt: skip
        name = upload(store.root, "sentence1,sentence2,label", rows, validation, ())
        config = RunConfig(dataset=name, checkpoint=str(tmp_path))
        few = checks.check_pairs(config, store.root).few_held_out
        assert (few is not None) == offered
    assert few is None


def test_no_more_folds_are_offered_than_find_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    name = upload(tmp_path, "sentence1,sentence2,label", some(200), (), ())
    config = RunConfig(dataset=name, checkpoint=str(tmp_path))
    for waiting, value in (("4", "3"), ("9", "5"), ("2", None)):
        monkeypatch.setenv("FINETUNE_MAX_WAITING", waiting)
        few = checks.check_pairs(config, tmp_path).few_held_out
        assert (few and few.remedies[0].value) == value


def test_costs_count_the_rows_that_are_trained_on(store: RunStore, toy_checkpoint: Path) -> None:
    name = upload(store.root, "sentence1,sentence2,label", some(300), (), ())
    config = checked(
        store, RunConfig(dataset=name, folds=5, max_length=32, checkpoint=str(toy_checkpoint))
    )
    steps = [cost.estimate_cost(store, config.changed(fold=fold)).steps for fold in (1, 0)]
    assert [each and each.pairs for each in steps] == [240, 300]


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_few_rows_are_cross_validated_from_the_click_to_the_card(
    app: App, page: Page, toy_checkpoint: Path, tmp_path: Path
) -> None:
    lines = [f"{first} {n},{second} {n},{'yes' if same else 'no'}" for n, (first, second, same) in
             enumerate(toys.rows(150))]  # fmt: skip
    (tmp_path / "tickets.csv").write_text("\n".join(["ours,theirs,verdict", *lines]))
    fill_toy(page, toy_checkpoint, 1)
    page.get_by_role("tab", name="Data").click()
    page.locator("#train-file input[type=file]").set_input_files(tmp_path / "tickets.csv")
    expect(page.locator("#findings")).to_contain_text("Only 15 validation rows")
    page.get_by_role("tab", name="Train").click()
    offer = page.locator("#offer-folds")
    expect(offer).to_contain_text("each by a model that has not seen it")
    if shots := os.environ.get("SHOTS"):
        page.screenshot(path=f"{shots}/offer.png")
    offer.get_by_role("button", name="Cross-validate in 5 folds").click()
    planned = page.locator("#planned-folds")
    expect(planned).to_contain_text("Train queues 6 runs: one for each of 5 folds")
    expect(page.locator("#pairs-card")).to_contain_text("each row once, in 5 folds")
    expect(page.locator("#costs pre")).to_contain_text("--folds 5")
    if shots:
        page.screenshot(path=f"{shots}/planned.png")
    planned.get_by_role("button", name="Hold out a validation split").click()
    expect(offer).to_be_visible()
    offer.get_by_role("button").click()
    expect(planned).to_be_visible()
    press_train(page)
    expect(page.locator("#run-phase")).to_be_visible()
    until(lambda: len(app.store.runs()) == 6)
    whole = app.store.runs()[0]
    until(lambda: whole.state().status in ENDED)
    assert whole.state().error == ""
    page.goto(f"{app.url}?tab=runs")
    expect(page.locator("#runs-table")).to_contain_text("cross-validation in 5 folds, 6 finished")
    if shots:
        page.screenshot(path=f"{shots}/runs.png", full_page=True)
    page.get_by_role("button", name=whole.title()).click()
    expect(page.locator("#cross-validated")).to_contain_text("one of 5 models")
    if shots:
        page.screenshot(path=f"{shots}/evaluation.png", full_page=True)
        page.goto(f"{app.url}?tab=train&run={whole.id}")
        expect(page.locator("#run-phase")).to_have_text("Finished")
        page.screenshot(path=f"{shots}/run.png", full_page=True)
    page.goto(f"{app.url}?tab=publish&run={whole.id}")
    expect(page.locator("#card")).to_contain_text("answered by one of 5 models")
