"""Estimates what a configuration will cost before it is started: steps, time, memory, and how many
pairs are cut.

From what lies on this disk: data checks, earlier runs, the checkpoint's headers; quick enough to
ask at every change of a form. What cannot be known is None.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from finetune import json_files
from finetune.config import DATA_FIELDS, SOURCE_FIELDS, RunConfig
from finetune.data import catalog, checkpoints, token_lengths
from finetune.data.check_report import CheckReport, TokenLengths
from finetune.environment import devices
from finetune.errors import ConfigError, FinetuneError
from finetune.jobs import check, memory
from finetune.jobs.memory import Memory, Shape
from finetune.jobs.steps import Cut, Steps, count_steps, padded_tokens
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary

# Two runs that differ in none of these take about the same time for a token.
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
# They change how many rows are used, not which there are; the second make them fewer.
_SAMPLE_FIELDS = ("max_train_samples", "max_eval_samples", "positive_label")
_DROP_FIELDS = ("drop_duplicates", "drop_leaked", "data_seed", "validation_share")
_RUNS = 60  # of the newest that are looked at
# What a step takes whatever it reads, above all the optimizer's pass over the weights, as the time
# of so many tokens. Measured on two cores with the bundled checkpoint, batches of 8 and 15 to 96
# tokens an example: 3.4 ms an example and 0.14 ms a token.
_STEP_TOKENS = 200

LengthsUnknown = Literal["", "pairs", "checkpoint", "tokenizer", "asked"]


@dataclass(frozen=True)
class Time:
    """Seconds from the first step to the last, from a rate that was measured.

    Args:
        seconds: of training, with evaluations where one of these pairs was timed.
        rate: training examples a second.
        run: the title of the run that was measured, and
        device: what it ran on.
        same_pairs: whether it trained on the same pairs.
        tokens: that an example took in its batches and will take here, padding included; None
            where they are equal or unknown.
    """

    seconds: float
    rate: float
    run: str
    device: str
    same_pairs: bool
    tokens: tuple[float, float] | None = None


@dataclass(frozen=True)
class Estimate:
    """All that can be said; None is unknown.

    Args:
        uncut: why `cut` is unknown: the pairs were never checked, the checkpoint is not here, its
            tokenizer is not one that is quick to use, or `measure_token_lengths` was not asked.
    """

    steps: Steps | None = None
    time: Time | None = None
    memory: Memory | None = None
    cut: Cut | None = None
    parameters: int | None = None
    uncut: LengthsUnknown = ""


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


def known_steps(store: RunStore, config: RunConfig) -> Steps | None:
    """The steps of a configuration, as far as they are known from what lies here."""
    return _Estimator(store, config).steps


def measure_token_lengths(store: RunStore, config: RunConfig) -> bool:
    """Measure the lengths of a part of the pairs, where nobody has and it is quick: a second at
    the most. Whether anything was measured."""
    with contextlib.suppress(FinetuneError):
        check.check_source_access(store, config)
        estimator = _Estimator(store, config)
        if estimator.lengths[1] == "asked":
            tokenizer = token_lengths.tokenizer_file(config.checkpoint)
            if estimator.pairs_file is not None and tokenizer is not None:
                token_lengths.measure_lengths(estimator.pairs_file, tokenizer)
                return True
    return False


@dataclass(frozen=True)
class _TimedRun:
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
        shape, parameters = memory.read_shape(self.config.checkpoint), self._parameters()
        if shape is None and parameters:
            shape = Shape(parameters)
        half = self._uses_half_precision()
        return Estimate(
            steps=self.steps,
            time=self._time() if self.steps else None,
            memory=memory.estimate_memory(self.config, shape, lengths.longest, half)
            if shape
            else None,
            cut=_cut(lengths, self.config.max_length) if lengths.longest else None,
            parameters=parameters or (shape.parameters if shape else None),
            uncut=uncut,
        )

    @cached_property
    def runs(self) -> list[_TimedRun]:
        """The newest runs whose configuration can be read."""
        runs = []
        for run in self.store.runs()[:_RUNS]:
            with contextlib.suppress(FinetuneError):
                runs.append(_TimedRun(run, run.config(), self.store.summary(run)))
        return runs

    @cached_property
    def report(self) -> tuple[CheckReport | None, bool]:
        """The check of these pairs, and whether it counted this checkpoint's tokens."""
        for config in (self.config, self.config.changed(max_train_samples=0)):
            report = _read_report(check.check_folder(self.store, config).folder)
            if report is not None:
                return report, True
        with_other_tokens: CheckReport | None = None
        for path in (self.store.root / "checks").glob("*/job.json"):
            try:
                config = check.CheckJob(path.parent).config()
            except ConfigError:
                continue
            if config.max_train_samples or not _same_source(config, self.config):
                continue
            if check.check_folder(self.store, config).id != path.parent.name:  # another visitor's
                continue
            report = _read_report(path.parent)
            if report is not None and config.checkpoint == self.config.checkpoint:
                return report, True
            with_other_tokens = report or with_other_tokens
        return with_other_tokens, False

    def _rows(self, split: str) -> int:
        """Rows of a split as it will be used; 0 where unknown."""
        splits = self.report[0].splits if self.report[0] else []
        return next((summary.rows for summary in splits if summary.name == split), 0)

    @cached_property
    def steps(self) -> Steps | None:
        config, sample = self.config, self.config.max_train_samples
        if self.report[0] is not None:
            rows = self._rows("train")
            return count_steps(config, min(rows, sample or rows)) if rows else None
        for timed in self.runs:
            if timed.summary.prepared and _same_source(timed.config, config):
                rows = timed.summary.prepared.train_examples
                rows //= 1 + timed.config.swap_augmentation
                is_whole = not timed.config.max_train_samples
                if is_whole or rows < timed.config.max_train_samples:
                    return count_steps(config, min(rows, sample or rows))
                if sample and sample <= rows:
                    return count_steps(config, sample)
        entry, default = catalog.find_dataset(config.dataset), RunConfig()
        fixed = [name for name in DATA_FIELDS[1:] if name not in {*_SAMPLE_FIELDS, *_DROP_FIELDS}]
        if entry and entry.pairs and _agree(config, default, fixed):
            dropped = config.drop_duplicates or config.drop_leaked
            pairs = min(entry.pairs, sample or entry.pairs)
            return count_steps(config, pairs, about=dropped or bool(entry.repo))
        return None

    @cached_property
    def lengths(self) -> tuple[TokenLengths, LengthsUnknown]:
        """The pairs' lengths under this checkpoint; why not, where they are unknown."""
        report, same_tokens = self.report
        if report is not None and same_tokens and report.lengths.longest:
            return report.lengths, ""
        if self.pairs_file is None:
            return TokenLengths(), "pairs"
        if checkpoints.local_folder(self.config.checkpoint) is None:
            return TokenLengths(), "checkpoint"
        tokenizer = token_lengths.tokenizer_file(self.config.checkpoint)
        if tokenizer is None:
            return TokenLengths(), "tokenizer"
        lengths = token_lengths.cached_lengths(self.pairs_file, tokenizer)
        if lengths is None:
            return TokenLengths(), "asked"
        return lengths, "" if lengths.longest else "tokenizer"

    @cached_property
    def pairs_file(self) -> Path | None:
        """The training rows as a check left them; the bundled ones lie here anyway."""
        report, _ = self.report
        if report is not None and report.corpus:
            origins = (summary.origin for summary in report.splits if summary.name == "train")
            path = self.store.root / "data" / report.corpus / f"{next(origins, 'train')}.arrow"
            if path.is_file():
                return path
        bundled = _agree(self.config, RunConfig(), SOURCE_FIELDS)
        return catalog.BUNDLED_PAIRS / "train.csv" if bundled else None

    def _parameters(self) -> int | None:
        """As an earlier run counted them; LoRA adds its own."""
        names = ["checkpoint", "use_lora", *(["lora_r"] if self.config.use_lora else [])]
        for timed in self.runs:
            if timed.summary.prepared and _agree(timed.config, self.config, names):
                return timed.summary.prepared.parameters
        return None

    def _uses_half_precision(self) -> bool:
        """Whether products will be computed in half precision, as far as is known without torch."""
        if self.config.mixed_precision != "auto":
            return self.config.mixed_precision != "no"
        for timed in self.runs:
            prepared = timed.summary.prepared
            if prepared and timed.config.mixed_precision == "auto" and _same_device(timed.summary):
                return prepared.precision != "no"
        return bool(devices.list_accelerators()) or memory.processor_has_bf16()

    def _time(self) -> Time | None:
        """From the run most like this one; None where none is comparable."""
        best: tuple[tuple[bool, bool, float], _TimedRun] | None = None
        for timed in self.runs:
            if self._is_comparable(timed):
                same = _same_source(timed.config, self.config)
                same_cut = self._same_cut(timed.config)
                difference = abs(math.log(_batch(timed.config) / _batch(self.config)))
                rank = (same and same_cut, same_cut, -difference)
                if best is None or rank > best[0]:  # of equals the newest
                    best = rank, timed
        if best is None or self.steps is None:
            return None
        (same, same_cut, _), timed = best
        tokens = None if same else self._tokens(timed)
        if tokens is None and not same_cut:
            return None
        slower = 1.0
        if tokens:
            slower = _work(tokens[1], self.config) / _work(tokens[0], timed.config)
        step_pairs = _batch(self.config) * self.config.gradient_accumulation_steps
        examples = self.steps.total * min(self.steps.pairs, step_pairs)
        examples = min(examples, math.ceil(self.steps.epochs) * self.steps.pairs)
        rate = timed.summary.samples_per_second
        seconds = examples / rate * slower
        seconds += self.steps.evaluations * self._evaluation_seconds(timed, same, slower)
        device = timed.summary.started.device if timed.summary.started else ""
        return Time(seconds, rate, timed.run.title(), device, same, tokens)

    def _is_comparable(self, timed: _TimedRun) -> bool:
        """Whether a token took about the time it will take here, and that was measured here."""
        measured = len(timed.summary.train.recent) > 1 and timed.summary.samples_per_second > 0
        similar = 0.5 <= _batch(timed.config) / _batch(self.config) <= 2
        alike = _agree(timed.config, self.config, PACE_FIELDS)
        return measured and similar and alike and _same_device(timed.summary)

    def _same_cut(self, config: RunConfig) -> bool:
        """Whether the same pairs would have as many tokens with both configurations."""
        lengths, longest = {config.max_length, self.config.max_length}, self.lengths[0].longest
        if longest and self.config.padding == "longest" and _same_source(config, self.config):
            lengths = {min(length, longest) for length in lengths}
        return len(lengths) == 1

    def _evaluation_seconds(self, timed: _TimedRun, same: bool, slower: float) -> float:
        held_out = self._rows("validation")
        if not timed.summary.validation or not (same or held_out):
            return 0.0
        seconds = statistics.median(scored.seconds for scored in timed.summary.validation)
        if not same and timed.summary.prepared:
            rows = max(1, timed.summary.prepared.validation_examples)
            seconds *= slower * held_out / rows
        return seconds

    def _tokens(self, timed: _TimedRun) -> tuple[float, float] | None:
        """Tokens an example took in a run's batches, and will take here, padding included; None
        where one of them is unknown."""
        here = padded_tokens(self.lengths[0], self.config)
        with contextlib.suppress(FinetuneError):
            check.check_source_access(self.store, timed.config)
            there = padded_tokens(_Estimator(self.store, timed.config).lengths[0], timed.config)
            # Its first batch, for want of better; of like lengths it is the longest of all.
            if not there and timed.summary.first_batch and not timed.config.group_by_length:
                shape = timed.summary.first_batch.shapes.get("input_ids", [])
                there = float((*shape, 0, 0)[1])
            if there and here:
                return there, here
        return None


