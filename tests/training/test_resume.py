"""A run that ends anywhere goes on as if it never had: the same weights, bit for bit."""

from __future__ import annotations

import dataclasses
import errno
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from finetune.config import RunConfig
from finetune.data import splits
from finetune.jobs import pipeline, stop_switch, terminal, train
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.training import model
from tests.support import toys
from tests.support.training import evaluations, stream, work_in_this_process

Weights = dict[str, torch.Tensor]
Stop = Callable[[list[events.Event]], bool]


class Worker:
    """One life of a run's worker in this process: its events, from the run's last checkpoint on.

    Args:
        stop: whether the run shall stop, after the events so far.
        record: write the events and the best models into the run's folder too.
    """

    def __init__(
        self, pairs: splits.Pairs, run: Run, stop: Stop | None = None, record: bool = False
    ) -> None:
        config = run.config()
        self.history: list[events.Event] = []
        self._run, self._record = run, record

        def save_checkpoint(step: int, write: Callable[[Path], None]) -> None:
            write(run.begin_checkpoint())
            run.end_checkpoint(step, keep=1)

        def save_best(step: int, best: Any, weights: Any) -> None:
            if record:
                tokenizer = AutoTokenizer.from_pretrained(config.checkpoint)
                model.save_model(best, tokenizer, run.folder / "best", weights, step)

        checkpoint = next(reversed(run.checkpoints()), None)
        if record:
            train._note_killed_worker(run)
            run.rewind(checkpoint)
        self._stream, self.model = stream(
            config, pairs, checkpoint, save_checkpoint=save_checkpoint, save_best=save_best,
            should_stop=lambda: stop is not None and stop(self.history),
        )  # fmt: skip

    def __iter__(self) -> Iterator[events.Event]:
        for event in self._stream:
            self.history.append(event)
            if self._record:
                self._run.append(event)
            yield event

    def finish(self) -> Weights:
        """Work to the end of this life; the weights then."""
        for _ in self:
            pass
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def same(first: Weights, second: Weights) -> bool:
    return first.keys() == second.keys() and all(map(torch.equal, first.values(), second.values()))


def step(history: list[events.Event]) -> int:
    return max((event.step for event in history if isinstance(event, events.Stepped)), default=0)


def measured(history: list[events.Event]) -> list[events.Event]:
    """What was measured, and how the run ended, without what a clock says."""
    timeless: dict[str, Any] = {"time": 0.0, "seconds": 0.0}
    facts: list[events.Event] = []
    for event in history:
        if isinstance(event, events.Stepped):
            facts.append(dataclasses.replace(event, time=0.0, samples_per_second=0.0))
        elif isinstance(event, events.Evaluated | events.Finished):
            facts.append(dataclasses.replace(event, **timeless))
    return facts


