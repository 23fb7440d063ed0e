"""`python -m finetune train` and `accelerate launch -m finetune train`: all is wired here.

The page's worker, a terminal and several processes take this same road. Heavy libraries are
imported inside the functions, after the first event is written: `--help` answers at once and the
page shows a phase while PyTorch loads.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import gc
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Callable, Generator
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from finetune import config, disk, logs, owners  # fmt: skip
from finetune.config import RunConfig, too_many_steps
from finetune.data import catalog, uploads  # fmt: skip
from finetune.environment import caches, devices, hub_connection  # fmt: skip
from finetune.errors import ConfigError, FinetuneError, StoreError
from finetune.jobs import workers  # fmt: skip
from finetune.owners import Limits
from finetune.runs import events  # fmt: skip
from finetune.runs.events import Event
from finetune.runs.store import Run, RunStore, default_root
from finetune.runs.summary import ENDED, MAJORITY, fold_events
from finetune.training import distributed  # fmt: skip

if TYPE_CHECKING:
    from accelerate import Accelerator
    from tqdm import tqdm

    from finetune.data.splits import Pairs

LIBRARIES = ("torch", "transformers", "datasets", "evaluate", "accelerate", "huggingface_hub")


class Terminated(BaseException):
    """A signal came; not an `Exception`, so that no library swallows it on the way out."""


class StopSwitch:
    """Whether this run shall end: its STOP file, a SIGTERM, or Ctrl-C in a terminal.

    Before training a signal ends the work where it stands, for a download cannot be asked to;
    once the loop runs, it is only noted and the loop ends itself after its step. A second signal
    does not wait for that.
    """

    def __init__(self, run: Run | None) -> None:
        self._run = run
        self._signalled = False
        self._parent = os.getppid()
        self.looping = False

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again, self._signalled = self._signalled, True
        if again or not self.looping:
            raise Terminated

    def __call__(self) -> bool:
        if not distributed.is_single_process() and os.getppid() != self._parent:
            raise Terminated  # the launcher was killed, and nobody else would end its processes
        run = self._run
        asked = run is not None and (run.stop_requested() or not run.exists())
        return self._signalled or asked

    def check(self) -> None:
        """Between two phases.

        Raises:
            Terminated: when a stop was asked for.
        """
        if self():
            raise Terminated


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 finished or stopped, 1 failed, 2 wrong arguments."""
    caches.ensure_cache_folder()
    parser = build_parser()
    namespace = parser.parse_args(arguments)
    try:
        run = _open_run(namespace)
        wanted = distributed.process_count(run.config())
    except FinetuneError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    bar = sys.stderr.isatty() or not namespace.run
    if not distributed.is_main_process():
        return carry_out_run(run, bar)
    with workers.worker_lock(run, launched=not distributed.is_single_process()) as only:
        if not only:
            print(f"Run {run.id} is being carried out by another process.", file=sys.stderr)
            return (
                0 if distributed.is_single_process() else 1
            )  # or the other ranks would wait for this one
        if distributed.is_single_process() or not namespace.run:
            _own(run)
        if distributed.is_single_process() and (wanted > 1 or run.config().accelerate_config):
            distributed.exec_launcher(run, wanted)
        return carry_out_run(run, bar)


def _own(run: Run) -> None:
    """See that this process is known as the run's worker, though whoever started it was killed."""
    from finetune.jobs import scheduler

    if run.read_json(run.job_file).get("pid") != os.getpid():
        with contextlib.suppress(StoreError):
            scheduler.adopt_terminal_run(RunStore(run.folder.parent), run)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m finetune train",
        description="Fine-tune a checkpoint on sentence pairs. The run appears in the page.",
    )
    parser.add_argument("--run", type=Path, help="an existing run folder to carry out")
    parser.add_argument(
        "--runs", type=Path, help=f"where runs are kept (default: {default_root()})"
    )
    parser.add_argument("--config", type=Path, help="a config.json; options given win over it")
    parser.add_argument("--preset", choices=config.PRESETS, help="values to begin with")
    uploads.add_arguments(parser)
    config.add_arguments(parser)
    return parser


