"""What a configuration will cost, before it is started: steps, time, memory, and what is cut.

From what lies on this disk: examinations, earlier runs, the checkpoint's headers. No weight is
read, nobody is asked; free of torch, so that a page can ask at every change of a form. What cannot
be known is None. Only `measure` tokenises, a part of the pairs and where that is quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from finetune import json_files
from finetune.config import DATA_FIELDS, SOURCE_FIELDS, RunConfig
from finetune.data import catalog, checkpoints, token_lengths
from finetune.data.check_report import CheckReport, TokenLengths
from finetune.environment import devices
from finetune.errors import ConfigError, FinetuneError
from finetune.jobs import check
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary

# Two runs that differ in none of these take about the same time for a pair.
PACE = (
    "checkpoint", "mixed_precision", "use_lora", "gradient_checkpointing", "torch_compile",
    "padding", "group_by_length", "frozen_layers", "freeze_embeddings", "attn_implementation",
    "optim", "num_processes", "accelerate_config", "dropout", "auto_find_batch_size",
)  # fmt: skip
# All that an estimate depends on: a form asks again when one of them changes.
READ = (
    *DATA_FIELDS, *PACE, "num_train_epochs", "max_steps", "per_device_train_batch_size",
    "gradient_accumulation_steps", "max_length", "swap_augmentation", "eval_steps",
    "early_stopping_patience", "lora_r",
)  # fmt: skip
# What changes how many rows are drawn, not which there are.
_DRAWN = ("max_train_samples", "max_eval_samples", "positive_label")
_RUNS = 60  # of the newest that are looked at


@dataclass(frozen=True)
class Steps:
    """Optimizer steps, evaluations, and how sure they are.

    Args:
        pairs: training examples, both orders counted where both are trained on.
        per_epoch, total: optimizer steps.
        evaluations: of the validation split.
        about: whether the number of pairs is not known exactly.
    """

    pairs: int
    per_epoch: int
    total: int
    evaluations: int
    about: bool = False

    @property
    def epochs(self) -> float:
        """Passes over the pairs, fractional where `max_steps` ends within one."""
        return self.total / self.per_epoch


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
            where they are equal or unknown. Then the rate is as it was, not as it is expected.
    """

    seconds: float
    rate: float
    run: str
    device: str
    same_pairs: bool
    tokens: tuple[float, float] | None = None


