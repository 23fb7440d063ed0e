"""A training run from its configuration to its last event.

Heavy libraries are imported inside the functions, after the first event: the page shows a phase
while PyTorch loads.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import platform
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune import disk, owners
from finetune.config import RunConfig, too_many_steps
from finetune.environment import logs
from finetune.errors import ConfigError, DataError, StoreError
from finetune.jobs import background
from finetune.jobs.stop_switch import StopSwitch
from finetune.messages import message as _
from finetune.metrics.classification import constant_answer_scores
from finetune.owners import Limits
from finetune.runs import events
from finetune.runs.events import Event, Phase, PhaseStarted
from finetune.runs.run import Run
from finetune.runs.summary import MAJORITY
from finetune.training import distributed

if TYPE_CHECKING:
    from accelerate import Accelerator

    from finetune.data.splits import Pairs
    from finetune.training.dataloaders import Loaders
    from finetune.training.loop import Hooks

LIBRARIES = ("torch", "transformers", "datasets", "accelerate", "huggingface_hub")
RESUME = _("and press Resume: nothing saved is lost")  # the end of a remedy


def train_events(run: Run, stop: StopSwitch) -> Generator[Event, None, None]:
    """The whole run as events: prepare, train, save.

    Raises:
        FinetuneError: for everything a person can mend.
        Terminated: when a stop was asked for before training began.
    """
    # 1. The libraries and the device
    config = run.config()
    yield PhaseStarted(phase=Phase.START, detail="PyTorch")
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
    yield PhaseStarted(phase=Phase.DOWNLOAD, detail=config.dataset)
    work.load_pairs()
    stop.check()
    # 3. The model
    yield PhaseStarted(phase=Phase.DOWNLOAD, detail=config.checkpoint)
    work.load_model()
    stop.check()
    # 4. The batches
    yield PhaseStarted(phase=Phase.TOKENIZE, detail=str(len(work.pairs.splits["train"])))
    work.build_batches()
    stop.check()
    yield work.prepared()
    # 5. The loop
    finished = None  # said when the loop has let go of its model
    for event in work.fit():
        finished = event if isinstance(event, events.Finished) else None
        if finished is None:
            tracker(event)
            yield event
    # 6. What is measured of the kept model
    if finished is not None:
        del work
        accelerator.free_memory()
        yield from _score_both_orders(run, stop)
        tracker(finished)
        yield finished
    accelerator.end_training()


def _set_environment(config: RunConfig) -> None:
    """Set what the Hugging Face libraries read once, when they are imported."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")
    background.choose_offline(config.dataset, config.checkpoint)
    import datasets
    import transformers

    datasets.disable_progress_bars()  # the phases and the bar say it once
    transformers.utils.logging.disable_progress_bar()