def _open_run(namespace: argparse.Namespace) -> Run:
    """The run to carry out; on the ranks that do not write it, a view of its configuration.

    Raises:
        FinetuneError: when the configuration is wrong or the folder cannot be made.
    """
    if namespace.run:
        store = RunStore(namespace.run.parent)
        run = store.get(namespace.run.name)
        run.config()
        if distributed.is_main_process() and store.summary(run).status in ENDED:
            run.resume()
        return run if distributed.is_main_process() else _Unwritten(run.folder.parent, run.config())
    base: dict[str, Any] = {}
    if namespace.config:
        try:
            base = RunConfig.from_json(namespace.config.read_text(encoding="utf-8")).to_dict()
        except OSError as error:
            raise FinetuneError(f"{namespace.config} cannot be read: {error.strerror}.") from error
    if namespace.preset:
        base |= config.preset(namespace.preset)
    given = {name: getattr(namespace, name) for name in config.knobs() if hasattr(namespace, name)}
    root = namespace.runs or default_root()
    given |= uploads.upload_from_arguments(namespace, root)
    from finetune.jobs import check_jobs

    chosen = catalog.with_absolute_paths(RunConfig.from_dict(base | given))
    store = RunStore(root)
    check_jobs.check_source_access(store, chosen)
    if not distributed.is_main_process():
        return _Unwritten(root, chosen)
    return store.create(chosen)


class _Unwritten(Run):
    """A rank's view of a run whose folder belongs to the main process: it writes nothing."""

    def __init__(self, root: Path, chosen: RunConfig) -> None:
        super().__init__(root / "unwritten")
        self._config = chosen

    def config(self) -> RunConfig:
        return self._config

    def append(self, event: Event) -> None:
        pass

    def exists(self) -> bool:
        return True

    def stop_requested(self) -> bool:
        return False


def carry_out_run(run: Run, bar: bool) -> int:
    """Carry out a run to its end, writing every event; the exit status.

    Errors become a `Failed` event: what a person can mend in words, a bug by its name, with the
    traceback in the log. A run that is deleted meanwhile is stopped.
    """
    stop = StopSwitch(run)
    stop.install()
    show = TerminalBar() if bar else LogLines()
    try:
        if distributed.is_main_process():
            run.mend()
            _note_earlier_life(run)
        with contextlib.closing(train_events(run, stop)) as stream:
            for event in stream:
                if isinstance(event, events.Stopped):
                    event = _as_asked(run, event)
                run.append(event)
                if distributed.is_main_process():
                    show(event)
                if isinstance(event, events.Finished) and distributed.is_main_process():
                    shutil.rmtree(run.checkpoints_folder, ignore_errors=True)
                if (
                    isinstance(event, events.Stopped)
                    and event.discarded
                    and distributed.is_main_process()
                ):
                    run.discard()
        return 0
    except Terminated:
        seconds = fold_events(run.tail()[0]).worked_by(time.time())
        ended: Event = _as_asked(run, events.Stopped(step=0, seconds=seconds))
        if not distributed.is_single_process() and not run.stop_requested():
            ended = _LOST  # the launcher ends the others when one has died
    except Exception as error:
        ended = _failed(error, run)
    finally:
        if not run.exists():
            shutil.rmtree(run.folder, ignore_errors=True)
    if distributed.is_main_process():
        show(ended)
        if isinstance(ended, events.Stopped) and ended.discarded:
            run.discard()
    with contextlib.suppress(StoreError):  # a full disk or a deleted folder: it has been shown
        _end(run, ended)
    return 0 if isinstance(ended, events.Stopped) else 1


def _as_asked(run: Run, event: events.Stopped) -> events.Stopped:
    """The event with what was asked of the run, and why."""
    return dataclasses.replace(event, discarded=run.discard_requested(), reason=run.stop_reason())


