"""Estimates a configuration's cost: steps, time, memory, and the share of pairs that are cut.

Takes a moment: it reads only data on this disk (data checks, earlier runs, a checkpoint's headers).
"""

import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from finetune.config import BUNDLED_DATASET, DATA_FIELDS, SOURCE_FIELDS, RunConfig
from finetune.data import catalog, checkpoint_catalog, checkpoints, hub_access, token_lengths
from finetune.data.check_report import CheckReport, TokenLengths
from finetune.engines.base import HERE, read_spec
from finetune.environment import devices, pace
from finetune.errors import ConfigError, FinetuneError
from finetune.jobs import check, memory
from finetune.jobs.memory import Memory
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary
from finetune.training import recipe

# Two runs equal in these fields take about the same time for an example.
PACE_FIELDS = (
    "checkpoint", "mixed_precision", "use_lora", "gradient_checkpointing", "torch_compile",
    "padding", "group_by_length", "frozen_layers", "freeze_embeddings", "attn_implementation",
    "optim", "num_processes", "accelerate_config", "dropout", "max_length", "cuda_graphs",
)  # fmt: skip
# All fields that an estimate depends on: a form asks again when one of them changes.
INPUT_FIELDS = (
    *DATA_FIELDS, *PACE_FIELDS, "num_train_epochs", "max_steps", "per_device_train_batch_size",
    "gradient_accumulation_steps", "swap_augmentation", "eval_steps", "early_stopping_patience",
    "lr_scheduler_type", "deterministic", "lora_r", "learning_rate",
)  # fmt: skip
# Shapes of the sizes of the catalogue, for checkpoints that are not on this disk: MiniLM, BERT base
# and BERT large.
USUAL = {
    "small": memory.Shape(22_713_216, 11_720_448, 0, 6, 384, 1536, 12),
    "base": memory.Shape(109_482_240, 23_440_896, 0, 12, 768, 3072, 12),
    "large": memory.Shape(335_141_888, 31_254_528, 0, 24, 1024, 4096, 16),
}
_EPOCHS = 3  # if the number of pairs is unknown
_PAIR = 40  # tokens of a pair if its length is unknown
# Families of which `training.layers` computes the first token alone in the last layer, without
# dropout: that leaves its keys and values, a sixth of it.
SHORTENED, _LEFT_OUT = {"bert", "roberta", "xlm-roberta", "electra", "distilbert"}, 5 / 6
_PADDED = 1.5  # ratio of a padded batch of mixed lengths to its mean length
# Two configurations equal in these fields have the same rows to choose from.
_ROW_FIELDS = set(DATA_FIELDS) - {"max_train_samples", "max_eval_samples", "positive_label"}


@dataclass(frozen=True)
class Steps:
    """Optimizer steps."""

    pairs: int  # training examples; both orders count if both are trained on
    per_epoch: int
    total: int
    about: bool = False  # True if the number of pairs is not exact

    @property
    def epochs(self) -> float:
        """Passes over the pairs, fractional if `max_steps` ends within one."""
        return self.total / self.per_epoch


@dataclass(frozen=True)
class Cut:
    """Pairs longer than `max_length`."""

    share: float  # of the training pairs
    longest: int  # in tokens
    about: bool = False  # True if only a part of the rows was measured, or a histogram was read


@dataclass(frozen=True)
class Time:
    """Training time at the rate of an earlier run, or at this machine's measured pace."""

    seconds: float  # from the evaluation before the first step to the last step
    rate: float  # training examples per second
    run: str  # the earlier run's name; "" if there is none
    device: str
    same_pairs: bool = False  # True if it trained on the same pairs


@dataclass(frozen=True)
class Download:
    """A checkpoint that is not on this disk."""

    bytes: int = 0  # 0 while unknown
    at_most: bool = False  # True if these are the most that its parameters can take
    unasked: bool = False  # True if `measure` may tell more


@dataclass(frozen=True)
class Estimate:
    """The estimates of a configuration; None is unknown."""

    steps: Steps | None = None
    time: Time | None = None
    memory: Memory | None = None
    cut: Cut | None = None
    parameters: int | None = None
    download: Download | None = None  # None if the checkpoint is on this disk
    # Field -> what an automatic value comes to, as far as it is known.
    automatic: dict[str, Any] = field(default_factory=dict)
    report: CheckReport | None = None  # the check of the pairs
    measurable: bool = False  # True if `measure` would make `cut` known


