"""How far off the memory estimate is: `python -m tests.benchmarks.cost`.

Each configuration trains the bundled checkpoint for ten steps in a process of its own, all pairs
padded to `max_length`; its peak of resident memory is compared with `estimate.memory`. Without a
GPU only: there it is the system's memory that is measured. The ratio is the smaller of the two over
the larger, of the worst configuration: 1 is exact.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from finetune import config
from finetune.config import RunConfig
from finetune.environment import devices
from finetune.jobs import memory as estimate
from tests.benchmarks import machine, memory

CASES: dict[str, dict[str, Any]] = {
    "batch 8": {},
    "batch 32": {"per_device_train_batch_size": 32},
    "batch 64": {"per_device_train_batch_size": 64},
    "batch 32, fp32": {"per_device_train_batch_size": 32, "mixed_precision": "no"},
    "batch 32, fp32, dropout": {
        "per_device_train_batch_size": 32, "mixed_precision": "no", "dropout": 0.1,
    },
    "batch 32, 256 tokens": {"per_device_train_batch_size": 32, "max_length": 256},
    "as the course": config.PRESETS["As the course"],
    "batch 32, LoRA": {"per_device_train_batch_size": 32, "use_lora": True},
    "batch 32, recomputed": {"per_device_train_batch_size": 32, "gradient_checkpointing": True},
}  # fmt: skip
SHORT: dict[str, Any] = {
    "max_steps": 10,
    "eval_steps": 10,
    "max_eval_samples": 16,
    "padding": "max_length",
}


def peak(chosen: RunConfig) -> float:
    """MiB of resident memory that a worker of this configuration has at the most."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "config.json"
        given.write_text(chosen.to_json(), encoding="utf-8")
        return memory.measure(["finetune", "train", "--runs", folder, "--config", str(given)]).peak


def main() -> None:
    argparse.ArgumentParser(prog="tests.benchmarks.cost", description=__doc__).parse_args()
    shape = estimate.read_shape(RunConfig().checkpoint)
    if shape is None or devices.list_accelerators():
        raise SystemExit("Needs the bundled checkpoint, and no GPU.")
    print(machine.described())
    print("| configuration | measured, MiB | estimated, MiB | off |\n|---|---|---|---|")
    worst = 1.0
    for name, values in CASES.items():
        chosen = RunConfig(**SHORT).changed(**values)
        found = estimate.estimate_memory(chosen, shape)
        assert found is not None
        real = peak(chosen)
        told = found.total / 2**20
        worst = min(worst, told / real, real / told)
        print(f"| {name} | {real:.0f} | {told:.0f} | {told / real - 1:+.0%} |", flush=True)
    print(f"cost: ratio {worst:.2f}")


if __name__ == "__main__":
    main()
