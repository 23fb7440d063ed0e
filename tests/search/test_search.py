"""Hyperparameter search: its space, its budget, its trials as runs."""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import Trial, TrialState

from finetune import config as run_config
from finetune.__main__ import main as command_line
from finetune.config import Range, RunConfig
from finetune.engines import registry, spending
from finetune.engines.base import EngineSpec, write_spec
from finetune.engines.registry import make_spec
from finetune.errors import ConfigError, FinetuneError, JobError
from finetune.hub import model_card
from finetune.jobs import cost, scheduler, service, workers
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.queue import Queue
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary
from finetune.search import driver, results
from finetune.search.driver import advance_all
from finetune.search.space import (
    Budget,
    Space,
    default_space,
    describe_outside,
    outside,
    read_space,
    searchable,
)
from finetune.search.study import Study, create_study, find_study, studies, trial_run
from finetune.ui import search_view, train_plan
from tests.support import stand_in as stand_in_workers
from tests.support import toys
from tests.support.hub import TOKEN, LoopbackHub
from tests.support.waiting import until

BASE = RunConfig(max_steps=50)
RATES = {"learning_rate": Range(1e-6, 1e-3, log=True)}
T4 = make_spec("hub-job", {"flavor": "t4-small", "minutes": 30, "price": 0.8})


@pytest.fixture
def stand_in(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers that train nothing: a rate's F1 is the better the nearer it is to the default."""
    stand_in_workers.use(monkeypatch)
    yield
    for run in store.runs():
        workers.kill_worker(run)


def go_on(store: RunStore, study: Study, until: int = 10**6) -> None:
    """Advance a study to its end, or until so many trials have ended."""
    deadline = time.monotonic() + 90
    while driver.advance(store, study):
        scheduler.dispatch_queue(store)
        assert time.monotonic() < deadline, results.list_trials(store, study)
        if sum(trial.state.is_finished() for trial in study.trials()) >= until:
            return
        time.sleep(0.02)


def test_a_space_is_read_as_people_write_it() -> None:
    text = {
        "learning_rate": "1e-5..3e-4",
        "per_device_train_batch_size": "8, 16,8",
        "warmup_ratio": "",
    }
    assert read_space(text) == {
        "learning_rate": Range(1e-5, 3e-4, log=True),
        "per_device_train_batch_size": (8, 16),
        "warmup_ratio": searchable()["warmup_ratio"],
    }
    assert len(default_space()) == 4
    with pytest.raises(ConfigError) as error:
        read_space({
            "seed": "1..3", "learning_rate": "3e-4..1e-5", "weight_decay": "0.1", "lora_r": "x, y",
            "frozen_layers": "0..900", "num_train_epochs": "0..5",
        })  # fmt: skip
    assert set(error.value.problems) == {
        "seed", "learning_rate", "weight_decay", "lora_r", "frozen_layers", "num_train_epochs",
    }  # fmt: skip
    assert "0 means Automatic" in str(error.value.problems["num_train_epochs"])
    with pytest.raises(ConfigError, match="space is empty"):
        read_space({})
    with pytest.raises(ConfigError, match="trials is 0: give a number of trials"):
        Budget(trials=0)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("trials", -1, "trials is -1, and must be 0 or more"),
        ("minutes", -2.0, "minutes is -2, and must be 0 or more"),
        ("trials", True, "trials is True, and must be a whole number"),
        ("trials", 2.5, "trials is 2.5, and must be a whole number"),
        ("trials", "1.000", "trials is '1.000', and must be a whole number"),
        ("minutes", True, "minutes is True, and must be a number"),
        ("minutes", "1,500", "minutes is '1,500', and must be a number"),
        ("minutes", float("inf"), "minutes is inf, and must be 0 or more"),
        ("minutes", float("nan"), "minutes is nan, and must be 0 or more"),
        ("parallel", True, "parallel is True, and must be a whole number"),
        ("parallel", 0, "parallel is 0, and must be from 1 to 100"),
    ],
)
def test_a_number_of_a_search_that_is_none_is_named(
    store: RunStore, name: str, value: Any, said: str
) -> None:
    def begin() -> None:
        budget, parallel = (Budget(), value) if name == "parallel" else (Budget(**{name: value}), 1)
        driver.begin_search(store, BASE, dict(RATES), budget, parallel=parallel)

    with pytest.raises(ConfigError) as caught:
        begin()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("values", "over", "apart"),
    [
        ({"num_train_epochs": 10}, {"num_train_epochs": "1..3"}, "num_train_epochs 10 (1..3)"),
        ({"max_grad_norm": 0.0}, {"max_grad_norm": ""}, "max_grad_norm 0.0 (0.3..3)"),
        ({"lora_r": 4, "use_lora": True}, {"lora_r": "8, 16"}, "lora_r 4 (8, 16)"),
        (
            {"learning_rate": 0.5, "warmup_ratio": 0.1, "per_device_train_batch_size": 4},
            {"learning_rate": "", "warmup_ratio": "0, 0.1", "per_device_train_batch_size": ""},
            "learning_rate 0.5 (1e-05..0.0003), per_device_train_batch_size 4 (8, 16, 32)",
        ),
    ],
)
def test_bounds_hold_though_the_form_lies_outside_of_them(
    store: RunStore, values: dict[str, Any], over: dict[str, str], apart: str
) -> None:
    """The first trial is the form all the same; nothing is learned from it."""
    config, space = RunConfig(**values), read_space(over)
    study = create_study(store, config, space, Budget(30))
    assert describe_outside(space, study.outside) == apart
    first = study.draw()
    assert study.values(study.trials()[0]) == {name: getattr(config, name) for name in over}
    study.optuna_study.tell(first.number, 1.0)
    for number in range(1, 25):  # eight are drawn at random
        trial = study.draw()
        assert trial.params.keys() == space.keys()
        assert outside(space, trial.params) == {}
        study.optuna_study.tell(trial.number, number / 100)
    again = Study(study.folder)
    assert again.settings.space == space
    rows = results.list_trials(store, again)
    assert [results.has_position(again, row) for row in rows] == [False] + [True] * 24
    assert (rows[0].state, rows[0].values.items() >= study.outside.items()) == ("finished", True)
    lines, _ = search_view.parallel_lines(again, [row for row in rows if row.score is not None])
    assert len(lines) == 24
    assert results.importance(again) or len(space) == 1
    assert "Your own settings are the best: F1 1.000." in str(search_view.page(store, study.id))


