"""The accelerators of this machine, found without torch: a queue needs to know, a page to open.

Each trains one run at a time; a machine without any trains one run on its processors.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from typing import Any


def list_accelerators() -> tuple[str, ...]:
    """The ids of the CUDA devices this process may use; empty where there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return _installed()
    return tuple(id_.strip() for id_ in visible.split(",") if id_.strip() not in ("", "-1"))


@cache
def _installed() -> tuple[str, ...]:
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip().isdecimal())


def computes_bf16(device: Any = None) -> bool:
    """Whether the hardware computes in bf16: GPUs from Ampere on, CPUs with AVX512-BF16 or AMX.

    Args:
        device: a `torch.device`; None for the accelerator, or the CPU where there is none.
    """
    import torch

    kind = device.type if device is not None else "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if kind != "cpu" or (device is None and torch.accelerator.is_available()):
        return False
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
