"""Hyperparameter search: its space, its budget, its trials as runs."""

import csv
import io
import math
import shutil
import subprocess
import sys
import textwrap
import time

import pytest
from optuna.trial import TrialState

from finetune.__main__ import main as command_line
from finetune.config import RunConfig
from finetune.engines import registry, spending
from finetune.engines.base import write_spec
from finetune.engines.registry import make_spec
from finetune.errors import ConfigError, FinetuneError, JobError
from finetune.hub import model_card
from finetune.hyperparameter import Range
from finetune.jobs import scheduler, service, workers
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.queue import Queue
from finetune.runs.store import RunStore
from finetune.studies import driver, results
from finetune.studies import space as ranges
from finetune.studies.study import Study, create_study, find_study, studies, trial_run
from finetune.ui import compare_view
from tests.support import stand_in as stand_in_workers
from tests.support import toys
from tests.support.hub import TOKEN
from tests.support.waiting import until

BASE = RunConfig(max_steps=50)
RATES = {"learning_rate": Range(1e-6, 1e-3, log=True)}
T4 = make_spec("hub-job", {"flavor": "t4-small", "minutes": 30, "price": 0.8})
CPU = make_spec("hub-job", {"flavor": "cpu-basic", "minutes": 10, "price": 0.01})


@pytest.fixture
def stand_in(store, monkeypatch):
    """Workers that train nothing: a rate's F1 is the better the nearer it is to the default."""
    stand_in_workers.use(monkeypatch)
    yield
    for run in store.runs():
        workers.kill_worker(run)


def finish_all(store):
    """End each run that waits, in place of a worker."""
    queue = Queue(store.root)
    for run_id in queue.waiting():
        queue.remove(run_id)
        for event in toys.story():
            store.get(run_id).append(event)


def go_on(store, study, done=lambda: False):
    """Advance a study as the app does, to its end or until it is done."""
    deadline = time.monotonic() + 90
    while driver.advance(store, study) and not done():
        scheduler.dispatch_queue(store)
        assert time.monotonic() < deadline, results.list_trials(store, study)
        time.sleep(0.02)


def ended(study):
    return sum(trial.state.is_finished() for trial in study.trials())


def test_a_space_is_read_as_people_write_it():
    text = {
        "learning_rate": "1e-5..3e-4",
        "per_device_train_batch_size": "8, 16,8",
        "warmup_ratio": "",
    }
    assert ranges.read_space(text) == {
        "learning_rate": Range(1e-5, 3e-4, log=True),
        "per_device_train_batch_size": (8, 16),
        "warmup_ratio": ranges.searchable()["warmup_ratio"],
    }
    assert len(ranges.default_space()) == 4
    with pytest.raises(ConfigError) as error:
        ranges.read_space({
            "seed": "1..3", "learning_rate": "3e-4..1e-5", "weight_decay": "0.1", "lora_r": "x, y",
            "frozen_layers": "0..900", "num_train_epochs": "0..5",
        })  # fmt: skip
    assert set(error.value.problems) == {
        "seed", "learning_rate", "weight_decay", "lora_r", "frozen_layers", "num_train_epochs",
    }  # fmt: skip
    assert "0 means Automatic" in str(error.value.problems["num_train_epochs"])
    with pytest.raises(ConfigError, match="space is empty"):
        ranges.read_space({})