@pytest.mark.parametrize(
    "values",
    [
        {"save_steps": 2},
        {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 4},
        {"group_by_length": True, "eval_steps": 5},
        {"optim": "adafactor", "swap_augmentation": True, "eval_steps": 4, "max_steps": 10},
        {"use_lora": True, "eval_steps": 3},
    ],
    ids=lambda values: next(iter(values)),
)
def test_the_rest_is_as_if_it_had_never_ended(
    values: dict[str, Any], toy_config: RunConfig, toy_pairs: splits.Pairs, store: RunStore
) -> None:
    """Stopped, cut off, and stopped again."""
    config = toy_config.changed(**values)
    whole = Worker(toy_pairs, store.create(config))
    expected = whole.finish()
    last = step(whole.history)
    scores = {event.step: event.metrics for event in evaluations(whole.history)}
    run = store.create(config)
    for until, crash in ((2, False), (last // 2, True), (last - 1, False)):

        def reached(history: list[events.Event], until: int = until) -> bool:
            return step(history) >= until

        worker = Worker(toy_pairs, run, None if crash else reached)
        for _ in worker:
            if crash and reached(worker.history):
                break
    rest = Worker(toy_pairs, run)
    assert same(rest.finish(), expected)
    assert isinstance(rest.history[0], events.Resumed)
    assert isinstance(rest.history[-1], events.Finished)
    again = {event.step: event.metrics for event in evaluations(rest.history)}
    assert again == {step: scores[step] for step in again}
    assert again


@pytest.mark.parametrize(
    "values",
    [
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_steps": 1, "max_steps": 3},
        {"early_stopping_patience": 1, "eval_steps": 2, "max_steps": 6},
    ],
    ids=["plateau", "patience"],
)
def test_a_stop_after_any_event_loses_nothing(
    values: dict[str, Any], toy_config: RunConfig, toy_pairs: splits.Pairs, store: RunStore
) -> None:
    config = toy_config.changed(learning_rate=0.05, save_steps=2, max_eval_samples=8, **values)
    whole = Worker(toy_pairs, store.create(config))
    expected = whole.finish()
    rates = {event.learning_rate for event in whole.history if isinstance(event, events.Stepped)}
    assert isinstance(end := whole.history[-1], events.Finished)
    assert end.early or len(rates) > 1, "the schedule is put to work"
    for count in range(1, len(whole.history)):
        run = store.create(config)
        first = Worker(toy_pairs, run, lambda history, count=count: len(history) >= count)  # type: ignore[misc]
        first.finish()
        assert isinstance(first.history[-1], events.Stopped), count
        rest = Worker(toy_pairs, run)
        assert same(rest.finish(), expected), (count, whole.history[count - 1])
        assert measured(first.history) + measured(rest.history) == measured(whole.history), count


def test_what_is_said_of_the_kept_model_is_true_of_it_at_every_moment(
    toy_config: RunConfig, toy_pairs: splits.Pairs, store: RunStore
) -> None:
    """Killed after each event; asked then, when it shall go on, while it does, and at its end. The
    last checkpoint is older than some of the models."""
    config = toy_config.changed(
        max_steps=5, eval_steps=2, save_steps=3, metric_for_best_model="loss", max_eval_samples=8
    )
    saved: dict[int, Weights] = {}
    whole = store.create(config)
    worker = Worker(toy_pairs, whole, record=True)
    for event in worker:
        if isinstance(event, events.Saved):
            saved[event.step] = load_file(whole.best / "model.safetensors")
    assert len(saved) >= 3
    scores = {event.step: event.metrics for event in evaluations(worker.history)}

    def check(run: Run) -> None:
        summary = RunStore(run.folder.parent).summary(run)
        step = summary.saved_step
        assert run.has_model() == (step is not None)
        if step is not None:
            if step in saved:
                assert same(load_file(run.best / "model.safetensors"), saved[step])
            scored = {event.step for event in evaluations(run.tail()[0])}
            metrics = summary.best.metrics if summary.best else None  # a stop saved it as it was
            assert metrics == (scores[step] if step in scored else None)

    for count, event in enumerate(worker.history[:-1], 1):
        # Others change nothing that is kept; after a checkpoint the next phase is training.
        trains = isinstance(event, events.PhaseStarted) and event.phase == "train"
        if not (trains or isinstance(event, events.Evaluated | events.Saved)):
            continue
        run = store.create(config)
        killed = iter(Worker(toy_pairs, run, record=True))
        for _ in range(count):
            next(killed)
        check(run)
        del killed
        run.resume()
        check(run)
        for _ in Worker(toy_pairs, run, lambda history: len(history) > 3, record=True):
            check(run)
            assert (run.kept_step() or 0) <= store.summary(run).step, "of steps not taken again yet"
        run.resume()
        Worker(toy_pairs, run, record=True).finish()
        check(run)
        assert run.kept_step() == whole.kept_step(), count
        assert [event.step for event in store.summary(run).validation] == list(scores)


@pytest.mark.parametrize(("owner", "name"), [(model, "save_model"), (Run, "begin_checkpoint")])
def test_a_run_deleted_while_it_is_saved_is_stopped(
    store: RunStore, toy_config: RunConfig, toy_pairs: splits.Pairs, owner: Any, name: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """No traceback, and no part of its folder is made again, whichever library writes."""
    run = store.create(toy_config.changed(eval_steps=2, max_steps=4))
    write = getattr(owner, name)

    def delete_and_write(*values: Any) -> Any:
        folder = write(*values) if owner is Run else None
        store.delete(run)
        return folder or write(*values)

    def train_events(run: Run, stop: stop_switch.StopSwitch) -> Iterator[events.Event]:
        stop.looping = True
        yield from Worker(toy_pairs, run, lambda history: stop(), record=True)

    work_in_this_process(monkeypatch)
    monkeypatch.setattr(owner, name, delete_and_write)
    monkeypatch.setattr(pipeline, "train_events", train_events)
    assert train.carry_out_run(run, terminal.print_event) == 0
    assert not run.folder.exists()
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    assert "stopped at step" in printed.out


def test_a_full_disk_leaves_the_checkpoint_before(
    toy_config: RunConfig, toy_pairs: splits.Pairs, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config.changed(eval_steps=3)
    expected = Worker(toy_pairs, store.create(config)).finish()
    run = store.create(config)
    end_checkpoint = Run.end_checkpoint

    def full(self: Run, step: int, keep: int) -> None:
        if step >= 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        end_checkpoint(self, step, keep)

    monkeypatch.setattr(Run, "end_checkpoint", full)
    with pytest.raises(OSError, match="No space left"):
        Worker(toy_pairs, run).finish()
    assert [path.name for path in run.checkpoints()] == ["step-000000003"]
    monkeypatch.setattr(Run, "end_checkpoint", end_checkpoint)
    assert same(Worker(toy_pairs, run).finish(), expected)


def test_only_so_many_checkpoints_stay_and_without_one_a_run_begins_anew(
    store: RunStore, toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    run = store.create(toy_config.changed(max_steps=2))
    run.append(events.Failed(error="the network"))
    assert run.resume() == 0
    assert store.summary(run).status == "running"
    assert Worker(toy_pairs, run).finish()
    for step in (3, 6, 9, 12):
        (run.begin_checkpoint() / "weights").write_text(str(step))
        run.end_checkpoint(step, keep=2)
    run.begin_checkpoint()  # one being written is none
    assert [path.name for path in run.checkpoints()] == ["step-000000009", "step-000000012"]


def test_a_run_does_not_go_on_with_other_pairs(
    store: RunStore, toy_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.create(toy_config)
    (ready,) = [event for event in toys.story() if isinstance(event, events.Prepared)]
    run.append(dataclasses.replace(ready, fingerprint="f" * 64, data={"revision": "abc"}))
    run.begin_checkpoint()
    run.end_checkpoint(3, keep=1)
    work_in_this_process(monkeypatch)
    assert train.carry_out_run(run, lambda event: None) == 1
    failed = store.summary(run)
    assert "The pairs have changed since this run began" in failed.error
    assert "dataset_revision abc" in failed.remedy


def live(folder: Path) -> None:
    """One life of a worker, in a process of its own that has the libraries already."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    torch.set_num_threads(1)
    train.main(["--run", str(folder)])


@pytest.mark.long
@pytest.mark.timeout(400)
def test_killed_at_random_moments_it_ends_with_the_same_weights(
    toy_config: RunConfig, store: RunStore
) -> None:
    config = toy_config.changed(
        max_train_samples=160, max_eval_samples=16, num_train_epochs=30, eval_steps=7, save_steps=3
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["finetune.training.loop", "finetune.training.model", "finetune.training.dataloaders"]
    )

    def begin(run: Run) -> Any:
        process = context.Process(target=live, args=(run.folder,))
        process.start()
        return process

    whole, run = store.create(config), store.create(config)
    begin(whole).join(120)
    draw, kills = random.Random(3), 0
    while kills < 20 and store.summary(run).status != "finished":
        process = begin(run)
        before, steps = len(run.tail()[0]), draw.randint(1, 25)
        while process.is_alive():
            taken = [e for e in run.tail()[0][before:] if isinstance(e, events.Stepped)]
            if len(taken) >= steps:
                break
            time.sleep(0.002)
        if not process.is_alive():
            break
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
        kills += 1
    begin(run).join(120)
    for ended in (whole, run):
        assert store.summary(ended).status == "finished", store.summary(ended).error
    assert kills >= 10
    assert same(*(load_file(ended.best / "model.safetensors") for ended in (whole, run)))
    first, second = ([e.metrics for e in store.summary(ended).validation] for ended in (whole, run))
    assert first == second
    assert not run.checkpoints_folder.exists()
