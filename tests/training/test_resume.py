"""A run that ends anywhere goes on as if it never had, with one process or several: the same
weights, bit for bit."""

import contextlib
import dataclasses
import multiprocessing
import os
import random
import shutil
import signal
import time

import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from finetune.cli import train as train_command
from finetune.config import PRESETS, RunConfig
from finetune.jobs import scheduler, service, train, worker, workers
from finetune.runs import events
from finetune.training import model
from tests.support import toys
from tests.support.running import start
from tests.support.training import evaluations, losses, stream, work_in_this_process
from tests.support.waiting import until

Weights = dict[str, torch.Tensor]


@dataclasses.dataclass
class Life:
    """What a worker of a run did: its events, its last weights and the models that it kept."""

    history: list[events.Event]
    weights: Weights
    models: dict[int, Weights]  # by step


def live(run, pairs, ends=lambda _: False, killed=False):
    """Work on a run in this process, from its last checkpoint on, until it is stopped or killed
    after the events for which `ends` is true."""
    history = []
    models = {}
    tokenizer = AutoTokenizer.from_pretrained(run.config().checkpoint)

    def save_checkpoint(step, write):
        write(run.begin_checkpoint())
        run.end_checkpoint(step, keep=1)

    def save_best(step, best, weights):
        model.save_model(model.merged_model(best), tokenizer, run.folder / "best", weights, step)
        models[step] = kept_weights(run)

    checkpoint = next(reversed(run.checkpoints()), None)
    train._note_killed_worker(run)
    happening, classifier = stream(
        run.config(), pairs, checkpoint, run.state().eval_every,
        save_checkpoint=save_checkpoint, save_best=save_best,
        should_stop=lambda: not killed and ends(history),
    )  # fmt: skip
    for event in happening:
        history.append(event)
        run.append(event)
        if killed and ends(history):
            break
    weights = {name: value.clone() for name, value in classifier.state_dict().items()}
    return Life(history, weights, models)


def at_step(number):
    return lambda history: last_step(history) >= number


def after(count):
    return lambda history: len(history) >= count


def kept_weights(run):
    return load_file(run.best / "model.safetensors")


def same(first, second):
    return first.keys() == second.keys() and all(map(torch.equal, first.values(), second.values()))


def last_step(history):
    return max((event.step for event in history if isinstance(event, events.Stepped)), default=0)


def scores(history):
    found = (event.metrics.items() for event in evaluations(history))  # the last digits may differ
    return [{name: round(value, 6) for name, value in metrics} for metrics in found]