_LOST = events.Failed(
    error="A process of this run has ended without a word, perhaps for want of memory.",
    remedy="The log may say more; Resume goes on from the last checkpoint.",
)
_RESUME = " and press Resume: nothing saved is lost"
_PATIENCE = 3.0  # seconds in which a rank that knows the cause can write it down


def _end(run: Run, ended: Event) -> None:
    """Write how the run ended; once, though every rank comes here, the one that knows first.

    Raises:
        StoreError: when the folder is gone or the disk is full.
    """
    if not distributed.is_single_process():
        run = Run(run.folder)
        waited = time.monotonic() + (
            _PATIENCE if ended is _LOST else not distributed.is_main_process()
        )
        while time.monotonic() < waited and fold_events(run.tail()[0]).status not in ENDED:
            time.sleep(0.1)
        if not run.folder.is_dir() or fold_events(run.tail()[0]).status in ENDED:
            return
    run.append(ended)


def _note_earlier_life(run: Run) -> None:
    """Say from where the run goes on, where its last worker was killed and nobody has said it: what
    came after is done again."""
    at = run.checkpoint_step()
    if fold_events(run.tail()[0]).step > at:
        run.append(events.Resumed(step=at))


def _failed(error: Exception, run: Run) -> Event:
    """What a run's error comes to; nothing is wrong where the run was deleted."""
    if not run.exists():
        return events.Stopped(step=0, seconds=0.0)
    if isinstance(error, FinetuneError):
        return events.Failed(error=error.fact, remedy=error.remedy)
    logs.print_traceback()
    return _unexpected(error, run.config())


def _unexpected(error: Exception, chosen: RunConfig) -> events.Failed:
    text = logs.unsigned(str(error)).strip().splitlines() or [""]
    if distributed.is_lost_rank_error(error):
        return _LOST
    if any(words in str(error).lower() for words in ("out of memory", "can't allocate memory")):
        from finetune.training import batch_size

        return events.Failed(
            error=f"The device ran out of memory: {text[0][:200]}",
            remedy=batch_size.out_of_memory_remedy(chosen),
        )
    if disk.is_full(error):
        said = disk.failure("A file of the run", error, StoreError, _RESUME)
        return events.Failed(error=said.fact, remedy=said.remedy)
    return events.Failed(
        error=f"{type(error).__name__}: {text[0][:300]}",
        remedy="The log has the details.",
    )


