"""How fast this machine trains: measured in a worker, for estimates before the first run."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version

from finetune import disk
from finetune.environment import devices, project
from finetune.errors import StoreError

_SECONDS = 0.1  # of each of the measurements
_LEAST = 3  # passes of each
_HEADS = 12
_WEIGHTS = 4 * 2**20  # that are updated, more than a processor's cache has of them


@dataclass(frozen=True)
class Pace:
    """The time of an encoder layer's forward and backward pass: the FLOPs over a rate, and no less
    than `overhead`. On a GPU it is a CUDA graph's, as the steps of a run are."""

    overhead: float  # seconds of the smallest batch
    full: float  # FLOP/s in fp32
    half: float  # FLOP/s in the 16 bits of `mixed_precision="auto"`; `full` if it chooses fp32
    updates: float = 0.0  # weights that AdamW changes in a second; 0 on a GPU, where it is quick


def known_pace() -> Pace | None:
    """Return what was measured on this machine; None if nothing was."""
    with contextlib.suppress(KeyError, TypeError):
        return Pace(**disk.read_json(devices.measurements_file())[_key()])
    return None


def measure_pace() -> None:
    """Measure this machine and keep its best measurement, because it may be busy now. Takes 0.4 s.
    A GPU is measured once, in a process of its own, because a CUDA context would stay."""
    if devices.list_accelerators():
        if known_pace() is not None:
            return
        subprocess.Popen(
            [sys.executable, "-m", "finetune.environment.pace"], cwd=project.ROOT,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    else:
        _record(_measure("cpu"))


def _key() -> str:
    on_gpu = bool(devices.list_accelerators())
    name = f"{devices.accelerator_name()} by graphs" if on_gpu else devices.processor_name()
    return f"training, {name}, {os.cpu_count()} cores, torch {version('torch')}"


def _record(pace: Pace) -> None:
    file, former = devices.measurements_file(), known_pace() or pace
    pace = Pace(
        min(pace.overhead, former.overhead),
        max(pace.full, former.full),
        max(pace.half, former.half),
        max(pace.updates, former.updates),
    )
    with contextlib.suppress(OSError, StoreError):
        file.parent.mkdir(parents=True, exist_ok=True)
        measured = disk.read_json(file) | {_key(): asdict(pace)}
        disk.write_atomically(file, json.dumps(measured, indent=1))


def layer_flops(hidden: int, wide: int, tokens: int, length: int) -> float:
    """Count the operations of a layer's forward pass over tokens in rows of a length."""
    return tokens * (2.0 * (4 * hidden**2 + 2 * hidden * wide) + 4.0 * length * hidden)


def _measure(kind: str) -> Pace:
    """Time a BERT layer: one row for the overhead, a batch for the rate; on a CPU also AdamW."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    hidden, rows, length = (384, 16, 32) if kind == "cpu" else (768, 32, 64)
    layer = torch.nn.TransformerEncoderLayer(
        hidden, _HEADS, 4 * hidden, dropout=0.0, activation="gelu", batch_first=True, device=kind
    )

    halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
    precision = halves.get(devices.trains_in())

    def least(run: Callable[[], object]) -> float:
        """The least of the times: the machine may be busy."""
        taken: list[float] = []
        ends = time.perf_counter() + _SECONDS
        while (began := time.perf_counter()) < ends or len(taken) < _LEAST:
            run()
            if kind != "cpu":
                torch.accelerator.synchronize()
            taken.append(time.perf_counter() - began)
        return min(taken)

    def seconds(rows: int, dtype: torch.dtype | None) -> float:
        batch = torch.ones((rows, length, hidden), device=kind, requires_grad=True)

        def work() -> None:
            with torch.autocast(kind, dtype, enabled=dtype is not None, cache_enabled=False):
                answer = layer(batch)
            answer.float().sum().backward()

        def plain() -> None:  # as `training.model.choose_attention` chooses
            with sdpa_kernel(SDPBackend.MATH):
                work()

        return least(_recorded(work) if kind != "cpu" else plain if dtype is not None else work)

    flops = 3 * layer_flops(hidden, 4 * hidden, length * rows, length)
    rates = {dtype: flops / seconds(rows, dtype) for dtype in {None, precision}}
    updates = 0.0
    if kind == "cpu":
        weights = torch.zeros(_WEIGHTS, requires_grad=True)
        weights.grad = torch.ones(_WEIGHTS)
        updates = _WEIGHTS / least(torch.optim.AdamW([weights], fused=True).step)
    return Pace(seconds(1, precision), rates[None], rates[precision], updates)


def _recorded(work: Callable[[], None]) -> Callable[[], None]:
    """Record work as a CUDA graph; returns its replay."""
    import torch

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_LEAST):
            work()
    with torch.cuda.graph(graph, stream=stream):  # waits for the device first
        work()
    return graph.replay


if __name__ == "__main__":
    _record(_measure("cuda"))