def estimate_cost(store: RunStore, config: RunConfig, place: str = HERE) -> Estimate:
    """Estimate a configuration's cost from the data the store's visitor may see. `place` is the
    run's, as named by `EngineSpec.place`."""
    try:
        check.check_source_access(store, config)
    except FinetuneError:
        return Estimate()
    checkpoints.check_kind(config.checkpoint)
    checkpoints.check_length(config.checkpoint, config.max_length)
    facts = _Facts(store, config, place)
    lengths, shape = facts.lengths, facts.shape
    return Estimate(
        steps=facts.steps,
        time=facts.time() or (facts.time_by_pace() if place == HERE else None),
        memory=memory.estimate_memory(facts.config, shape, lengths.longest) if shape else None,
        cut=_cut(lengths, config.max_length) if lengths.longest else None,
        parameters=shape.parameters if shape else None,
        download=None if shape else _download(config.checkpoint),
        automatic=facts.automatic,
        report=facts.report,
        measurable=facts.measurable,
    )


def resolve(store: RunStore, config: RunConfig) -> RunConfig:
    """Return the configuration with numbers for its automatic epochs, batch size and learning rate:
    as for a usual model of its size, where they are unknown."""
    try:
        check.check_source_access(store, config)
    except FinetuneError:
        layers = _usual(config.checkpoint).layer_parameters
        resolved, steps = recipe.resolve(config, layers, 0, 0, 1), None
    else:
        facts = _Facts(store, config)
        resolved, steps = facts.config, facts.steps
    epochs = max(1, round(steps.epochs)) if steps else _EPOCHS
    return resolved.changed(num_train_epochs=config.num_train_epochs or epochs)


def measure(store: RunStore, config: RunConfig) -> bool:
    """Find out more for the next estimate if that is quick: ask the Hub about a checkpoint that is
    not on this disk, measure the lengths of some pairs. Returns True if something was done."""
    done = False
    with contextlib.suppress(FinetuneError):
        check.check_source_access(store, config)
        download = _download(config.checkpoint)
        if download and download.unasked and not memory.read_shape(config.checkpoint):
            with contextlib.suppress(FinetuneError):
                hub_access.ask_checkpoint(config.checkpoint)
                done = True
        facts = _Facts(store, config)
        if facts.measurable and facts.length_files:
            token_lengths.measure_lengths(*facts.length_files)
            done = True
    return done


def _download(checkpoint: str) -> Download | None:
    if not catalog.needs_hub(BUNDLED_DATASET, checkpoint) or not catalog.may_be_fetched(checkpoint):
        return None
    told = hub_access.known_checkpoint(checkpoint)
    if told and told.bytes:
        return Download(told.bytes)
    entry = checkpoint_catalog.find_checkpoint(checkpoint)
    return Download(entry.weight_bytes if entry else 0, entry is not None, told is None)


def count_steps(config: RunConfig, pairs: int, about: bool = False) -> Steps:
    """Count the steps for this many training rows."""
    pairs *= 1 + config.swap_augmentation
    batches = math.ceil(pairs / config.per_device_train_batch_size)
    batches = math.ceil(batches / config.num_processes)
    per_epoch, total = recipe.count_steps(config, max(1, batches), config.num_processes)
    return Steps(pairs, per_epoch, total, about)


def count_evaluations(config: RunConfig, steps: Steps, validation_pairs: int) -> int:
    """Count a run's evaluations, including the one before the first step; the maximum if 0 pairs
    are known. A run on all rows evaluates nothing."""
    if config.trains_on_all:
        return 0
    every = recipe.eval_every(
        config, steps.per_epoch, steps.total, config.num_processes, validation_pairs
    )
    return 1 + math.ceil(steps.total / every)


