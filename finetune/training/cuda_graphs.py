"""CUDA graphs: work on a batch, recorded once for each shape and replayed by a single launch.

A processor takes longer to launch the hundreds of kernels of a small step than a GPU to compute
them. What is recorded must not wait for the device, and reads and writes the same memory at every
replay. Each new graph is compared with the work that it stands for before it is used.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor

from finetune.config import RunConfig
from finetune.environment import logs
from finetune.hub_errors import chain

Batch = dict[str, Tensor]
Outputs = tuple[Tensor, ...]
Work = Callable[..., Outputs]  # on a batch and constants

WIDTH, _WIDTHS = 16, 16  # widths of batches: multiples of so many tokens, and how many widths
_MOST_WIDTHS = 32  # if a configuration decides on them; each takes a graph
_WARM_UPS = 3  # runs before the first recording, as PyTorch's notes do
# How far results of a graph may be from those of the work, relative to their size: it adds in
# another order at most. Another draw of random numbers changes a gradient by a third.
CLOSE, CLOSE_IN_HALF = 1e-3, 3e-2
_TRIAL_RATE = 1e-3  # the learning rate at which steps are compared


class Recorder:
    """Records work on a GPU, on one stream and in one pool of memory: its graphs are replayed one
    after another, and none needs what another has left there."""

    # One recording at a time: it begins with a wait for the whole device, and what another thread
    # runs on its stream, of which PyTorch has 32, would be recorded too.
    recording = threading.Lock()

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Callable[[], object]) -> None:
        """Run work aside, which initialises what may not be while recording. Draws no random
        number that the caller would have drawn."""
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
        """Record work without running it. Returns its replay and the outputs that it overwrites."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        generator = torch.cuda.default_generators[self._device.index or 0]
        random = generator.clone_state()
        try:
            # Other threads may use the device meanwhile.
            with (
                self.recording,
                torch.cuda.graph(
                    graph, self._pool, self._stream, capture_error_mode="thread_local"
                ),
            ):
                outputs = work()
        except Exception:
            generator.graphsafe_set_state(random)  # its own still belongs to the recording
            raise
        finally:
            torch.cuda.set_stream(current)  # which `graph` does not do if its end fails
        return graph.replay, outputs


class _Graph(NamedTuple):
    inputs: Batch
    replay: Callable[[], None]
    outputs: Outputs