def test_the_first_trial_has_numbers_for_what_is_automatic_and_searched(store: RunStore) -> None:
    first = driver.first_trial(store, RunConfig(), default_space())
    assert (first.learning_rate, first.per_device_train_batch_size) == (7e-5, 16)
    assert first.num_train_epochs == 4
    assert first.eval_steps == RunConfig().eval_steps
    rate = driver.first_trial(store, RunConfig(per_device_train_batch_size=8), dict(RATES))
    assert rate == RunConfig(per_device_train_batch_size=8, learning_rate=4.9e-5)
    absent = driver.first_trial(store, RunConfig(checkpoint="roberta-base"), dict(RATES))
    assert absent.learning_rate == 3e-5  # as for a base model


def test_a_first_trial_outside_of_the_bounds_is_tried_once_more_when_it_fails(
    store: RunStore, stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "WORKER", "no.such.module")
    study = driver.begin_search(
        store, BASE.changed(learning_rate=0.5), dict(RATES), Budget(trials=9)
    )
    go_on(store, study)
    rates = [study.values(trial)["learning_rate"] for trial in study.trials()]
    assert rates[:2] == [0.5, 0.5]
    assert max(rates[2:]) <= 1e-3
    names = [run.config().name for run in reversed(store.runs())]
    assert names[:2] == ["search 1 \u00b7 trial 0", "search 1 \u00b7 trial 1"]


def test_values_stay_values_and_ranges_ranges_in_a_study_that_is_opened_again(
    store: RunStore,
) -> None:
    space = read_space({"lora_r": "8, 16", "learning_rate": "1e-5..3e-4", "warmup_ratio": "0, 0.2"})
    start = BASE.changed(lora_r=8, learning_rate=7e-5)
    study = create_study(store, start, space, Budget(9))
    again = Study(study.folder)
    for opened in (study, again):
        assert opened.settings.space["lora_r"] == (8, 16)
        assert opened.settings.space["learning_rate"] == Range(1e-5, 3e-4, log=True)
        assert opened.settings.space["warmup_ratio"] == (0.0, 0.2)
    assert {again.draw().params["lora_r"] for _ in range(12)} == {8, 16}


@pytest.mark.parametrize("name", searchable())
def test_every_usual_range_lies_within_the_bounds_of_its_field(name: str) -> None:
    drawn, field = searchable()[name], run_config.hyperparameters()[name]
    ends = (drawn.low, drawn.high) if isinstance(drawn, Range) else drawn
    for value in ends:
        assert getattr(RunConfig().changed(**{name: value}), name) == value
    assert field.kind is not bool


