"""The benchmarks run through; their figures are measured by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "training", "quality", "checkpoints", "prediction", "load", "page", "memory", "labels",
        "gpu",
    ],
)  # fmt: skip
def test_a_benchmark_runs_through(name: str, chromium: str) -> None:
    how = "--rehearse" if name == "gpu" else "--quick"
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(rf"{name}: ratio [\d.]+", done.stdout.splitlines()[-1]), done.stdout
