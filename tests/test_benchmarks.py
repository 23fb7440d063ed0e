"""The benchmarks run through; their figures are measured by hand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Those of a string are run by one process, which imports PyTorch once.
TOGETHER = ["training quality checkpoints prediction memory labels", "page", "load", "gpu"]
RUN = """
import runpy, sys
how, *names = sys.argv[1:]
for name in names:
    sys.argv = [name, how]
    runpy.run_module(f"tests.benchmarks.{name}", run_name="__main__")
"""


@pytest.mark.long
@pytest.mark.parametrize("names", TOGETHER)
def test_benchmarks_run_through(names, chromium):
    how = "--rehearse" if names == "gpu" else "--quick"
    words = [sys.executable, "-c", RUN, how, *names.split()]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^(\w+): ratio [\d.]+$", done.stdout, re.MULTILINE) == names.split()
