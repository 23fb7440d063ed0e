"""The app, and the app with its workers, are killed at random moments: nothing is lost or doubled.

Workers that are killed while the app lives are in `test_queue`.
"""

import io
import json
import threading
import zipfile
from collections import Counter

import numpy as np
import onnxruntime
import pytest
from optuna.trial import TrialState

from finetune.config import RunConfig
from finetune.evaluation import cross_validation, report, saved_predictions
from finetune.hyperparameter import Range
from finetune.inference import quantized
from finetune.jobs import probe, service, workers
from finetune.jobs.evaluate import EvaluationJob
from finetune.jobs.publish import ExportJob, PushJob
from finetune.runs.job_folder import JobFolder
from finetune.studies import driver, results
from finetune.studies.space import Budget
from finetune.tasks.base import Target
from tests.support import toys
from tests.support.browser import App
from tests.support.hub import TOKEN
from tests.support.kills import Kills, check_ended, go_on
from tests.support.running import slow_run, steps, weights
from tests.support.waiting import until

pytestmark = pytest.mark.long


@pytest.fixture
def kills(store, processes):
    killer = Kills(store.root, processes)
    yield killer
    for process in killer.workers():
        process.kill()


@pytest.mark.parametrize("program", ["schedule", "search"])
def test_a_search_has_every_trial_once(store, kills, program, monkeypatch):
    monkeypatch.setattr(workers, "WORKER", "tests.support.stand_in")  # of those begun from here
    form = RunConfig(max_steps=60, learning_rate=5e-4)
    rates = {"learning_rate": Range(1e-6, 1e-3, log=True), "weight_decay": Range(0.0, 0.3)}
    study = driver.begin_search(store, form, dict(rates), Budget(trials=10), parallel=2)
    words = [study.id] if program == "search" else []
    for number in range(6):
        app = kills.start(program, *words)
        kills.at_random(app, 2.0, with_workers=number % 2 == 0)
    kills.start(program, *words)
    until(lambda: study.is_over)
    rows, trials = results.list_trials(store, study), study.trials()
    assert [trial.number for trial in trials] == list(range(len(trials)))
    states = Counter(trial.state for trial in trials)
    assert states[TrialState.COMPLETE] + states[TrialState.PRUNED] == 10
    assert states.keys() <= {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}
    assert all(trial.params.keys() == rates.keys() for trial in trials if "run" in trial.user_attrs)
    begun = [row.run_id for row in rows if row.run_id]
    assert sorted(begun) == sorted(run.id for run in store.runs())
    assert {run.about().study for run in store.runs()} == {study.id}
    assert set(told(study).values()) == {1}
    assert trials[0].params.get("learning_rate", 5e-4) == 5e-4  # if its draw was not cut short
    forms = [
        trial for trial in trials
        if trial.params.get("learning_rate") == 5e-4 and "run" in trial.user_attrs
    ]  # fmt: skip
    assert len(forms) == 1 + (forms[0].state == TrialState.FAIL)  # killed, it is tried once more
    for row, trial in zip(rows, trials, strict=True):
        if row.state == "finished":
            run = store.get(row.run_id)
            check_ended(run, 60)
            assert run.metrics["f1"] == trial.value
            assert run.config().learning_rate == trial.params["learning_rate"]
    best = results.best_trial(rows)
    assert best.score == max(t.value or 0.0 for t in trials if t.state == TrialState.COMPLETE)


def told(study):
    """How often each trial that has ended was told so, by the lines of Optuna's journal."""
    lines = map(json.loads, (study.folder / "trials.log").read_text().splitlines())
    ends = (TrialState.COMPLETE, TrialState.PRUNED)
    return Counter(int(line["trial_id"]) for line in lines
                   if "trial_id" in line and line.get("state") in ends)  # fmt: skip


@pytest.fixture
def trained(store, toy_checkpoint, toy_pairs_folder):
    """The configuration of a run that truly trains, for some seconds."""
    return slow_run(store, toy_checkpoint, toy_pairs_folder)


def test_evaluations_and_exports_are_whole_or_made_again(store, kills, trained):
    run = service.start_run(store, trained.changed(max_steps=4))
    until(lambda: run.state().status == "finished" and not run.is_alive())
    whole = saved_predictions.read_swapped_logits(run)
    swapped, folders = run.predictions / "swapped.npz", {}
    for number, kind in enumerate(["orders", "test"] * 2):
        swapped.unlink(missing_ok=True)
        app = kills.start("ask", run.id, kind)
        kills.at_random(app, 4.0, with_workers=number % 3 != 0)
        folders[kind] = JobFolder(run.folder / "evaluations" / kind)
        until(lambda: not folders[kind].is_alive())  # noqa: B023
        assert folders[kind].state().status in ("none", "interrupted", "finished")
        there = saved_predictions.read_swapped_logits(run)
        assert there is None or there.swapped == pytest.approx(whole.swapped, abs=1e-5)
    for kind in ("orders", "test"):
        EvaluationJob.of(run, kind).start(store)
        until(lambda: not folders[kind].is_alive())  # noqa: B023
        assert folders[kind].state().status == "finished"
    again = saved_predictions.read_swapped_logits(run)
    assert again.swapped == pytest.approx(whole.swapped, abs=1e-5)
    first = pytest.approx(run.state().opened[0].metrics, abs=1e-5)
    assert all(opened.metrics == first for opened in run.state().opened)
    assert len(saved_predictions.read_logits(run, 0, Target(("no", "yes")), "test").logits) == 8
    model, job = files_of(run.best), ExportJob.of(run)
    for half_written in (".onnx-*/model.onnx", ".onnx-*/dynamic.onnx"):
        app = kills.start("ask", run.id, "export")
        until(lambda: any((job.folder / "files").glob(half_written)))  # noqa: B023
        kills.at_random(app, 0.1, with_workers=True)
        assert job.state().status == "interrupted"
        assert job.state().file is None
        assert files_of(run.best) == model
    app = kills.start("ask", run.id, "export")
    until(lambda: job.state().status == "finished")
    zipped = zipfile.ZipFile(io.BytesIO(b"".join(job.zipped())))
    assert zipped.testzip() is None
    assert {name.partition("/")[2] for name in zipped.namelist()} == files_of(job.folder / "files")
    onnxruntime.InferenceSession(job.folder / "files" / "model.onnx")
    added = files_of(run.best) - model
    assert {"onnx/quantization.json"} <= added <= {"onnx/quantization.json", quantized.MODEL}