@pytest.mark.parametrize(
    ("values", "over", "budget", "said"),
    [
        ({}, {}, {"trials": -1}, "trials is -1, and must be 0 or more"),
        ({}, {}, {"trials": 0}, "trials is 0: give a number of trials"),
        ({}, {}, {"minutes": float("nan")}, "minutes is nan, and must be 0 or more"),
        ({}, {}, {"parallel": 10**9}, "parallel is 1000000000, and must be from 1 to 100"),
        # What cannot be trained with, or changes nothing.
        ({}, {"lr_scheduler_type": "cosine..linear"}, {}, "has no range"),
        ({"max_steps": 50}, {"num_train_epochs": ""}, {}, "max_steps is 50"),
        ({"warmup_steps": 5}, {"warmup_ratio": ""}, {}, "warmup_steps is 5"),
        ({}, {"lora_r": ""}, {}, "use_lora is False"),
        ({"use_lora": True}, {"frozen_layers": "0..2"}, {}, "frozen layers"),
    ],
    ids=str,
)
def test_what_cannot_be_searched_is_named(store, values, over, budget, said):
    parallel, space = budget.pop("parallel", 1), over or {"learning_rate": ""}
    with pytest.raises(ConfigError, match=said):
        driver.begin_search(
            store, RunConfig(**values), ranges.read_space(space), ranges.Budget(**budget),
            parallel=parallel,
        )  # fmt: skip
    assert not studies(store)


@pytest.mark.parametrize(
    ("values", "over", "apart"),
    [
        ({"lora_r": 4, "use_lora": True}, {"lora_r": "8, 16"}, "lora_r 4 (8, 16)"),
        (
            {"learning_rate": 0.5, "warmup_ratio": 0.1, "per_device_train_batch_size": 4},
            {"learning_rate": "", "warmup_ratio": "0, 0.1", "per_device_train_batch_size": ""},
            "learning_rate 0.5 (1e-05..0.0003), per_device_train_batch_size 4 (8, 16, 32)",
        ),
    ],
)
def test_bounds_hold_though_the_form_lies_outside_of_them(store, values, over, apart):
    """The first trial is the form all the same; nothing is learned from it."""
    config, space = RunConfig(name="mine", **values), ranges.read_space(over)
    study = create_study(store, config, space, ranges.Budget(30))
    assert study.title == "mine"
    assert ranges.describe_outside(space, study.outside) == apart
    first = study.draw()
    assert study.values(study.trials()[0]) == {name: getattr(config, name) for name in over}
    study.optuna_study.tell(first.number, 1.0)
    for number in range(1, 25):  # eight are drawn at random
        trial = study.draw()
        assert trial.params.keys() == space.keys()
        assert ranges.outside(space, trial.params) == {}
        study.optuna_study.tell(trial.number, number / 100)
    again = Study(study.folder)
    assert again.settings.space == space
    rows = results.list_trials(store, again)
    assert [row.values.keys() for row in rows] == [space.keys()] * 25
    drawn = {name: results.axis(again, name) for name in again.outside}
    assert ranges.outside(drawn, study.config.to_dict()) == {}
    assert (rows[0].state, rows[0].values.items() >= study.outside.items()) == ("finished", True)


def test_usual_ranges_lie_around_the_form_and_given_ones_stay():
    config = RunConfig(num_train_epochs=10, learning_rate=1e-3, per_device_train_batch_size=4)
    usual = ranges.default_space()
    assert ranges.around(usual, config) == usual | {
        "num_train_epochs": Range(5, 15),
        "learning_rate": Range(5e-4, 1.5e-3, log=True),
        "per_device_train_batch_size": (4, 8, 16, 32),
    }
    given = ranges.read_space({"num_train_epochs": "1..3"})
    assert ranges.around(given, config) == given


def test_the_first_trial_has_numbers_for_what_is_automatic_and_searched(store):
    first = driver.first_trial(store, RunConfig(), ranges.default_space())
    assert (first.learning_rate, first.per_device_train_batch_size) == (7e-5, 16)
    assert first.num_train_epochs == 4
    assert first.eval_steps == RunConfig().eval_steps
    rate = driver.first_trial(store, RunConfig(per_device_train_batch_size=8), RATES)
    assert rate == RunConfig(per_device_train_batch_size=8, learning_rate=4.9e-5)