@dataclass(frozen=True)
class Memory:
    """Bytes for one process at the most, as `memory` estimates them."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    libraries: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(dataclasses.astuple(self))


@dataclass(frozen=True)
class Cut:
    """How many pairs are longer than `max_length`.

    Args:
        share: of the training pairs.
        longest: in tokens.
        about: whether only a part of the rows was measured, or a chart's bars were read.
    """

    share: float
    longest: int
    about: bool = False


@dataclass(frozen=True)
class Shape:
    """What a checkpoint's headers say of it.

    Args:
        parameters: numbers in its weights, without the head of its pretraining.
        embeddings: of them, the word embeddings.
        matrices: sizes of the linear layers' weights.
        layers, hidden, wide, heads: of the transformer; 0 where it is not said.
    """

    parameters: int
    embeddings: int = 0
    matrices: tuple[tuple[int, int], ...] = ()
    layers: int = 0
    hidden: int = 0
    wide: int = 0
    heads: int = 0


Uncut = Literal["", "pairs", "checkpoint", "tokenizer", "asked"]


@dataclass(frozen=True)
class Estimate:
    """All that can be said; None is unknown.

    Args:
        uncut: why `cut` is unknown: the pairs were never looked at, the checkpoint is not here, its
            tokenizer is not one that is quick to use, or `measure` was not asked yet.
    """

    steps: Steps | None = None
    time: Time | None = None
    memory: Memory | None = None
    cut: Cut | None = None
    parameters: int | None = None
    uncut: Uncut = ""


def estimate_cost(store: RunStore, chosen: RunConfig) -> Estimate:
    """What a configuration will cost.

    Args:
        store: as the one who asks sees it: nobody else's runs or files are looked at.

    Raises:
        ConfigError: when `max_length` is more than the checkpoint reads.
    """
    try:
        check.check_source_access(store, chosen)
    except FinetuneError:
        return Estimate()
    checkpoints.check_length(chosen.checkpoint, chosen.max_length)
    looked = _report_of(store, chosen)
    report, _ = looked
    runs = list(_runs(store))
    lengths, uncut = _lengths_of(store, chosen, looked)
    longest = lengths.longest
    found = _steps(chosen, report, runs)
    shape = read_shape(chosen.checkpoint)
    measured = _parameters(chosen, runs)
    if shape is None and measured:
        shape = Shape(measured)
    return Estimate(
        steps=found,
        time=_time(store, chosen, found, runs, lengths, _rows(report, "validation"))
        if found
        else None,
        memory=estimate_memory(chosen, shape, longest, uses_half_precision(chosen, runs))
        if shape
        else None,
        cut=_cut(lengths, chosen.max_length) if longest else None,
        parameters=measured or (shape.parameters if shape else None),
        uncut=uncut,
    )


def measure_token_lengths(store: RunStore, chosen: RunConfig) -> bool:
    """Measure the lengths of a part of the pairs, where nobody has and it is quick: a second at
    the most. Whether anything was measured.

    Args:
        store: as for `of`.
    """
    with contextlib.suppress(FinetuneError):
        check.check_source_access(store, chosen)
        looked = _report_of(store, chosen)
        if _lengths_of(store, chosen, looked)[1] == "asked":
            pairs = _pairs_file(store, chosen, looked)
            tokenizer = token_lengths.tokenizer_file(chosen.checkpoint)
            if pairs is not None and tokenizer is not None:
                token_lengths.measure_lengths(pairs, tokenizer)
                return True
    return False


# -- steps ---------------------------------------------------------------------------------------


def count_steps(chosen: RunConfig, pairs: int, about: bool = False) -> Steps:
    """How many steps so many training pairs make, as `loop.steps` counts them.

    Args:
        pairs: rows of the training split, each counted once.
        about: whether that number is not exact.
    """
    pairs *= 1 + chosen.swap_augmentation
    batches = math.ceil(
        math.ceil(pairs / chosen.per_device_train_batch_size) / chosen.num_processes
    )
    per_epoch = max(1, math.ceil(batches / chosen.gradient_accumulation_steps))
    total = chosen.max_steps if chosen.max_steps > 0 else per_epoch * chosen.num_train_epochs
    every = chosen.eval_steps or per_epoch
    # With another batch, found to fit, the last step of an epoch may hold fewer.
    about = about or chosen.auto_find_batch_size
    return Steps(pairs, per_epoch, total, -(-total // every), about)


def known_steps(store: RunStore, chosen: RunConfig) -> Steps | None:
    """The steps of a configuration, as far as they are known from what lies here."""
    return _steps(chosen, _report_of(store, chosen)[0], list(_runs(store)))


def _steps(
    chosen: RunConfig, report: CheckReport | None, runs: list[tuple[Run, RunConfig, RunSummary]]
) -> Steps | None:
    if report is not None:
        rows = _rows(report, "train")
        return count_steps(chosen, _drawn(chosen, rows)) if rows else None
    for _, config, summary in runs:
        if summary.prepared and _same_source(config, chosen):
            rows = summary.prepared.train_examples // (1 + config.swap_augmentation)
            if not config.max_train_samples or rows < config.max_train_samples:
                return count_steps(chosen, _drawn(chosen, rows))
            if chosen.max_train_samples and chosen.max_train_samples <= rows:
                return count_steps(chosen, chosen.max_train_samples)
    known = catalog.find_dataset(chosen.dataset)
    blank = RunConfig()
    fixed = (name for name in DATA_FIELDS[1:] if name not in {*_DRAWN, *_FEWER})
    if known and known.pairs and all(getattr(chosen, n) == getattr(blank, n) for n in fixed):
        fewer = any(getattr(chosen, name) for name in ("drop_duplicates", "drop_leaked"))
        return count_steps(chosen, _drawn(chosen, known.pairs), about=fewer or bool(known.repo))
    return None


def _rows(report: CheckReport | None, split: str) -> int:
    """Rows of a split as it will be used; 0 where unknown."""
    return next((one.rows for one in report.splits if one.name == split), 0) if report else 0


_FEWER = ("drop_duplicates", "drop_leaked", "data_seed", "validation_share")


def _drawn(chosen: RunConfig, rows: int) -> int:
    return min(rows, chosen.max_train_samples or rows)


def _same_source(one: RunConfig, other: RunConfig) -> bool:
    names = (name for name in DATA_FIELDS if name not in _DRAWN)
    return all(getattr(one, name) == getattr(other, name) for name in names)


# -- what lies on this disk ----------------------------------------------------------------------


def _runs(store: RunStore) -> Iterator[tuple[Run, RunConfig, RunSummary]]:
    for run in store.runs()[:_RUNS]:
        with contextlib.suppress(FinetuneError):
            yield run, run.config(), store.summary(run)


def _report_of(store: RunStore, chosen: RunConfig) -> tuple[CheckReport | None, bool]:
    """What an examination found of these pairs, and whether it counted this checkpoint's tokens."""
    for one in (chosen, chosen.changed(max_train_samples=0)):
        report = _found(check.check_folder(store, one).folder)
        if report is not None and not report.blocked:
            return report, True
    other: CheckReport | None = None
    for path in (store.root / "checks").glob("*/job.json"):
        try:
            config = check.CheckJob(path.parent).config()
        except ConfigError:
            continue
        if config.max_train_samples or not _same_source(config, chosen):
            continue
        if check.check_folder(store, config).id != path.parent.name:  # made with another right
            continue
        report = _found(path.parent)
        if report is None or report.blocked:
            continue
        if config.checkpoint == chosen.checkpoint:
            return report, True
        other = report
    return other, False