def test_a_push_is_one_commit_or_tells_what_came(store, kills, toy_checkpoint, hub, monkeypatch):
    """Killed within a file, within its commit, and at random."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    run = toys.finished_run(store, toy_checkpoint)
    files = set()
    for number, path in enumerate(("^/lfs/", "/commit/main$", "", "")):
        name = f"ada/pairs-{number}"
        hub.uploads.clear()
        held = hub.fail(path=path or "nothing", gate=(gate := threading.Event()))
        app = kills.start("ask", run.id, f"push:{name}")
        until(lambda: not (path and held.times))  # noqa: B023
        kills.at_random(app, 0.1 if path else 5.0, with_workers=number != 3)
        job = JobFolder(run.folder / "pushes" / "latest")
        until(lambda: not job.is_alive())  # noqa: B023
        state, repo = PushJob.of(run).state(), hub.repos.get(("model", name))
        commits = repo.commits if repo is not None else []
        if path:
            said = {"^/lfs/": "nothing was committed"}
            assert state.status == "interrupted"
            assert said.get(path, f"the commit to {name} may have arrived") in state.error
            gate.set()  # what the Hub had of it
            until(lambda: len(commits) == ("commit" in path))  # noqa: B023
        elif job.request.get("push", {}).get("name") != name:
            assert commits == []  # it had not begun
        elif state.status == "finished":
            assert len(commits) == 1
        else:
            assert state.status == "interrupted"
            known = "it was committed" if commits else "nothing was committed"
            assert known in state.error or "may have arrived" in state.error
        app = kills.start("ask", run.id, f"push:{name}")
        assert app.stdout.readline() == "begun\n"
        until(lambda: PushJob.of(run).state().status == "finished")
        app.kill()
        pushed = hub.repos["model", name]
        assert len(pushed.commits) == 1
        files = files or set(pushed.files)
        assert set(pushed.files) == files > {"model.safetensors", "config.json", "README.md"}
        assert pushed.files["model.safetensors"] == (run.best / "model.safetensors").read_bytes()


def files_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_comparison_of_checkpoints_is_whole_or_made_anew(store, kills, trained, still_checkpoint):
    run, reports = store.create(trained), []
    names = [trained.checkpoint, str(still_checkpoint)]
    job = probe.probe_of(store, trained, names)
    for number in range(2):
        app = kills.start("ask", run.id, f"probe:{','.join(names)}")
        kills.at_random(app, 10.0, with_workers=number % 2 == 0)
        until(lambda: not job.is_alive())
        state = job.state()
        assert state.status in ("none", "interrupted", "finished")
        assert state.status != "finished" or job.report is not None
        reports += [job.report] if job.report is not None else []
    job = probe.start_probe(store, trained, names)
    until(lambda: job.state().status == "finished")
    last = job.report
    assert last.complete
    for earlier in reports:
        assert [(one.checkpoint, one.score) for one in earlier.candidates] == [
            (one.checkpoint, one.score) for one in last.candidates
        ]


def test_a_cross_validation_ends_with_the_answers_of_one_that_was_not_killed(store, kills, trained):
    config = trained.changed(folds=2, max_steps=24, eval_steps=12, save_steps=6)
    whole = service.start_run(store, config)
    killed = store.runs()
    second = next(run for run in killed if run.config().fold == 2)
    service.stop_run(store, second)
    app = App(store.root)
    for number in range(2):
        kills.at_random(app.process, 10.0, with_workers=number != 1)
        app.start()
        go_on(store)
    until(lambda: go_on(store) and whole.state().status == "failed")
    assert "have not finished: " in whole.state().error
    service.resume_run(store, second)

    def goes_on():
        """Resume the folds, then the run on all rows, which has not begun without them."""
        states = {run.state().status for run in killed if run.config().fold}
        if go_on(store) and states == {"finished"} and whole.state().status == "failed":
            service.resume_run(store, whole)
        return whole.state().status != "finished"

    until(lambda: not goes_on())
    again = service.start_run(store, config)
    until(lambda: again.state().status == "finished")
    app.kill()
    for run, other in zip(killed, store.runs()[:3], strict=True):
        check_ended(run, 24)
        assert run.config().fold == other.config().fold
        assert weights(run) == weights(other)
        assert dict(steps(run)) == dict(steps(other))
    folds = [cross_validation.mean_over(cross_validation.read_folds(run)) for run in (whole, again)]
    assert folds[0] == pytest.approx(folds[1], abs=1e-5)
    answers = [
        saved_predictions.read_logits(run, 24, Target(("no", "yes"))) for run in (whole, again)
    ]
    assert answers[0].logits == pytest.approx(answers[1].logits, abs=1e-5)
    assert np.array_equal(answers[0].labels, answers[1].labels)
    assert report.evaluate_run(whole, whole.state()).analysis.folds == 2