@pytest.mark.long
def test_a_search_from_its_first_trial_to_the_card_of_its_best(store, stand_in):
    start = BASE.changed(learning_rate=5e-4)
    study = driver.begin_search(store, start, RATES, ranges.Budget(12))
    go_on(store, study)
    rows = results.list_trials(store, study)
    # Trials are runs, of which the first is the form; those that are behind end early.
    assert rows[0].values["learning_rate"] == 5e-4
    assert {row.state for row in rows} == {"finished", "pruned"}
    for row in rows:
        run = store.get(row.run_id)
        assert run.about().study == study.id
        own = {"name": "", "learning_rate": 5e-4, "eval_steps": start.eval_steps}
        # The batch that the steps between evaluations were counted with.
        assert run.config().changed(**own) == start.changed(per_device_train_batch_size=16)
        assert run.has_model() == (row.state == "finished")
        assert run.state().status == ("finished" if row.state == "finished" else "stopped")
        if row.state == "pruned":
            assert "the worst quarter" in run.state().error
            assert 0 < len(row.curve) < 5
    best = results.best_trial(rows)
    assert (best.score or 0) > (rows[0].score or 0) > 0
    # Other seeds say what to expect of the best.
    again = results.repeat_best(store, study)

    def all_finished():
        scheduler.dispatch_queue(store)  # no app is here to look again
        return all(run.state().status == "finished" for run in again)

    until(all_finished)
    assert len({study.config.seed, *(run.config().seed for run in again)}) == 4
    assert results.progress(store, study, rows) == results.Progress(True, True, False)
    spread = results.repeats(store, study)
    assert spread.count == 3
    assert spread.mean == pytest.approx(best.score)
    with pytest.raises(JobError, match="repeated already"):
        results.repeat_best(store, study)
    table = list(csv.reader(io.StringIO(results.trials_csv(store, study))))
    assert table[0][:6] == ["trial", "run", "state", "f1", "learning_rate", "f1 after 1/10"]
    assert [len(row) for row in table] == [15] * 13
    text = str(compare_view.search(store, study.id))
    assert f"Trial {best.number} is the best: F1 {best.score:.3f}." in text
    assert "With 3 other seeds it reached" in text
    assert text.count("<polyline") == 12
    # The card of a trial knows the search, though its other runs were deleted.
    for row in rows:
        if row is not best:
            service.delete_run(store, store.get(row.run_id))
    for run in (store.get(best.run_id), again[0]):
        card = " ".join(model_card.card_text(run, run.state(), "ada/best").split())
        assert "were picked on them, among 12 trials of a search" in card


@pytest.mark.long
def test_what_is_killed_stopped_or_deleted_is_drawn_again_by_another_process(store, stand_in):
    study = driver.begin_search(
        store, BASE.changed(max_steps=100), RATES, ranges.Budget(5), pruning=False
    )
    go_on(store, study, lambda: ended(study) == 1)

    def at_work():
        run = trial_run(store, study.trials()[-1])
        return run is not None and run.is_alive() and run.state().step > 5

    for number, harm in enumerate(("kill", "stop", "delete", "limit"), 2):
        go_on(store, study, at_work)
        run = trial_run(store, study.trials()[-1])
        if harm == "kill":
            workers.kill_worker(run)
        elif harm == "stop":
            service.stop_run(store, run)
        elif harm == "delete":
            service.delete_run(store, run)
        else:  # as of a visitor's minutes
            service.stop_run(store, run, reason="Ten minutes are over.")
        go_on(store, study, lambda number=number: ended(study) >= number)
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
def test_a_stopped_search_and_one_whose_trials_all_fail_end(store, stand_in, monkeypatch):
    study = driver.begin_search(store, BASE, RATES, ranges.Budget(50))
    go_on(store, study, lambda: ended(study) == 1)
    study.stop()
    text = str(compare_view.search(store, study.id))
    assert "are left" not in text
    go_on(store, study)
    assert "The search is over" in str(compare_view.search(store, study.id))
    assert len(study.trials()) <= 2
    monkeypatch.setattr(workers, "WORKER", "no.such.module")
    failing = driver.begin_search(store, BASE, RATES, ranges.Budget(50))
    go_on(store, failing)
    assert [trial.state for trial in failing.trials()] == [TrialState.FAIL] * 5
    rates = [trial.params["learning_rate"] for trial in failing.trials()]
    assert rates[0] == rates[1] == 7e-5  # the form is tried once more
    assert rates.count(7e-5) == 2
    assert "Trial 4 failed:" in str(compare_view.search(store, failing.id))


