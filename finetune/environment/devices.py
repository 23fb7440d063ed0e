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
    """Whether a device computes in bf16: GPUs from Ampere on, CPUs with AVX512-BF16 or AMX; None is
    the accelerator, or the CPU where there is none."""
    import torch

    present = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    match (device or present).type:
        case "cuda":
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        case "cpu":
            return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False