def train_events(run: Run, stop: StopSwitch) -> Generator[Event, None, None]:
    """The whole run as events: prepare, train, save.

    Raises:
        FinetuneError: for everything a person can mend.
        Terminated: when a stop was asked for before training began.
    """
    chosen = run.config()
    yield events.PhaseStarted(phase="start", detail="loading PyTorch")
    _set_environment(chosen)
    accelerator = make_accelerator(chosen, run.folder)
    if accelerator.device.type == "cpu":
        keep_memory()
    yield events.Started(
        device=device_name(accelerator),
        processes=accelerator.num_processes,
        versions={"python": platform.python_version()}
        | {name: version(name) for name in LIBRARIES},
    )
    resume = _latest(run, accelerator)
    stop.check()

    from finetune.data import hub_allowance, splits
    from finetune.training import batch_size, dataloaders, loop, metrics, model, trackers

    tracker = trackers.Tracker(accelerator, chosen, run.public_title())
    yield events.PhaseStarted(phase="download", detail=chosen.dataset)
    if distributed.is_main_process():
        hub_allowance.count_dataset(run.folder.parent, run.about().owner, chosen)
        hub_allowance.count_checkpoint(run.folder.parent, run.about().owner, chosen.checkpoint)
    with accelerator.main_process_first():
        pairs = splits.load_pairs(run.config_as_begun(), run.folder.parent)
    if resume is not None:
        _check_unchanged(run, pairs.fingerprint)
    if distributed.is_main_process():
        _note_seen(run, pairs)
    stop.check()
    yield events.PhaseStarted(phase="download", detail=chosen.checkpoint)
    with accelerator.main_process_first():
        tokenizer, classifier = model.load_classifier(
            chosen.checkpoint,
            pairs.labels,
            chosen.max_length,
            chosen.dropout,
            model.choose_attention(
                chosen.attn_implementation,
                accelerator.device,
                accelerator.mixed_precision == "bf16",
                chosen.max_length,
            ),
        )
        classifier = model.apply_config(classifier, chosen)
    if chosen.use_lora and loop.is_sharded(accelerator):
        problem = "is on, and merged weights cannot be saved from shards; turn it off, or leave "
        raise ConfigError({"use_lora": problem + "accelerate_config empty"})
    stop.check()
    yield events.PhaseStarted(phase="tokenise", detail=f"{len(pairs.splits['train'])} pairs")
    with accelerator.main_process_first():
        batches = dataloaders.build_loaders(pairs, tokenizer, chosen)
        embeddings = len(classifier.get_input_embeddings().weight)
        dataloaders.check(batches, tokenizer, chosen.checkpoint, embeddings)
    stop.check()
    if chosen.auto_find_batch_size:
        yield events.PhaseStarted(phase="start", detail="finding the largest batch that fits")
        chosen = _batch(run, resume) or batch_size.find_batch_size(
            chosen, accelerator, classifier, batches
        )
        accelerator.gradient_accumulation_steps = chosen.gradient_accumulation_steps
        batches = dataloaders.build_loaders(pairs, tokenizer, chosen)
        stop.check()
    # Unmaps the texts, which are not needed now.
    pairs = dataclasses.replace(pairs, splits={}, numbers={})
    shared = len(batches.train) / accelerator.num_processes
    per_epoch, total = loop.count_steps(chosen, -int(-shared // 1))
    _check_steps(run, total)
    yield events.Prepared(
        train_examples=len(batches.train.dataset),  # type: ignore[arg-type]
        validation_examples=sum(pairs.counts["validation"]),
        steps_per_epoch=per_epoch,
        total_steps=total,
        labels=pairs.labels,
        parameters=classifier.num_parameters(),
        per_device_train_batch_size=chosen.per_device_train_batch_size,
        gradient_accumulation_steps=chosen.gradient_accumulation_steps,
        precision=accelerator.mixed_precision,
        fingerprint=pairs.fingerprint,
        data=pairs.origin,
        majority=metrics.majority_scores(
            pairs.counts["train"], pairs.counts["validation"], pairs.positive
        ),
    )
    if distributed.is_main_process():
        run.rewind(resume)
    stop.looping = True
    gc.collect()
    gc.freeze()  # what the imports made stays, and is not looked through again at every step
    hooks = _hooks(run, tokenizer, stop, accelerator, pairs)
    metric = metrics.AccuracyAndF1(pairs.labels, pairs.positive)
    compared = not distributed.is_main_process() or bool(
        fold_events(run.tail()[0]).baselines.keys() - {MAJORITY}
    )
    finished: Event | None = None
    for event in loop.fit(chosen, accelerator, classifier, batches, metric, hooks, resume):
        if isinstance(event, events.Finished):
            finished = event  # said when the loop has let go of its model
            continue
        tracker(event)
        yield event
        if isinstance(event, events.Evaluated) and not compared:
            compared = True
            yield from _beside(run, chosen, accelerator, stop)
    if finished is not None:
        del batches, classifier
        if distributed.is_main_process():
            yield from _both_orders(run, accelerator, stop)
        tracker(finished)
        yield finished
    accelerator.end_training()


def _note_seen(run: Run, pairs: Pairs) -> None:
    """Which pairs the model will have seen. The run is whole without it: what goes wrong here is
    only logged, and a file that was trained on is then scored without a word."""
    from finetune.runs import pair_index

    try:
        pair_index.write_pair_index(run, pairs.numbers)
    except OSError:
        logs.print_traceback()


def _beside(
    run: Run, chosen: RunConfig, accelerator: Accelerator, stop: StopSwitch
) -> Generator[Event, None, None]:
    """What the model is compared with, once: after its first evaluation, that the first step need
    not wait for it. Without it the run is whole, so that what goes wrong here is only logged."""
    yield events.PhaseStarted(phase="evaluate", detail="the baselines")
    try:
        from finetune.evaluation import test_set

        half = accelerator.mixed_precision == "bf16"
        yield events.BaselinesMeasured(
            baselines=test_set.measure_run_baselines(run, chosen, half, stop)
        )
    except Exception:
        logs.print_traceback()


def _both_orders(
    run: Run, accelerator: Accelerator, stop: StopSwitch
) -> Generator[Event, None, None]:
    """The kept model's answers to the validation pairs in the other order. The run is whole
    without them: what goes wrong here is only logged, and the page offers to measure them."""
    accelerator.free_memory()
    if not fold_events(run.tail()[0]).paired:
        return
    yield events.PhaseStarted(phase="evaluate", detail="both orders of the sentences")
    try:
        from finetune.evaluation import test_set

        test_set.score_both_orders(run, stop)
    except Exception:
        logs.print_traceback()


def _batch(run: Run, resume: Path | None) -> RunConfig | None:
    """The configuration with the batch that was found when the run began; None if it begins now."""
    prepared = fold_events(run.tail()[0]).prepared
    if resume is None or prepared is None:
        return None
    return run.config().changed(
        per_device_train_batch_size=prepared.per_device_train_batch_size,
        gradient_accumulation_steps=prepared.gradient_accumulation_steps,
    )


def make_accelerator(chosen: RunConfig, folder: Path | None = None) -> Accelerator:
    """Accelerate's engine for this configuration, every random generator seeded.

    Args:
        folder: where trackers that write files put them.

    Raises:
        ConfigError: when the hardware lacks the precision asked for, or a tracker its package.
    """
    import torch
    from accelerate import Accelerator
    from accelerate.utils import TorchDynamoPlugin, set_seed

    from finetune.training import trackers

    tracking = trackers.tracker_settings(chosen, folder) if folder is not None else {}
    try:
        accelerator = Accelerator(
            **tracking,
            # Said outright, or several processes without a GPU would each train alone.
            cpu=not torch.accelerator.is_available(),
            mixed_precision=precision(chosen.mixed_precision),
            gradient_accumulation_steps=chosen.gradient_accumulation_steps,
            dynamo_plugin=TorchDynamoPlugin(backend="inductor", dynamic=True)
            if chosen.torch_compile
            else None,
        )
    except ValueError as error:
        problem = f"is {chosen.mixed_precision}, which this hardware lacks ({error}); set it to no"
        raise ConfigError({"mixed_precision": problem}) from error
    set_seed(chosen.seed, deterministic=chosen.deterministic)
    return accelerator


def precision(asked: str) -> str:
    """Accelerate's word for a `mixed_precision`; `auto` takes bf16 where the hardware computes in
    it: GPUs from Ampere on, CPUs with AVX512-BF16 or AMX."""
    if asked != "auto":
        return asked
    return "bf16" if devices.computes_bf16() else "no"


def device_name(accelerator: Accelerator) -> str:
    """What to call the device on a page: `NVIDIA H100`, `CPU (2 threads)`."""
    import torch

    if accelerator.device.type == "cuda":
        return str(torch.cuda.get_device_name(accelerator.device))
    if accelerator.device.type == "cpu":
        return f"CPU ({torch.get_num_threads()} threads)"
    return str(accelerator.device.type).upper()


def _set_environment(chosen: RunConfig) -> None:
    """Before the Hugging Face libraries are imported, which read these once.

    Without an answer from the Hub they would try for up to 46 seconds, so a worker that needs
    nothing from it, or cannot reach it, works from what is on disk.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if chosen.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")
    needed = catalog.needs_hub(chosen.dataset, chosen.checkpoint)
    if not needed or not hub_connection.hub_is_reachable():
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    import datasets
    import transformers

    datasets.disable_progress_bars()  # the phases and the bar below say it once
    transformers.utils.logging.disable_progress_bar()


def keep_memory() -> None:
    """Tell the C library to keep freed memory rather than give it back to the system.

    Each step takes and frees the same hundreds of megabytes on a CPU; fetching them anew costs a
    tenth of the step in page faults. The process ends with the run, and its memory with it.
    """
    max_mappings, trim_threshold = -4, -1  # M_MMAP_MAX and M_TRIM_THRESHOLD of glibc's malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another system, another C library
        library = ctypes.CDLL(None)
        library.mallopt(max_mappings, 0)
        library.mallopt(trim_threshold, 2**31 - 1)


def _latest(run: Run, accelerator: Accelerator) -> Path | None:
    """The checkpoint to go on from; only the main process knows the run's folder beforehand."""
    from accelerate.utils import broadcast_object_list

    found = run.checkpoints()
    told = broadcast_object_list([str(run.folder), str(found[-1]) if found else ""])
    run.folder = Path(told[0])
    return Path(told[1]) if told[1] else None


def _check_steps(run: Run, total: int) -> None:
    """See that a visitor's run takes no more steps than it may.

    Raises:
        ConfigError: when it would.
    """
    most = Limits.of_environment().run_steps
    if owners.is_shared() and run.about().owner and total > most:
        raise too_many_steps(run.config(), total, most)


def _check_unchanged(run: Run, fingerprint: str) -> None:
    """A Hub dataset may have a new commit since the run began, and half of each is neither.

    Raises:
        DataError: when the pairs are not those the run began with.
    """
    from finetune.errors import DataError

    before = fold_events(run.tail()[0]).prepared
    if before is not None and before.fingerprint not in ("", fingerprint):
        revision = before.data.get("revision", "")
        raise DataError(
            f"The pairs have changed since this run began (fingerprint {fingerprint[:12]}, it was "
            f"{before.fingerprint[:12]}).",
            f"Start a new run, with dataset_revision {revision} for the former pairs."
            if revision
            else "Start a new run.",
        )


def _hooks(
    run: Run, tokenizer: Any, stop: StopSwitch, accelerator: Accelerator, pairs: Pairs
) -> Any:
    """What is done with the loop's results: the main process writes them into the run folder."""
    from finetune.evaluation import saved_predictions
    from finetune.metrics import intervals
    from finetune.training import first_batch, loop, model

    def peeked(batch: dict[str, Any]) -> Generator[Event, None, None]:
        try:
            yield first_batch.describe_batch(batch, tokenizer, pairs.labels)
        except Exception:  # the run is whole without it
            logs.print_traceback()

    def save_predictions(step: int, logits: loop.Logits, labels: loop.Labels) -> None:
        if accelerator.is_main_process:
            with disk.writing("The predictions", StoreError, _RESUME):
                saved_predictions.save_logits(run, step, logits, labels)

    def spread(logits: loop.Logits, labels: loop.Labels) -> dict[str, list[float]]:
        found = intervals.bootstrap_intervals(
            labels, logits.argmax(axis=1), len(pairs.labels), pairs.positive
        )
        return {name: [one.low, one.high] for name, one in found.items()}

    def save_best(step: int, classifier: Any, weights: loop.Weights | None) -> None:
        with disk.writing("The best model", StoreError, _RESUME):
            model.save_model(
                model.merged_model(classifier), tokenizer, run.folder / "best", weights, step
            )

    def save_checkpoint(step: int, write: Callable[[Path], None]) -> None:
        with disk.writing("The checkpoint", StoreError, _RESUME):
            if accelerator.is_main_process:
                run.begin_checkpoint()
            accelerator.wait_for_everyone()
            write(run.being_written)
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                run.end_checkpoint(step, run.config().save_total_limit)

    if not accelerator.is_main_process:
        return loop.Hooks(should_stop=stop, save_checkpoint=save_checkpoint)
    return loop.Hooks(
        should_stop=stop,
        save_best=save_best,
        save_predictions=save_predictions,
        intervals=spread,
        save_checkpoint=save_checkpoint,
        peek=peeked,
    )


class TerminalBar:
    """A tqdm bar of steps, with the evaluations printed above it."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def __call__(self, event: Event) -> None:
        from tqdm import tqdm

        if isinstance(event, events.Prepared):
            tqdm.write(describe_event(event), file=sys.stderr)
            width = shutil.get_terminal_size().columns
            self._bar = tqdm(total=event.total_steps, unit="step", ncols=min(100, width))
        elif isinstance(event, events.Stepped) and self._bar is not None:
            self._bar.set_postfix(loss=f"{event.loss:.4f}", refresh=False)
            self._bar.update(event.step - self._bar.n)
        elif text := describe_event(event):
            tqdm.write(text, file=sys.stderr)
        if self._bar is not None and isinstance(
            event, (events.Finished, events.Stopped, events.Failed)
        ):
            self._bar.close()


class LogLines:
    """One line an event, for the log a page folds away."""

    def __call__(self, event: Event) -> None:
        if text := describe_event(event):
            print(text, flush=True)


def _doubts(known: dict[str, Any]) -> list[str]:
    """What is wrong with the pairs of a run, a line each, and what shows the rows.

    Args:
        known: `Pairs.origin`.
    """
    lines = [
        f"warning: {count:,} rows of {split} could not be read and are left out"
        for split, count in known.get("unreadable", {}).items()
    ]
    lines += [
        f"left out of {split}: {count:,} ({reason})"
        for split, reasons in known.get("left_out", {}).items()
        for reason, count in reasons.items()
    ]
    leaked = [
        f"warning: {count:,} training pairs stand in {split} too, and its score will flatter the "
        "model; --drop_leaked leaves them out"
        for split, count in known.get("leaked", {}).items()
    ]
    if lines or leaked:
        return [
            *lines,
            *leaked,
            "python -m finetune check with the same options shows the rows",
        ]
    return []


def describe_event(event: Event) -> str:
    """One line for a person; empty for what is not worth a line."""
    match event:
        case events.Started():
            return f"on {event.device}, {event.processes} process(es)"
        case events.PhaseStarted(phase="train"):
            return ""
        case events.PhaseStarted():
            return f"{event.phase} {event.detail}".strip()
        case events.Prepared():
            return "\n".join(
                [
                    f"{event.train_examples} training and {event.validation_examples} validation "
                    f"pairs, {event.total_steps} steps, {event.parameters:,} parameters",
                    *_doubts(event.data),
                ]
            )
        case events.Stepped():
            return f"step {event.step}: loss {event.loss:.4f}, lr {event.learning_rate:.3g}"
        case events.Evaluated():
            scores = ", ".join(f"{name} {value:.4f}" for name, value in event.metrics.items())
            return f"step {event.step}: validation {scores}" + (" (best so far)" * event.best)
        case events.BaselinesMeasured():
            return "\n".join(
                f"baseline {name}: "
                + ", ".join(f"{k} {v:.4f}" for k, v in scores.items() if k != "examples")
                for name, scores in event.baselines.items()
            )
        case events.Saved():
            return f"model of step {event.step} saved"
        case events.Resumed():
            return f"going on from step {event.step}"
        case events.Stopped():
            said = f"stopped at step {event.step}" + ", model discarded" * event.discarded
            return f"{said} {event.reason}".strip()
        case events.Failed():
            return f"failed: {event.error} {event.remedy}".strip()
        case events.Finished():
            early = ", early: the score had stopped rising," if event.early else ""
            return f"finished {event.step} steps{early} in {event.seconds:.1f} s"
    return ""


if __name__ == "__main__":
    status = main()
    if not distributed.is_single_process():
        # The threads of torch's process group can abort an interpreter that winds up (SIGABRT
        # after all was done), and the launcher would call the run failed.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
