"""Estimates what a configuration will cost: steps, time, memory, and how many pairs are cut.

From what lies on this disk: data checks, earlier runs, the checkpoint's headers; quick enough to
ask at every change of a form. What is unknown is None.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from finetune.config import DATA_FIELDS, SOURCE_FIELDS, RunConfig
from finetune.data import catalog, checkpoints, token_lengths
from finetune.data.check_report import CheckReport, TokenLengths
from finetune.environment import devices
from finetune.errors import ConfigError, FinetuneError
from finetune.jobs import check, memory
from finetune.jobs.memory import Memory
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary

# Two runs that differ in none of these take about the same time for an example.
PACE_FIELDS = (
    "checkpoint", "mixed_precision", "use_lora", "gradient_checkpointing", "torch_compile",
    "padding", "group_by_length", "frozen_layers", "freeze_embeddings", "attn_implementation",
    "optim", "num_processes", "accelerate_config", "dropout",
)  # fmt: skip
# All that an estimate depends on: a form asks again when one of them changes.
INPUT_FIELDS = (
    *DATA_FIELDS, *PACE_FIELDS, "num_train_epochs", "max_steps", "per_device_train_batch_size",
    "gradient_accumulation_steps", "max_length", "swap_augmentation", "eval_steps",
    "early_stopping_patience", "lora_r",
)  # fmt: skip
# They change how many rows are used, not which rows there are.
_SAMPLE_FIELDS = ("max_train_samples", "max_eval_samples", "positive_label")
_NEWEST_RUNS = 60  # among which a similar one is sought
# The pairs were never checked; the checkpoint is not here; its tokenizer is not quick to use;
# `measure_token_lengths` was not asked.
LengthsUnknown = Literal["", "pairs", "checkpoint", "tokenizer", "asked"]


@dataclass(frozen=True)
class Steps:
    """Optimizer steps and evaluations."""

    pairs: int  # training examples, both orders counted where both are trained on
    per_epoch: int
    total: int
    evaluations: int
    about: bool = False  # whether the number of pairs is not exact

    @property
    def epochs(self) -> float:
        """Passes over the pairs, fractional where `max_steps` ends within one."""
        return self.total / self.per_epoch


@dataclass(frozen=True)
class Cut:
    """How many pairs are longer than `max_length`."""

    share: float  # of the training pairs
    longest: int  # in tokens
    about: bool = False  # whether only a part of the rows was measured, or a histogram was read


@dataclass(frozen=True)
class Time:
    """How long training takes at the rate of an earlier run."""

    seconds: float  # from the first step to the last, evaluations included
    rate: float  # the run's training examples a second
    run: str  # its title
    device: str
    same_pairs: bool  # whether it trained on the same pairs


@dataclass(frozen=True)
class Estimate:
    """All that can be said; None is unknown."""

    steps: Steps | None = None
    time: Time | None = None
    memory: Memory | None = None
    cut: Cut | None = None
    parameters: int | None = None
    uncut: LengthsUnknown = ""  # why `cut` is unknown


def estimate_cost(store: RunStore, config: RunConfig) -> Estimate:
    """What a configuration will cost, from what the store's visitor may see; a `ConfigError` where
    `max_length` is more than the checkpoint reads."""
    try:
        check.check_source_access(store, config)
    except FinetuneError:
        return Estimate()
    checkpoints.check_length(config.checkpoint, config.max_length)
    known = _Known(store, config)
    lengths, shape = known.lengths, memory.read_shape(config.checkpoint)
    return Estimate(
        steps=known.steps,
        time=known.time(),
        memory=memory.estimate_memory(config, shape, lengths.longest) if shape else None,
        cut=_cut(lengths, config.max_length) if lengths.longest else None,
        parameters=shape.parameters if shape else None,
        uncut=known.why_no_lengths,
    )


def measure_token_lengths(store: RunStore, config: RunConfig) -> bool:
    """Measure the lengths of a part of the pairs, where nobody has and it is quick: a second at
    the most. Whether anything was measured."""
    with contextlib.suppress(FinetuneError):
        check.check_source_access(store, config)
        known = _Known(store, config)
        if known.why_no_lengths == "asked" and known.pairs_file and known.tokenizer:
            token_lengths.measure_lengths(known.pairs_file, known.tokenizer)
            return True
    return False


def count_steps(config: RunConfig, pairs: int, about: bool = False) -> Steps:
    """How many steps so many training rows make, as `loop.count_steps` counts them; `about` says
    whether their number is not exact."""
    pairs *= 1 + config.swap_augmentation
    batches = math.ceil(pairs / config.per_device_train_batch_size)
    batches = math.ceil(batches / config.num_processes)
    per_epoch = max(1, math.ceil(batches / config.gradient_accumulation_steps))
    total = config.max_steps if config.max_steps > 0 else per_epoch * config.num_train_epochs
    evaluations = math.ceil(total / (config.eval_steps or per_epoch))
    # With another batch, found to fit, the last step of an epoch may hold fewer.
    return Steps(pairs, per_epoch, total, evaluations, about)


@dataclass(frozen=True)
class _PastRun:
    run: Run
    config: RunConfig
    summary: RunSummary

    @property
    def device(self) -> str:
        return self.summary.started.device if self.summary.started else ""


class _Known:
    """What is known of one configuration's pairs; each fact is looked up once."""

    def __init__(self, store: RunStore, config: RunConfig) -> None:
        self.store = store
        self.config = config
        self.tokenizer = token_lengths.tokenizer_file(config.checkpoint)

    @cached_property
    def runs(self) -> list[_PastRun]:
        runs = []
        for run in self.store.runs()[:_NEWEST_RUNS]:
            with contextlib.suppress(FinetuneError):
                runs.append(_PastRun(run, run.config(), self.store.summary(run)))
        return runs

    @cached_property
    def report(self) -> CheckReport | None:
        """A check of these pairs; without token lengths where it had another checkpoint."""
        with_other_tokens: CheckReport | None = None
        for config, job in self._checks():
            report = check.latest_report(job)
            if report is None or report.blocked:
                continue
            if config.checkpoint == self.config.checkpoint:
                return report
            with_other_tokens = replace(report, lengths=TokenLengths())
        return with_other_tokens

    def _checks(self) -> Iterator[tuple[RunConfig, check.CheckJob]]:
        """The checks of the same pairs, that of this very configuration first."""
        yield self.config, check.check_folder(self.store, self.config)
        for folder in (self.store.root / "checks").glob("*/"):
            with contextlib.suppress(ConfigError):
                config = check.CheckJob(folder).config()
                job = check.check_folder(self.store, config)
                same = _same_source(config, self.config) and not config.max_train_samples
                if same and job.id == folder.name:  # else it is another visitor's
                    yield config, job

    def _rows(self, split: str) -> int:
        """Rows of a split as it will be used; 0 where unknown."""
        splits = self.report.splits if self.report else []
        return next((summary.rows for summary in splits if summary.name == split), 0)

    @cached_property
    def steps(self) -> Steps | None:
        rows, about = self._training_rows()
        most = self.config.max_train_samples or rows
        return count_steps(self.config, min(rows, most), about) if rows else None

    def _training_rows(self) -> tuple[int, bool]:
        """Rows to train on before a sample is taken, 0 where unknown; whether that is not exact."""
        config = self.config
        if self.report is not None:
            return self._rows("train"), False
        for past in self.runs:
            sample = past.config.max_train_samples in (0, config.max_train_samples)
            if past.summary.prepared and sample and _same_source(past.config, config):
                examples = past.summary.prepared.train_examples
                return examples // (1 + past.config.swap_augmentation), False
        entry = catalog.find_dataset(config.dataset)
        if entry is None or not _agree(config, RunConfig(), SOURCE_FIELDS[1:]):
            return 0, False
        return entry.pairs, bool(config.drop_duplicates or config.drop_leaked or entry.repo)

    @cached_property
    def lengths(self) -> TokenLengths:
        """The pairs' lengths under this checkpoint; empty where unknown."""
        if self.report is not None and self.report.lengths.longest:
            return self.report.lengths
        lengths = None
        if self.pairs_file and self.tokenizer:
            lengths = token_lengths.cached_lengths(self.pairs_file, self.tokenizer)
        return lengths or TokenLengths()

    @property
    def why_no_lengths(self) -> LengthsUnknown:
        if self.lengths.longest:
            return ""
        if self.pairs_file is None:
            return "pairs"
        if checkpoints.local_folder(self.config.checkpoint) is None:
            return "checkpoint"
        return "tokenizer" if self.lengths.note or self.tokenizer is None else "asked"

    @cached_property
    def pairs_file(self) -> Path | None:
        """The training rows as a check left them; the bundled ones lie here anyway."""
        if self.report is not None and self.report.corpus:
            origins = (split.origin for split in self.report.splits if split.name == "train")
            folder = self.store.root / "data" / self.report.corpus
            path = folder / f"{next(origins, 'train')}.arrow"
            if path.is_file():
                return path
        bundled = _agree(self.config, RunConfig(), SOURCE_FIELDS)
        return catalog.BUNDLED_PAIRS / "train.csv" if bundled else None

    def time(self) -> Time | None:
        """At the rate of the newest run that is comparable, if there is one of the same pairs."""
        comparable = list(filter(self._is_comparable, self.runs))
        same = [past for past in comparable if _same_source(past.config, self.config)]
        past = next(iter(same or comparable), None)
        if past is None or self.steps is None:
            return None
        summary, rate = past.summary, past.summary.samples_per_second
        seconds = self.steps.epochs * self.steps.pairs / rate
        if summary.validation and summary.prepared:
            evaluation = statistics.median(scored.seconds for scored in summary.validation)
            if not same:
                rows = self._rows("validation")  # 0 where unknown
                evaluation *= rows / max(1, summary.prepared.validation_examples)
            seconds += self.steps.evaluations * evaluation
        return Time(seconds, rate, past.run.title(), past.device, bool(same))

    def _is_comparable(self, past: _PastRun) -> bool:
        """Whether an example took about the time it will take here, and that was measured here."""
        measured = len(past.summary.train) > 1 and past.summary.samples_per_second > 0
        like_batch = 0.5 <= _batch(past.config) / _batch(self.config) <= 2
        on_processor = past.device.startswith(("CPU", "MPS"))
        same_device = on_processor != bool(devices.list_accelerators())
        alike = _agree(past.config, self.config, PACE_FIELDS)
        cut = {past.config.max_length, self.config.max_length}
        if self.config.padding == "longest" and (longest := self.lengths.longest):
            cut = {min(length, longest) for length in cut}
        return measured and like_batch and same_device and alike and len(cut) == 1


def _agree(config: RunConfig, other: RunConfig, names: Iterable[str]) -> bool:
    return all(getattr(config, name) == getattr(other, name) for name in names)


def _same_source(config: RunConfig, other: RunConfig) -> bool:
    return _agree(config, other, [name for name in DATA_FIELDS if name not in _SAMPLE_FIELDS])


def _batch(config: RunConfig) -> int:
    return config.per_device_train_batch_size * config.num_processes


def _cut(lengths: TokenLengths, max_length: int) -> Cut:
    """The share beyond `max_length`; from the histogram where it was another one then."""
    part = lengths.rows < lengths.of or not lengths.max_length
    if max_length == lengths.max_length or max_length >= lengths.longest:
        share = lengths.cut if max_length == lengths.max_length else 0.0
        return Cut(share, lengths.longest, part)
    low, below, rows = np.array(lengths.bins).T
    # Of the bin that `max_length` falls into, as much as lies above it.
    above = np.clip((below - 1 - max_length) / (below - low), 0, 1)
    return Cut(float(np.average(above, weights=rows)), lengths.longest, True)
