"""A run that ends anywhere goes on as if it never had: the same weights, bit for bit."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from finetune.config import RunConfig
from finetune.data import splits
from finetune.errors import JobError
from finetune.jobs import service, train, workers
from finetune.runs import events
from finetune.runs.store import Run, RunStore
from finetune.runs.summary import fold_events
from finetune.training import loop, metrics, model
from tests.training.test_hyperparameters import prepared


class Saver:
    """Checkpoints of a run in this process, as the worker keeps them."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self, step: int, write: Callable[[Path], None]) -> None:
        write(self.run.begin_checkpoint())
        self.run.end_checkpoint(step, keep=1)


def fit(
    chosen: RunConfig, pairs: splits.Pairs, run: Run, until: int | None = None, crash: bool = False
) -> tuple[dict[str, torch.Tensor], list[events.Event]]:
    """Weights and events of one life of a run: asked to stop, or cut off, after step `until`."""
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = train.make_accelerator(chosen)
    _, classifier, batches = prepared(chosen, pairs)
    taken: list[events.Event] = []

    def step() -> int:
        return max((e.step for e in taken if isinstance(e, events.Stepped)), default=0)

    hooks = loop.Hooks(
        should_stop=lambda: until is not None and not crash and step() >= until,
        save_checkpoint=Saver(run),
    )
    found = run.checkpoints()
    metric = metrics.AccuracyAndF1(pairs.labels)
    stream = loop.fit(
        chosen, accelerator, classifier, batches, metric, hooks, found[-1] if found else None
    )
    for event in stream:
        taken.append(event)
        if crash and until is not None and step() >= until:
            break
    return {name: value.clone() for name, value in classifier.state_dict().items()}, taken


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "every three steps": {"eval_steps": 3},
    "checkpoints of their own": {"save_steps": 2},
    "accumulation": {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 4},
    "by length": {"group_by_length": True, "eval_steps": 5},
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_steps": 2},
    "patience": {"early_stopping_patience": 2, "eval_steps": 2, "num_train_epochs": 4},
    "adafactor, swapped": {"optim": "adafactor", "swap_augmentation": True, "eval_steps": 4},
    "LoRA": {"use_lora": True, "eval_steps": 3},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "cut off"])
