"""A run that ends anywhere goes on as if it never had: the same weights, bit for bit."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from finetune.config import RunConfig
from finetune.data import splits
from finetune.errors import JobError
from finetune.jobs import pipeline, service, stop_switch, terminal, train, workers
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import fold_events
from finetune.training import model
from tests.support.training import evaluations, prepared, stream, work_in_this_process

Weights = dict[str, torch.Tensor]
Stop = Callable[[list[events.Event]], bool]


class Worker:
    """One life of a run's worker in this process: iterate over its events.

    It goes on from the run's last checkpoint and keeps its checkpoints in the run's folder.

    Args:
        stop: whether the run shall stop, after the events so far.
    """

    def __init__(
        self, config: RunConfig, pairs: splits.Pairs, run: Run, stop: Stop | None = None,
        **hooks: Any,
    ) -> None:  # fmt: skip
        def save_checkpoint(step: int, write: Callable[[Path], None]) -> None:
            write(run.begin_checkpoint())
            run.end_checkpoint(step, keep=1)

        self.seen: list[events.Event] = []
        self._stream, self.model = stream(
            config, pairs, next(reversed(run.checkpoints()), None),
            save_checkpoint=save_checkpoint, **hooks,
            should_stop=lambda: stop is not None and stop(self.seen),
        )  # fmt: skip

    def __iter__(self) -> Iterator[events.Event]:
        for event in self._stream:
            self.seen.append(event)
            yield event

    def weights(self) -> Weights:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def finish(self) -> Weights:
        """Work to the end of this life; the weights then."""
        for _ in self:
            pass
        return self.weights()


def same(one: Weights, two: Weights) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def step(seen: list[events.Event]) -> int:
    return max((event.step for event in seen if isinstance(event, events.Stepped)), default=0)


def measured(seen: list[events.Event]) -> list[tuple[object, ...]]:
    """What was measured, and how the run ended, without what a clock says."""
    facts: list[tuple[object, ...]] = []
    for event in seen:
        match event:
            case events.Stepped():
                facts.append((event.step, event.loss, event.learning_rate))
            case events.Evaluated():
                facts.append((event.step, tuple(event.metrics.items()), event.best))
            case events.Finished():
                facts.append(("finished", event.step, event.early))
    return facts


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "every three steps": {"eval_steps": 3},
    "checkpoints of their own": {"save_steps": 2},
    "accumulation": {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 4},
    "by length": {"group_by_length": True, "eval_steps": 5},
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_steps": 2},
    "patience": {"early_stopping_patience": 2, "eval_steps": 2, "num_train_epochs": 4},
    "adafactor, swapped": {
        "optim": "adafactor", "swap_augmentation": True, "eval_steps": 4, "max_steps": 10
    },
    "LoRA": {"use_lora": True, "eval_steps": 3},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "cut off"])
def test_the_rest_is_as_if_it_had_never_ended(
    variant: str, crash: bool, toy_config: RunConfig, toy_pairs: splits.Pairs, store: RunStore
) -> None:
    config = toy_config.changed(**VARIANTS[variant])
    whole = Worker(config, toy_pairs, store.create(config))
    expected = whole.finish()
    last = step(whole.seen)
    scores = {event.step: event.metrics for event in evaluations(whole.seen)}
    run = store.create(config)
    for until in sorted({2, last // 2, last - 1}):

        def reached(seen: list[events.Event], until: int = until) -> bool:
            return step(seen) >= until

        worker = Worker(config, toy_pairs, run, None if crash else reached)
        for _ in worker:
            if crash and reached(worker.seen):
                break
    rest = Worker(config, toy_pairs, run)
    assert same(rest.finish(), expected)
    assert isinstance(rest.seen[0], events.Resumed)
    assert isinstance(rest.seen[-1], events.Finished)
    again = {event.step: event.metrics for event in evaluations(rest.seen)}
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
    whole = Worker(config, toy_pairs, store.create(config))
    expected = whole.finish()
    rates = {event.learning_rate for event in whole.seen if isinstance(event, events.Stepped)}
    assert isinstance(end := whole.seen[-1], events.Finished)
    assert end.early or len(rates) > 1, "the schedule is put to work"
    for count in range(1, len(whole.seen)):
        run = store.create(config)

        def reached(seen: list[events.Event], count: int = count) -> bool:
            return len(seen) >= count

        first = Worker(config, toy_pairs, run, reached)
        first.finish()
        assert isinstance(first.seen[-1], events.Stopped), count
        rest = Worker(config, toy_pairs, run)
        assert same(rest.finish(), expected), (count, whole.seen[count - 1])
        assert measured(first.seen) + measured(rest.seen) == measured(whole.seen), count


def recorded(
    config: RunConfig, pairs: splits.Pairs, run: Run, at: dict[int, Weights],
    stop: Stop | None = None,
) -> Iterator[events.Event]:  # fmt: skip
    """One life of a worker: its events, each written into the run, its models and checkpoints too.

    Args:
        at: where the weights of each evaluated step are put.
    """
    tokenizer = prepared(config, pairs)[0]

    def scored(step: int, logits: Any, labels: Any) -> dict[str, list[float]]:
        at[step] = worker.weights()
        return {}

    def save_best(step: int, best: Any, weights: Any) -> None:
        model.save_model(best, tokenizer, run.folder / "best", weights, step)

    train._note_killed_worker(run)
    run.rewind(next(reversed(run.checkpoints()), None))
    worker = Worker(config, pairs, run, stop, save_best=save_best, save_predictions=scored)
    for event in worker:
        run.append(event)
        yield event


def assert_described(run: Run, at: dict[int, Weights], scores: dict[int, dict[str, float]]) -> None:
    """What is said of the kept model is true of the weights that lie there."""
    summary = RunStore(run.folder.parent).summary(run)
    if not run.has_model():
        assert summary.saved_step is None
        return
    step = summary.saved_step
    assert step is not None
    if step in at:
        assert same(load_file(run.best / "model.safetensors"), at[step])
    if step in {event.step for event in evaluations(run.tail()[0])}:
        assert summary.best is not None
        assert (summary.best.step, summary.best.metrics) == (step, scores[step])
    else:  # a stop saved it as it was
        assert summary.best is None


def test_what_is_said_of_the_kept_model_is_true_of_it_at_every_moment(
    toy_config: RunConfig, toy_pairs: splits.Pairs, store: RunStore
) -> None:
    """Killed after each event; said right then, when the run shall go on, while it does until it is
    stopped soon after, and at its end. The last checkpoint is older than some of the models."""
    config = toy_config.changed(
        max_steps=5, eval_steps=2, save_steps=3, metric_for_best_model="loss", max_eval_samples=8
    )
    at: dict[int, Weights] = {}
    whole = store.create(config)
    happened = list(recorded(config, toy_pairs, whole, at))
    scores = {event.step: event.metrics for event in evaluations(happened)}
    assert sum(isinstance(event, events.Saved) for event in happened) >= 3
    for count, event in enumerate(happened[:-1], 1):
        # Others change nothing that is kept; after a checkpoint the next phase is training.
        trains = isinstance(event, events.PhaseStarted) and event.phase == "train"
        if not (trains or isinstance(event, events.Evaluated | events.Saved)):
            continue
        run = store.create(config)
        killed = recorded(config, toy_pairs, run, {})
        for _ in range(count):
            next(killed)
        assert_described(run, at, scores)
        del killed
        run.resume()
        assert_described(run, at, scores)
        for _ in recorded(config, toy_pairs, run, {}, lambda seen: len(seen) > 3):
            assert_described(run, at, scores)
            assert (run.kept_step() or 0) <= store.summary(run).step, "of steps not taken again yet"
        run.resume()
        assert isinstance(list(recorded(config, toy_pairs, run, {}))[-1], events.Finished)
        assert_described(run, at, scores)
        assert run.kept_step() == whole.kept_step(), count
        assert [event.step for event in store.summary(run).validation] == list(scores)


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
    save, begin = model.save_model, Run.begin_checkpoint

    def save_into_nothing(*values: Any) -> None:
        store.delete(run)
        save(*values)

    def begin_and_lose(run: Run) -> Path:
        folder = begin(run)
        store.delete(run)
        return folder

    def lose_the_folder(run: Run, stop: stop_switch.StopSwitch) -> Iterator[events.Event]:
        stop.looping = True
        if writes == "save_best":
            monkeypatch.setattr(model, "save_model", save_into_nothing)
        else:
            monkeypatch.setattr(Run, "begin_checkpoint", begin_and_lose)
        yield from recorded(run.config(), toy_pairs, run, {}, lambda seen: stop())

    work_in_this_process(monkeypatch)
    monkeypatch.setattr(pipeline, "train_events", lose_the_folder)
    assert train.carry_out_run(run, terminal.print_event) == 0
    assert not run.folder.exists()
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    assert "stopped at step" in printed.out


def test_the_summary_forgets_what_is_done_again() -> None:
    def stepped(step: int) -> events.Stepped:
        return events.Stepped(step=step, epoch=1, loss=1, learning_rate=1, samples_per_second=1)

    def scored(step: int, best: bool) -> events.Evaluated:
        return events.Evaluated(step=step, epoch=1, metrics={"f1": 0.5}, seconds=1, best=best)

    first = [stepped(1), stepped(4), scored(4, True), events.Saved(step=4), stepped(8)]
    first += [scored(8, True), events.Saved(step=8), events.Failed(error="x")]
    summary = fold_events([*first, events.Resumed(step=4)])
    assert (summary.status, summary.error) == ("running", "")
    assert [event.step for event in summary.train] == [1, 4]
    assert summary.best is not None
    assert summary.best.step == summary.saved_step == 4


def test_a_full_disk_leaves_the_checkpoint_before(
    toy_config: RunConfig, toy_pairs: splits.Pairs, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config.changed(eval_steps=3)
    expected = Worker(config, toy_pairs, store.create(config)).finish()
    run = store.create(config)
    end_checkpoint = Run.end_checkpoint

    def full(self: Run, step: int, keep: int) -> None:
        if step >= 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        end_checkpoint(self, step, keep)

    monkeypatch.setattr(Run, "end_checkpoint", full)
    with pytest.raises(OSError, match="No space left"):
        Worker(config, toy_pairs, run).finish()
    assert [path.name for path in run.checkpoints()] == ["step-000000003"]
    monkeypatch.setattr(Run, "end_checkpoint", end_checkpoint)
    assert same(Worker(config, toy_pairs, run).finish(), expected)


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
    assert store.summary(whole).status == "finished", store.summary(whole).error
    draw, kills = random.Random(3), 0
    while kills < 20 and store.summary(run).status != "finished":
        process = begin(run)
        before, steps = len(run.tail()[0]), draw.randint(1, 25)

        def taken(before: int = before) -> int:
            return sum(isinstance(event, events.Stepped) for event in run.tail()[0][before:])

        while process.is_alive() and taken() < steps:
            time.sleep(0.002)
        if not process.is_alive():
            break
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
        kills += 1
    begin(run).join(120)
    ended = store.summary(run)
    assert ended.status == "finished", ended.error
    assert kills >= 10
    assert same(*(load_file(one.best / "model.safetensors") for one in (whole, run)))
    assert [event.metrics for event in ended.validation] == [
        event.metrics for event in store.summary(whole).validation
    ]
    assert not run.checkpoints_folder.exists()


@pytest.mark.long
def test_a_stopped_run_goes_on_by_the_page_and_a_finished_one_does_not(
    store: RunStore, toy_checkpoint: Path, processes: list[int]
) -> None:
    config = RunConfig(
        checkpoint=str(toy_checkpoint), max_length=32, max_steps=1000, eval_steps=20,
        max_train_samples=64, max_eval_samples=16, logging_steps=1,
    )  # fmt: skip
    run = service.start_run(store, config)

    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 240
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.02)

    until(lambda: service.run_summary(store, run).step >= 25)
    with pytest.raises(JobError, match="The run is running"):
        service.resume_run(store, run)
    service.stop_run(store, run)
    until(lambda: service.run_summary(store, run).status == "stopped")
    until(lambda: not run.is_alive())
    at = service.run_summary(store, run).step
    service.resume_run(store, run)
    assert service.run_summary(store, run).status == "running"
    until(lambda: workers.worker_process(run) is not None)
    worker = workers.worker_process(run)
    assert isinstance(worker, psutil.Process)
    processes.append(worker.pid)
    until(lambda: service.run_summary(store, run).status == "finished")
    done = service.run_summary(store, run)
    assert done.step == 1000
    assert [event.step for event in done.train] == list(range(1, 1001))
    assert done.train[at - 1].step == at
    with pytest.raises(JobError, match="The run is finished"):
        service.resume_run(store, run)


def test_a_run_without_a_checkpoint_begins_anew(
    store: RunStore, toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    config = toy_config.changed(max_steps=4)
    run = store.create(config)
    run.append(events.Failed(error="the network"))
    assert run.resume() == 0
    assert store.summary(run).status == "running"
    shutil.rmtree(run.checkpoints_folder, ignore_errors=True)
    assert Worker(config, toy_pairs, run).finish()


def test_a_run_does_not_go_on_with_other_pairs(
    store: RunStore, toy_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    work_in_this_process(monkeypatch)
    assert train.carry_out_run(run, lambda event: None) == 1
    failed = store.summary(run)
    assert "The pairs have changed since this run began" in failed.error
    assert "dataset_revision abc" in failed.remedy