def _found(folder: Path) -> CheckReport | None:
    """What an examination has found by now: the rows are counted long before their lengths are."""
    return _read(folder / "report.json") or _read(folder / "partial.json")


_Looked = tuple[CheckReport | None, bool]


def _lengths_of(store: RunStore, chosen: RunConfig, looked: _Looked) -> tuple[TokenLengths, Uncut]:
    """What is known of the pairs' lengths under this checkpoint; why not, where it is not.

    Args:
        looked: what `_report_of` has of the same.
    """
    report, same_tokens = looked
    if report is not None and same_tokens and report.lengths.longest:
        return report.lengths, ""
    if (pairs := _pairs_file(store, chosen, looked)) is None:
        return TokenLengths(), "pairs"
    if checkpoints.local_folder(chosen.checkpoint) is None:
        return TokenLengths(), "checkpoint"
    if (tokenizer := token_lengths.tokenizer_file(chosen.checkpoint)) is None:
        return TokenLengths(), "tokenizer"
    if (found := token_lengths.cached_lengths(pairs, tokenizer)) is None:
        return TokenLengths(), "asked"
    return found, "" if found.longest else "tokenizer"


def _pairs_file(store: RunStore, chosen: RunConfig, looked: _Looked) -> Path | None:
    """The training rows as an examination left them; the bundled ones lie here anyway."""
    report, _ = looked
    if report is not None and report.corpus:
        origin = next((one.origin for one in report.splits if one.name == "train"), "train")
        path = store.root / "data" / report.corpus / f"{origin}.arrow"
        if path.is_file():
            return path
    blank = RunConfig()
    plain = all(getattr(chosen, name) == getattr(blank, name) for name in SOURCE_FIELDS)
    return catalog.BUNDLED_PAIRS / "train.csv" if plain else None


def _version(path: Path) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        told = path.stat()
        return told.st_mtime_ns, told.st_size
    return 0, 0


def _read(path: Path) -> CheckReport | None:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return json_files.read_as(path, _parse_report)
    return None


def _parse_report(text: str) -> CheckReport:
    return CheckReport.from_dict(json_files.parse(text))


# -- time ----------------------------------------------------------------------------------------


def _time(
    store: RunStore,
    chosen: RunConfig,
    found: Steps,
    runs: list[tuple[Run, RunConfig, RunSummary]],
    lengths: TokenLengths,
    held_out: int,
) -> Time | None:
    """From the run most like this one; None where none is comparable.

    Args:
        held_out: validation pairs here; 0 while unknown.
    """
    best: tuple[tuple[bool, bool, float], Run, RunConfig, RunSummary] | None = None
    for run, config, summary in runs:
        if not _alike(config, chosen) or not _here(summary):
            continue
        if len(summary.train.recent) < 2 or summary.samples_per_second <= 0:
            continue
        same = _same_source(config, chosen)
        cut = _same_cut(config, chosen, lengths.longest)
        apart = abs(math.log(_batch(config) / _batch(chosen)))
        if best is None or (same and cut, cut, -apart) > best[0]:  # of equals the newest
            best = (same and cut, cut, -apart), run, config, summary
    if best is None:
        return None
    (same, cut, _), run, config, summary = best
    tokens = None if same else _tokens(store, run, config, summary, chosen, lengths)
    if tokens is None and not cut:
        return None
    slower = 1.0
    if tokens:
        slower = _work(tokens[1], chosen) / _work(tokens[0], config)
    a_step = min(found.pairs, _batch(chosen) * chosen.gradient_accumulation_steps)
    examples = min(found.total * a_step, math.ceil(found.epochs) * found.pairs)
    seconds = examples / summary.samples_per_second * slower
    if summary.validation and (same or held_out):
        one = statistics.median(one.seconds for one in summary.validation)
        if not same and summary.prepared:
            one *= slower * held_out / max(1, summary.prepared.validation_examples)
        seconds += found.evaluations * one
    device = summary.started.device if summary.started else ""
    return Time(seconds, summary.samples_per_second, run.title(), device, same, tokens)