def test_a_visitors_search_makes_runs_of_theirs_within_their_limits(store, monkeypatch):
    monkeypatch.setattr(scheduler, "dispatch_queue", finish_all)
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_MAX_RUNS", "2")
    with pytest.raises(FinetuneError, match="keeps no cookies"):
        driver.begin_search(store.for_visitor(Visitor()), BASE, RATES, ranges.Budget(5))
    ada = store.for_visitor(Visitor(("ada",)))
    study = driver.begin_search(ada, BASE, RATES, ranges.Budget(5))
    with pytest.raises(FinetuneError, match="Your last search still goes on"):
        driver.begin_search(ada, BASE, RATES, ranges.Budget(2))

    def states():
        return [row.state for row in results.list_trials(store, study)]

    # A trial without room is no failure: it waits, and its page says for what.
    go_on(store, study, lambda: states() == ["finished", "finished", "waiting"])
    assert [run.owner for run in store.runs()] == ["ada", "ada"]
    text = str(compare_view.search(ada, study.id))
    assert "Trial 2 waits: You have 2 runs here, and a visitor may keep 2." in text
    service.delete_run(ada, ada.runs()[-1])
    go_on(store, study, lambda: len(states()) == 4)
    assert states() == ["finished", "finished", "finished", "waiting"]
    study.stop()
    assert not driver.advance(store, study)
    assert states()[-1] == "failed"
    with pytest.raises(FinetuneError, match="a visitor may keep 2"):
        driver.begin_search(ada, BASE, RATES, ranges.Budget(5))
    assert studies(ada) == [study]
    assert studies(store.for_visitor(Visitor(("eve",)))) == []


def test_importance_is_said_once_twenty_trials_have_finished(store):
    space = {**RATES, "warmup_ratio": Range(0.0, 0.3)}
    study, equal = (driver.begin_search(store, BASE, space, ranges.Budget(40)) for _ in range(2))
    for number in range(20):
        assert number < 19 or results.importance(study) is None
        trial = study.draw()
        away = abs(math.log10(trial.params["learning_rate"]) + 4.3)
        study.optuna_study.tell(trial, 0.9 - 0.1 * away)
        equal.optuna_study.tell(equal.draw(), 0.9)
    found = results.importance(study)
    assert list(found) == ["learning_rate", "warmup_ratio"]
    assert sum(found.values()) == pytest.approx(1)
    assert results.importance(equal) == {}


def test_a_search_whose_token_is_not_known_any_more_waits_for_it(store, hub, monkeypatch):
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    # As the app's scheduler does, whenever it is woken.
    monkeypatch.setattr(scheduler, "dispatch_queue", driver.advance_all)
    options = {"budget": ranges.Budget(4), "spec": CPU, "parallel": 2}
    with pytest.raises(FinetuneError, match="not signed in"):
        driver.begin_search(store, BASE, RATES, **options)
    study = driver.begin_search(store, BASE, RATES, token=TOKEN, **options)
    assert driver.advance(store, study)
    runs = store.runs()
    assert len(runs) == 2
    for run in runs:
        write_spec(run, CPU.model_copy(update={"job": f"ada/{run.id}"}))
        run.append(events.Started(device="cpu"))
        Queue(store.root).remove(run.id)
    registry._tokens.clear()  # as when the app is started again
    assert {run.state().status for run in runs} == {"interrupted"}
    assert driver.advance(store, study)
    assert "keeps no token of the Hub" in str(compare_view.search(store, study.id))
    driver.go_on(store, study, TOKEN)
    assert {registry.kept_token(run.id) for run in runs} == {TOKEN}
    assert set(Queue(store.root).waiting()) == {run.id for run in runs}
    assert not driver.lacks_token(study)
    assert driver.advance(store, study)
    assert [trial.state for trial in study.trials()] == [TrialState.RUNNING] * 2


