"""Below a comparison of runs: which of all runs, and the release check."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import gradio as gr
import pytest
from playwright.sync_api import Page, expect
from pydantic import TypeAdapter

from finetune.errors import DataError
from finetune.evaluation.gate import Judgement, Limits
from finetune.jobs import evaluate
from finetune.jobs.evaluate import ComparisonJob
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui import compare_view
from finetune.ui.api import Api
from finetune.ui.compare_view import ReleaseCheck
from tests.support import toys
from tests.support.browser import App
from tests.support.evaluated_runs import evaluated
from tests.support.judging import write_csv
from tests.support.tabs import NOBODY
from tests.support.waiting import until


@pytest.fixture
def runs(store: RunStore, toy_checkpoint: Path) -> list[Run]:
    app: Any = SimpleNamespace(store=store)
    skills = ((1, 0.8), (2, 3.0))
    return [evaluated(app, toy_checkpoint, seed, skill) for seed, skill in skills]


def golden_file(folder: Path) -> Path:
    rows = [(first, second, str(label)) for first, second, label in toys.rows(40, seed=11)]
    return write_csv(folder / "golden.csv", [("sentence1", "sentence2", "label"), *rows])


def test_a_comparison_ranks_all_runs_on_its_pairs(store: RunStore, runs: list[Run]) -> None:
    poor, good = runs
    drawn = str(compare_view.comparison(store, [poor.id, good.id]))
    assert "Of 2 runs on the same 60 pairs, only" in drawn
    assert drawn.count("may be the best:") == 1
    assert "Measure speeds here" in drawn
    assert f"finetune/runs/{good.id}/ranking.csv" in drawn
    store.delete(poor)
    assert str(compare_view.ranking_of(store, good, {})) == ""


def test_two_runs_are_judged_by_their_validation_pairs(store: RunStore, runs: list[Run]) -> None:
    poor, good = runs
    check = ReleaseCheck(store)
    with gr.Blocks():
        check.draw()
    shown = check.shown(store, [poor.id, good.id])
    assert (shown[check.new]["value"], shown[check.old]["value"]) == (good.id, poor.id)
    assert not check.shown(store, [poor.id])[check.box]["visible"]
    passed = str(check.on_start(NOBODY, good.id, poor.id, "0", "-0,01", None)[check.result])
    assert "Passed" in passed
    assert "Gained (" in passed
    assert "### Release check passed" in unquote(passed)
    failed = str(check.on_start(NOBODY, poor.id, good.id, "0", "-0.01", None)[check.result])
    assert "Failed" in failed
    assert "Lost (" in failed
    for lost, gain in (("none", "0"), ("-1", "0"), ("0", "much")):
        said = str(check.on_start(NOBODY, poor.id, good.id, lost, gain, None)[check.message])
        assert "Give a " in said


def test_programs_rank_runs_and_check_a_release(store: RunStore, runs: list[Run]) -> None:
    poor, good = runs
    api: Any = Api(store, SimpleNamespace())  # type: ignore[arg-type]
    ranked = api.rank_runs(NOBODY, poor.id)
    assert [run["id"] for run in ranked["runs"]] == [good.id, poor.id]
    assert "only bundled-2 may be the best" in ranked["sentence"]
    judged = api.check_release(NOBODY, poor.id, good.id)
    assert (judged["verdict"], judged["gained"]) == ("failed", 0)
    with pytest.raises(gr.Error, match="max_lost is -1"):
        api.check_release(NOBODY, poor.id, good.id, -1)


@pytest.mark.long
def test_a_golden_file_is_answered_and_speeds_are_measured_by_jobs(
    app: App, page: Page, toy_checkpoint: Path, tmp_path: Path
) -> None:
    poor, good = (evaluated(app, toy_checkpoint, *each) for each in ((1, 0.8), (2, 3.0)))
    page.goto(f"{app.url}?compare={poor.id},{good.id}")
    page.locator("#measure-speeds").click()
    expect(page.locator("#ranked")).to_contain_text("ms a pair")
    expect(page.locator("#measure-speeds")).to_have_count(0)
    page.locator("#check-golden input").set_input_files(golden_file(tmp_path))
    expect(page.locator("#check-golden")).to_contain_text("golden")
    page.locator("#check-start").click()
    expect(page.locator("#judgement")).to_contain_text("by 40 rows of golden.csv")
    expect(page.locator("#judgement")).to_contain_text("Passed")
    with page.expect_download() as told:
        page.locator("#comparison").get_by_text("Ranking (CSV)").click()
    rows = list(csv.DictReader(told.value.path().open()))
    assert {row["id"] for row in rows} == {poor.id, good.id}
    assert all(float(row["milliseconds"]) > 0 for row in rows)
    judged = ComparisonJob.of(good, "release").judgement
    assert judged is not None
    assert judged.examples == 40


@pytest.mark.long
def test_a_check_of_a_file_without_labels_or_of_no_table_is_refused(
    store: RunStore, runs: list[Run], tmp_path: Path
) -> None:
    path = write_csv(tmp_path / "g.csv", [("sentence1", "sentence2"), ("a cat", "a dog")])
    limits = Limits()
    with pytest.raises(DataError, match="has no column of labels"):
        evaluate.start_release_check(store, runs[0], runs[1], limits, path, "g.csv")
    path = golden_file(tmp_path)
    job = evaluate.start_release_check(store, runs[0], runs[1], limits, path, "golden.csv")
    until(lambda: not job.state().running)
    assert job.state().error == ""
    judged = job.judgement
    assert judged is not None
    evaluate.tidy_golden(store, job)
    with pytest.raises(DataError, match="is a golden file"):
        store.uploads.add({"train": path})
    seen = TypeAdapter(Judgement).dump_json(replace(judged, seen=True))
    (job.folder / "judgement.json").write_bytes(seen)
    evaluate.tidy_golden(store, job)
    store.uploads.add({"train": path})