@dataclass
class Searched:
    """A search that is over, whose best trial was repeated with other seeds."""

    store: RunStore
    study: Study
    rows: list[results.TrialRow]
    best: results.TrialRow
    again: list[Run]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searched]:
    store = RunStore(tmp_path_factory.mktemp("searched") / "runs")
    with pytest.MonkeyPatch.context() as patch:
        stand_in_workers.use(patch)
        start = BASE.changed(learning_rate=5e-4)
        study = driver.begin_search(store, start, dict(RATES), Budget(trials=12))
        go_on(store, study)
        rows = results.list_trials(store, study)
        best = results.best_trial(rows)
        assert best is not None
        again = results.repeat_best(store, study)

        def repeated() -> bool:
            scheduler.dispatch_queue(store)
            return all(run.state().status == "finished" for run in again)

        until(repeated)
        yield Searched(store, study, rows, best, again)


@pytest.mark.long
def test_trials_are_runs_that_begin_with_the_form(searched: Searched) -> None:
    rows, start = searched.rows, searched.study.config
    assert rows[0].values["learning_rate"] == 5e-4
    for row in rows:
        run = searched.store.get(row.run_id)
        assert run.about().study == searched.study.id
        own = {"name": "", "learning_rate": 5e-4, "eval_steps": start.eval_steps}
        # The batch that the steps between evaluations were counted with.
        assert run.config().changed(**own) == start.changed(per_device_train_batch_size=16)


@pytest.mark.long
def test_trials_that_are_behind_end_early_without_a_model(searched: Searched) -> None:
    assert {row.state for row in searched.rows} == {"finished", "pruned"}
    for row in searched.rows:
        run = searched.store.get(row.run_id)
        assert run.has_model() == (row.state == "finished")
        assert run.state().status == ("finished" if row.state == "finished" else "stopped")
        if row.state == "pruned":
            assert "the worst quarter" in run.state().error
            assert 0 < len(row.curve) < 5


@pytest.mark.long
def test_a_search_finds_what_is_better(searched: Searched) -> None:
    assert searched.best.score is not None
    assert searched.rows[0].score is not None
    assert searched.best.score > searched.rows[0].score
    assert results.importance(searched.study) is None  # of one field
    progress = results.progress(searched.store, searched.study, searched.rows)
    assert progress == results.Progress(True, True, False)


@pytest.mark.long
def test_other_seeds_say_what_to_expect_of_the_best_trial(searched: Searched) -> None:
    assert len({searched.study.config.seed, *(run.config().seed for run in searched.again)}) == 4
    spread = results.repeats(searched.store, searched.study)
    assert spread is not None
    assert spread.count == 3
    assert spread.mean == pytest.approx(searched.best.score)
    with pytest.raises(JobError, match="repeated already"):
        results.repeat_best(searched.store, searched.study)


@pytest.mark.long
def test_a_search_is_a_table_too(searched: Searched) -> None:
    table = list(csv.reader(io.StringIO(results.trials_csv(searched.store, searched.study))))
    assert table[0][:6] == ["trial", "run", "state", "f1", "learning_rate", "f1 after 1/10"]
    assert [len(row) for row in table] == [15] * 13
    scores = [float(score) for score in table[1][5:] if score]
    assert scores == sorted(scores)
    assert scores[-1] == float(table[1][3])


@pytest.mark.long
def test_the_page_of_a_search_shows_every_trial(searched: Searched) -> None:
    text, best = str(search_view.page(searched.store, searched.study.id)), searched.best
    assert f"Trial {best.number} is the best: F1 {best.score:.3f}." in text
    assert f"Your own settings (trial 0) reached {searched.rows[0].score:.3f}." in text
    assert "With 3 other seeds it reached" in text
    assert text.count("<polyline") == 12
    assert searched.study.id in str(search_view.links(searched.store))


@pytest.mark.long
def test_the_card_of_a_trial_knows_the_search_whose_other_runs_were_deleted(
    searched: Searched, tmp_path: Path
) -> None:
    shutil.copytree(searched.store.root, tmp_path / "runs")
    store = RunStore(tmp_path / "runs")
    for row in searched.rows:
        if row is not searched.best:
            service.delete_run(store, store.get(row.run_id))
    told = []
    for run in map(store.get, (searched.best.run_id, searched.again[0].id)):
        told.append(" ".join(model_card.card_text(run, run.state(), "ada/best").split()))
        assert "were picked on them, among 12 trials of a search" in told[-1]
    assert "With 3 other seeds the same hyperparameters reached" in told[0]