@pytest.mark.parametrize("known", [{"job": "ada/1"}, {"attempt": 1}], ids=str)
def test_a_trial_whose_follower_fails_is_followed_again(store, hub, nothing_begins, known):
    study = driver.begin_search(store, BASE, RATES, ranges.Budget(3), spec=CPU, token=TOKEN)
    assert driver.advance(store, study)
    (run,) = store.runs()
    write_spec(run, CPU.model_copy(update=known))
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
def test_two_processes_serve_one_study(store, stand_in):
    study = driver.begin_search(store, BASE, RATES, ranges.Budget(8), parallel=2, pruning=False)
    words = [sys.executable, "-m", "tests.support.apps", "search", str(store.root), study.id]
    processes = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    trials = study.trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 8
    assert len({trial.params["learning_rate"] for trial in trials}) == 8
    assert len({trial.user_attrs["run"] for trial in trials}) == 8 == len(store.runs())


@pytest.mark.parametrize(("spec", "drawn"), [(T4, 2), (None, 4)])
def test_a_failed_trial_is_replaced_where_nothing_is_billed(store, nothing_begins, spec, drawn):
    study = driver.begin_search(
        store, BASE, RATES, ranges.Budget(2), spec=spec, token="secret", parallel=4
    )
    for _ in range(2):
        driver.advance(store, study)
        for run in store.runs():
            Queue(store.root).remove(run.id)
            run.append(events.Failed(error="The job was lost.", remedy=""))
    assert len(study.trials()) == drawn


def test_repeating_the_best_trial_shows_its_price_and_has_the_searchs_token(store, nothing_begins):
    study = driver.begin_search(store, BASE, RATES, ranges.Budget(1), spec=T4, token="secret")
    assert driver.advance(store, study)
    (run,) = store.runs()
    Queue(store.root).remove(run.id)
    for event in toys.story():
        run.append(event)
    assert not driver.advance(store, study)
    text = str(compare_view.search(store, study.id))
    assert "Repeat it with 3 other seeds, at most $1.20" in text
    again = results.repeat_best(store, study)
    assert [registry.kept_token(run.id) for run in again] == ["secret"] * 3


def test_a_search_that_is_over_stays_so_and_is_deleted_with_its_runs(store, stand_in, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "dispatch_queue", finish_all)
        short = driver.begin_search(store, BASE, RATES, ranges.Budget(trials=0, minutes=0.005))
        go_on(store, short)
        assert short.trials()
        results.delete_search(store, short)
        other = store.create(BASE)
        form = BASE.changed(max_steps=5000)
        study = driver.begin_search(store, form, RATES, ranges.Budget(trials=2, minutes=10))
        go_on(store, study)
    rows = results.list_trials(store, study)
    seconds = [row.seconds for row in rows]
    assert min(seconds) > 0
    (worse,) = (row for row in rows if row != results.best_trial(rows))
    service.delete_run(store, store.get(worse.run_id))
    assert [row.seconds for row in results.list_trials(store, study)] == seconds
    driver.advance_all(store)
    assert len(store.runs()) == 2
    assert any(run.is_alive() for run in results.repeat_best(store, study))
    results.delete_search(store, study)
    driver.advance_all(store)
    assert [run.id for run in store.runs()] == [other.id]
    assert studies(store) == []


def test_a_run_whose_process_died_before_the_journal_named_it_is_found(store, stand_in):
    study = driver.begin_search(store, BASE, RATES, ranges.Budget(2))
    trial = study.draw()
    config = driver.trial_config(store, study, trial.params, trial.number)
    run = service.start_run(store, config)
    assert driver.advance(store, study)
    assert [other.id for other in store.runs()] == [run.id]
    assert study.trials()[0].user_attrs["run"] == run.id
    assert run.about().study == study.id


