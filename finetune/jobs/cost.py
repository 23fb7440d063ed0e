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

# Two runs that differ in none of these take about the same time for a token.
PACE_FIELDS = (
    "checkpoint", "mixed_precision", "use_lora", "gradient_checkpointing", "torch_compile",
    "padding", "group_by_length", "frozen_layers", "freeze_embeddings", "attn_implementation",
    "optim", "num_processes", "accelerate_config", "dropout", "auto_find_batch_size",
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
# What a step takes whatever it reads, above all the optimizer's pass over the weights, as the time
# of so many tokens. Measured on two cores with the bundled checkpoint, batches of 8 and 15 to 96
# tokens an example: 3.4 ms an example and 0.14 ms a token.
_STEP_TOKENS = 200

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
    tokens: tuple[float, float] | None = None  # of an average example there and here, if known


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
    """What a configuration will cost.

    Args:
        store: as the one who asks sees it: nobody else's runs or files are looked at.

    Raises:
        ConfigError: when `max_length` is more than the checkpoint reads.
    """
    try:
        check.check_source_access(store, config)
    except FinetuneError:
        return Estimate()
    checkpoints.check_length(config.checkpoint, config.max_length)
    return _Estimator(store, config).estimate()


def measure_token_lengths(store: RunStore, config: RunConfig) -> bool:
    """Measure the lengths of a part of the pairs, where nobody has and it is quick: a second at
    the most. Whether anything was measured."""
    with contextlib.suppress(FinetuneError):
        check.check_source_access(store, config)
        estimator = _Estimator(store, config)
        tokenizer = token_lengths.tokenizer_file(config.checkpoint)
        if estimator.lengths[1] == "asked" and estimator.pairs_file and tokenizer:
            token_lengths.measure_lengths(estimator.pairs_file, tokenizer)
            return True
    return False


def count_steps(config: RunConfig, pairs: int, about: bool = False) -> Steps:
    """How many steps so many training pairs make, as `loop.count_steps` counts them.

    Args:
        pairs: rows of the training split, each counted once.
        about: whether that number is not exact.
    """
    pairs *= 1 + config.swap_augmentation
    batches = math.ceil(pairs / config.per_device_train_batch_size)
    batches = math.ceil(batches / config.num_processes)
    per_epoch = max(1, math.ceil(batches / config.gradient_accumulation_steps))
    total = config.max_steps if config.max_steps > 0 else per_epoch * config.num_train_epochs
    evaluations = math.ceil(total / (config.eval_steps or per_epoch))
    # With another batch, found to fit, the last step of an epoch may hold fewer.
    return Steps(pairs, per_epoch, total, evaluations, about or config.auto_find_batch_size)


@dataclass(frozen=True)
class _PastRun:
    run: Run
    config: RunConfig
    summary: RunSummary


class _Estimator:
    """What is known of one configuration; each fact is looked up once."""

    def __init__(self, store: RunStore, config: RunConfig) -> None:
        self.store = store
        self.config = config

    def estimate(self) -> Estimate:
        lengths, uncut = self.lengths
        shape = memory.read_shape(self.config.checkpoint)
        return Estimate(
            steps=self.steps,
            time=self._time(self.steps) if self.steps else None,
            memory=memory.estimate_memory(self.config, shape, lengths.longest) if shape else None,
            cut=_cut(lengths, self.config.max_length) if lengths.longest else None,
            parameters=shape.parameters if shape else None,
            uncut=uncut,
        )

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
        """The checks of the same pairs, those of this very configuration first."""
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
        if self.report is not None:
            return self._rows("train"), False
        config = self.config
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
    def lengths(self) -> tuple[TokenLengths, LengthsUnknown]:
        """The pairs' lengths under this checkpoint; why not, where they are unknown."""
        if self.report is not None and self.report.lengths.longest:
            return self.report.lengths, ""
        tokenizer = token_lengths.tokenizer_file(self.config.checkpoint)
        if self.pairs_file is None:
            return TokenLengths(), "pairs"
        if tokenizer is None:
            here = checkpoints.local_folder(self.config.checkpoint) is not None
            return TokenLengths(), "tokenizer" if here else "checkpoint"
        lengths = token_lengths.cached_lengths(self.pairs_file, tokenizer)
        if lengths is None:
            return TokenLengths(), "asked"
        return lengths, "" if lengths.longest else "tokenizer"

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

    def _time(self, steps: Steps) -> Time | None:
        """From the run most like this one; None where none is comparable."""
        past = max(filter(self._is_comparable, self.runs), key=self._likeness, default=None)
        if past is None:
            return None
        same, same_length = self._likeness(past)[:2]
        there = _mean_tokens(_Estimator(self.store, past.config).lengths[0], past.config)
        here = _mean_tokens(self.lengths[0], self.config)
        tokens, slower = None, 1.0
        if there and here:
            same = same or (there == here and _same_source(past.config, self.config))
            tokens = None if same else (there, here)
            slower = 1.0 if same else _work(here, self.config) / _work(there, past.config)
        elif not same_length:
            return None
        summary, rate = past.summary, past.summary.samples_per_second
        seconds = steps.epochs * steps.pairs / rate * slower
        if summary.validation and summary.prepared:
            evaluation = statistics.median(scored.seconds for scored in summary.validation)
            if not same:
                rows = self._rows("validation")  # 0 where unknown
                evaluation *= slower * rows / max(1, summary.prepared.validation_examples)
            seconds += steps.evaluations * evaluation
        return Time(seconds, rate, past.run.title(), _device(summary), same, tokens)

    def _likeness(self, past: _PastRun) -> tuple[bool, bool, float]:
        """Same pairs and length, same length, like batch: what a better choice has more of."""
        same_length = past.config.max_length == self.config.max_length
        same = same_length and _same_source(past.config, self.config)
        return same, same_length, -abs(math.log(_batch(past.config) / _batch(self.config)))

    def _is_comparable(self, past: _PastRun) -> bool:
        """Whether a token took about the time it will take here, and that was measured here."""
        measured = len(past.summary.train.recent) > 1 and past.summary.samples_per_second > 0
        like_batch = 0.5 <= _batch(past.config) / _batch(self.config) <= 2
        on_processor = _device(past.summary).startswith(("CPU", "MPS"))
        same_device = on_processor != bool(devices.list_accelerators())
        alike = _agree(past.config, self.config, PACE_FIELDS)
        return measured and like_batch and same_device and alike


def _agree(config: RunConfig, other: RunConfig, names: Iterable[str]) -> bool:
    return all(getattr(config, name) == getattr(other, name) for name in names)


def _same_source(config: RunConfig, other: RunConfig) -> bool:
    return _agree(config, other, [name for name in DATA_FIELDS if name not in _SAMPLE_FIELDS])


def _device(summary: RunSummary) -> str:
    return summary.started.device if summary.started else ""


def _batch(config: RunConfig) -> int:
    return config.per_device_train_batch_size * config.num_processes


def _work(tokens: float, config: RunConfig) -> float:
    """What an example costs, in tokens: its own, and its share of what each step takes."""
    return tokens + _STEP_TOKENS / (_batch(config) * config.gradient_accumulation_steps)


def _mean_tokens(lengths: TokenLengths, config: RunConfig) -> float:
    """Tokens of an average example, cut at `max_length`; 0 where unknown."""
    rows = sum(count for _, _, count in lengths.bins)
    if config.padding == "max_length":
        return float(config.max_length)
    return sum(
        count * min((low + high - 1) / 2, config.max_length) for low, high, count in lengths.bins
    ) / max(1, rows)


def _cut(lengths: TokenLengths, max_length: int) -> Cut:
    """The share beyond `max_length`; from the histogram where it was another one then."""
    part = lengths.rows < lengths.of or not lengths.max_length
    if max_length == lengths.max_length or max_length >= lengths.longest:
        share = lengths.cut if max_length == lengths.max_length else 0.0
        return Cut(share, lengths.longest, part)
    beyond = sum(  # of the bin it falls into, as much as lies above it
        count * min(1.0, max(0.0, (high - 1 - max_length) / max(1, high - low)))
        for low, high, count in lengths.bins
    )
    return Cut(min(1.0, beyond / max(1, lengths.rows)), lengths.longest, True)