@pytest.mark.long
def test_what_is_killed_stopped_or_deleted_is_drawn_again_and_another_process_goes_on(
    store: RunStore, stand_in: None
) -> None:
    study = driver.begin_search(
        store, BASE.changed(max_steps=200), dict(RATES), Budget(trials=5), pruning=False
    )
    go_on(store, study, until=1)
    for harm in ("kill", "stop", "delete", "limit"):
        while True:
            driver.advance(store, study)
            scheduler.dispatch_queue(store)
            run = trial_run(store, study.trials()[-1])
            if run is not None and run.is_alive() and run.state().step > 5:
                break
            time.sleep(0.02)
        if harm == "kill":
            workers.kill_worker(run)
        elif harm == "stop":
            service.stop_run(store, run)
        elif harm == "delete":
            service.delete_run(store, run)
        else:  # as of a visitor's minutes
            service.stop_run(store, run, reason="Ten minutes are over.")
        go_on(store, study, until=sum(t.state.is_finished() for t in study.trials()) + 1)
    again = find_study(store, study.id)  # as another process finds it
    assert again.settings == study.settings
    go_on(store, again)
    other = Study(study.folder)  # with nothing remembered
    other.optuna_study.tell(other.draw(), state=TrialState.FAIL)
    rates = [trial.params["learning_rate"] for trial in other.trials()]
    assert len(set(rates)) == len(rates)
    states = [trial.state for trial in again.trials()][:-1]
    assert states.count(TrialState.COMPLETE) == 5
    assert states.count(TrialState.FAIL) == 4
    reasons = [row.reason[0] for row in results.list_trials(store, again) if row.reason]
    assert "Ten minutes are over." in reasons
    assert not driver.advance(store, again)


