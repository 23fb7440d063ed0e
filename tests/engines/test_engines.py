"""Runs as Hugging Face Jobs; what holds on every engine is in `test_engine_contract`."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from huggingface_hub import HfApi

from finetune.__main__ import main as command_line
from finetune.cli import train
from finetune.config import RunConfig
from finetune.engines import registry, spending, supervisor
from finetune.engines.base import AttemptStatus, EngineSpec, read_spec, write_spec
from finetune.engines.hub_jobs import HubJobOptions
from finetune.engines.registry import find_engine
from finetune.engines.run_bucket import RunBucket
from finetune.errors import ConfigError, FinetuneError, WrongAccount
from finetune.hub import client
from finetune.jobs import service, workers
from finetune.runs import events
from finetune.runs.queue import Queue
from finetune.runs.store import RunStore
from tests.support import running
from tests.support.hub import TOKEN
from tests.support.waiting import until

BUCKET = "ada/finetune-jobs"


@pytest.mark.long
def test_a_job_gives_what_training_here_does_though_the_hub_fails(hub, store, config, job, whole):
    hub.jobs.lines_twice = True
    hub.fail(path="/logs", cut=True, after=4000)  # in the middle of a line
    run = service.start_run(store, config, job)
    live = running.wait(store, run, when=running.after(4))
    assert live.started is not None
    assert not run.has_model()
    hub.fail(path=r"/api/jobs/ada/[0-9a-f]+$", status=500, times=2)
    hub.fail(path="/logs", status=500, times=2)
    hub.fail(path="/logs", cut=True, after=3000)
    hub.fail(path="/v1/xorbs", cut=True, after=100)
    hub.fail(path="/batch", status=503, times=2)
    done = running.wait(store, run, "finished")
    assert running.weights(run) == running.weights(whole)
    assert running.steps(run) == running.steps(whole)
    assert done.curve[-1].metrics == pytest.approx(whole.state().curve[-1].metrics, abs=1e-6)
    lines = run.events_file.read_bytes().splitlines()
    assert len(set(lines)) == len(lines)
    assert [event.event for event in run.tail()[0]].count("finished") == 1
    assert f"step {running.TOTAL - 1}: loss" in run.log_tail()
    assert "@finetune" not in run.log_tail()
    # Nothing of the token is left anywhere, and its cost is known.
    assert not any(
        TOKEN.encode() in path.read_bytes() for path in store.root.rglob("*") if path.is_file()
    )
    assert TOKEN not in json.dumps(hub.jobs.last.spec.get("environment"))
    assert 0 < spending.spent_in(run) < job.options["price"]
    assert hub.buckets[BUCKET].private
    # It is gone from the Hub too when the run is deleted.
    assert hub.buckets[BUCKET].files
    service.delete_run(store, run)
    assert not hub.buckets[BUCKET].files
    assert spending.spent_today(store.root, "") > 0


@pytest.mark.long
def test_a_run_whose_job_dies_moves_and_ends_as_one_that_stayed(hub, store, config, job, whole):
    run = service.start_run(store, config, job)
    running.wait(store, run, when=running.after(15))
    saved = f"{run.id}/attempt-1/saved/checkpoints"
    until(lambda: any(path.startswith(saved) for path in hub.buckets[BUCKET].files))
    hub.jobs.kill(hub.jobs.last.id)
    failed = running.wait(store, run, "failed")
    assert "The machine was lost" in failed.error
    assert "Resume" in failed.remedy
    step = run.checkpoint_step()
    assert step > 0
    running.resume(store, run, EngineSpec())
    until(lambda: any(isinstance(event, events.Resumed) for event in run.tail()[0]))
    assert {e.step for e in run.tail()[0] if isinstance(e, events.Resumed)} == {step}
    running.wait(store, run, when=running.after(step + 5))
    service.stop_run(store, run)
    stopped = running.wait(store, run, "stopped")
    assert run.has_model()
    assert run.checkpoint_step() == stopped.step
    running.resume(store, run, job)
    running.wait(store, run, when=running.after(stopped.step + 5))
    # Its bucket is deleted, and all that the job had saved there: it goes on here.
    workers.kill_worker(run)
    hub.jobs.kill(hub.jobs.last.id)
    del hub.buckets[BUCKET]
    running.resume(store, run)
    running.wait(store, run, "failed")
    running.resume(store, run, EngineSpec())
    running.wait(store, run, "finished")
    assert running.weights(run) == running.weights(whole)
    assert dict(running.steps(run)) == dict(running.steps(whole))
    assert (read_spec(run).attempt, read_spec(run).job) == (2, "")


class FormerToo(running.SimulatedJob):
    """A job of which a former attempt still writes."""

    def follow(self, run, spec):
        for text in super().follow(run, spec):
            log_line = supervisor.decode(text)
            yield log_line._replace(attempt=log_line.attempt - 1, line=b'{"former": 1}').encode()
            yield text


@pytest.mark.usefixtures("quick")
def test_what_many_jobs_send_is_all_written_down(store):
    jobs = [(store.create(RunConfig()), FormerToo(1.5)) for _ in range(5)]
    for run, _ in jobs:
        write_spec(run, EngineSpec(engine="hub-job"))
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(lambda job: running.simulate(*job), jobs))
    for run, simulated in jobs:
        assert len(simulated.lines) > 5
        written = run.events_file.read_bytes().splitlines()
        assert [line for line in written if line in simulated.lines] == simulated.lines
        assert b"former" not in run.events_file.read_bytes()
        assert run.state().error == "The run's process has ended without a word."


@pytest.mark.usefixtures("nothing_begins", "quick")
def test_a_run_that_moves_back_onto_an_engine_begins_a_new_attempt(store):
    run, remote = store.create(RunConfig()), EngineSpec(engine="hub-job")
    write_spec(run, remote)
    for attempt in (1, 2):
        begin = read_spec(run).sent
        assert running.simulate(run, running.SimulatedJob(0.4)) == 1
        spending.note(run, attempt, 0.25)
        spec = read_spec(run)
        assert spec.attempt == attempt
        assert spec.sent > begin
        for place in (EngineSpec(), remote):
            service.resume_run(store, run, place)
            assert read_spec(run).engine == place.engine
            run.append(events.Failed(error="It ended there.", remedy=""))
    assert spending.spent_in(run) == 0.5


class LostAfterItsEnd(running.SimulatedJob):
    """A job whose machine goes just after its run has finished."""

    def state(self, run, spec):
        run.append(events.Finished(step=1, seconds=1.0))
        return AttemptStatus("ended", lost=True)


@pytest.mark.usefixtures("quick")
def test_a_finished_run_is_not_trained_again_when_its_machine_goes(store):
    run = store.create(RunConfig())
    write_spec(run, EngineSpec(engine="ray", options={"max_failures": 3}))
    assert running.simulate(run, LostAfterItsEnd(0.0)) == 0
    assert read_spec(run).attempt == 1


@pytest.mark.usefixtures("nothing_begins")
def test_a_new_job_is_begun_only_where_its_price_was_agreed_to(store, config, job, capsys):
    run = store.create(config)
    run.append(events.Stopped(step=1, seconds=1.0))
    write_spec(run, job.model_copy(update={"attempt": 1, "submitted": 1.0}))
    with pytest.raises(FinetuneError, match=r"on cpu-basic: \$0.01 an hour, at most \$0.01"):
        service.resume_run(store, run)
    words = ["--run", run.id, "--runs", str(store.root)]
    assert command_line(["train", *words]) == 2
    assert "The price was not agreed to." in capsys.readouterr().err
    assert run.state().status == "stopped"
    service.resume_run(store, run, agreed=True)
    run.append(events.Finished(step=2, seconds=1.0))
    assert command_line(["train", *words, "--yes"]) == 2
    assert "The run is finished." in capsys.readouterr().err
    # One whose job may be at work is taken up.
    write_spec(run, read_spec(run).model_copy(update={"submitted": 0.0}))
    run.append(events.Stopped(step=1, seconds=1.0))
    spending.note(run, 1, 0.5)
    service.resume_run(store, run)


@pytest.mark.parametrize(
    "values",
    [{"report_to": "wandb"}, {"optim": "adamw_bnb_8bit"},
     {"attn_implementation": "flash_attention_2"}],
)  # fmt: skip
def test_what_a_job_has_no_package_for_is_refused_before_it_is_billed(store, config, job, values):
    with pytest.raises(ConfigError, match="needs a package that a Hugging Face Job does not"):
        find_engine(job.engine).check_config(config.changed(**values))
    find_engine("local").check_config(config.changed(**values))
    find_engine(job.engine).check_config(config.changed(report_to="tensorboard"))


@pytest.mark.usefixtures("nothing_begins")
def test_a_stop_reaches_a_job_that_nobody_follows_just_now(store, config, job):
    run = store.create(config)
    run.append(events.Started(device="cpu"))
    write_spec(run, job.model_copy(update={"attempt": 1, "job": "ada/1"}))
    for discard in (False, True):
        service.stop_run(store, run, discard)
        assert Queue(store.root).waiting() == [run.id]
        assert run.stop_requested()
        assert run.discard_requested() == discard


def begun_by(run, spec):
    """What is known of a run whose worker has tried to submit it."""
    write_spec(run, spec)
    assert supervisor.carry_out(run) == 1
    return run.state()


def test_what_cannot_be_begun_is_refused_before_it_costs(hub, store, config, job, monkeypatch):
    def refusal(**options):
        run = store.create(config)
        summary = begun_by(run, job.model_copy(update={"options": job.options | options}))
        assert summary.status == "failed"
        return f"{summary.error} {summary.remedy}"

    text = refusal(flavor="h900")
    assert "Hugging Face Job: there is no machine 'h900'. Choose one of: cpu-basic" in text
    assert "costs $0.01 an hour, and was shown at $0.50" in refusal(price=0.5)
    price = service.resume_price(store.runs()[0])
    assert price.price == pytest.approx(0.01, abs=1e-4)  # which the next question shows
    assert "may cost $0.01; $0.00 of the $0.00" in refusal(dollars_a_run=0.0001)
    text = refusal(dollars_a_day=0.001)
    assert "24 hours are spent" in text
    assert "raise the limit" in text
    hub.add_user(TOKEN, "ada", pays=False)
    assert "has to be paid for" in refusal()
    monkeypatch.delenv("HF_TOKEN")
    assert "not signed in" in refusal()
    assert not hub.jobs.all


def test_a_second_job_of_a_run_is_refused_while_the_first_lives(hub, store, config, job):
    run = store.create(config)
    api = HfApi(endpoint=hub.url, token=TOKEN)
    labels = {"finetune-run": run.id, "attempt": "1"}
    alive = api.run_job(
        image="x", command=["sleep", "60"], labels=labels, flavor="cpu-basic", namespace="ada"
    )
    summary = begun_by(run, job.model_copy(update={"attempt": 1, "submitted": 1.0}))
    assert f"A former job of this run, {alive.id}, is still at work" in summary.error
    assert len(hub.jobs.all) == 1
    api.cancel_job(job_id=alive.id, namespace="ada")


@pytest.mark.usefixtures("nothing_begins")
@pytest.mark.parametrize("started", [True, False])
def test_a_job_whose_start_was_not_heard_of_costs_and_ends_when_its_run_moves_or_goes(
    hub, store, config, sleeping_job, started, monkeypatch
):
    monkeypatch.setattr(client, "SILENCE", 0.0)
    most = HubJobOptions(**sleeping_job.options).most
    for move in (True, False):
        hub.fail("POST", r"/api/jobs/ada$", 503, done=started)
        hub.fail("GET", r"/api/jobs/ada$", 200, body=b"[]")
        hub.fail("GET", r"/api/jobs/ada$", 520)
        run = store.create(config)
        assert begun_by(run, sleeping_job).status == "failed"
        assert spending.spent_in(run) == pytest.approx(most)
        assert hub.buckets[BUCKET].files
        if move:
            service.resume_run(store, run, EngineSpec())
            assert [job.stage for job in hub.jobs.all.values()] == ["CANCELED"] * started
        service.delete_run(store, run)
        assert bool(hub.jobs.all) == started
        assert all(job.stage == "CANCELED" for job in hub.jobs.all.values())
        assert spending.spent_in(run) < most
        assert not hub.buckets[BUCKET].files


@pytest.mark.usefixtures("nothing_begins", "quick")
def test_with_anothers_token_a_job_is_not_taken_for_ended(hub, store, sleeping, monkeypatch):
    run, spec, _ = sleeping
    hub.add_user("eves-token", "eve")
    monkeypatch.setenv("HF_TOKEN", "eves-token")
    engine = registry.open_engine(spec)
    for ask in (engine.state, engine.fetch, engine.remove):
        with pytest.raises(
            WrongAccount, match=r"is ada's, and this token is eve's\. Sign in as ada"
        ):
            ask(run, spec)
    assert "Sign in as ada" in begun_by(run, spec).remedy
    assert read_spec(run).job == spec.job
    assert hub.jobs.last.stage in ("SCHEDULING", "RUNNING")
    registry.keep_token(run.id, TOKEN)
    service.delete_run(store, run, "eves-token")
    assert hub.jobs.last.stage == "CANCELED"
    # Nothing asks for its log any more.
    until(lambda: not any("_read" in thread.name for thread in threading.enumerate()))


def test_a_bucket_brings_only_what_a_job_saves(hub, store, config, monkeypatch):
    run = store.create(config)
    api = HfApi(endpoint=hub.url, token=TOKEN)
    api.create_bucket(BUCKET, private=True)
    box = RunBucket(api, BUCKET, run.id, 1)
    names = ["events.jsonl", "best/config.json", "about.json", "evaluations/x/job.json", "STOP"]
    box.put({f"saved/{name}": b"{}" for name in names})
    about = (run.folder / "about.json").read_bytes()
    assert box.fetch(run) == b"{}"
    assert (run.best / "config.json").read_bytes() == b"{}"
    assert (run.folder / "about.json").read_bytes() == about
    assert not (run.folder / "evaluations").exists()
    assert not run.stop_requested()
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_MAX_HUB_MB", "0")
    with pytest.raises(FinetuneError, match="0 MB may be fetched here"):
        box.fetch(run)


@pytest.mark.usefixtures("nothing_begins")
def test_a_run_is_there_with_its_engine_or_not_at_all(store, config, job, monkeypatch):
    create = RunStore.create

    def create_and_die(store, *values, **named):
        create(store, *values, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunStore, "create", create_and_die)
    with pytest.raises(KeyboardInterrupt):
        service.start_run(store, config, job)
    assert [read_spec(run) for run in store.runs()] == [job]


def test_a_stop_that_ended_in_a_kill_is_over_in_a_terminal(store, config, monkeypatch):
    run = store.create(config)
    run.append(events.Started(device="cpu"))
    run.request_stop()
    stopped = []

    def carry_out(run, show):
        stopped.append(run.stop_requested())
        return 0

    monkeypatch.setattr(train, "carry_out_run", carry_out)
    assert command_line(["train", "--run", run.id, "--runs", str(store.root)]) == 0
    assert stopped == [False]