@pytest.mark.parametrize(
    "values",
    [
        {"save_steps": 2},
        {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 4},
        pytest.param({"group_by_length": True, "eval_steps": 5}, marks=pytest.mark.long),
        {"optim": "adafactor", "swap_augmentation": True, "eval_steps": 4, "max_steps": 10},
        pytest.param({"sentence_order": "random", "save_steps": 3}, marks=pytest.mark.long),
        {"group_by_length": True, "sentence_order": "random", "eval_steps": 5},
        {"use_lora": True, "eval_steps": 3},
        {"eval_steps": -1, "dropout": 0.1, "num_train_epochs": 4},
    ],
    ids=lambda values: next(iter(values)),
)
def test_the_rest_is_as_if_it_had_never_ended(values, toy_config, toy_pairs, store):
    """Stopped, killed, and stopped again."""
    config = toy_config.changed(**values)
    whole = live(store.create(config), toy_pairs)
    last = last_step(whole.history)
    run = store.create(config)
    for step, killed in ((2, False), (last // 2, True), (last - 1, False)):
        live(run, toy_pairs, at_step(step), killed)
    rest = live(run, toy_pairs)
    assert same(rest.weights, whole.weights)
    assert isinstance(rest.history[0], events.Resumed)
    again = scores(rest.history)
    assert again == scores(whole.history)[-len(again) :]


@pytest.mark.parametrize(
    ("killed", "values"),
    [
        (False, {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_steps": 1, "max_steps": 3}),
        pytest.param(
            False, {"early_stopping_patience": 1, "eval_steps": 2, "max_steps": 6},
            marks=pytest.mark.long,
        ),
        # The last checkpoint is older than some of the models.
        (True, {"metric_for_best_model": "loss", "eval_steps": 2, "save_steps": 3, "max_steps": 5,
                "learning_rate": 1e-3}),
    ],
    ids=["plateau", "patience", "killed"],
)  # fmt: skip
def test_an_end_after_any_event_loses_nothing(killed, values, toy_config, toy_pairs, store):
    base = toy_config.changed(learning_rate=0.05, save_steps=2, max_eval_samples=8)
    config = base.changed(**values)
    whole = live(store.create(config), toy_pairs)
    rates = {event.learning_rate for event in whole.history if isinstance(event, events.Stepped)}
    assert isinstance(end := whole.history[-1], events.Finished)
    assert end.early == ("early_stopping_patience" in values)
    assert end.early or len(rates) > 1, "the schedule is put to work"
    assert not killed or len(whole.models) > 2

    def check_kept_model(run):
        summary = run.state()
        step = summary.saved_step
        assert run.has_model() == (step is not None)
        if step in whole.models:
            assert same(kept_weights(run), whole.models[step])
        scored = {event.step: event.metrics for event in evaluations(run.tail()[0])}
        metrics = summary.best.metrics if summary.best else None  # a stop saved it as it was
        assert step is None or metrics == scored.get(step)

    ends = []
    for count, event in enumerate(whole.history[:-1], 1):
        # Others change nothing that is kept; after a checkpoint the next phase is training.
        phase = getattr(event, "phase", "train")
        if killed and (isinstance(event, events.Stepped) or phase != "train"):
            continue
        run = store.create(config)
        first = live(run, toy_pairs, after(count), killed)
        check_kept_model(run)
        if not killed and len(first.history) in map(len, ends):
            continue  # it was stopped at the same moment as another
        ends.append(first.history)
        run.resume()
        check_kept_model(run)
        rest = live(run, toy_pairs)
        check_kept_model(run)
        assert same(rest.weights, whole.weights), (count, event)
        if not killed:
            assert isinstance(first.history[-1], events.Stopped), count
            both = first.history + rest.history
            assert losses(both) == losses(whole.history), count
            assert scores(both) == scores(whole.history), count


def test_only_so_many_checkpoints_stay_and_without_one_a_run_begins_anew(store, toy_config):
    run = store.create(toy_config)
    run.append(events.Failed(error="the network"))
    assert run.resume() == 0
    assert not run.state().end_recorded
    for step in (3, 6, 9, 12):
        (run.begin_checkpoint() / "weights").write_text(str(step))
        run.end_checkpoint(step, keep=2)
    run.begin_checkpoint()  # one being written is none
    assert [path.stem for path in run.checkpoints()] == ["step-000000009", "step-000000012"]


def test_a_run_does_not_go_on_with_other_pairs(store, toy_config, monkeypatch):
    run = store.create(toy_config)
    (ready,) = [event for event in toys.story() if isinstance(event, events.Prepared)]
    run.append(ready.model_copy(update={"fingerprint": "f" * 64, "data": {"revision": "abc"}}))
    run.begin_checkpoint()
    run.end_checkpoint(3, keep=1)
    work_in_this_process(monkeypatch)
    assert train.carry_out_run(run, lambda event: None) == 1
    failed = run.state()
    assert "The data has changed since this run began" in failed.error
    assert "dataset_revision abc" in failed.remedy


class Evil:
    """What a foreign checkpoint may hold: read as a pickle, it makes a folder."""

    def __init__(self, flag):
        self.flag = flag

    def __reduce__(self):
        return os.mkdir, (str(self.flag),)


def test_a_checkpoint_runs_no_code(store, toy_config, toy_pairs, tmp_path):
    run = store.create(toy_config)
    live(run, toy_pairs, at_step(4))
    (checkpoint,) = run.checkpoints()
    pickles = [path.name for path in checkpoint.iterdir() if path.suffix != ".safetensors"]
    assert {"loop.pt", "optimizer.bin"} < set(pickles)
    for name in pickles:
        folder = shutil.copytree(checkpoint, tmp_path / name)
        torch.save(Evil(tmp_path / f"flag-{name}"), folder / name)
        happening, _ = stream(run.config(), toy_pairs, folder)
        with contextlib.suppress(Exception):
            next(event for event in happening if isinstance(event, events.Resumed))
    assert not list(tmp_path.glob("flag-*"))


def work(folder):
    """What a worker's process does that has the libraries already."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    torch.set_num_threads(1)
    train_command.main(["--run", str(folder)])


@pytest.mark.long
def test_killed_at_random_moments_it_ends_with_the_same_weights(toy_config, store):
    config = toy_config.changed(
        max_train_samples=160, max_eval_samples=16, num_train_epochs=15, eval_steps=7, save_steps=3
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(worker.IMPORTED))

    def begin(run):
        process = context.Process(target=work, args=(run.folder,))
        process.start()
        return process

    whole, run = store.create(config), store.create(config)
    begin(whole).join(120)
    draw, kills = random.Random(3), 0
    while kills < 12 and run.state().status != "finished":
        process = begin(run)
        before, steps = len(run.tail()[0]), draw.randint(1, 25)
        while process.is_alive():
            if sum(isinstance(e, events.Stepped) for e in run.tail()[0][before:]) >= steps:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.002)
        process.join(10)
    begin(run).join(120)
    summaries = [ended.state() for ended in (whole, run)]
    assert [summary.status for summary in summaries] == ["finished"] * 2, summaries[1].error
    assert kills >= 10
    assert same(kept_weights(whole), kept_weights(run))
    assert scores(summaries[0].validation) == scores(summaries[1].validation)
    assert not run.checkpoints_folder.exists()


@pytest.fixture
def shared(toy_checkpoint):
    return RunConfig(
        checkpoint=str(toy_checkpoint), num_processes=2, per_device_train_batch_size=4,
        learning_rate=1e-3, max_length=32, max_steps=40, eval_steps=20, logging_steps=1,
        max_train_samples=200, max_eval_samples=30,
    ).changed(**PRESETS["As the course"])  # fmt: skip


def ended(run):
    until(lambda: run.state().status not in ("running", "waiting"))
    return run.state().status


@pytest.mark.long
def test_the_processes_end_early_together(store, shared, processes):
    """Only the main process knows the scores; a rank that went on alone would wait for ever."""
    still = shared.changed(learning_rate=1e-8, eval_steps=5, early_stopping_patience=1)
    run, _ = start(store, still, processes)
    assert ended(run) == "finished", run.log_tail()
    summary = run.state()
    assert summary.started.processes == 2
    assert [event.step for event in summary.validation] == [5, 10]
    assert (summary.early, len(summary.train)) == (True, 10)
    until(lambda: workers.worker_process(run) is None)


@pytest.mark.long
def test_killed_or_stopped_all_ends_and_goes_on_to_the_same_weights(store, shared, processes):
    """Each of two ranks is killed, then their launcher; then the run is stopped. Each epoch draws
    the order of each pair."""
    config = shared.changed(max_steps=200, eval_steps=20, save_steps=10, sentence_order="random")
    whole, _ = start(store, config, processes)
    assert ended(whole) == "finished", whole.log_tail()
    run, launcher = start(store, config, processes)

    def begun():
        scheduler.dispatch_queue(store)  # no app is here to look again
        return workers.worker_process(run) is not None

    for victim in ("0", "1", "launcher", "stop"):
        reached = run.state().step + 3
        until(lambda reached=reached: run.state().step > reached)
        members = {"launcher": launcher}
        for child in launcher.children(recursive=True):
            members[child.environ().get("RANK", str(child.pid))] = child
        processes += members.values()
        if victim == "stop":
            service.stop_run(store, run)
            assert ended(run) == "stopped"
        else:
            members[victim].send_signal(signal.SIGKILL)
            assert ended(run) in ("failed", "interrupted")
        until(lambda members=members: not any(map(lives, members.values())))
        if victim in ("0", "1"):
            assert "has ended without a word" in run.state().error
        assert run.state().step < 200
        service.resume_run(store, run)
        until(begun)
        launcher = workers.worker_process(run)
    assert ended(run) == "finished", run.log_tail()
    assert same(kept_weights(whole), kept_weights(run))


def lives(process):
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
