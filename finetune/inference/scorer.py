"""Scores many pairs fast: one model, batches of pairs of similar length, all of the processors.

A scorer gives logits; `decision_rule` makes labels and probabilities of them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from finetune import text_hashes
from finetune.environment import devices
from finetune.errors import DataError, ModelError
from finetune.inference import layers
from finetune.training import model

Precision = Literal["auto", "fp32", "bf16"]
Row = tuple[str, str | None]
Columns = dict[str, list[list[int]]]  # name of an input -> its values for each row
T = TypeVar("T")
WINDOW = 1024  # pairs sorted by length at a time: enough that a batch hardly needs padding
# Characters of a window: a tokenizer takes about 100 bytes for each until it is done.
_CHARACTERS = 2**20
# Characters of a sentence that are read: at least these, and so many for each token of the
# model's. No text of words has as few tokens as that, so the rest would be cut in any case.
_READ, _READ_PER_TOKEN = 20_000, 64
_BUDGET = {"cpu": 2048, "cuda": 16_384}  # tokens of a batch, beyond which it gains nothing
_LEAST = 384  # tokens of a batch, below which a core computes slower
_HEAVY = 2e9  # tokens times weights from which threads that share a batch gain more than they wait
_SHARES = 4  # batches a thread has at least, so that all end together and little is padded
_NICE = 15  # of threads that stand aside


@dataclass(frozen=True)
class ScoredPairs:
    """Logits of shape (pairs, classes) and lengths of some pairs, in the order given.

    Args:
        tokens: length of each input in tokens, as the model read it, of shape (pairs,).
        cut: tokens of each pair beyond what the model reads, which it did not see.
    """

    logits: NDArray[np.float32]
    tokens: NDArray[np.int64]
    cut: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, rows: slice) -> ScoredPairs:
        return ScoredPairs(self.logits[rows], self.tokens[rows], self.cut[rows])

    @classmethod
    def concatenate(cls, parts: Sequence[ScoredPairs]) -> ScoredPairs:
        """The pairs of all parts, of which there is at least one."""
        columns = zip(*((part.logits, part.tokens, part.cut) for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))


@dataclass(frozen=True)
class _Window:
    """Pairs that are being computed: its batches, each the places of its pairs and their future
    logits."""

    batches: list[tuple[list[int], Future[NDArray[np.float32]]]]
    tokens: NDArray[np.int64]
    cut: NDArray[np.int64]


class Scorer:
    """One loaded model, for any number of pairs, from any thread.

    On a CPU each batch is computed by one thread, as many batches at once as there are threads:
    threads that share a batch wait for each other at every layer, and all of them for the one
    whose processor does something else. Only a lone batch of a large model has all the threads.

    Args:
        paired: whether it was trained on pairs rather than single sentences; None where nobody
            knows: then a row without a second sentence is a single one.
        precision: what it computes in; `auto` takes bf16 where the hardware computes in it.
        threads: of a CPU, that compute; 0 for as many as PyTorch would take.
        aside: let whatever else runs on these processors go first.

    Raises:
        ModelError: when the folder is gone or damaged; so does every score that is no number.
    """

    def __init__(
        self,
        folder: Path,
        max_length: int,
        paired: bool | None = True,
        precision: Precision = "auto",
        device: str = "auto",
        threads: int = 0,
        aside: bool = False,
    ) -> None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        self.device = torch.device(device if device != "auto" else accelerator or "cpu")
        self.threads = (threads or default_threads()) if self.device.type == "cpu" else 1
        self._pool = ThreadPoolExecutor(self.threads, "score", lower_priority if aside else None)
        self._paired, self._max_length = paired, max_length
        self._tokenizing = threading.Lock()  # a tokenizer that is set anew while it reads refuses
        self._tokenizer, self._model = model.load_saved_model(folder)
        table = self._model.get_input_embeddings().weight  # looked up, not multiplied by
        self._weights = self._model.num_parameters() - table.numel()
        self._vocabulary_size = len(table)
        names = self._model.config.id2label
        self.labels = [text_hashes.replace_surrogates(str(names[n])) for n in range(len(names))]
        half = precision == "bf16" or (precision == "auto" and devices.computes_bf16(self.device))
        self._dtype = torch.bfloat16 if half else torch.float32
        self.quick = self.device.type == "cpu" and layers.optimize_layers(self._model, self._dtype)
        if not self.quick:
            self._place()
        self._warm()
        self.precision = "bf16" if self._dtype == torch.bfloat16 else "fp32"

    def _place(self) -> None:
        """Move the model to its device and precision; fp32 where it supports no other."""
        self._model.to(self.device)
        if self._dtype == torch.float32:
            return
        kind = model.choose_attention("auto", self.device, True, self._max_length)
        try:
            if kind != "auto":
                self._model.set_attn_implementation(kind)
            self._model.to(torch.bfloat16)
            self._warm()
        except (RuntimeError, ValueError, TypeError):
            self._dtype = torch.float32
            self._model.to(torch.float32)

    def _warm(self) -> None:
        """Compute once, as the first time is slow: kernels are chosen."""
        self.score(["a"], None if self._paired is False else ["a"])

    def scores(
        self, sentence1: Sequence[str], sentence2: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Logits of shape (pairs, classes), in the order given."""
        return self.score(sentence1, sentence2).logits

    def score(
        self, sentence1: Sequence[str], sentence2: Sequence[str] | None = None
    ) -> ScoredPairs:
        """Logits and lengths of some pairs, or of some single sentences."""
        seconds: Iterable[str | None] = itertools.repeat(None, len(sentence1))
        if self._paired is not False and sentence2 is not None:
            seconds = sentence2
        parts = list(self.stream(zip(sentence1, seconds, strict=True)))
        if not parts:
            none = np.zeros(0, np.int64)
            return ScoredPairs(np.zeros((0, len(self.labels)), np.float32), none, none)
        return ScoredPairs.concatenate(parts)

    def stream(self, rows: Iterable[Row], window: int = WINDOW) -> Iterator[ScoredPairs]:
        """A block of results a window, in the order given; holds two windows at a time.

        The second window is read and tokenized while the first is computed. Of a sentence too long
        to be seen whole the beginning is read, and only that is counted as cut.

        Args:
            window: pairs of a block; the last may be shorter, and one of long texts.

        Raises:
            DataError: when a sentence is no text; names its row, counted from 1.
        """
        before, window_ahead = 0, None
        for block in self._blocks(rows, window):
            current = self._begin(block, before)
            before += len(block)
            if window_ahead is not None:
                yield self._end(window_ahead)
            window_ahead = current
        if window_ahead is not None:
            yield self._end(window_ahead)

    def _blocks(self, rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
        """Blocks of at most `most` rows that have about `_CHARACTERS` characters at most."""
        limit = max(_READ, _READ_PER_TOKEN * self._max_length)
        block: list[Row] = []
        size = 0
        for row in rows:
            # What is no text is reported later, by its row.
            first, second = (text[:limit] if isinstance(text, str) else text for text in row)
            block.append((first, second))  # type: ignore[arg-type]
            size += sum(len(text) for text in block[-1] if isinstance(text, str))
            if len(block) == most or size >= _CHARACTERS:
                yield block
                block, size = [], 0
        if block:
            yield block

    def free(self) -> None:
        """Free the model and its device's memory, once what is still asked for is computed."""
        self._pool.shutdown()
        self._model = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _begin(self, block: list[Row], before: int) -> _Window:
        columns, whole = self._tokenize(block, before)
        lengths = [len(ids) for ids in columns["input_ids"]]
        batches = _batches(lengths, self._budget(lengths))
        heavy = sum(lengths) * self._weights >= _HEAVY
        share = max(1, self.threads // len(batches)) if heavy else 1
        futures = []
        for places in batches:
            rows = {name: [column[at] for at in places] for name, column in columns.items()}
            futures.append((places, self._pool.submit(self._compute, rows, share)))
        tokens = np.array(lengths, np.int64)
        return _Window(futures, tokens, np.array(whole, np.int64) - tokens)

    def _budget(self, lengths: list[int]) -> int:
        """Tokens a batch, as near to what serves best as leaves every thread some."""
        most = _BUDGET.get(self.device.type, _BUDGET["cuda"])
        if self.device.type != "cpu":
            return most
        return min(most, max(_LEAST, sum(lengths) // (_SHARES * self.threads)))

    def _end(self, window: _Window) -> ScoredPairs:
        logits = np.empty((len(window.tokens), len(self.labels)), np.float32)
        for places, future in window.batches:
            logits[places] = future.result()
        if not np.isfinite(logits).all():
            raise ModelError(
                "The model answers with numbers that are none: its file is damaged.",
                "Train or download it again.",
            )
        return ScoredPairs(logits, window.tokens, window.cut)

    def _tokenize(self, block: list[Row], before: int) -> tuple[Columns, list[int]]:
        """The model's inputs, unpadded, and how long each would be uncut.

        Args:
            before: rows in front of this block, for errors.
        """
        first = [_readable(row[0], before + at, 1) for at, row in enumerate(block)]
        second: list[str | None] = []
        for at, row in enumerate(block):
            alone = self._paired is False or (self._paired is None and row[1] is None)
            second.append(None if alone else _readable(row[1], before + at, 2))
        columns: Columns = {}
        whole = [0] * len(block)
        for single in (True, False):  # a model of the Hub may be asked both ways at once
            places = [at for at, text in enumerate(second) if (text is None) == single]
            if not places:
                continue
            texts: list[Any] = [[first[at] for at in places]]
            if not single:
                texts.append([second[at] for at in places])
            encoded, lengths = self._encode(texts)
            for name, column in encoded.items():
                into = columns.setdefault(name, [[] for _ in block])
                for at, ids in zip(places, column, strict=True):
                    into[at] = ids
            for at, length in zip(places, lengths, strict=True):
                whole[at] = length
        return columns, whole

    def _encode(self, texts: list[list[str]]) -> tuple[Columns, list[int]]:
        """As `_tokenize`, of all pairs, or all single sentences. The few that are too long are
        tokenized again, so that the tokenizer cuts them itself."""
        with self._tokenizing:
            encoded = self._tokenizer(*texts, return_attention_mask=False, verbose=False)
            whole = [len(ids) for ids in encoded["input_ids"]]
            long = [at for at, length in enumerate(whole) if length > self._max_length]
            again: Columns = {}
            if long:
                again = self._tokenizer(
                    *([column[at] for at in long] for column in texts),
                    return_attention_mask=False, truncation=True, max_length=self._max_length,
                )  # fmt: skip
        columns = {name: list(ids) for name, ids in encoded.items() if name != "attention_mask"}
        for name, column in columns.items():
            for at, shorter in zip(long, again.get(name, ()), strict=True):
                column[at] = shorter
        return columns, whole

    def _compute(self, rows: Columns, threads: int) -> NDArray[np.float32]:
        if self.device.type == "cpu" and torch.get_num_threads() != threads:
            set_own_threads(threads)
        inputs, mask = self._padded(rows)
        with torch.inference_mode():
            if self.quick:
                inputs["attention_mask"] = layers.attention_bias(mask, self._dtype)
            else:
                inputs["attention_mask"] = mask.to(self.device)
            logits = self._model(**inputs).logits
        return logits.float().cpu().numpy()  # type: ignore[no-any-return]

    def _padded(self, rows: Columns) -> tuple[dict[str, Any], torch.Tensor]:
        """Tensors of shape (batch, longest) on the device, and the mask on the CPU."""
        lengths = np.array([len(ids) for ids in rows["input_ids"]])
        mask = np.arange(lengths.max())[None] < lengths[:, None]
        if self._tokenizer.padding_side == "left":
            mask = mask[:, ::-1].copy()
        fill = {
            "input_ids": self._tokenizer.pad_token_id or 0,
            "token_type_ids": self._tokenizer.pad_token_type_id,
        }
        inputs = {}
        for name, column in rows.items():
            padded = np.full(mask.shape, fill.get(name, 0), np.int64)
            padded[mask] = np.fromiter(itertools.chain.from_iterable(column), np.int64)
            if name == "input_ids" and padded.max() >= self._vocabulary_size:
                raise ModelError(
                    f"The tokenizer of this model makes token {padded.max():,}, and its weights "
                    f"know {self._vocabulary_size:,}, from 0.",
                    "They do not belong together: choose another model.",
                )
            inputs[name] = torch.from_numpy(padded).to(self.device)
        return inputs, torch.from_numpy(mask).long()


_changing_threads = threading.Lock()


def set_own_threads(threads: int) -> None:
    """Let PyTorch compute with so many threads where the calling thread asks it to.

    `torch.set_num_threads` sets that for the calling thread, and for all that are still to come:
    the latter is put back, or the next model would take this thread's number for the machine's.
    """
    with _changing_threads:
        default = _in_new_thread(torch.get_num_threads)
        torch.get_num_threads()  # the first question takes the default, also after a number was set
        torch.set_num_threads(threads)
        _in_new_thread(lambda: torch.set_num_threads(default))


def default_threads() -> int:
    """How many threads PyTorch computes with unless told otherwise."""
    with _changing_threads:
        return _in_new_thread(torch.get_num_threads)


def _in_new_thread(function: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def lower_priority() -> None:
    """Let other threads go first. Linux alone has priorities of threads, and inherits them."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _readable(text: object, row: int, number: int) -> str:
    """Text as a tokenizer can take it: no lone surrogates, no NUL."""
    if not isinstance(text, str):
        raise DataError(
            f"sentence{number} of row {row + 1:,} is no text but {type(text).__name__}.",
            "Write a sentence there.",
        )
    return text_hashes.replace_surrogates(text).replace("\0", " ")


def _batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Places of the inputs, the longest first, in batches of at most `budget` tokens, padded.

    An input longer than the budget is a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    batches, start = [], 0
    while start < len(order):
        size = max(1, budget // max(1, lengths[order[start]]))
        batches.append(order[start : start + size])
        start += size
    return batches
