"""The accelerators of this machine, found without importing torch, for the queue and the page.

Each accelerator trains one run at a time; a machine without any trains one run on its processors.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from finetune import disk
from finetune.environment import caches
from finetune.errors import StoreError

if TYPE_CHECKING:
    import torch

_LEAST_GAIN = 1.2  # speedup from which bf16, which is less exact, is used on a processor


def list_accelerators() -> tuple[str, ...]:
    """The ids of the CUDA devices that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(number for number in _query("index") if number.isdecimal())
    return tuple(id_.strip() for id_ in visible.split(",") if id_.strip() not in ("", "-1"))


@cache
def _query(field: str) -> list[str]:
    """Ask nvidia-smi once for a field of each CUDA device; empty if there is none."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines()]


def choose_tokenizer_threads() -> None:
    """Let this process's tokenizers use all cores if a GPU computes the rest, otherwise one."""
    parallel = "true" if list_accelerators() else "false"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", parallel)


def accelerator_name() -> str:
    """The name of the first CUDA device; "" if there is none."""
    return next(iter(_query("name")), "")


def accelerator_memory() -> int:
    """Bytes of the first CUDA device's memory; 0 if there is none."""
    mebibytes = next(iter(_query("memory.total")), "") if list_accelerators() else ""
    return int(mebibytes) * 2**20 if mebibytes.isdecimal() else 0


def prefers_bf16(device: Any = None) -> bool:
    """True if a device should compute in bf16: GPUs from Ampere on, and processors that were
    measured to be faster in it. None means the accelerator, or the CPU if there is none."""
    import torch

    present = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    match (device or present).type:
        case "cuda":
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        case "cpu":
            return processor_prefers_bf16(_measure_bf16_gain)
    return False


def trains_in(device: Any = None) -> str:
    """Return Accelerate's word for the precision in which a device trains fastest: bf16 if it
    prefers that, fp16 on older GPUs with tensor cores (Volta and Turing, such as a T4), or no."""
    import torch

    if prefers_bf16(device):
        return "bf16"
    present = device or torch.accelerator.current_accelerator(check_available=True)
    is_cuda = present is not None and present.type == "cuda"
    return "fp16" if is_cuda and torch.cuda.get_device_capability(present) >= (7, 0) else "no"


def processor_prefers_bf16(measure: Callable[[], float] | None = None) -> bool:
    """True if this machine's processor should compute in bf16. If it was not measured yet,
    `measure` is called; without `measure`, its flags decide. Some processors have the instructions
    but are slower with them. The measurement is kept in the user's cache, so that all processes and
    a resumed run agree."""
    name, flags = _processor()
    if not {"avx512_bf16", "amx_bf16"} & flags:
        return False
    file = measurements_file()
    gains = disk.read_json(file)
    key = f"{name}, {os.cpu_count()} cores, torch {version('torch')}"
    if not isinstance(gains.get(key), float):
        if measure is None:
            return True
        gains[key] = measure()
        with contextlib.suppress(OSError, StoreError):
            file.parent.mkdir(parents=True, exist_ok=True)
            disk.write_atomically(file, json.dumps(gains, indent=1))
    return bool(gains[key] >= _LEAST_GAIN)


def measurements_file() -> Path:
    """The file of this machine's measurements, alone in a folder that workers may write."""
    return caches.user_cache() / "finetune" / "measured" / "processors.json"


def processor_name() -> str:
    """The name of the processor and its instruction sets for 8 and 16 bits."""
    name, flags = _processor()
    known = ("avx2", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "asimddp")
    return " ".join([name or platform.machine(), *(flag for flag in known if flag in flags)])


def has_vnni() -> bool:
    """True if the processor has instructions that sum products of 8-bit numbers in 32 bits."""
    return bool({"avx512_vnni", "avx_vnni", "asimddp"} & _processor()[1])


@cache
def _processor() -> tuple[str, set[str]]:
    """The name and the instruction sets of the processor; empty except on Linux."""
    information = Path("/proc/cpuinfo")
    text = information.read_text(errors="replace") if information.exists() else ""
    lines = dict(re.findall(r"^(model name|flags|Features)\s*: (.+)", text, re.MULTILINE))
    flags = lines.get("flags") or lines.get("Features") or ""
    return lines.get("model name", ""), set(flags.split())


def _measure_bf16_gain() -> float:
    """Measure the speed of a layer's product in bf16, relative to fp32, in a tenth of a second."""
    import torch

    seconds = {torch.float32: math.inf, torch.bfloat16: math.inf}
    for _ in range(20):  # alternately, the best of each: the machine may be busy
        for dtype in seconds:
            rows, weights = (torch.ones(size, dtype=dtype) for size in ((256, 384), (1536, 384)))
            began = time.perf_counter()
            torch.nn.functional.linear(rows, weights)
            seconds[dtype] = min(seconds[dtype], time.perf_counter() - began)
    return seconds[torch.float32] / seconds[torch.bfloat16]


_EVERY = 1.0  # seconds between two measurements


class UsageMeter:
    """Measures one device, at most once a second, without waiting for its work: `busy`, the share
    of a GPU's time or of all processor cores in use, and `memory`, the bytes that PyTorch holds on
    a GPU, or the process without one; None if unknown."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._due = device, 0.0
        self._since = time.monotonic(), time.process_time()
        self._latest: dict[str, float | None] = {}

    def read(self) -> dict[str, float | None]:
        """Return the latest measurement, a new one if it is older than a second."""
        if time.monotonic() < self._due:
            return self._latest
        if self._device.type == "cuda":
            import torch

            try:
                busy = torch.cuda.utilization(self._device) / 100
            except Exception:  # the driver's library is missing, or does not tell this device
                busy = None
            self._latest = {"busy": busy, "memory": torch.cuda.memory_reserved(self._device)}
        else:
            now, memory = (time.monotonic(), time.process_time()), None
            passed, worked = (new - old for old, new in zip(self._since, now, strict=True))
            self._since = now
            with contextlib.suppress(psutil.Error, OSError):  # one of several confined processes
                memory = psutil.Process().memory_info().rss
            busy = min(1.0, worked / max(passed, 1e-6) / (os.cpu_count() or 1))
            self._latest = {"busy": busy, "memory": memory}
        self._due = time.monotonic() + _EVERY
        return self._latest


def give_back_freed_memory() -> None:
    """Give freed memory that glibc keeps for this process back to the system."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
