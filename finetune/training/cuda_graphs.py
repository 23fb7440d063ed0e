"""CUDA graphs: work on a batch, recorded once for each shape and replayed by a single launch.

A processor takes longer to launch the hundreds of kernels of a small step than a GPU to compute
them. What is recorded must not wait for the device, and reads and writes the same memory at every
replay.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor

from finetune.config import RunConfig
from finetune.hub_errors import first_line

Batch = dict[str, Tensor]
Outputs = tuple[Tensor, ...]
Work = Callable[..., Outputs]  # on a batch and constants

WIDTH, _WIDTHS = 16, 16  # widths of batches: multiples of so many tokens, and how many widths
_MOST_WIDTHS = 32  # if a configuration decides on them; each takes a graph
_WARM_UPS = 3  # runs before the first recording, as PyTorch's notes do


class Recorder(Protocol):
    """Records work on a device."""

    def warm_up(self, work: Callable[[], object]) -> None:
        """Run work aside, which initialises what may not be while recording. Draws no random
        number that the caller would have drawn."""

    def record(self, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        """Record work without running it. Returns a function that runs it, and its outputs, which
        each run overwrites."""


class CudaRecorder:
    """Records on one stream, in one pool of memory: its graphs are replayed one after another, and
    none needs what another has left there."""

    # One recording at a time: it begins with a wait for the whole device, and what another thread
    # runs on its stream, of which PyTorch has 32, would be recorded too.
    recording = threading.Lock()

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Callable[[], object]) -> None:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with (
                self.recording,
                torch.cuda.stream(self._stream),
                torch.random.fork_rng([self._device]),
            ):
                work()
        finally:
            current.wait_stream(self._stream)

    def record(self, work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        try:
            # Other threads may use the device meanwhile.
            with (
                self.recording,
                torch.cuda.graph(
                    graph, self._pool, self._stream, capture_error_mode="thread_local"
                ),
            ):
                outputs = work()
        finally:
            torch.cuda.set_stream(current)  # which `graph` does not do if its end fails
        return graph.replay, outputs


class _Graph(NamedTuple):
    inputs: Batch
    replay: Callable[[], None]
    outputs: Outputs


class Recorded:
    """Work on a batch, recorded when a shape is first seen. If that fails, the work is done without
    a graph from then on, and the log says why.

    Args:
        work: gets a batch and constants, which are recorded as they are. Returns tensors.
        log: gets a line for each recording.
    """

    def __init__(
        self,
        work: Work,
        recorder: Recorder,
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._work, self._log = work, log
        self._recorder: Recorder | None = recorder
        self._graphs: dict[Any, _Graph] = {}

    def __call__(self, batch: Batch, *constants: Any) -> Outputs:
        recorder = self._recorder
        graph = None if recorder is None else self._graph(recorder, batch, constants)
        if graph is None:
            return self._work(batch, *constants)
        for name, tensor in batch.items():
            graph.inputs[name].copy_(tensor, non_blocking=True)
        self._before_replay()
        graph.replay()
        return tuple(output.clone() for output in graph.outputs)

    def _graph(self, recorder: Recorder, batch: Batch, constants: tuple[Any, ...]) -> _Graph | None:
        """Return the graph of a batch's shape; None if it cannot be recorded."""
        shapes = tuple((name, tensor.shape, tensor.dtype) for name, tensor in batch.items())
        key = (shapes, constants)
        try:
            if key not in self._graphs:
                self._graphs[key] = self._record(recorder, batch, constants)
            return self._graphs[key]
        except Exception as error:  # of CUDA, of a model's code, or for want of memory
            reason = f"{type(error).__name__}: {first_line(error)}"
        self._recorder = None
        self._graphs.clear()
        self._recover()
        print(f"warning: going on without CUDA graphs: {reason}", flush=True)
        return None

    def _record(self, recorder: Recorder, batch: Batch, constants: tuple[Any, ...]) -> _Graph:
        began = time.monotonic()
        inputs = {name: tensor.clone() for name, tensor in batch.items()}
        self._prepare()
        for _ in range(1 if self._graphs else _WARM_UPS):
            recorder.warm_up(lambda: self._warm_up(inputs, constants))
        with self._recording():
            replay, outputs = recorder.record(lambda: self._work(inputs, *constants))
        shape = " x ".join(map(str, max(inputs.values(), key=torch.numel).shape))
        self._log(f"CUDA graph {len(self._graphs) + 1}: {shape}, {time.monotonic() - began:.2f} s")
        return _Graph(inputs, replay, outputs)

    def _prepare(self) -> None:
        """Create what may not be created while recording."""

    def _warm_up(self, inputs: Batch, constants: tuple[Any, ...]) -> object:
        """Do the same work without changing anything."""
        return self._work(inputs, *constants)

    def _recording(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def _before_replay(self) -> None:
        """Update what the graph reads besides the batch."""

    def _recover(self) -> None:
        """Undo what a recording that failed has left."""


class RecordedStep(Recorded):
    """A training step with AdamW: the work adds a batch's gradient and may step.

    The states of AdamW and the rates lie on the device; the schedule sees its own numbers.

    Args:
        loss: computes the loss of a batch.
        optimizer: `AdamW(fused=True)`, as Accelerate wraps it.
        scaler: scales the loss in fp16.
        keeps_gradients: several batches make a step, so gradients stay in place between them. If
            not, each graph has its own.
    """

    def __init__(
        self,
        work: Work,
        recorder: Recorder,
        loss: Callable[[Batch], Tensor],
        optimizer: Any,
        scaler: torch.amp.GradScaler | None,
        keeps_gradients: bool,
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        super().__init__(work, recorder, log)
        self._loss, self._optimizer, self._scaler = loss, optimizer, scaler
        self._keeps_gradients = keeps_gradients
        self._trained = [p for group in optimizer.param_groups for p in group["params"]]
        device = self._trained[0].device
        self._rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]

    def _prepare(self) -> None:
        for parameter in self._trained:
            if not (state := self._optimizer.state[parameter]):
                state["step"] = torch.zeros((), device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        if self._scaler is not None:
            self._scaler.scale(self._rates[0])  # creates the scale

    def _warm_up(self, inputs: Batch, constants: tuple[Any, ...]) -> object:
        # Leaves the gradients alone, which may be those of the step's earlier batches.
        gradients = torch.autograd.grad(self._loss(inputs), self._trained, allow_unused=True)
        if self._keeps_gradients:
            for parameter, gradient in zip(self._trained, gradients, strict=True):
                if gradient is not None and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        return None

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        groups = self._optimizer.param_groups
        before = [{name: group[name] for name in ("lr", "capturable")} for group in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            group.update(lr=rate, capturable=True)
        try:
            yield
        finally:
            for group, values in zip(groups, before, strict=True):
                group.update(values)

    def _before_replay(self) -> None:
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            rate.fill_(group["lr"])

    def _recover(self) -> None:
        if not self._keeps_gradients:
            for parameter in self._trained:
                parameter.grad = None
        if self._scaler is not None:
            # It may believe that this step's gradients are divided by the scale already.
            self._scaler._per_optimizer_states.clear()
            for name in ("grad_scale", "found_inf"):
                self._optimizer.optimizer.__dict__.pop(name, None)


def recorder_of(device: torch.device) -> Recorder | None:
    """Return a recorder for a GPU; None for another device."""
    return CudaRecorder(device) if device.type == "cuda" else None


def recorder_for(config: RunConfig, accelerator: Accelerator, model: Any) -> Recorder | None:
    """Return the recorder of a run; None without a GPU, or if its steps cannot be recorded, which
    the log then says."""
    if accelerator.device.type != "cuda":
        return None
    if reason := obstacle(config, accelerator, model):
        print(f"training without CUDA graphs: {reason}", flush=True)
        return None
    return recorder_of(accelerator.device)


def obstacle(config: RunConfig, accelerator: Accelerator, model: Any) -> str:
    """Return why the steps of a run cannot be recorded; empty if they can."""
    widths = math.ceil(config.max_length / width_multiple(config))
    # The draw of a layer to leave out is the processor's, and would be recorded as it fell.
    leaves_out = [
        name for name, value in vars(model.config).items() if "layerdrop" in name and value
    ]
    reasons = {
        "cuda_graphs is off": config.cuda_graphs == "off",
        "several processes share the work": accelerator.distributed_type != DistributedType.NO,
        "torch_compile is on": config.torch_compile,
        f"optim is {config.optim}, and only adamw_torch_fused can be recorded": (
            config.optim != "adamw_torch_fused"
        ),
        "gradient_checkpointing is on, which reads the state of random numbers": (
            config.gradient_checkpointing
        ),
        f"the model has {', '.join(leaves_out)}": bool(leaves_out),
        f"pad_to_multiple_of is {config.pad_to_multiple_of}: batches of {widths} widths": (
            widths > _MOST_WIDTHS
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def width_multiple(config: RunConfig) -> int:
    """Return what widths of batches are rounded up to for a GPU: few widths, few graphs."""
    if config.padding == "max_length":
        return config.max_length
    if config.pad_to_multiple_of >= 0:
        return max(1, config.pad_to_multiple_of)
    return max(WIDTH, 8 * math.ceil(config.max_length / (8 * _WIDTHS)))