class _Training:
    """The parts of a run: pairs, model, batches and the loop over them."""

    pairs: Pairs
    tokenizer: Any
    classifier: Any
    batches: Loaders

    def __init__(
        self, run: Run, config: RunConfig, accelerator: Accelerator, stop: StopSwitch
    ) -> None:
        from accelerate.utils import broadcast_object_list

        self.run, self.config, self.accelerator, self.stop = run, config, accelerator, stop
        # Only the main process knows beforehand which folder and checkpoint it is.
        latest = max(map(str, run.checkpoints()), default="")
        folder, checkpoint = broadcast_object_list([str(run.folder), latest])
        run.folder = Path(folder)
        self.checkpoint = Path(checkpoint) if checkpoint else None

    def load_pairs(self) -> None:
        """Read the pairs, and see that they are those the run began with: a Hub dataset may have a
        new commit, and half of each is neither."""
        from finetune.data import hub_access, splits
        from finetune.runs import pair_index

        run, root = self.run, self.run.folder.parent
        if distributed.is_main_process():
            hub_access.count_dataset(root, run.owner, self.config)
            hub_access.count_checkpoint(root, run.owner, self.config.checkpoint)
        with self.accelerator.main_process_first():
            self.pairs = splits.load_pairs(run.pinned_config(), root)
        now, before = self.pairs.fingerprint, run.events_summary().prepared
        if self.checkpoint and before is not None and before.fingerprint not in ("", now):
            revision = before.data.get("revision", "")
            raise DataError(
                "The pairs have changed since this run began (fingerprint {now}, it was {before}).",
                "Start a new run, with dataset_revision {revision} for the former pairs."
                if revision
                else "Start a new run.",
                now=now[:12],
                before=before.fingerprint[:12],
                revision=revision,
            )
        if distributed.is_main_process():
            try:
                pair_index.write_pair_index(run, self.pairs.numbers)
            except OSError:  # a file that was trained on is then scored without a word
                logs.print_traceback()

    def load_model(self) -> None:
        """Load the checkpoint's tokenizer, and the model with a new head."""
        from finetune.training import loop, model

        config, accelerator = self.config, self.accelerator
        half = accelerator.mixed_precision == "bf16"
        attention = model.choose_attention(
            config.attn_implementation, accelerator.device, half, config.max_length
        )
        with accelerator.main_process_first():
            self.tokenizer, classifier = model.load_classifier(
                config.checkpoint, self.pairs.labels, config.max_length, config.dropout, attention
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

        with self.accelerator.main_process_first():
            self.batches = dataloaders.build_loaders(self.pairs, self.tokenizer, self.config)
            embeddings = len(self.classifier.get_input_embeddings().weight)
            dataloaders.check_tokens(
                self.batches, self.tokenizer, self.config.checkpoint, embeddings
            )

    def prepared(self) -> events.Prepared:
        """What the run will train on; a `ConfigError` for more steps than a visitor's may take."""
        from finetune.training import loop

        pairs, config, train = self.pairs, self.config, self.batches.train
        commonest = pairs.counts["train"].index(max(pairs.counts["train"]))
        batches_per_process = -(-len(train) // self.accelerator.num_processes)
        per_epoch, total = loop.count_steps(config, batches_per_process)
        limit = Limits().run_steps
        if owners.is_shared() and self.run.owner and total > limit:
            raise too_many_steps(config, total, limit)
        return events.Prepared(
            train_examples=len(train.dataset),  # type: ignore[arg-type]
            validation_examples=sum(pairs.counts["validation"]),
            steps_per_epoch=per_epoch,
            total_steps=total,
            labels=pairs.labels,
            parameters=self.classifier.num_parameters(),
            per_device_train_batch_size=config.per_device_train_batch_size,
            gradient_accumulation_steps=config.gradient_accumulation_steps,
            precision=self.accelerator.mixed_precision,
            fingerprint=pairs.fingerprint,
            data=pairs.origin,
            majority=constant_answer_scores(pairs.counts["validation"], commonest, pairs.positive),
        )

    def fit(self) -> Generator[Event, None, None]:
        """The loop's events, and the baselines after the first evaluation."""
        from finetune.training import loop

        run, accelerator = self.run, self.accelerator
        self.pairs = dataclasses.replace(self.pairs, splits={}, numbers={})  # unmaps the texts
        self.stop.looping = True
        gc.collect()
        gc.freeze()  # what the imports made stays, and is not looked through again at every step
        measured = run.events_summary().baselines.keys() - {MAJORITY}
        pending = distributed.is_main_process() and not measured
        for event in loop.fit(
            self.config, accelerator, self.classifier, self.batches,
            _hooks(run, self.tokenizer, self.stop, accelerator, self.pairs), self.checkpoint,
            self.pairs.positive,
        ):  # fmt: skip
            yield event
            if pending and isinstance(event, events.Evaluated):
                pending = False
                yield PhaseStarted(phase=Phase.BASELINES)
                try:
                    from finetune.evaluation import test_set

                    half = accelerator.mixed_precision == "bf16"
                    scores = test_set.measure_run_baselines(run, self.config, half, self.stop)
                    yield events.BaselinesMeasured(baselines=scores)
                except Exception:  # the run is whole without them
                    logs.print_traceback()


def _score_both_orders(run: Run, stop: StopSwitch) -> Generator[Event, None, None]:
    """The kept model's answers to the validation pairs in the other order. What goes wrong here is
    only logged, and the page offers to measure them."""
    if not distributed.is_main_process() or not run.events_summary().paired:
        return
    yield PhaseStarted(phase=Phase.BOTH_ORDERS)
    try:
        from finetune.evaluation import test_set

        test_set.score_both_orders(run, stop)
    except Exception:
        logs.print_traceback()


def _hooks(
    run: Run, tokenizer: Any, stop: StopSwitch, accelerator: Accelerator, pairs: Pairs
) -> Hooks:
    """What is done with the loop's results: the main process writes them into the run folder."""
    from finetune.evaluation import saved_predictions
    from finetune.metrics import intervals
    from finetune.metrics.classification import confusion_matrix
    from finetune.training import first_batch, loop, model

    def describe_batch(batch: dict[str, Any]) -> Generator[Event, None, None]:
        try:
            yield first_batch.describe_batch(batch, tokenizer, pairs.labels)
        except Exception:  # the run is whole without it
            logs.print_traceback()

    def save_predictions(
        step: int, logits: loop.Logits, labels: loop.Labels
    ) -> dict[str, list[float]]:
        with disk.writing(_("The predictions"), StoreError, RESUME):
            saved_predictions.save_logits(run, step, logits, labels)
        confusion = confusion_matrix(labels, logits.argmax(axis=1), len(pairs.labels))
        scores = intervals.bootstrap_intervals(confusion, pairs.positive)
        return {name: [score.low, score.high] for name, score in scores.items()}

    def save_best(step: int, classifier: Any, weights: loop.Weights | None) -> None:
        with disk.writing(_("The best model"), StoreError, RESUME):
            merged = model.merged_model(classifier)
            model.save_model(merged, tokenizer, run.folder / "best", weights, step)

    def save_checkpoint(step: int, write: Any) -> None:
        with disk.writing(_("The checkpoint"), StoreError, RESUME):
            if accelerator.is_main_process:
                run.begin_checkpoint()
            accelerator.wait_for_everyone()
            write(run.unfinished_checkpoint)
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                run.end_checkpoint(step, run.config().save_total_limit)

    if not accelerator.is_main_process:
        return loop.Hooks(should_stop=stop, save_checkpoint=save_checkpoint)
    return loop.Hooks(stop, save_best, save_predictions, save_checkpoint, describe_batch)
