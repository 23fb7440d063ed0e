"""What a benchmark's figures were taken on; each prints it first."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

# Which of a processor's instruction sets torch's kernels differ by.
SETS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "sve", "bf16")


def described() -> str:
    """The processor, its cores and the instruction sets it computes with."""
    text = _cpuinfo()
    model = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.+)", text, re.MULTILINE)
    known = set(flags[1].split()) if flags else set()
    name = model[1] if model else platform.processor() or platform.machine()
    sets = " ".join(one for one in SETS if one in known) or "instruction sets unknown"
    return f"processor: {name}, {os.cpu_count()} cores, {sets}"


def _cpuinfo() -> str:
    """Linux's description of the processors; empty elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