@pytest.mark.long
def test_a_stopped_search_and_one_whose_trials_all_fail_come_to_an_end(
    store: RunStore, stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = driver.begin_search(store, BASE, dict(RATES), Budget(trials=50))
    go_on(store, study, until=1)
    study.stop()
    text = str(search_view.page(store, study.id))
    assert "are left" not in text
    go_on(store, study)
    assert "The search is over" in str(search_view.page(store, study.id))
    assert len(study.trials()) <= 2
    monkeypatch.setattr(workers, "WORKER", "no.such.module")
    failing = driver.begin_search(store, BASE, dict(RATES), Budget(trials=50))
    go_on(store, failing)
    assert [trial.state for trial in failing.trials()] == [TrialState.FAIL] * 5
    rates = [trial.params["learning_rate"] for trial in failing.trials()]
    assert rates[0] == rates[1] == 7e-5  # the form is tried once more
    assert rates.count(7e-5) == 2
    reason = results.list_trials(store, failing)[-1].reason
    assert reason[0]
    assert "Trial 4 failed:" in str(search_view.page(store, failing.id))


def test_an_apps_scheduler_draws_one_trial_after_the_other(store: RunStore, stand_in: None) -> None:
    app = scheduler.Scheduler(store, every=0.05, periodic=[advance_all])
    app.start()
    try:
        study = driver.begin_search(store, BASE, dict(RATES), Budget(trials=3))
        deadline = time.monotonic() + 30
        while not results.progress(store, study, results.list_trials(store, study)).over:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        app.close()
    runs = sorted(store.runs(), key=lambda run: run.about().created)
    ended = [run.state().ended for run in runs]
    begun = [run.about().created for run in runs]
    # It does not wait for itself.
    assert max(b - e for e, b in zip(ended, begun[1:], strict=False)) < 2


def test_a_visitors_search_makes_runs_of_theirs_within_their_limits(
    store: RunStore, stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_MAX_RUNS", "2")
    with pytest.raises(FinetuneError, match="keeps no cookies"):
        driver.begin_search(store.for_visitor(Visitor()), BASE, dict(RATES), Budget(trials=5))
    ada = store.for_visitor(Visitor(("ada",)))
    study = driver.begin_search(ada, BASE, dict(RATES), Budget(trials=5))

    def go_on_until(done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not done():
            assert driver.advance(store, study)  # as the app does it, for everybody
            scheduler.dispatch_queue(store)
            assert time.monotonic() < deadline, results.list_trials(store, study)
            time.sleep(0.02)

    def states() -> list[str]:
        return [row.state for row in results.list_trials(store, study)]

    # A trial without room is no failure: it waits, and its page says for what.
    go_on_until(lambda: states() == ["finished", "finished", "waiting"])
    assert [run.owner for run in store.runs()] == ["ada", "ada"]
    text = str(search_view.page(ada, study.id))
    assert "Trial 2 waits: You have 2 runs here, and a visitor may keep 2." in text
    service.delete_run(ada, ada.runs()[-1])
    go_on_until(lambda: len(states()) == 4)
    assert states() == ["finished", "finished", "finished", "waiting"]
    study.stop()
    assert not driver.advance(store, study)
    assert states()[-1] == "failed"
    with pytest.raises(FinetuneError, match="a visitor may keep 2"):
        driver.begin_search(ada, BASE, dict(RATES), Budget(trials=5))
    assert studies(ada) == [study]
    assert studies(store.for_visitor(Visitor(("eve",)))) == []


def test_a_visitor_has_one_search_at_a_time(
    store: RunStore, stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    ada, eve = (store.for_visitor(Visitor((name,))) for name in ("ada", "eve"))
    study = driver.begin_search(ada, BASE, dict(RATES), Budget(trials=2))
    driver.begin_search(eve, BASE, dict(RATES), Budget(trials=2)).stop()
    driver.begin_search(eve, BASE, dict(RATES), Budget(trials=2))  # hers was stopped
    with pytest.raises(FinetuneError, match="Your last search still goes on"):
        driver.begin_search(ada, BASE, dict(RATES), Budget(trials=2))
    go_on(store, study)
    driver.begin_search(ada, BASE, dict(RATES), Budget(trials=2))


def test_how_long_a_search_takes_is_said_by_the_speed_of_an_earlier_run(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, steps = RunConfig(num_train_epochs=2), cost.Steps(100, 10, 20)
    known: list[cost.Time | None] = [None]
    monkeypatch.setattr(cost, "estimate_cost", lambda *_: cost.Estimate(steps=steps, time=known[0]))

    def expected(**budget: float) -> float | None:
        return driver.expected_seconds(store, config, default_space(), Budget(**budget))  # type: ignore[arg-type]

    assert expected(trials=10) is None
    assert expected(trials=10, minutes=2) is None
    known[0] = cost.Time(20.0, 100.0, "an earlier run", "CPU", True)
    # A trial has 1 to 6 epochs, the earlier run had 2.
    assert expected(trials=10) == pytest.approx(10 * 20 * 3.5 / 2)
    assert expected(trials=10, minutes=2) == 120
    assert expected(trials=0, minutes=2) is None


def test_importance_is_said_once_twenty_trials_have_finished(store: RunStore) -> None:
    space: Space = {**RATES, "warmup_ratio": Range(0.0, 0.3)}
    study = driver.begin_search(store, BASE, space, Budget(trials=40))

    def finish(trials: int) -> None:
        for _ in range(trials):
            trial = study.draw()
            away = abs(math.log10(trial.params["learning_rate"]) + 4.3)
            study.optuna_study.tell(trial, 0.9 - 0.1 * away)

    finish(19)
    assert results.importance(study) is None
    assert "20 are needed" in str(search_view.page(store, study.id))
    finish(1)
    found = results.importance(study)
    assert found is not None
    assert list(found) == ["learning_rate", "warmup_ratio"]
    assert sum(found.values()) == pytest.approx(1)
    text = str(search_view.page(store, study.id))
    assert re.search(r"Learning rate \d+%, Warmup ratio \d+%", text)


def test_importance_says_nothing_where_scores_are_equal(store: RunStore) -> None:
    space: Space = {**RATES, "warmup_ratio": Range(0.0, 0.3)}
    study = driver.begin_search(store, BASE, space, Budget(trials=40))
    for _ in range(20):
        study.optuna_study.tell(study.draw(), 0.9)
    assert results.importance(study) == {}
    assert "nothing says which hyperparameter matters" in str(search_view.page(store, study.id))


@pytest.mark.parametrize("total", [11, 50, 512, 765, 1377])
def test_a_trials_parts_are_the_tenths_that_are_done(total: int) -> None:
    interval = math.ceil(total / 10)
    steps = [*range(interval, total, interval), total]
    curve = [
        events.Evaluated(step=step, epoch=1.0, metrics={"f1": step / total}, seconds=1.0, best=True)
        for step in steps
    ]
    prepared = events.Prepared(
        train_examples=8, validation_examples=8, steps_per_epoch=total, total_steps=total,
        labels=["a", "b"], parameters=1, precision="no",
    )  # fmt: skip
    summary = RunSummary(prepared=prepared, validation=curve)
    parts = driver.parts(summary, "f1")
    assert len(parts) == len(steps)
    assert parts[10] == 1.0
    for part, done in parts.items():
        assert part / 10 <= done < (part + 1) / 10


def test_values_that_cannot_be_trained_with_or_change_nothing_are_refused(store: RunStore) -> None:
    def refused(config: RunConfig, parallel: int = 1, **texts: str) -> str:
        with pytest.raises(ConfigError) as error:
            driver.begin_search(store, config, read_space(texts), Budget(3), parallel=parallel)
        return str(error.value)

    usual = RunConfig()
    assert "has no range" in refused(usual, lr_scheduler_type="cosine..linear")
    assert "max_steps is 50" in refused(BASE, num_train_epochs="")
    assert "warmup_steps is 5" in refused(usual.changed(warmup_steps=5), warmup_ratio="")
    assert "use_lora is False" in refused(usual, lora_r="")
    assert "frozen layers" in refused(usual.changed(use_lora=True), frozen_layers="0..2")
    for parallel in (0, 10**9):
        assert f"is {parallel}, and must be from 1" in refused(usual, parallel, learning_rate="")
    assert not studies(store)


def test_no_trial_is_drawn_while_one_waits_for_room(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise JobError("The queue is full.", "Try again later.")

    monkeypatch.setattr(service, "start_run", full)
    study = driver.begin_search(store, BASE, dict(RATES), Budget(trials=50), parallel=20)
    for _ in range(3):
        assert driver.advance(store, study)
    assert len(study.trials()) == 1


def test_a_search_whose_token_is_not_known_any_more_waits_for_it(
    store: RunStore, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    # As the app's scheduler does, whenever it is woken.
    monkeypatch.setattr(scheduler, "dispatch_queue", driver.advance_all)
    spec = make_spec("hub-job", {"flavor": "cpu-basic", "minutes": 10, "price": 0.01})
    options = {"budget": Budget(4), "spec": spec, "parallel": 2}
    with pytest.raises(FinetuneError, match="not signed in"):
        driver.begin_search(store, BASE, dict(RATES), **options)  # type: ignore[arg-type]
    study = driver.begin_search(store, BASE, dict(RATES), token=TOKEN, **options)  # type: ignore[arg-type]
    assert driver.advance(store, study)
    runs = store.runs()
    assert len(runs) == 2
    for run in runs:
        write_spec(run, spec.model_copy(update={"job": f"ada/{run.id}"}))
        run.append(events.Started(device="cpu"))
        Queue(store.root).remove(run.id)
    registry._tokens.clear()  # as when the app is started again
    assert {run.state().status for run in runs} == {"interrupted"}
    assert driver.advance(store, study)
    assert "keeps no token of the Hub" in str(search_view.page(store, study.id))
    driver.go_on(store, study, TOKEN)
    assert {registry.kept_token(run.id) for run in runs} == {TOKEN}
    assert set(Queue(store.root).waiting()) == {run.id for run in runs}
    assert not driver.lacks_token(study)
    assert driver.advance(store, study)
    assert [trial.state for trial in study.trials()] == [TrialState.RUNNING] * 2


@pytest.mark.parametrize("known", [{"job": "ada/1"}, {"attempt": 1}], ids=str)
def test_a_trial_whose_follower_fails_is_followed_again_and_no_other_begun(
    store: RunStore, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, known: dict[str, Any]
) -> None:
    monkeypatch.setattr(scheduler, "dispatch_queue", lambda store: None)
    spec = make_spec("hub-job", {"flavor": "cpu-basic", "minutes": 10, "price": 0.01})
    study = driver.begin_search(store, BASE, dict(RATES), Budget(3), spec=spec, token=TOKEN)
    assert driver.advance(store, study)
    (run,) = store.runs()
    write_spec(run, spec.model_copy(update=known))
    spending.note(run, 1, 0.01)
    for _ in range(5):
        Queue(store.root).remove(run.id)
        run.append(events.Failed(error="The Hub was silent.", remedy=""))
        assert driver.advance(store, study)
        assert Queue(store.root).waiting() == [run.id]
        assert len(store.runs()) == 1
    Queue(store.root).remove(run.id)
    assert driver.advance(store, study)  # it is given up
    assert study.trials()[0].state == TrialState.FAIL
    assert len(store.runs()) == 2


@pytest.mark.long
def test_two_processes_serve_one_study(store: RunStore, stand_in: None) -> None:
    study = driver.begin_search(
        store, BASE, dict(RATES), Budget(trials=8), parallel=2, pruning=False
    )
    words = [sys.executable, "-m", "tests.support.stand_in_search", str(store.root), study.id]
    processes = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    trials = study.trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 8
    assert len({trial.params["learning_rate"] for trial in trials}) == 8
    assert len({trial.user_attrs["run"] for trial in trials}) == 8 == len(store.runs())


def test_minutes_are_a_budget_too(store: RunStore, stand_in: None) -> None:
    study = driver.begin_search(store, BASE, dict(RATES), Budget(trials=0, minutes=0.015))
    go_on(store, study)
    assert 1 <= len(study.trials()) < 6


def test_a_billed_search_needs_a_number_of_trials(store: RunStore) -> None:
    with pytest.raises(ConfigError, match="trials is 0, and each trial is billed"):
        driver.begin_search(store, BASE, dict(RATES), Budget(0, minutes=9), spec=T4)


@pytest.mark.parametrize(("spec", "drawn"), [(T4, 2), (None, 4)])
def test_a_failed_trial_is_replaced_only_where_nothing_is_billed(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, spec: EngineSpec | None, drawn: int
) -> None:
    monkeypatch.setattr(scheduler, "dispatch_queue", lambda store: None)
    study = driver.begin_search(
        store, BASE, dict(RATES), Budget(2), spec=spec, token="secret", parallel=4
    )
    for _ in range(2):
        driver.advance(store, study)
        for run in store.runs():
            Queue(store.root).remove(run.id)
            run.append(events.Failed(error="The job was lost.", remedy=""))
    assert len(study.trials()) == drawn


def test_repeating_the_best_trial_shows_its_price_and_takes_the_token_of_the_search(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "dispatch_queue", lambda store: None)
    study = driver.begin_search(store, BASE, dict(RATES), Budget(1), spec=T4, token="secret")
    assert driver.advance(store, study)
    (run,) = store.runs()
    Queue(store.root).remove(run.id)
    for event in toys.story():
        run.append(event)
    assert not driver.advance(store, study)
    text = str(search_view.page(store, study.id))
    assert "Repeat it with 3 other seeds, at most $1.20" in text
    again = results.repeat_best(store, study)
    assert [registry.kept_token(run.id) for run in again] == ["secret"] * 3


def test_a_search_that_is_over_stays_so_when_its_runs_are_deleted(
    store: RunStore, stand_in: None
) -> None:
    study = driver.begin_search(store, BASE, dict(RATES), Budget(trials=2, minutes=10))
    go_on(store, study)
    assert study.is_over
    seconds = [row.seconds for row in results.list_trials(store, study)]
    assert min(seconds) > 0
    text = str(search_view.page(store, study.id))
    assert "Open the best run" in text
    assert "20 are needed" not in text  # of one field there is nothing to compare
    for run in store.runs():
        service.delete_run(store, run)
    assert [row.seconds for row in results.list_trials(store, study)] == seconds
    assert not driver.advance(store, study)
    driver.advance_all(store)
    assert store.runs() == []
    text = str(search_view.page(store, study.id))
    assert "The search is over" in text
    assert "Its run was deleted" in text
    assert "Open the best run" not in text


def test_a_search_is_deleted_with_its_runs_and_nothing_else(
    store: RunStore, stand_in: None
) -> None:
    other = store.create(BASE)
    done = driver.begin_search(store, BASE, dict(RATES), Budget(trials=2))
    go_on(store, done)
    results.repeat_best(store, done)
    working = driver.begin_search(
        store, BASE.changed(max_steps=5000), dict(RATES), Budget(trials=2)
    )
    driver.advance(store, working)
    assert len(results.all_runs(store, done)) == 5
    results.delete_search(store, done)
    results.delete_search(store, working)
    assert [run.id for run in store.runs()] == [other.id]
    assert studies(store) == []
    driver.advance_all(store)
    assert len(store.runs()) == 1


def test_a_run_whose_process_died_before_the_journal_named_it_is_found(
    store: RunStore, stand_in: None
) -> None:
    study = driver.begin_search(store, BASE, dict(RATES), Budget(trials=2))
    trial = study.draw()
    config = driver.trial_config(store, study, trial.params, trial.number)
    run = service.start_run(store, config)
    assert driver.advance(store, study)
    assert [other.id for other in store.runs()] == [run.id]
    assert study.trials()[0].user_attrs["run"] == run.id
    assert run.about().study == study.id


def test_a_trial_that_ends_while_it_is_pruned_is_no_error(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.create(BASE)
    run.append(events.Stopped(step=1, seconds=1.0))
    with pytest.raises(JobError):
        service.stop_run(store, run, discard=True)
    driver._prune(store, run, keep=False)


def test_how_long_and_how_much_is_said_as_it_is_known() -> None:
    def said(seconds: float | None, price: float = 0, **budget: float) -> str:
        return str(train_plan.expected(seconds, Budget(**budget), price))  # type: ignore[arg-type]

    assert "All trials: about 10 min of training" in said(600.0, trials=5)
    assert "known after a run like it" in said(None, trials=5)
    assert "No trial begins after 30 min of training." in said(None, trials=0, minutes=30)
    assert "earlier run" not in said(1800.0, trials=50, minutes=30)
    assert "cost at most" not in said(None, trials=5)
    assert "cost at most $1.13" in said(None, 0.225, trials=5)


def test_a_damaged_study_is_named(
    store: RunStore,
    stand_in: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    study = driver.begin_search(store, BASE, dict(RATES), Budget(trials=2))
    (study.folder / "trials.log").write_text("not a journal\n" * 3)
    with pytest.raises(FinetuneError, match=f"study {study.id} cannot be read"):
        driver.advance(store, Study(study.folder))
    other = driver.begin_search(store, BASE, dict(RATES), Budget(trials=2))
    (other.folder / "trials.log").write_text("not a journal\n" * 3)  # after it was opened
    last = driver.begin_search(store, BASE, dict(RATES), Budget(trials=2))
    with monkeypatch.context() as patch:
        advanced: list[str] = []
        draw = Study.draw

        def stumble(study: Study) -> Trial:
            advanced.append(study.id)
            if study == first:
                raise RuntimeError("a bug")
            return draw(study)

        patch.setattr(Study, "draw", stumble)
        first = driver.begin_search(store, BASE, dict(RATES), Budget(trials=2))
        driver.advance_all(store)  # the others go on
        driver.advance_all(store)
    assert {first.id, last.id} <= set(advanced)
    assert len(last.trials()) == 1
    assert caplog.text.count("RuntimeError: a bug") == 1
    text = (last.folder / "study.json").read_text()
    (last.folder / "study.json").write_text(text.replace("0.001", "0.01"))
    with pytest.raises(FinetuneError, match="another space"):
        driver.advance(store, Study(last.folder))
    (study.folder / "study.json").write_text("{}")
    with pytest.raises(FinetuneError, match="begin another search"):
        Study(study.folder).settings  # noqa: B018


@pytest.mark.long
def test_the_command_line_searches(
    store: RunStore, stand_in: None, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--runs", str(store.root), "--max_steps", "60", "--trials", "3"]
    assert command_line(["search", *flags, "--over", "learning_rate=1e-6..1e-3"]) == 0
    output = capsys.readouterr().out
    assert "trial 0 finished F1 1.0000 learning_rate 7e-05" in output
    assert "best: F1 1.0000" in output
    assert command_line(["search", *flags, "--over", "learning_rate=1e-3..1e-5"]) == 2
    assert "must be above its beginning" in capsys.readouterr().err
    assert "outside of what is searched" not in output
    assert command_line(["search", *flags, "--over", "learning_rate=1e-6..1e-5"]) == 0
    said = "trial 0 is the configuration as it is, outside of what is searched: learning_rate 7e-05"
    assert said in capsys.readouterr().out
    assert command_line(["search", "--runs", str(store.root), "--study", "search 1"]) == 0
    assert command_line(["search", "--runs", str(store.root), "--study", "nonsense"]) == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--trials", "0", "--search_minutes", "9"], "is 0, and each trial is billed"),
        (["--trials", "4"], "The price was not agreed to."),
    ],
)
def test_the_command_line_asks_for_agreement_to_all_that_a_search_may_cost(
    store: RunStore, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], flags: list[str], said: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))  # a file is nobody who agrees
    engine = ["--engine", "hub-job", "--flavor", "t4-small", "--minutes", "60"]
    assert command_line(["search", "--runs", str(store.root), *engine, *flags]) == 2
    output = capsys.readouterr().err
    assert said in output
    asked = "stops by itself after 60 minutes, at most $0.41, all trials together at most $1.61."
    assert (asked in output) == ("agreed" in said)
    assert not studies(store)