FORM = BASE.changed(learning_rate=5e-4, weight_decay=0.2)
SPACE = {**RATES, "weight_decay": Range(0.0, 0.3)}


def test_a_trial_that_was_half_drawn_is_drawn_again(store, tmp_path, nothing_begins):
    """Wherever the process that wrote the search's journal was killed."""
    study = create_study(store, FORM, SPACE, ranges.Budget(3))
    study.draw()
    journal = (study.folder / "trials.log").read_bytes()
    ends = [at + 1 for at, letter in enumerate(journal) if letter == ord("\n")]
    assert len(ends) > 4
    half = 0
    for end in ends[1:]:
        for cut in (end - 9, end):  # in a line, and after it
            again = RunStore(tmp_path / str(cut))
            shutil.copytree(store.root, again.root)
            (again.root / "studies" / study.id / "trials.log").write_bytes(journal[:cut])
            opened = Study(again.root / "studies" / study.id)
            for _ in range(3):
                assert driver.advance(again, opened)
            *failed, last = opened.trials()
            assert [trial.state for trial in failed] == [TrialState.FAIL] * len(failed)
            assert last.state == TrialState.RUNNING
            assert last.params == {"learning_rate": 5e-4, "weight_decay": 0.2}
            assert [run.id for run in again.runs()] == [last.user_attrs["run"]]
            half += len(failed)
    assert half > 0


def test_a_process_that_dies_while_it_writes_holds_nobody_up(store):
    study = create_study(store, FORM, SPACE, ranges.Budget(3))
    study.draw()
    code = """
        import os, signal, sys
        from pathlib import Path
        from finetune.studies.study import JournalLock
        journal = Path(sys.argv[1])
        JournalLock(journal).acquire()
        with journal.open("ab", buffering=0) as file:
            file.write(b'{"op_code": 4, "wor')
        os.kill(os.getpid(), signal.SIGKILL)
        """
    words = [sys.executable, "-c", textwrap.dedent(code), str(study.folder / "trials.log")]
    assert subprocess.run(words, check=False).returncode == -9
    assert study.draw().number == 1
    assert [trial.number for trial in Study(study.folder).trials()] == [0, 1]


def test_a_damaged_study_is_named(store, stand_in):
    study = driver.begin_search(store, BASE, RATES, ranges.Budget(2))
    (study.folder / "trials.log").write_text("not a journal\n" * 3)
    with pytest.raises(FinetuneError, match=f"study {study.id} cannot be read"):
        driver.advance(store, Study(study.folder))
    other = driver.begin_search(store, BASE, RATES, ranges.Budget(2))
    (other.folder / "trials.log").write_text("not a journal\n" * 3)  # after it was opened
    last = driver.begin_search(store, BASE, RATES, ranges.Budget(2))
    driver.advance_all(store)  # the others go on
    assert len(last.trials()) == 1
    text = (last.folder / "study.json").read_text()
    (last.folder / "study.json").write_text(text.replace("0.001", "0.01"))
    with pytest.raises(FinetuneError, match="another space"):
        driver.advance(store, Study(last.folder))
    (study.folder / "study.json").write_text("{}")
    with pytest.raises(FinetuneError, match="begin another search"):
        Study(study.folder).settings  # noqa: B018


def test_the_command_line_asks_to_agree_to_all_that_a_search_costs(store, hub, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))  # a file is nobody who agrees
    engine = ["--engine", "hub-job", "--flavor", "t4-small", "--minutes", "60"]
    words = ["search", "--runs", str(store.root), *engine, "--trials", "4"]
    assert command_line(words) == 2
    output = capsys.readouterr().err
    assert "The price was not agreed to." in output
    asked = "stops by itself after 60 minutes, at most $0.41, all trials together at most $1.61."
    assert asked in output
    assert not studies(store)
