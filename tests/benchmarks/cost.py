"""How far off the memory estimate is: `python -m tests.benchmarks.cost [--cases 9] [--quick]`.

Each configuration trains the bundled checkpoint for ten steps in a process of its own, all pairs
padded to `max_length`; its peak of resident memory is compared with the cost. Without a GPU
only: there it is the system's memory that is measured. The ratio is the smaller of the two over the
larger, of the worst configuration: 1 is exact.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

from finetune import config
from finetune.config import RunConfig
from finetune.environment import devices
from finetune.jobs import memory as training_memory
from tests.benchmarks import machine, memory

CASES: dict[str, dict[str, Any]] = {
    "batch 8": {"per_device_train_batch_size": 8},
    "batch 32": {},
    "batch 64": {"per_device_train_batch_size": 64},
    "batch 32, fp32": {"mixed_precision": "no"},
    "batch 32, fp32, dropout": {"mixed_precision": "no", "dropout": 0.1},
    "batch 32, 256 tokens": {"max_length": 256},
    "as the course": config.PRESETS["As the course"] | {"per_device_train_batch_size": 8},
    "batch 32, LoRA": {"use_lora": True},
    "batch 32, recomputed": {"gradient_checkpointing": True},
}
SHORT: dict[str, Any] = {
    "max_eval_samples": 16, "padding": "max_length", "per_device_train_batch_size": 32,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=len(CASES), help="only so many of them")
    parser.add_argument("--steps", type=int, default=10, help="of each")
    args = machine.parsed(parser, cases=1, steps=2)
    shape = training_memory.read_shape(RunConfig().checkpoint)
    if shape is None or devices.list_accelerators():
        raise SystemExit("Needs the bundled checkpoint, and no GPU.")
    print(machine.described())
    print("| configuration | measured, MiB | estimated, MiB | off |\n|---|---|---|---|")
    worst = 1.0
    for name, values in itertools.islice(CASES.items(), args.cases):
        short = SHORT | {"max_steps": args.steps, "eval_steps": args.steps}
        run_config = RunConfig(**short).changed(**values)
        estimated = training_memory.estimate_memory(run_config, shape)
        assert estimated is not None
        mib = estimated.total / 2**20
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "config.json"
            file.write_text(run_config.to_json(), encoding="utf-8")
            peak = memory.measure(
                ["finetune", "train", "--runs", folder, "--config", str(file)]
            ).peak
        worst = min(worst, mib / peak, peak / mib)
        print(f"| {name} | {peak:.0f} | {mib:.0f} | {mib / peak - 1:+.0%} |", flush=True)
    print(f"cost: ratio {worst:.2f}")


if __name__ == "__main__":
    main()