def test_the_rest_is_as_if_it_had_never_ended(
    variant: str, crash: bool, toy_config: RunConfig, toy_pairs: splits.Pairs, store: RunStore
) -> None:
    chosen = toy_config.changed(**VARIANTS[variant])
    wanted, whole = fit(chosen, toy_pairs, store.create(chosen))
    last = max(e.step for e in whole if isinstance(e, events.Stepped))
    scores = {e.step: e.metrics for e in whole if isinstance(e, events.Evaluated)}
    run = store.create(chosen)
    ends = sorted({2, last // 3, last // 2, last - 1})
    for until in ends:
        fit(chosen, toy_pairs, run, until, crash)
    found, rest = fit(chosen, toy_pairs, run)
    assert isinstance(rest[0], events.Resumed)
    assert isinstance(rest[-1], events.Finished)
    assert same(found, wanted)
    again = {e.step: e.metrics for e in rest if isinstance(e, events.Evaluated)}
    assert again == {step: scores[step] for step in again}
    assert again


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Many short lives of a tiny model: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def life(
    chosen: RunConfig, pairs: splits.Pairs, run: Run, stop_after: int | None = None
) -> tuple[dict[str, torch.Tensor], list[events.Event]]:
    """Weights and events of one life of a run that is asked to stop after so many events."""
    AcceleratorState._reset_state(reset_partial_state=True)
    _, classifier, batches = prepared(chosen, pairs)
    seen: list[events.Event] = []
    hooks = loop.Hooks(
        should_stop=lambda: stop_after is not None and len(seen) >= stop_after,
        save_checkpoint=Saver(run),
    )
    found, metric = run.checkpoints(), metrics.AccuracyAndF1(pairs.labels)
    accelerator = train.make_accelerator(chosen)
    resume = found[-1] if found else None
    for event in loop.fit(chosen, accelerator, classifier, batches, metric, hooks, resume):
        seen.append(event)
    weights = {name: value.clone() for name, value in classifier.state_dict().items()}
    return weights, seen


def told(stream: list[events.Event]) -> list[tuple[object, ...]]:
    """What was measured, and how the run ended, without what a clock says."""
    said: list[tuple[object, ...]] = []
    for event in stream:
        match event:
            case events.Stepped():
                said.append(("stepped", event.step, event.loss, event.learning_rate))
            case events.Evaluated():
                said.append(("evaluated", event.step, tuple(event.metrics.items()), event.best))
            case events.Finished():
                said.append(("finished", event.step, event.early))
    return said


SCHEDULES: dict[str, dict[str, Any]] = {
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_steps": 1},
    "patience": {"early_stopping_patience": 1},
}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stop_after_any_event_loses_nothing(
    schedule: str, toy_config: RunConfig, toy_pairs: splits.Pairs, store: RunStore
) -> None:
    values = {"max_steps": 6, "eval_steps": 2, "save_steps": 3, **SCHEDULES[schedule]}
    chosen = toy_config.changed(learning_rate=0.05, **values)
    wanted, whole = life(chosen, toy_pairs, store.create(chosen))
    rates = {e.learning_rate for e in whole if isinstance(e, events.Stepped)}
    assert isinstance(end := whole[-1], events.Finished)
    assert end.early if schedule == "patience" else len(rates) > 1, "the schedule is put to work"
    for count in range(1, len(whole)):
        run = store.create(chosen)
        _, first = life(chosen, toy_pairs, run, count)
        assert isinstance(first[-1], events.Stopped), count
        found, rest = life(chosen, toy_pairs, run)
        assert told(first) + told(rest) == told(whole), (count, whole[count - 1])
        assert same(found, wanted), (count, whole[count - 1])


def worked(
    chosen: RunConfig,
    pairs: splits.Pairs,
    run: Run,
    at: dict[int, dict[str, torch.Tensor]],
    stop: Callable[[], bool] = lambda: False,
) -> Generator[events.Event, None, None]:
    """One life of a worker: its events, each written into the run, its models and checkpoints too.

    Args:
        at: where the weights of each evaluated step are put.
    """
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = train.make_accelerator(chosen)
    tokenizer, classifier, batches = prepared(chosen, pairs)
    found = run.checkpoints()
    resume = found[-1] if found else None

    def scored(step: int, logits: Any, labels: Any) -> dict[str, list[float]]:
        at[step] = {name: value.clone() for name, value in classifier.state_dict().items()}
        return {}

    def save_best(step: int, best: Any, weights: Any) -> None:
        model.save_model(best, tokenizer, run.folder / "best", weights, step)

    train._note_earlier_life(run)
    run.rewind(resume)
    hooks = loop.Hooks(
        should_stop=stop, save_best=save_best, save_predictions=scored, save_checkpoint=Saver(run)
    )
    metric = metrics.AccuracyAndF1(pairs.labels)
    for event in loop.fit(chosen, accelerator, classifier, batches, metric, hooks, resume):
        run.append(event)
        yield event


def assert_described(
    run: Run, at: dict[int, dict[str, torch.Tensor]], scores: dict[int, dict[str, float]]
) -> None:
    """What is said of the kept model is true of the weights that lie there."""
    said = RunStore(run.folder.parent).summary(run)
    if not run.has_model():
        assert said.saved_step is None
        return
    step = said.saved_step
    assert step is not None
    if step in at:
        assert same(load_file(run.best / "model.safetensors"), at[step])
    if step in {e.step for e in run.tail()[0] if isinstance(e, events.Evaluated)}:
        assert said.best is not None
        assert (said.best.step, said.best.metrics) == (step, scores[step])
    else:  # a stop saved it as it was
        assert said.best is None


RISING = {"max_steps": 6, "eval_steps": 2, "save_steps": 3, "metric_for_best_model": "loss"}


def _longer(seen: list[events.Event]) -> bool:
    return len(seen) > 3


@pytest.mark.usefixtures("one_thread")
def test_what_is_said_of_the_kept_model_is_true_of_it_at_every_moment(
    toy_config: RunConfig, toy_pairs: splits.Pairs, store: RunStore
) -> None:
    """Killed after each event; said right then, when the run shall go on, while it does until it is
    stopped soon after, and at its end. The last checkpoint is older than some of the models."""
    chosen = toy_config.changed(**RISING)
    at: dict[int, dict[str, torch.Tensor]] = {}
    whole = store.create(chosen)
    stream = list(worked(chosen, toy_pairs, whole, at))
    scores = {e.step: e.metrics for e in stream if isinstance(e, events.Evaluated)}
    assert sum(isinstance(e, events.Saved) for e in stream) >= 3
    for count in range(1, len(stream)):
        run = store.create(chosen)
        life = worked(chosen, toy_pairs, run, {})
        for _ in range(count):
            next(life)
        assert_described(run, at, scores)
        del life  # the worker is gone
        run.resume()
        assert_described(run, at, scores)
        begun: list[events.Event] = []
        for event in worked(chosen, toy_pairs, run, {}, partial(_longer, begun)):
            begun.append(event)
            assert_described(run, at, scores)
            assert (run.kept_step() or 0) <= store.summary(run).step, "of steps not taken again yet"
        run.resume()
        assert isinstance(list(worked(chosen, toy_pairs, run, {}))[-1], events.Finished)
        assert_described(run, at, scores)
        assert run.kept_step() == whole.kept_step(), count
        ended = store.summary(run)
        assert [e.step for e in ended.validation] == list(scores)


@pytest.mark.parametrize("writes", ["save_best", "save_checkpoint"])
def test_a_run_deleted_while_it_is_saved_is_stopped(
    store: RunStore,
    toy_config: RunConfig,
    toy_pairs: splits.Pairs,
    writes: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No traceback, and no part of its folder is made again, whichever library writes."""
    run = store.create(toy_config.changed(eval_steps=2, max_steps=4))

    def stages(run: Run, stop: train.StopSwitch) -> Iterator[events.Event]:
        stop.looping = True

        save, begin = model.save_model, Run.begin_checkpoint

        def save_into_nothing(*given: Any) -> None:
            store.delete(run)
            save(*given)

        def begin_and_lose(run: Run) -> Path:
            place = begin(run)
            store.delete(run)
            return place

        if writes == "save_best":
            monkeypatch.setattr(model, "save_model", save_into_nothing)
        else:
            monkeypatch.setattr(Run, "begin_checkpoint", begin_and_lose)
        yield from worked(run.config(), toy_pairs, run, {}, stop)

    monkeypatch.setattr(train, "train_events", stages)
    monkeypatch.setattr(train.StopSwitch, "install", lambda stop: None)
    assert train.carry_out_run(run, bar=False) == 0
    assert not run.folder.exists()
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    assert "stopped at step" in printed.out


def test_the_fold_forgets_what_is_done_again() -> None:
    def stepped(step: int) -> events.Stepped:
        return events.Stepped(step=step, epoch=1, loss=1, learning_rate=1, samples_per_second=1)

    def scored(step: int, best: bool) -> events.Evaluated:
        return events.Evaluated(step=step, epoch=1, metrics={"f1": 0.5}, seconds=1, best=best)

    first = [stepped(1), stepped(4), scored(4, True), events.Saved(step=4), stepped(8)]
    first += [scored(8, True), events.Saved(step=8), events.Failed(error="x")]
    known = fold_events([*first, events.Resumed(step=4)])
    assert known.status == "running"
    assert [one.step for one in known.train] == [1, 4]
    assert known.best is not None
    assert known.best.step == known.saved_step == 4
    assert known.error == ""


def test_a_full_disk_leaves_the_checkpoint_before(
    toy_config: RunConfig, toy_pairs: splits.Pairs, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = toy_config.changed(eval_steps=3)
    wanted, _ = fit(chosen, toy_pairs, store.create(chosen))
    run = store.create(chosen)
    real = Run.end_checkpoint

    def full(self: Run, step: int, keep: int) -> None:
        if step >= 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, step, keep)

    monkeypatch.setattr(Run, "end_checkpoint", full)
    with pytest.raises(OSError, match="No space left") as caught:
        fit(chosen, toy_pairs, run)
    failed = train._unexpected(caught.value, chosen)
    assert failed.error.endswith("cannot be written: the disk is full.")
    assert failed.remedy == "Free some space and press Resume: nothing saved is lost."
    assert [path.name for path in run.checkpoints()] == ["step-000000003"]
    monkeypatch.setattr(Run, "end_checkpoint", real)
    assert same(fit(chosen, toy_pairs, run)[0], wanted)


def test_only_so_many_checkpoints_stay(store: RunStore) -> None:
    run = store.create(RunConfig())
    for step in (3, 6, 9, 12):
        (run.begin_checkpoint() / "weights").write_text(str(step))
        run.end_checkpoint(step, keep=2)
    assert [path.name for path in run.checkpoints()] == ["step-000000009", "step-000000012"]
    run.begin_checkpoint()
    assert len(run.checkpoints()) == 2  # one being written is none


def live(folder: Path) -> None:
    """One life of a worker, in a process of its own that has the libraries already."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    torch.set_num_threads(1)
    train.main(["--run", str(folder)])


@pytest.mark.parametrize(
    ("kills", "epochs"), [(3, 6), pytest.param(20, 30, marks=pytest.mark.long)]
)
@pytest.mark.timeout(400)
def test_killed_at_random_moments_it_ends_with_the_same_weights(
    toy_config: RunConfig, store: RunStore, kills: int, epochs: int
) -> None:
    chosen = toy_config.changed(
        max_train_samples=160, max_eval_samples=16, num_train_epochs=epochs, eval_steps=7,
        save_steps=3,
    )  # fmt: skip
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["finetune.training.loop", "finetune.training.model", "finetune.training.dataloaders"]
    )

    def begin(run: Run) -> Any:
        process = context.Process(target=live, args=(run.folder,))
        process.start()
        return process

    whole, run = store.create(chosen), store.create(chosen)
    process = begin(whole)
    process.join(120)
    assert store.summary(whole).status == "finished", store.summary(whole).error
    draw, moments = random.Random(3), []
    for _ in range(kills):
        process = begin(run)
        before, steps = len(run.tail()[0]), draw.randint(1, 25)
        while process.is_alive() and _taken(run, before) < steps:
            time.sleep(0.002)
        if not process.is_alive():
            break
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
        summary = store.summary(run)
        moments.append((summary.phase, summary.step))
        if store.summary(run).status == "finished":
            break
    process = begin(run)
    process.join(120)
    ended = store.summary(run)
    assert ended.status == "finished", (ended.error, moments)
    assert len(moments) >= kills // 2, moments
    weights = [load_file(one.best / "model.safetensors") for one in (whole, run)]
    assert same(*weights), moments
    assert [e.metrics for e in ended.validation] == [
        e.metrics for e in store.summary(whole).validation
    ]
    assert not run.checkpoints_folder.exists()


def _taken(run: Run, before: int) -> int:
    """Steps that this life has taken."""
    return sum(isinstance(event, events.Stepped) for event in run.tail()[0][before:])


@pytest.mark.long
def test_a_stopped_run_goes_on_by_the_page_and_a_finished_one_does_not(
    store: RunStore, toy_checkpoint: Path, processes: list[int]
) -> None:
    config = RunConfig(
        checkpoint=str(toy_checkpoint), max_length=32, max_steps=1000, eval_steps=20,
        max_train_samples=64, max_eval_samples=16, logging_steps=1,
    )  # fmt: skip
    run = service.start_run(store, config)
    _until(lambda: service.run_summary(store, run).step >= 25)
    with pytest.raises(JobError, match="The run is running"):
        service.resume_run(store, run)
    service.stop_run(store, run)
    _until(lambda: service.run_summary(store, run).status == "stopped")
    _until(lambda: not workers.alive(run))
    at = service.run_summary(store, run).step
    service.resume_run(store, run)
    assert service.run_summary(store, run).status == "running"
    _until(lambda: workers.worker_process(run) is not None)
    worker = workers.worker_process(run)
    assert isinstance(worker, psutil.Process)
    processes.append(worker.pid)
    _until(lambda: service.run_summary(store, run).status == "finished")
    done = service.run_summary(store, run)
    assert done.step == 1000
    assert [one.step for one in done.train] == sorted({one.step for one in done.train})
    assert done.train[at - 1].step == at
    with pytest.raises(JobError, match="The run is finished"):
        service.resume_run(store, run)


def _until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_a_run_without_a_checkpoint_begins_anew(
    store: RunStore, toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    chosen = toy_config.changed(max_steps=4)
    run = store.create(chosen)
    run.append(events.Failed(error="the network"))
    assert run.resume() == 0
    assert store.summary(run).status == "running"
    shutil.rmtree(run.checkpoints_folder, ignore_errors=True)
    assert fit(chosen, toy_pairs, run)[1]


def test_a_run_does_not_go_on_with_other_pairs(store: RunStore, toy_config: RunConfig) -> None:
    run = store.create(toy_config)
    run.append(
        events.Prepared(
            train_examples=1, validation_examples=1, steps_per_epoch=1, total_steps=1,
            labels=["a", "b"], parameters=1, precision="no", fingerprint="f" * 64,
            data={"revision": "abc"},
        )
    )  # fmt: skip
    (run.begin_checkpoint() / "weights").write_text("")
    run.end_checkpoint(3, keep=1)
    # A process of its own: a worker sets its environment and takes the signals.
    command = [sys.executable, "-m", "finetune", "train", "--run", str(run.folder)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
    failed = store.summary(run)
    assert "The pairs have changed since this run began" in failed.error
    assert "dataset_revision abc" in failed.remedy
