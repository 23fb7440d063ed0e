"""Logits of many pairs, fast: one model, batches of pairs of similar length, all processors."""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from finetune.data import checkpoints, token_lengths
from finetune.environment import devices, logs
from finetune.errors import ModelError
from finetune.inference import quantized, quick_layers
from finetune.inference.quick_layers import OnnxSession
from finetune.runs.run import Run
from finetune.training import cuda_graphs, layers, model
from finetune.training.layers import MaskFunction

# "own": the fastest of the saved weights; "auto": int8 if it serves on the device, otherwise "own".
Precision = Literal["auto", "own", "fp32", "bf16", "int8"]
Row = tuple[str | None, ...]  # a sentence or two; the second may be None
Tokens = dict[str, list[list[int]]]  # name of an input -> its values for each row
# The indices of its pairs, and their logits: a tensor as long as a GPU may still compute it.
Batch = tuple[list[int], Future[Any]]
WINDOW = 1024  # pairs sorted by length at a time; enough for hardly any padding
_CHARACTERS = 2**20  # of a window: a tokenizer takes about 100 bytes for each
# Tokens of a batch: on a GPU; for each thread if all share it; at most and at least for a thread
# that computes it alone (a core is slower below that).
# A GPU's batches of at most so many tokens are recorded when their shape is seen again: more take
# longer to compute than to launch.
_RECORDED = 4096
_GPU_BATCH, _SHARED_BATCH, _OWN_BATCH, _LEAST_BATCH = 16_384, 512, 1024, 384
_THREAD_BATCHES = 4  # at least for such a thread, so that all end together and little is padded
_USUAL = 32  # tokens of the pair whose time decides on layers and threads
_LEAST_ANSWERS, _MOST_ANSWERS = 2, 5  # the best time counts
_MEASURING = 0.25  # seconds of such answers, after which no other path is tried
_NICE = 15  # of threads with low priority
T = TypeVar("T")

_changing_threads = threading.Lock()


class ScoredPairs(NamedTuple):
    """Logits and lengths of pairs, in the given order."""

    logits: NDArray[np.float32]  # of shape (pairs, classes)
    tokens: NDArray[np.int64]  # of each input, as the model read it, of shape (pairs,)
    cut: NDArray[np.int64]  # tokens of each pair that the model did not see


class _Path(NamedTuple):
    """A way to compute a batch on a processor."""

    layers: Sequence[nn.Module]  # of the model
    mask: MaskFunction  # makes the layers' mask
    threads: int  # of PyTorch that share a single batch
    together: bool = False  # True if all threads compute one batch after another


