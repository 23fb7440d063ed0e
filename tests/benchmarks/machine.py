"""What the benchmarks share: the machine their figures were taken on, a clock, sides in turns."""

from __future__ import annotations

import argparse
import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from finetune.environment import devices

# Which of a processor's instruction sets torch's kernels differ by.
SETS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "sve", "bf16")


MRPC = Path(__file__).resolve().parents[3] / "shared" / "data" / "glue" / "mrpc"


_measuring = 1.0  # seconds that a rate is measured
# A classifier that is trained in a moment.
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}


def parsed(parser: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """Parse the command line; `--quick` sets the values of `quick` in place of those given."""
    about = "run through in seconds, with figures that mean nothing"
    parser.add_argument("--quick", action="store_true", help=about)
    global _measuring
    args = parser.parse_args()
    if args.quick:
        vars(args).update(quick)
        _measuring = 0.01
    return args


def random_bert(folder: Path, **shape: int) -> Path:
    """A folder with a classifier of BERT base's size, or of another shape, and the bundled
    checkpoint's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    from finetune.data import checkpoints

    tokenizer = AutoTokenizer.from_pretrained(checkpoints.bundled_folder())
    tokenizer.save_pretrained(folder)
    config = BertConfig(vocab_size=len(tokenizer), **shape)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def described() -> str:
    """The processor, its cores, the instruction sets it computes with, the GPU, and the rates of a
    large product; each benchmark prints it first."""
    import torch

    information = Path("/proc/cpuinfo")
    text = information.read_text(encoding="utf-8") if information.exists() else ""
    model = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.+)", text, re.MULTILINE)
    name = model[1] if model else platform.processor() or platform.machine()
    sets = [name for name in SETS if flags and name in flags[1].split()]
    has_bf16 = bool({"avx512_bf16", "amx_bf16"} & set(sets))
    parts = [name, f"{os.cpu_count()} cores", " ".join(sets) or "instructions unknown"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
        has_bf16 = devices.prefers_bf16()
    precisions = ["fp32", "bf16"] if has_bf16 else ["fp32"]
    rates = ", ".join(f"{matmul_rate(name) / 1e9:.0f} GFLOP/s in {name}" for name in precisions)
    return f"processor: {', '.join(parts)}; {rates}"


def clock() -> float:
    """Seconds, read once the GPU has computed what it was given."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def matmul_rate(precision: str) -> float:
    """FLOP/s of a large square product in `bf16` or `fp32`, on the GPU where there is one."""
    import torch
    from torch.utils.benchmark import Timer

    device, size = ("cuda", 8192) if torch.cuda.is_available() else ("cpu", 2048)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    matrix = torch.randn(size, size, device=device, dtype=dtype)
    timer = Timer("x @ x", globals={"x": matrix}, num_threads=torch.get_num_threads())
    return 2 * size**3 / float(timer.blocked_autorange(min_run_time=_measuring).median)


def alternate(
    sides: Sequence[str], rounds: int, measure: Callable[[str], float], unit: str
) -> dict[str, list[float]]:
    """What `measure` says of each side in every round, the sides in the other order every other
    round; each figure is printed as it comes."""
    figures: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in list(sides)[:: -1 if number % 2 else 1]:
            figures[side].append(measure(side))
            print(f"round {number + 1} {side:<28}{figures[side][-1]:>8.1f} {unit}", flush=True)
    return figures