def _read_report(folder: Path) -> CheckReport | None:
    """What a check has found by now, unless training is impossible: rows are counted long before
    their lengths are."""
    for name in ("report.json", "partial.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            report = json_files.read_as(folder / name, _parse_report)
            return None if report.blocked else report
    return None


def _parse_report(text: str) -> CheckReport:
    return CheckReport(**json_files.parse(text))


def _agree(config: RunConfig, other: RunConfig, names: tuple[str, ...] | list[str]) -> bool:
    return all(getattr(config, name) == getattr(other, name) for name in names)


def _same_source(config: RunConfig, other: RunConfig) -> bool:
    return _agree(config, other, [name for name in DATA_FIELDS if name not in _SAMPLE_FIELDS])


def _same_device(summary: RunSummary) -> bool:
    """Whether it was measured on a device such as this machine's: a folder can be carried over."""
    device = summary.started.device if summary.started else ""
    if devices.list_accelerators():
        return bool(device) and not device.startswith("CPU")
    return device.startswith(("CPU", "MPS"))


def _batch(config: RunConfig) -> int:
    return config.per_device_train_batch_size * config.num_processes


def _work(tokens: float, config: RunConfig) -> float:
    """What an example costs, in tokens: its own, and its share of what each step takes."""
    return tokens + _STEP_TOKENS / (_batch(config) * config.gradient_accumulation_steps)


def _cut(lengths: TokenLengths, max_length: int) -> Cut:
    """The share beyond `max_length`; from the histogram where it was another one then."""
    part = lengths.rows < lengths.of or not lengths.max_length
    if max_length == lengths.max_length:
        return Cut(lengths.cut, lengths.longest, part)
    if max_length >= lengths.longest:
        return Cut(0.0, lengths.longest, part)
    beyond = 0.0
    for low, high, count in lengths.bins:
        # Of the bin it falls into, as much as lies above it.
        beyond += count * min(1.0, max(0.0, (high - 1 - max_length) / max(1, high - low)))
    return Cut(min(1.0, beyond / max(1, lengths.rows)), lengths.longest, True)