class Recorded:
    """Work on a batch, recorded when a shape is first seen. If that fails, or if the graph does not
    do what the work does, there are no graphs from then on.

    Args:
        work: gets a batch and constants, which are recorded as they are. Returns tensors.
        log: gets a line for each recording.
        given_up: gets the reason if there are no graphs from then on.
        close: how far results may be from those of the work, relative to their size.
    """

    def __init__(
        self,
        work: Work,
        recorder: Recorder,
        log: Callable[[str], object] = lambda line: None,
        given_up: Callable[[str], object] = lambda reason: None,
        close: float = CLOSE_IN_HALF,
    ) -> None:
        self._work, self._log, self._given_up, self._close = work, log, given_up, close
        self._recorder: Recorder | None = recorder
        self._graphs: dict[Any, _Graph] = {}

    def __call__(self, batch: Batch, *constants: Any) -> Outputs:
        if self._recorder is not None:
            try:
                return self._replay(self._graph(self._recorder, batch, constants), batch)
            except Exception as error:  # of CUDA, of a model's code, or for want of memory
                # A recording that has failed fails again at its end: the first cause says more.
                reason = f"{type(error).__name__}: {logs.first_line(chain(error)[-1])}"
            self.stop(reason)
        return self._work(batch, *constants)

    def stop(self, reason: str = "") -> None:
        """Do without graphs from now on, and free those there are."""
        if self._recorder is not None:
            self._recorder = None
            self._graphs.clear()
            self._recover()
            if reason:
                print(f"warning: going on without CUDA graphs: {reason}", flush=True)
                self._given_up(reason)

    def _graph(self, recorder: Recorder, batch: Batch, constants: tuple[Any, ...]) -> _Graph:
        shapes = tuple((name, tensor.shape, tensor.dtype) for name, tensor in batch.items())
        key = (shapes, constants)
        if key not in self._graphs:
            began = time.monotonic()
            graph = self._record(recorder, batch, constants)
            farthest = self._compare(recorder, graph, batch, constants)
            self._graphs[key] = graph
            shape = " x ".join(map(str, max(batch.values(), key=torch.numel).shape))
            self._log(
                f"CUDA graph {len(self._graphs)}: {shape}, {time.monotonic() - began:.2f} s, "
                f"equal to {farthest:.0e}"
            )
        return self._graphs[key]

    def _record(self, recorder: Recorder, batch: Batch, constants: tuple[Any, ...]) -> _Graph:
        # Not the batch itself: a graph that would read it, instead of its copy, is found to differ.
        inputs = {name: torch.zeros_like(tensor) for name, tensor in batch.items()}
        self._prepare()
        for _ in range(1 if self._graphs else _WARM_UPS):
            recorder.warm_up(lambda: self._warm_up(inputs, constants))
        with self._recording():
            return _Graph(inputs, *recorder.record(lambda: self._work(inputs, *constants)))

    def _replay(self, graph: _Graph, batch: Batch) -> Outputs:
        for name, tensor in batch.items():
            graph.inputs[name].copy_(tensor, non_blocking=True)
        self._before_replay()
        results = tuple(map(torch.empty_like, graph.outputs))
        graph.replay()  # if this fails, nothing has changed yet
        for result, output in zip(results, graph.outputs, strict=True):
            result.copy_(output)
        return results

    def _compare(
        self, recorder: Recorder, graph: _Graph, batch: Batch, constants: tuple[Any, ...]
    ) -> float:
        """Do the work on a batch, then replay its graph from the same state, and restore that.
        Returns how far the results are apart; RuntimeError if they differ."""
        expected: list[list[Tensor]] = []
        distances: list[float] = []

        def attempt(work: Callable[[], Outputs]) -> None:
            # The numbers drawn are others than while recording.
            torch.rand(1, device=next(iter(batch.values())).device)
            with self._restoring() as changed:
                results = [*([result] for result in work()), *changed()]
                if expected:
                    distances.extend(map(_distance, expected, results))
                else:
                    expected.extend([tensor.clone() for tensor in group] for group in results)

        recorder.warm_up(lambda: attempt(lambda: self._work(batch, *constants)))
        recorder.warm_up(lambda: attempt(lambda: self._replay(graph, batch)))
        farthest = max(distances)
        if not farthest <= self._close:
            raise RuntimeError(f"a graph's results differ from its work's by {farthest:.1e}")
        return farthest

    def _prepare(self) -> None:
        """Create what may not be created while recording."""

    def _warm_up(self, inputs: Batch, constants: tuple[Any, ...]) -> object:
        """Do the same work without changing anything."""
        return self._work(inputs, *constants)

    def _recording(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _restoring(self) -> Iterator[Callable[[], list[list[Tensor]]]]:
        """Restore afterwards what the work changes. Yields a function that returns what was
        changed, in groups that are compared as one."""
        yield list

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
        options: of `Recorded`.
    """

    def __init__(
        self,
        work: Work,
        recorder: Recorder,
        loss: Callable[[Batch], Tensor],
        optimizer: Any,
        scaler: torch.amp.GradScaler | None,
        keeps_gradients: bool,
        **options: Any,
    ) -> None:
        super().__init__(work, recorder, **options)
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

    @contextlib.contextmanager
    def _restoring(self) -> Iterator[Callable[[], list[list[Tensor]]]]:
        """Restore weights, states, gradients and the scale. What is compared is how far the weights
        moved at a rate of its own, and the gradients with their means."""
        groups, states = self._optimizer.param_groups, self._optimizer.state
        rates = [group["lr"] for group in groups]
        weights = [parameter.detach() for parameter in self._trained]
        means, squares, steps = (
            [states[parameter][name] for parameter in self._trained]
            for name in ("exp_avg", "exp_avg_sq", "step")
        )
        gradients = [p.grad for p in self._trained if p.grad is not None]
        changing = [*weights, *means, *squares, *steps, *gradients]
        before = [tensor.clone() for tensor in changing]
        scale = None if self._scaler is None else self._scaler.state_dict()

        def changed() -> list[list[Tensor]]:
            ways = [(now - old).norm() for now, old in zip(weights, before, strict=False)]
            return [[torch.stack(ways).norm()], means + gradients]

        for group in groups:
            group["lr"] = _TRIAL_RATE
        try:
            yield changed
        finally:
            for tensor, value in zip(changing, before, strict=True):
                tensor.copy_(value)
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
            if self._scaler is not None and scale is not None:
                self._scaler.load_state_dict(scale)

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


def _distance(expected: list[Tensor], found: list[Tensor]) -> float:
    """Return the length of the difference of two groups of tensors, relative to that of the first.
    Numbers that are not finite are equal if they are the same."""
    pairs = [
        (one.float().nan_to_num(), other.float().nan_to_num())
        for one, other in zip(expected, found, strict=True)
    ]
    apart = torch.stack([(one - other).norm() for one, other in pairs]).norm()
    return float(apart / torch.stack([one.norm() for one, _ in pairs]).norm().clamp(min=1e-30))


def recorder_of(device: torch.device) -> Recorder | None:
    """Return a recorder for a GPU; None for another device."""
    return Recorder(device) if device.type == "cuda" else None


def recorder_for(config: RunConfig, accelerator: Accelerator, model: Any) -> Recorder | None:
    """Return the recorder of a run; None without a GPU, or if its steps cannot be recorded."""
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