def with_checkpoints(store: RunStore, config: RunConfig) -> RunConfig:
    """Return a configuration with at least ten checkpoints, for a machine that may go away."""
    if config.save_steps:
        return config
    steps = _Facts(store, config).steps
    return config.changed(save_steps=max(1, steps.total // 10) if steps else 100)


class _Facts:
    """Local facts about one configuration's pairs; each is looked up once."""

    def __init__(self, store: RunStore, config: RunConfig, place: str = HERE) -> None:
        self.store, self.config, self.place = store, config, place
        self.shape = memory.read_shape(config.checkpoint)
        # Training rows that are used, 0 if unknown, and whether that is not exact.
        rows, about = self._rows("train"), False
        if self.report is None:
            entry = catalog.find_dataset(config.dataset)
            if entry is not None and _agree(config, RunConfig(), SOURCE_FIELDS[1:]):
                rows = entry.pairs
                about = bool(config.drop_duplicates or config.drop_leaked or entry.repo)
        rows = min(rows, config.max_train_samples or rows)
        # A machine elsewhere counts as one without a GPU.
        gpu = devices.accelerator_memory() if place == HERE else 0
        layers = (self.shape or _usual(config.checkpoint)).layer_parameters
        pairs = rows * (1 + config.swap_augmentation)
        family = self.shape.family if self.shape else ""
        self.config = recipe.resolve(config, layers, pairs, gpu, config.num_processes, family)
        given = config.per_device_train_batch_size
        self.knows_batch = bool(given or (place == HERE and (not gpu or (rows and self.shape))))
        about = about or not self.knows_batch
        self.steps = count_steps(self.config, rows, about) if rows else None
        known: dict[str, Any] = {}
        if self.steps and config.max_steps < 0:
            known["num_train_epochs"] = round(self.steps.epochs)
        if self.knows_batch:
            known["per_device_train_batch_size"] = self.config.per_device_train_batch_size
            known["learning_rate"] = self.config.learning_rate if self.shape else 0
        self.automatic = {
            name: value for name, value in known.items() if value and not getattr(config, name)
        }

    @cached_property
    def report(self) -> CheckReport | None:
        """A check of these pairs; without token lengths if it was made for another checkpoint."""
        job = check.check_folder(self.store, self.config)
        own, with_other_tokens = job.folder, None
        if (known := check.report_known_beforehand(self.config)) and not job.state().latest:
            same = self.config.checkpoint == RunConfig().checkpoint
            return known if same else replace(known, lengths=TokenLengths())
        for folder in (own, *own.parent.glob("*/")):
            with contextlib.suppress(ConfigError):
                config = check.CheckJob(folder).config()
                job = check.check_folder(self.store, config)
                whole = folder == own or not config.max_train_samples
                same = whole and _agree(config, self.config, _ROW_FIELDS)
                report = job.state().latest if same and job.id == folder.name else None
                if report and not report.blocked:
                    if config.checkpoint == self.config.checkpoint:
                        return report
                    with_other_tokens = replace(report, lengths=TokenLengths())
        return with_other_tokens

    def _rows(self, split: str) -> int:
        """Return the number of used rows of a split; 0 if unknown."""
        splits = self.report.splits if self.report else []
        rows = next((summary.rows for summary in splits if summary.name == split), 0)
        if not self.config.fold:
            return rows
        held_out = rows // self.config.folds
        return rows - held_out if split == "train" else held_out

    def _scored_rows(self, known: int = 0) -> int:
        """Return the number of rows of an evaluation; 0 if unknown."""
        rows = known or self._rows("validation")
        return min(rows, self.config.max_eval_samples or rows)

    @cached_property
    def lengths(self) -> TokenLengths:
        """Lengths of the pairs under this checkpoint; empty if unknown."""
        if self.report and self.report.lengths.longest:
            return self.report.lengths
        files = self.length_files
        return (token_lengths.cached_lengths(*files) if files else None) or TokenLengths()

    @property
    def measurable(self) -> bool:
        return bool(self.length_files and not self.lengths.longest and not self.lengths.note)

    @cached_property
    def length_files(self) -> tuple[Path, Path] | None:
        """Training rows as a check left them, and a tokenizer that is fast to use."""
        path, tokenizer = None, token_lengths.tokenizer_file(self.config.checkpoint)
        if _agree(self.config, RunConfig(), SOURCE_FIELDS):
            path = catalog.BUNDLED_PAIRS / "train.csv"
        elif self.report and self.report.corpus:
            origins = {split.name: split.origin for split in self.report.splits}
            folder = self.store.root / "data" / self.report.corpus
            path = folder / f"{origins.get('train', 'train')}.arrow"
        return (path, tokenizer) if path and path.is_file() and tokenizer else None

    def time(self) -> Time | None:
        """Time at the rate of the newest comparable run in this place, even a running one. Prefers
        runs on the same pairs, then those of the same batch size."""
        comparable = []
        for run in self.store.runs()[:60]:
            with contextlib.suppress(FinetuneError):
                summary = run.state()
                config, there = summary.resolved(run.config()), read_spec(run).place == self.place
                if not self.knows_batch:
                    config = config.changed(per_device_train_batch_size=recipe.BATCH)
                if there and _is_comparable(config, summary, self.config, self.place):
                    same_batch = _agree(config, self.config, ["per_device_train_batch_size"])
                    same = _agree(config, self.config, _ROW_FIELDS)
                    comparable.append((same, same_batch, run, summary))
        if self.steps is None or not comparable:
            return None
        same, _, run, summary = max(comparable, key=lambda past: past[:2])
        scored = summary.prepared.validation_examples if summary.prepared else 0
        rows, rate = self._scored_rows(scored if same else 0), summary.samples_per_second
        evaluation = summary.evaluation_seconds * (rows / scored if scored else 1)
        device = summary.started.device if summary.started else ""
        seconds = self._seconds(self.steps, rate, rows, evaluation)
        return Time(seconds, rate, run.title(), device, same)

    def _seconds(self, steps: Steps, rate: float, rows: int, evaluation: float) -> float:
        """Return the time of training at a rate, with evaluations of some rows and seconds."""
        evaluations = count_evaluations(self.config, steps, rows)
        return steps.epochs * steps.pairs / rate + evaluations * evaluation

    def time_by_pace(self) -> Time | None:
        """Estimate the time from the machine's measured pace and the operations of the layers."""
        measured, steps, config = pace.known_pace(), self.steps, self.config
        if measured is None or steps is None:
            return None
        shape = self.shape or _usual(config.checkpoint)
        if not shape.layers or not shape.hidden:  # its configuration does not tell
            return None
        length = config.max_length  # tokens of a pair with its padding
        if config.padding != "max_length":
            low, below, pairs = np.array(self.lengths.bins or [(_PAIR, _PAIR + 1, 1)]).T
            mean = float(np.average((low + below) / 2, weights=pairs))
            mean *= 1 if config.group_by_length else _PADDED
            length = round(min(length, mean))
        forward = pace.layer_flops(shape.hidden, shape.wide, length, length)
        rate = measured.full if config.mixed_precision == "no" else measured.half
        # The backward pass takes twice the forward one, in layers that are trained.
        trained = max(0, shape.layers - config.frozen_layers)
        short = config.dropout == 0 and not config.use_lora and shape.family in SHORTENED
        less = _LEFT_OUT * short
        passes = shape.layers - less + max(0, trained - less) * (2 + config.gradient_checkpointing)
        overhead = trained * measured.overhead / config.per_device_train_batch_size
        example = max(passes * forward / rate, overhead)
        if measured.updates:
            step = config.per_device_train_batch_size * config.gradient_accumulation_steps
            example += memory.trained_parameters(config, shape) / measured.updates / step
        if not example:  # nothing but the head is trained
            return None
        rows, examples = self._scored_rows(), config.num_processes / example  # a second
        evaluation = rows * (shape.layers - less) * forward / rate
        device = devices.accelerator_name() or devices.processor_name()
        return Time(self._seconds(steps, examples, rows, evaluation), examples, "", device)


def _usual(checkpoint: str) -> memory.Shape:
    """The shape of a checkpoint not on this disk: its catalogue size's, or a base model's."""
    entry = checkpoint_catalog.find_checkpoint(checkpoint)
    return USUAL[entry.size if entry else "base"]


def _is_comparable(past: RunConfig, summary: RunSummary, config: RunConfig, place: str) -> bool:
    """True if the past run's measured time per example applies here."""
    if not (summary.started and len(summary.train) > 1 and summary.samples_per_second > 0):
        return False
    on_processor = summary.started.device.startswith(("CPU", "MPS"))
    same_kind = place != HERE or on_processor != bool(devices.list_accelerators())
    batch = config.per_device_train_batch_size / (past.per_device_train_batch_size or math.inf)
    return same_kind and 0.5 <= batch <= 2 and _agree(past, config, PACE_FIELDS)


def _agree(config: RunConfig, other: RunConfig, names: Iterable[str]) -> bool:
    return all(getattr(config, name) == getattr(other, name) for name in names)


def _cut(lengths: TokenLengths, max_length: int) -> Cut:
    """Return the share of pairs beyond `max_length`; from the histogram for another length."""
    exact = max_length == lengths.max_length
    if exact or max_length >= lengths.longest:
        part = lengths.rows < lengths.of or not lengths.max_length
        return Cut(lengths.cut if exact else 0.0, lengths.longest, part)
    low, below, rows = np.array(lengths.bins).T
    # Of the bin containing `max_length`, the part above it.
    above = np.clip((below - 1 - max_length) / (below - low), 0, 1)
    return Cut(float(np.average(above, weights=rows)), lengths.longest, True)
