"""What the benchmarks share: the processor their figures were taken on, and sides in turns."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path

# Which of a processor's instruction sets torch's kernels differ by.
SETS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "sve", "bf16")


def described() -> str:
    """The processor, its cores and the instruction sets it computes with; each benchmark prints it
    first."""
    information = Path("/proc/cpuinfo")
    text = information.read_text(encoding="utf-8") if information.exists() else ""
    model = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.+)", text, re.MULTILINE)
    name = model[1] if model else platform.processor() or platform.machine()
    sets = [name for name in SETS if flags and name in flags[1].split()]
    return f"processor: {name}, {os.cpu_count()} cores, {' '.join(sets) or 'instructions unknown'}"


def alternate(
    sides: Sequence[str], rounds: int, measure: Callable[[str], float], unit: str
) -> dict[str, list[float]]:
    """What `measure` says of each side in every round, the sides in the other order every other
    round; each figure is printed as it comes."""
    figures: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in list(sides)[:: -1 if number % 2 else 1]:
            figures[side].append(measure(side))
            print(f"round {number + 1} {side:<16}{figures[side][-1]:>8.1f} {unit}", flush=True)
    return figures
