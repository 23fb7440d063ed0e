"""A training run from its configuration to its last event.

Heavy libraries are imported inside the functions: the page shows a phase while PyTorch loads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import platform
import signal
from collections.abc import Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from finetune import disk, owners
from finetune.config import RunConfig
from finetune.environment import devices, logs
from finetune.errors import ConfigError, DataError, JobError, StoreError
from finetune.jobs import background
from finetune.messages import message as _
from finetune.metrics.calibration import Logits
from finetune.metrics.classification import Indices
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.tasks.registry import measured, task_of
from finetune.training import recipe
from finetune.training.accelerator import is_main_process, is_single_process

if TYPE_CHECKING:
    from accelerate import Accelerator

LIBRARIES = ("torch", "transformers", "datasets", "evaluate", "accelerate", "huggingface_hub")
RESUME = _("and press Resume: nothing saved is lost")  # the end of a remedy


class Terminated(BaseException):
    """A signal came; not an `Exception`, so that no library swallows it on the way out."""


class StopSwitch:
    """Stop requests of this run: its STOP file, SIGTERM, or Ctrl-C in a terminal. Before training,
    or if it is the second, a signal ends the work at once. During training, the loop ends itself
    after its current step."""

    def __init__(self, run: Run) -> None:
        self._run, self._signalled, self._parent = run, False, os.getppid()
        self.looping = False

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again, self._signalled = self._signalled, True
        if again or not self.looping:
            raise Terminated

    def __call__(self) -> bool:
        if not is_single_process() and os.getppid() != self._parent:
            raise Terminated  # the launcher was killed, and nothing else would end its processes
        return self._signalled or self._run.stop_requested() or not self._run.exists()

    def check(self) -> None:
        """Between two phases, raise `Terminated` if a stop was requested."""
        if self():
            raise Terminated


def train_events(run: Run, stop: StopSwitch) -> Generator[events.Event, None, None]:
    """Yield the events of the whole run. Raises `Terminated` for a stop before training."""
    # 1. The libraries and the device
    config = run.config()
    if run.state().taught:
        raise JobError("This run has a teacher, and this version has none.", "Start a new run.")
    yield events.PhaseStarted(phase=Phase.START, detail="PyTorch")
    _set_environment(config)
    from finetune.training import accelerator as engine

    accelerator = engine.make_accelerator(config, run.folder)
    if accelerator.device.type == "cpu":
        engine.keep_freed_memory()
    name, count = engine.device_name(accelerator), accelerator.num_processes
    versions = {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}
    yield events.Started(device=name, processes=count, versions=versions)
    work = _Training(run, config, accelerator, stop)
    stop.check()
    tracker = engine.Tracker(accelerator, config, run.title(public=True))
    # 2. The pairs
    yield events.PhaseStarted(phase=Phase.DOWNLOAD, detail=config.dataset)
    work.load_pairs()
    stop.check()
    # 3. The model
    yield events.PhaseStarted(phase=Phase.DOWNLOAD, detail=config.checkpoint)
    work.load_model()
    stop.check()
    # 4. The batches
    yield events.PhaseStarted(phase=Phase.TOKENIZE, detail=str(len(work.pairs.splits["train"])))
    work.build_batches()
    stop.check()
    yield work.prepared()
    # 5. The baselines, before training begins
    yield from work.measure_baselines()
    stop.check()
    # 6. The loop
    finished = None  # announced once the loop has released its model
    meter = devices.UsageMeter(accelerator.device)
    for event in work.fit():
        if isinstance(event, events.Stepped):
            event = event.model_copy(update=meter.read())
        finished = event if isinstance(event, events.Finished) else None
        if finished is None:
            tracker(event)
            yield event
    # 7. Measurements of the kept model
    if finished is not None:
        del work
        gc.unfreeze()  # or what the loop left would stay
        accelerator.free_memory()
        devices.give_back_freed_memory()
        if is_main_process():
            paired = run.state().paired
            yield events.PhaseStarted(phase=Phase.BOTH_ORDERS if paired else Phase.EVALUATE)
            with _logged_only():
                from finetune.evaluation import test_set

                if scored := test_set.score_kept_model(run, stop):
                    yield scored
        tracker(finished)
        yield finished
    accelerator.end_training()


def _set_environment(config: RunConfig) -> None:
    """Set variables that the Hugging Face libraries read once, on import."""
    devices.choose_tokenizer_threads()
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")
    background.choose_offline(config.dataset, config.checkpoint, config.foreign_metrics)
    import datasets
    import transformers

    datasets.disable_progress_bars()  # the phases and the bar already say it
    transformers.utils.logging.disable_progress_bar()


class _Training:
    """The parts of a run: pairs, model, batches and the loop over them."""

    def __init__(
        self, run: Run, config: RunConfig, accelerator: Accelerator, stop: StopSwitch
    ) -> None:
        from accelerate.utils import broadcast_object_list

        self.run, self.config, self.accelerator, self.stop = run, config, accelerator, stop
        # Only the main process knows in advance the folder and checkpoint, and how often
        # the run has found that it can evaluate.
        latest = max(map(str, run.checkpoints()), default="")
        facts = [str(run.folder), latest, run.state().eval_every]
        folder, checkpoint, self.eval_every = broadcast_object_list(facts)
        run.folder = Path(folder)
        self.checkpoint = Path(checkpoint) if checkpoint else None

    def load_pairs(self) -> None:
        """Read the pairs, and check that they are those the run began with."""
        from accelerate.utils import broadcast_object_list

        from finetune.data import hub_access, splits
        from finetune.evaluation import cross_validation
        from finetune.runs import pair_index

        run, root, main_process = self.run, self.run.folder.parent, is_main_process()
        if main_process:
            hub_access.count_dataset(root, run.owner, self.config)
            hub_access.count_checkpoint(root, run.owner, self.config.checkpoint)
        with self.accelerator.main_process_first():
            self.pairs = splits.load_pairs(run.pinned_config(), root)
        target = self.pairs.target
        self.labels, self.task = [*target.names], task_of(target)
        self.measured = measured(self.config, target)
        now, before = self.pairs.fingerprint, run.state().prepared
        if self.checkpoint and before is not None and before.fingerprint not in ("", now):
            remedy = _("Start a new run.")
            if revision := before.data.get("revision", ""):
                remedy = _("Start a new run, with dataset_revision {revision} for the former data.")
            fact = _("The data has changed since this run began.")
            raise DataError(fact, remedy, revision=revision)
        # Logits of all rows by models that had not seen them, and the labels.
        folds: list[tuple[Logits, Indices] | None] = [None]
        if main_process and self.config.trains_on_all:
            hashes = self.pairs.pair_hashes["validation"]
            answers = cross_validation.out_of_fold(run, target, hashes)
            folds = [(answers.logits, answers.labels)]
        (self.out_of_fold,) = broadcast_object_list(folds)
        if main_process:
            with _logged_only():  # a file that was trained on is then scored without a warning
                pair_index.write_pair_index(run, self.pairs.pair_hashes)

    def load_model(self) -> None:
        from finetune.training import accelerator as accelerators
        from finetune.training import loop, model, recipe

        config, accelerator = self.config, self.accelerator
        half = accelerator.mixed_precision == "bf16"
        attention = model.choose_attention(
            config.attn_implementation, accelerator.device, half, config.max_length
        )
        shown = background.EventProgress(self.run, Phase.DOWNLOAD, config.checkpoint)

        def on_progress(done: int, total: int) -> None:
            self.stop.check()
            if is_main_process():
                with _logged_only():
                    shown(Phase.DOWNLOAD, config.checkpoint, done, total)

        with accelerator.main_process_first():
            self.tokenizer, classifier, self.head = model.load_classifier(
                config.checkpoint, self.pairs.target, config.max_length, config.dropout, attention,
                on_progress,
            )  # fmt: skip
            if self.checkpoint:  # a resumed run keeps its batch size and learning rate
                config = self.run.state().resolved(config)
            self.config = config = recipe.resolve(
                config,
                model.count_layer_parameters(classifier),
                len(self.pairs.splits["train"]) * (1 + config.swap_augmentation),
                accelerators.gpu_memory(accelerator.device),
                accelerator.num_processes,
                classifier.config.model_type,
            )
            self.classifier = model.apply_config(classifier, config)
        if config.use_lora and loop.is_sharded(accelerator):
            problem = _(
                "is on, and merged weights cannot be saved from shards; turn it off, or leave "
                "accelerate_config empty"
            )
            raise ConfigError({"use_lora": problem})

    def build_batches(self) -> None:
        from finetune.training import dataloaders

        for name in self.config.foreign_metrics:
            print(f"warning: {name} is code, and runs on this machine with your rights", flush=True)
        with self.accelerator.main_process_first():
            self.metric = self.task.score_modules(self.pairs.target, self.measured)
            self.batches = dataloaders.build_loaders(
                self.pairs, self.tokenizer, self.config, self.accelerator.device
            )
            embeddings = len(self.classifier.get_input_embeddings().weight)
            name = self.config.checkpoint
            dataloaders.check_tokens(self.batches, self.tokenizer, name, embeddings)

    def prepared(self) -> events.Prepared:
        """Describe the training data. A `ConfigError` for more steps than a visitor may take."""
        pairs, config, train = self.pairs, self.config, self.batches.train
        train_labels, validation_labels = (
            pairs.splits[split].with_format("numpy")["label"][:]
            for split in ("train", "validation")
        )
        processes = self.accelerator.num_processes
        per_epoch, total = recipe.count_steps(config, -(-len(train) // processes), processes)
        limit = owners.policy().limits.run_steps
        if self.run.owner and total > limit:
            name = "max_steps" if config.max_steps > 0 else "num_train_epochs"
            problem = _(
                "makes {total:,} steps, and a run may take {most:,} here; lower it",
                total=total, most=limit,
            )  # fmt: skip
            raise ConfigError({name: problem})
        return events.Prepared(
            train_examples=len(train.sampler),  # type: ignore[arg-type]
            validation_examples=len(validation_labels),
            steps_per_epoch=per_epoch,
            total_steps=total,
            labels=self.labels,
            task=pairs.target.task,
            parameters=self.classifier.num_parameters(),
            per_device_train_batch_size=config.per_device_train_batch_size,
            gradient_accumulation_steps=config.gradient_accumulation_steps,
            learning_rate=config.learning_rate,
            precision=self.accelerator.mixed_precision,
            fingerprint=pairs.fingerprint,
            data=pairs.facts | {"either_order": self.batches.either_order},
            majority=self.task.constant_scores(
                train_labels, validation_labels, pairs.target, self.measured
            ),
            head=self.head,
        )

    def measure_baselines(self) -> Iterator[events.Event]:
        """Score the baselines on the validation pairs, which are saved beside their logits."""
        run, config = self.run, self.config
        measured = run.state().baselines.keys() - {self.task.constant}
        if measured or not is_main_process():
            return
        yield events.PhaseStarted(phase=Phase.BASELINES)
        with _logged_only():
            from finetune.evaluation import baselines, cross_validation, test_set

            if config.trains_on_all:
                folds = cross_validation.read_folds(run)
                print(f"trains on all rows, as each of {len(folds)} folds did on the others'")
                yield events.BaselinesMeasured(baselines=cross_validation.baselines_over(folds))
                return
            test_set.keep_examples(run, self.pairs, "validation")
            half = self.accelerator.mixed_precision == "bf16"
            scores = baselines.measure_baselines(
                self.pairs, config.checkpoint, config.max_length, half, self.stop, self.measured
            )
            self.stop.check()  # otherwise those not measured would be missing for good
            yield events.BaselinesMeasured(baselines=scores)

    def fit(self) -> Iterator[events.Event]:
        from finetune.evaluation import saved_predictions
        from finetune.training import dataloaders, loop, model

        self.pairs = dataclasses.replace(self.pairs, splits={}, pair_hashes={})  # unmaps the texts
        self.stop.looping = True
        gc.collect()
        gc.freeze()  # objects of the imports stay, and are not scanned again at every step
        run, accelerator, tokenizer, pairs = self.run, self.accelerator, self.tokenizer, self.pairs
        metrics, task = self.measured, self.task
        rule: dict[str, Any] = {}  # that the evaluated model gets if it is saved

        def describe_batch(batch: dict[str, Any]) -> Generator[events.Event, None, None]:
            with _logged_only():
                yield dataloaders.describe_batch(batch, tokenizer, pairs.target)

        def save_predictions(step: int, logits: Logits, labels: Indices) -> dict[str, list[float]]:
            run.check_writable()
            with disk.writing(_("The predictions"), StoreError, RESUME):
                saved_predictions.save_logits(run, step, logits, labels)
            rule.update(task.fitted_rule(logits, labels, pairs.target))
            answers = task.plain_answers(logits)
            scores = task.intervals(answers, labels, pairs.target, metrics, pairs.shared)
            return {name: [score.low, score.high] for name, score in scores.items()}

        def save_best(step: int, classifier: Any, weights: loop.Weights | None) -> None:
            with disk.writing(_("The best model"), StoreError, RESUME):
                merged = model.merged_model(classifier)
                run.check_writable()
                model.save_model(merged, tokenizer, run.folder / "best", weights, step, rule)

        def save_checkpoint(step: int, write: Any) -> None:
            with disk.writing(_("The checkpoint"), StoreError, RESUME):
                if accelerator.is_main_process:
                    run.begin_checkpoint()
                accelerator.wait_for_everyone()
                write(run.unfinished_checkpoint)
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:
                    run.end_checkpoint(step, run.config().save_total_limit)

        hooks = loop.Hooks(self.stop, save_checkpoint=save_checkpoint, out_of_fold=self.out_of_fold)
        if accelerator.is_main_process:
            hooks = dataclasses.replace(
                hooks, save_best=save_best, save_predictions=save_predictions,
                first_batch=describe_batch,
            )  # fmt: skip
        work = loop.Loop(
            self.config, accelerator, self.classifier, self.batches, task, self.metric, hooks,
            self.eval_every,
        )  # fmt: skip
        yield from work.fit(self.checkpoint)


@contextlib.contextmanager
def _logged_only() -> Iterator[None]:
    """Log errors without raising them: the run is complete without this step."""
    try:
        yield
    except Exception:
        logs.print_traceback()