# What a step takes whatever it reads, above all the optimizer's pass over the weights, as the time
# of so many tokens. Measured on two cores with the bundled checkpoint, batches of 8 and 15 to 96
# tokens an example: 3.4 ms an example and 0.14 ms a token.
_A_STEP = 200


def _work(tokens: float, config: RunConfig) -> float:
    """What an example costs, in tokens: its own, and its share of what each step takes."""
    return tokens + _A_STEP / (_batch(config) * config.gradient_accumulation_steps)


def _tokens(
    store: RunStore,
    run: Run,
    config: RunConfig,
    summary: RunSummary,
    chosen: RunConfig,
    lengths: TokenLengths,
) -> tuple[float, float] | None:
    """Tokens an example took in a run's batches, and will take here, padding included; None where
    one of them is unknown."""
    here = padded_tokens(lengths, chosen)
    with contextlib.suppress(FinetuneError):
        check.check_source_access(store, config)
        theirs, _ = _lengths_of(store, config, _report_of(store, config))
        there = padded_tokens(theirs, config)
        # Its first batch, for want of better; of like lengths it is the longest of all.
        if not there and summary.first_batch and not config.group_by_length:
            there = float((*summary.first_batch.shapes.get("input_ids", []), 0, 0)[1])
        if there and here:
            return there, here
    return None


def padded_tokens(lengths: TokenLengths, chosen: RunConfig) -> float:
    """Tokens that an example takes in its batch on average, padding included; 0 where unknown.

    A batch is as long as its longest example: of n draws the largest is at most x with the n-th
    power of the share that is. Batches of like lengths hardly have padding.

    Args:
        lengths: of the training pairs.
    """
    if chosen.padding == "max_length":
        return float(chosen.max_length)
    rows = sum(count for _, _, count in lengths.bins)
    if not rows:
        return 0.0
    draws = 1 if chosen.group_by_length else chosen.per_device_train_batch_size
    multiple = chosen.pad_to_multiple_of
    if not multiple or chosen.max_length % multiple:
        multiple = 1
    below, expected = 0.0, 0.0
    for low, high, count in lengths.bins:
        upto = below + count / rows
        middle = min((low + high - 1) / 2, chosen.max_length)
        if multiple > 1:
            middle = multiple * math.ceil(middle / multiple)
        expected += middle * (upto**draws - below**draws)
        below = upto
    return expected


def _batch(config: RunConfig) -> int:
    return config.per_device_train_batch_size * config.num_processes


def _alike(one: RunConfig, other: RunConfig) -> bool:
    """Whether a token takes about the same time with both."""
    if any(getattr(one, name) != getattr(other, name) for name in PACE):
        return False
    return 0.5 <= _batch(one) / _batch(other) <= 2


def _same_cut(one: RunConfig, other: RunConfig, longest: int) -> bool:
    """Whether the same pairs would have as many tokens with both."""
    lengths = {one.max_length, other.max_length}
    if longest and other.padding == "longest" and _same_source(one, other):
        lengths = {min(length, longest) for length in lengths}
    return len(lengths) == 1


def _here(summary: RunSummary) -> bool:
    """Whether it was measured on a device such as this machine's: a folder can be carried over."""
    device = summary.started.device if summary.started else ""
    if devices.list_accelerators():
        return bool(device) and not device.startswith("CPU")
    return device.startswith(("CPU", "MPS"))


# -- memory --------------------------------------------------------------------------------------