class Scorer:
    """A loaded model that scores any number of pairs, from any thread.

    On a processor ONNX Runtime computes the layers in fp32, or the whole model in int8, each batch
    with all threads. PyTorch computes one batch a thread, all threads at once, because threads that
    share a batch wait for each other at every layer. In fp32 the fastest layers and threads for one
    pair are chosen when the model is loaded, by measuring answers for half a second.

    Args:
        precision: of its own weights the model takes bf16 if the hardware is faster in it. int8 is
            computed on the CPU, from the file `int8_file` or the one in the folder.
        threads: computing threads of a CPU; 0 for PyTorch's default.
        low_priority: let everything else on these processors go first.
        single_requests: pairs are requested one by one. On a CPU fp32 is then taken before bf16 if
            ONNX Runtime can compute it, because bf16 does not answer a lone pair sooner.
    """

    def __init__(
        self,
        folder: Path,
        max_length: int,
        precision: Precision = "auto",
        device: str = "",
        threads: int = 0,
        low_priority: bool = False,
        int8_file: Path | None = None,
        single_requests: bool = False,
    ) -> None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if precision == "auto":
            precision = "int8" if quantized.serves(folder, device) else "own"
        self.device = torch.device("cpu" if precision == "int8" else device or accelerator or "cpu")
        self._on_cpu = self.device.type == "cpu"
        self.threads = (threads or default_threads()) if self._on_cpu else 1
        self._pool = ThreadPoolExecutor(
            self.threads, "score", lower_priority if low_priority else None
        )
        self._max_length = max_length
        self._tokenizing = threading.Lock()  # a tokenizer fails if it is configured while it reads
        self._tokenizer, self._model = model.load_saved_model(folder)
        self._vocabulary_size = len(self._model.get_input_embeddings().weight)
        self.target = model.saved_target(self._model)
        self.precision: Precision = precision
        self._session: OnnxSession | None = None  # of a model in int8
        recorder = cuda_graphs.recorder_of(self.device)
        self._recorded = None if recorder is None else cuda_graphs.Recorded(self._logits, recorder)
        self._seen: set[tuple[int, ...]] = set()  # shapes of batches that may be recorded
        self._path = _Path([*layers.layer_stack(self._model)], lambda mask: mask, self.threads)
        if precision == "int8":
            self._model, self._path = None, self._path._replace(together=True)
            try:  # in a thread of the pool: the session's threads inherit its priority
                file = int8_file or folder / quantized.MODEL
                self._session = self._pool.submit(OnnxSession, file, self.threads).result()
            except Exception as error:  # ONNX Runtime has exceptions of its own
                raise ModelError(
                    "The int8 file of this model cannot be loaded: {error}",
                    "Make ONNX and int8 again.",
                    error=logs.first_line(error),
                ) from error
        else:
            layers.compute_first_token_only(self._model)
            model.answer_in_fp32(self._model)
            own = precision == "own"
            half = precision == "bf16" or (own and devices.prefers_bf16(self.device))
            if self._on_cpu:
                half = self._choose_path(half, not half or (own and single_requests))
            else:
                self._model.to(self.device, torch.bfloat16 if half else torch.float32)
            self.precision = "bf16" if half else "fp32"
        self.scores(["a"], ["a"])  # fails now if the model is damaged

    @classmethod
    def of_run(cls, run: Run, precision: Precision = "auto", **options: Any) -> Self:
        """Load the best model of a run."""
        return cls(run.best, checkpoints.length_of(run.folder), precision, **options)

    def _choose_path(self, half: bool, onnx: bool) -> bool:
        """Choose the fastest layers and threads: bf16 if `half`, or fp32 if `onnx` and ONNX Runtime
        can compute it. Returns True for bf16."""
        paths = [self._path, self._path._replace(threads=1)]
        built: list[nn.Module] = []
        if onnx:  # in a thread of the pool, as above
            built = self._pool.submit(quick_layers.build_onnx, self._model, self.threads).result()
        if built:
            half = False
            paths.insert(0, _Path(built, layers.attention_bias, 1, together=True))
        elif half and (built := quick_layers.build_bf16(self._model)):
            bias = quick_layers.bf16_bias
            paths = [_Path(built, bias, threads) for threads in (1, self.threads)]
        elif half:
            self._model.to(torch.bfloat16)
        times: list[float] = []  # of an answer, for the paths that there is time to try
        spent = 0.0
        for path in paths if len(paths) > 1 else ():
            self._use(path)
            answers = self._pair_seconds(path.threads)
            times.append(min(answers))
            if (spent := spent + sum(answers)) > _MEASURING:
                break
        self._use(paths[times.index(min(times))] if times else paths[0])
        return half

    def _use(self, path: _Path) -> None:
        layers.put_layers(self._model, path.layers)
        self._path = path

    def _pair_seconds(self, threads: int) -> list[float]:
        """Measure a few answers to a pair, after a first one, which is slow."""
        ids = [0] * min(_USUAL, self._max_length)
        names = self._tokenize(["a"])[0]

        def compute() -> float:
            began = time.perf_counter()
            self._compute({name: [ids] for name in names}, threads)
            return time.perf_counter() - began

        self._pool.submit(compute).result()
        times: list[float] = []
        while len(times) < _LEAST_ANSWERS or (
            len(times) < _MOST_ANSWERS and sum(times) < _MEASURING / 4
        ):
            times.append(self._pool.submit(compute).result())
        return times

    def scores(self, *columns: Sequence[str]) -> NDArray[np.float32]:
        """Return logits of shape (rows, outputs) of one row or more, in the given order, from the
        sentences in one or two columns."""
        rows = zip(*columns, strict=True)
        return np.concatenate([block.logits for block in self.stream(rows)])

    def scores_of_orders(
        self, columns: Sequence[Sequence[str]], both_orders: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Return these logits, and for pairs those of the other order if they are asked for."""
        swapped = self.scores(*columns[::-1]) if both_orders and len(columns) > 1 else None
        return self.scores(*columns), swapped

    def stream(self, rows: Iterable[Row], window: int = WINDOW) -> Iterator[ScoredPairs]:
        """Yield results for every `window` pairs, or fewer long ones, in the given order. Two
        blocks are in memory at a time."""
        windows = itertools.chain(map(self._begin, self._blocks(rows, window)), [None])
        # The next window is read and tokenized while the current one is computed.
        for current, _ in itertools.pairwise(windows):
            if current is not None:
                yield self._end(*current)

    def _blocks(self, rows: Iterable[Row], most: int) -> Iterator[list[Any]]:
        """Yield the sentences of rows, in blocks of `most` rows or about `_CHARACTERS`
        characters."""
        limit = checkpoints.characters_read(self._max_length)
        block: list[tuple[str, ...]] = []
        size = 0
        for row in rows:
            block.append(tuple(text[:limit] for text in row if text is not None))
            size += sum(map(len, block[-1]))
            if len(block) == most or size >= _CHARACTERS:
                yield block
                block, size = [], 0
        if block:
            yield block

    def inputs(self, rows: Iterable[Row]) -> list[dict[str, NDArray[np.int64]]]:
        """Return the model's inputs for each row, of shape (1, length)."""
        inputs = []
        for block in self._blocks(rows, 1):
            padded, mask = self._padded(self._tokenize(block)[0])
            arrays = {name: values.cpu().numpy() for name, values in padded.items()}
            inputs.append(arrays | {"attention_mask": mask.numpy()})
        return inputs

    def free(self) -> None:
        """Free the model and its device's memory, after all pending requests are computed."""
        self._pool.shutdown()
        self._model = self._session = self._recorded = None
        if self.device.type == "cuda":
            with cuda_graphs.Recorder.recording:  # which a wait for the device would spoil
                torch.cuda.empty_cache()

    def _begin(self, block: list[Any]) -> tuple[list[Batch], NDArray[np.int64], NDArray[np.int64]]:
        """Start computing a block. Returns its batches, and the lengths and cut tokens of its
        rows."""
        columns, tokens, cut = self._tokenize(block)
        if not self._on_cpu:
            budget = _GPU_BATCH
        elif self._path.together:
            budget = _SHARED_BATCH * self.threads
        else:
            share = int(tokens.sum()) // (_THREAD_BATCHES * self.threads)
            budget = min(_OWN_BATCH, max(_LEAST_BATCH, share))
        # Inputs of similar length, the longest first, in batches of about `budget` tokens, padded.
        order = np.argsort(-tokens, kind="stable").tolist()
        batches = []
        while order:
            size = max(1, budget // max(1, int(tokens[order[0]])))
            batches.append(order[:size])
            order = order[size:]
        threads = max(1, self._path.threads // len(batches))
        futures = []
        for places in batches:
            rows = {name: [column[at] for at in places] for name, column in columns.items()}
            futures.append((places, self._pool.submit(self._compute, rows, threads)))
        return futures, tokens, cut

    def _end(
        self, batches: list[Batch], tokens: NDArray[np.int64], cut: NDArray[np.int64]
    ) -> ScoredPairs:
        logits = np.empty((len(tokens), self.target.size), np.float32)
        for places, future in batches:
            result = future.result()
            logits[places] = result.cpu() if isinstance(result, torch.Tensor) else result
        if not np.isfinite(logits).all():
            raise ModelError(
                "The model's answers are not finite numbers: its file is damaged.",
                "Train or download it again.",
            )
        return ScoredPairs(logits, tokens, cut)

    def _tokenize(self, block: list[Any]) -> tuple[Tokens, NDArray[np.int64], NDArray[np.int64]]:
        """Return the model's inputs, unpadded, their lengths, and how many tokens of each were
        cut."""
        with self._tokenizing:
            columns = self._tokenizer(
                token_lengths.cut_inputs(self._tokenizer, block, self._max_length),
                truncation=True,
                max_length=self._max_length,
                return_attention_mask=False,
            )
            tokens = np.array([len(ids) for ids in columns["input_ids"]], np.int64)
            cut = np.zeros_like(tokens)
            full = np.flatnonzero(tokens >= self._max_length)
            if len(full):
                texts = [block[at] if len(block[at]) > 1 else block[at][0] for at in full]
                whole = self._tokenizer(texts, verbose=False)["input_ids"]
                cut[full] = [len(ids) for ids in whole] - tokens[full]
        return dict(columns), tokens, cut

    def _compute(self, rows: Tokens, threads: int) -> Any:
        inputs, mask = self._padded(rows)
        if self._session is not None:
            arrays = {name: values.numpy() for name, values in inputs.items()}
            return self._session.run(arrays | {"attention_mask": mask.numpy()})
        if self._on_cpu and torch.get_num_threads() != threads:
            set_own_threads(threads)
        work: cuda_graphs.Work = self._logits
        shape = count, width = tuple(mask.shape)
        if self._recorded is not None and not count & (count - 1) and count * width <= _RECORDED:
            work = self._recorded if shape in self._seen else self._logits
            self._seen.add(shape)
        with torch.inference_mode():
            batch = inputs | {"attention_mask": self._path.mask(self._moved(mask))}
            (logits,) = work(batch)
        logits = logits[: len(rows["input_ids"])]
        return logits.numpy() if self._on_cpu else logits

    def _logits(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (self._model(**batch).logits.float(),)

    def _moved(self, values: torch.Tensor) -> torch.Tensor:
        """Copy values to the device, without waiting for a GPU."""
        if self.device.type == "cuda":
            values = values.pin_memory()
        return values.to(self.device, non_blocking=self.device.type == "cuda")

    def _padded(self, rows: Tokens) -> tuple[dict[str, Any], torch.Tensor]:
        """Pad rows to tensors of shape (batch, longest) on the device, and make the mask on the
        CPU. `tokenizer.pad` would take twenty times as long. If batches are recorded, shapes are
        rounded up, the rows with copies of the first one."""
        padding = self._tokenizer.pad_token_id or 0
        largest = max(itertools.chain([padding], *rows["input_ids"]))
        if largest >= self._vocabulary_size:  # a GPU would be unusable afterwards
            raise ModelError(
                "The tokenizer of this model makes token {largest:,}, and its weights know "
                "{vocabulary_size:,}, from 0.",
                "They do not belong together: choose another model.",
                largest=largest,
                vocabulary_size=self._vocabulary_size,
            )
        lengths = np.array([len(ids) for ids in rows["input_ids"]])
        width = int(lengths.max())
        if self._recorded is not None:
            multiple = cuda_graphs.WIDTH
            width = max(width, min(self._max_length, -(-width // multiple) * multiple))
            count = 1 << (len(lengths) - 1).bit_length()
            if count * width <= _RECORDED:
                more = count - len(lengths)
                rows = {name: column + column[:1] * more for name, column in rows.items()}
                lengths = np.append(lengths, lengths[:1].repeat(more))
        mask = np.arange(width) < lengths[:, None]
        if self._tokenizer.padding_side == "left":
            mask = mask[:, ::-1].copy()
        fill = {"input_ids": padding, "token_type_ids": self._tokenizer.pad_token_type_id}
        inputs = {}
        for name, column in rows.items():
            padded = np.full(mask.shape, fill.get(name, 0), np.int64)
            padded[mask] = np.fromiter(itertools.chain.from_iterable(column), np.int64)
            inputs[name] = self._moved(torch.from_numpy(padded))
        return inputs, torch.from_numpy(mask).long()


def set_own_threads(threads: int) -> None:
    """Set the number of threads with which PyTorch computes for the calling thread.
    `torch.set_num_threads` also sets it for all new threads; that is undone."""
    with _changing_threads:
        default = _in_new_thread(torch.get_num_threads)
        torch.get_num_threads()  # the first question takes the default, also after a number was set
        torch.set_num_threads(threads)
        _in_new_thread(lambda: torch.set_num_threads(default))


def default_threads() -> int:
    """PyTorch's default number of computing threads."""
    with _changing_threads:
        return _in_new_thread(torch.get_num_threads)


def _in_new_thread(function: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def take_one_thread() -> None:
    """Compute with one thread of low priority, because several would wait for each other."""
    set_own_threads(1)
    lower_priority()


def lower_priority() -> None:
    """Let other threads go first. Only Linux has priorities of threads, which new threads
    inherit."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