LIBRARIES = 650 * 2**20  # a worker's PyTorch and libraries; a CUDA context is about as much
# What the backward pass holds besides what was kept for it, and what no allocator can use again:
# measured, see tests/benchmarks/cost.py.
_BESIDES = 1.6


def estimate_memory(
    chosen: RunConfig, shape: Shape, longest: int = 0, half: bool = False
) -> Memory | None:
    """Bytes that training takes at the most; None where the checkpoint does not say its layers.

    Weights, gradients and AdamW's two means are 4, 4 and 8 bytes a parameter (gradients and means
    of the trained ones only), 2 for 8-bit means; the weights' copy in half precision is 2 more.
    Kept for the backward pass are, for each layer and token, the inputs of two norms, query, key,
    value, what they attend to and its projection (8 x hidden), and the wide layer before and after
    its nonlinearity (2 x wide): 4 bytes each, or 2 in half precision, where the norms' inputs stay
    as they are besides. Dropout adds its output and a byte of mask (2 x hidden), LoRA's own that of
    each linear layer's input. Attention that is not fused keeps for each head a row of scores and
    one of probabilities, and dropout its own again.

    Sources: https://huggingface.co/docs/transformers/model_memory_anatomy for the parameters;
    Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, section 4.1, for the activations,
    there with 16-bit numbers and dropout; `_BESIDES` is ours.

    Args:
        longest: of the pairs, in tokens; 0 while unknown, then `max_length` is taken.
        half: whether products are computed in bf16 or fp16.
    """
    if not shape.layers or not shape.hidden:
        return None
    trained = _trained(chosen, shape)
    means = {"adafactor": 0.0, "adamw_bnb_8bit": 2.0}.get(chosen.optim, 8.0)
    length = chosen.max_length
    if longest and chosen.padding == "longest":
        length = min(length, longest)
    if (multiple := chosen.pad_to_multiple_of) and chosen.max_length % multiple == 0:
        length = -(-length // multiple) * multiple
    tokens = chosen.per_device_train_batch_size * length
    width, drops = (2 if half else 4), chosen.dropout != 0
    a_layer = width * (8 * shape.hidden + 2 * shape.wide) + 4 * half * shape.hidden
    a_layer += drops * 2 * (width + 1) * shape.hidden
    if chosen.use_lora:  # peft drops out each linear layer's input anew, in fp32
        a_layer += (5 + 2 * half) * (5 * shape.hidden + shape.wide)
    if not _fused(chosen, half):
        a_score = 2 * width + 2 * half + drops * (width + 1)  # the softmax is taken in fp32
        a_layer += a_score * shape.heads * length
    kept = shape.layers * a_layer
    if chosen.gradient_checkpointing:  # each layer's input, and one layer made anew
        kept = shape.layers * 4 * shape.hidden + a_layer
    return Memory(
        weights=shape.parameters * 4 + half * 2 * (shape.parameters - shape.embeddings),
        gradients=4 * trained,
        optimizer=round(means * trained),
        activations=round(tokens * kept * _BESIDES),
        libraries=LIBRARIES,
    )


def _fused(chosen: RunConfig, half: bool) -> bool:
    """Whether attention keeps no scores, as `model.attention` chooses it for `auto`."""
    asked = chosen.attn_implementation
    if devices.list_accelerators():
        return asked != "eager"
    chosen_plain = asked == "auto" and half and chosen.max_length <= 256
    return not (asked == "eager" or chosen_plain or chosen.dropout != 0)


def _trained(chosen: RunConfig, shape: Shape) -> int:
    """Parameters that get a gradient."""
    if chosen.use_lora:
        return sum(chosen.lora_r * (rows + columns) for rows, columns in shape.matrices)
    frozen = shape.embeddings * (chosen.freeze_embeddings or chosen.frozen_layers > 0)
    one = 4 * shape.hidden**2 + 2 * shape.hidden * shape.wide  # a layer's matrices
    one += 9 * shape.hidden + shape.wide  # its biases and norms
    return max(0, shape.parameters - frozen - chosen.frozen_layers * one)


def uses_half_precision(
    chosen: RunConfig, runs: Sequence[tuple[Run, RunConfig, RunSummary]] = ()
) -> bool:
    """Whether products will be computed in half precision, as far as is known without torch.

    Args:
        runs: earlier ones, with their configurations and states: what `auto` became here.
    """
    if chosen.mixed_precision != "auto":
        return chosen.mixed_precision != "no"
    for _, config, summary in runs:
        if config.mixed_precision == "auto" and summary.prepared and _here(summary):
            return summary.prepared.precision != "no"
    return bool(devices.list_accelerators()) or _processor_has_bf16()


@lru_cache(maxsize=1)
def _processor_has_bf16() -> bool:
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        return "avx512_bf16" in text or "amx_tile" in text
    return False


# -- the checkpoint ------------------------------------------------------------------------------


def read_shape(checkpoint: str) -> Shape | None:
    """What the headers of a checkpoint on this disk say; None where it is not here."""
    folder = checkpoints.local_folder(checkpoint)
    if folder is None:
        return None
    newest = max((_version(path) for path in folder.glob("*.safetensors")), default=(0, 0))
    return _shape(str(folder), newest)


@lru_cache(maxsize=32)
def _shape(folder: str, version: tuple[int, int]) -> Shape | None:
    try:
        config = json_files.read(Path(folder) / "config.json")
        tensors: dict[str, list[int]] = {}
        for path in Path(folder).glob("*.safetensors"):
            tensors |= _header(path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, struct.error):
        return None
    sizes = {name: math.prod(size) for name, size in tensors.items()}
    words = [n for name, n in sizes.items() if name.endswith(_WORDS)]
    hidden = _number(config, "hidden_size", "dim", "n_embd", "d_model")
    flat = {name: size for name, size in tensors.items() if len(size) == 2}
    linear = [(size[0], size[1]) for name, size in flat.items() if "embed" not in name]
    if not sizes or not config:
        return None
    return Shape(
        parameters=sum(sizes.values()),
        embeddings=words[0] if words else 0,
        matrices=tuple(linear),
        layers=_number(config, "num_hidden_layers", "n_layers", "n_layer"),
        hidden=hidden,
        wide=_number(config, "intermediate_size", "hidden_dim", "n_inner", "ffn_dim") or 4 * hidden,
        heads=_number(config, "num_attention_heads", "n_heads", "n_head"),
    )


_WORDS = ("word_embeddings.weight", "embed_tokens.weight", "wte.weight", "tok_embeddings.weight")
_NO_PART = ("cls.", "lm_head.", "vocab_", "generator_", "qa_outputs.")  # heads of the pretraining
_MOST_HEADER = 100 * 2**20


def _number(config: Mapping[str, Any], *names: str) -> int:
    return next((value for n in names if isinstance(value := config.get(n), int)), 0)


def _header(path: Path) -> dict[str, list[int]]:
    """Tensor -> its sizes, of a safetensors file's floating numbers; no weight is read.

    Source: https://huggingface.co/docs/safetensors/index#format: eight bytes of length, little
    endian, then so many of JSON.

    Raises:
        ValueError: when it is no such file.
    """
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > _MOST_HEADER:
            raise ValueError(f"{path} has a header of {size} bytes")
        header = json_files.parse(file.read(size))
    return {
        name: told["shape"]
        for name, told in header.items()
        if name != "__metadata__"
        and not told["dtype"].startswith(("I", "U", "BOOL"))
        and not name.startswith(_NO_PART)
    }


def _parameters(chosen: RunConfig, runs: list[tuple[Run, RunConfig, RunSummary]]) -> int | None:
    """As an earlier run counted them; LoRA adds its own."""
    for _, config, summary in runs:
        same = config.checkpoint == chosen.checkpoint and config.use_lora == chosen.use_lora
        if same and summary.prepared and (not chosen.use_lora or config.lora_r == chosen.lora_r):
            return summary.prepared.parameters
    return None


# -- lengths -------------------------------------------------------------------------------------


def _cut(lengths: TokenLengths, max_length: int) -> Cut:
    """The share beyond `max_length`; from the bars of the chart where it was another one then."""
    part = lengths.rows < lengths.of or not lengths.max_length
    if max_length == lengths.max_length:
        return Cut(lengths.cut, lengths.longest, part)
    if max_length >= lengths.longest:
        return Cut(0.0, lengths.longest, part)
    beyond = 0.0
    for low, high, count in lengths.bins:
        # Of the bar it falls into, as much as lies above it.
        beyond += count * min(1.0, max(0.0, (high - 1 - max_length) / max(1, high - low)))
    return Cut(min(1.0, beyond / max(1, lengths.rows)), lengths.longest, True)
