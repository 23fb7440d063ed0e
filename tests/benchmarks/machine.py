"""What the benchmarks share: the machine they run on, sides in turns, and work in processes."""

import argparse
import contextlib
import io
import json
import os
import platform
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import psutil

from finetune.runs.store import RunStore
from finetune.uploads import Uploads

QUICK = "FINETUNE_QUICK_BENCHMARK"
# Which of a processor's instruction sets torch's kernels differ by.
SETS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "sve", "bf16")
MRPC = Path(__file__).resolve().parents[3] / "shared" / "data" / "glue" / "mrpc"


def parsed(about, **options):
    """Parse the command line. An option has a type (it is None by default, or no items), a default,
    or a default and what `--quick` sets in its place: a run through in seconds, whose figures mean
    nothing."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=form)
    parser.add_argument("--quick", action="store_true")
    quick = {}
    for name, value in options.items():
        if isinstance(value, tuple):
            value, quick[name] = value
        if value is bool:
            parser.add_argument(f"--{name}", action="store_true")
        elif value is list:
            parser.add_argument(f"--{name}", nargs="*", default=[], metavar="NAME=VALUE")
        elif isinstance(value, type):
            parser.add_argument(f"--{name}", type=value)
        else:
            kind = Path if isinstance(value, Path) else type(value)
            parser.add_argument(f"--{name}", type=kind, default=value)
    args = parser.parse_args()
    if args.quick and quick:
        vars(args).update(quick)
        os.environ[QUICK] = "yes"
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    return args


@contextlib.contextmanager
def begun():
    """Say which machine it is, and give a folder until all is measured."""
    print(described(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def tiny_bert(folder):
    """A classifier that is trained in a moment."""
    return random_bert(folder / "tiny", hidden_size=16, num_hidden_layers=1, num_attention_heads=1)


def random_bert(folder, **shape):
    """A folder with a classifier of BERT base's size, or of another shape, and the bundled
    checkpoint's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    from finetune.data import checkpoints

    tokenizer = AutoTokenizer.from_pretrained(checkpoints.bundled_folder())
    tokenizer.save_pretrained(folder)
    config = BertConfig(vocab_size=len(tokenizer), **shape)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def on_mrpc(config, folder, mrpc=MRPC):
    """The configuration on the files of MRPC, kept in a folder; as it is where there are none."""
    files = {name: path for name in ("train", "validation") for path in mrpc.glob(f"{name}-*")}
    return config.changed(dataset=Uploads(folder / "uploads").add(files)) if files else config


def described():
    """The processor, its cores, the instruction sets it computes with, and the GPU; each benchmark
    prints it first."""
    import torch

    information = Path("/proc/cpuinfo")
    text = information.read_text(encoding="utf-8") if information.exists() else ""
    model = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.+)", text, re.MULTILINE)
    name = model[1] if model else platform.processor() or platform.machine()
    sets = [name for name in SETS if flags and name in flags[1].split()]
    parts = [name, f"{os.cpu_count()} cores", " ".join(sets) or "instructions unknown"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return f"processor: {', '.join(parts)}"


def clock():
    """Seconds, read once the GPU has computed what it was given."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def medians(sides, rounds, measure, unit):
    """The median of what `measure` says of each side in every round, the sides in the other order
    every other round; each figure is printed as it comes."""
    figures = {side: [] for side in sides}
    for number in range(rounds):
        for side in list(sides)[:: -1 if number % 2 else 1]:
            figures[side].append(measure(side))
            print(f"round {number + 1} {side:<28}{figures[side][-1]:>8.1f} {unit}", flush=True)
    return {side: statistics.median(values) for side, values in figures.items()}


class Worker(NamedTuple):
    """A process that has ended well: what it wrote, seconds it ran, largest resident MiB."""

    output: str
    seconds: float
    peak: float


def work(module, *words):
    """Run `python -m MODULE` to its end, with `--quick` in this process; a RuntimeError when it
    fails."""
    began, peak = time.monotonic(), 0.0
    command = [sys.executable, "-m", module, *map(str, words)]
    if QUICK in os.environ:
        return Worker(_here(module, command[3:]), time.monotonic() - began, _peak(os.getpid()))
    with tempfile.TemporaryFile() as output:
        process = psutil.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            peak = max(peak, _peak(process.pid))
            time.sleep(0.05)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode:
        raise RuntimeError(text[-2000:])
    return Worker(text, time.monotonic() - began, peak)


def _here(module, words):
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # of the work before
    output = io.StringIO()
    with contextlib.redirect_stdout(output), mock.patch.object(sys, "argv", [module, *words]):
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise RuntimeError(output.getvalue()[-2000:]) from end
    return output.getvalue()


def _peak(pid):
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) / 1024 if found else 0.0


def of_side(benchmark, side, args):
    """What a side of a benchmark prints as JSON, measured in a process of its own."""
    options = {**vars(args), "side": side, "quick": None}
    words = [word for name, value in options.items() if value for word in (f"--{name}", value)]
    return json.loads(work(f"tests.benchmarks.{benchmark}", *words).output.splitlines()[-1])


def changed(config, changes):
    """The configuration with what `--change` names."""
    return config.changed(**dict(change.split("=", 1) for change in changes))


def train(config, runs):
    """Carry out a run by the command line."""
    runs.mkdir(parents=True, exist_ok=True)
    file = runs / "config.json"
    file.write_text(config.to_json(), encoding="utf-8")
    worker = work("finetune", "train", "--runs", runs, "--config", file)
    return RunStore(runs).runs()[0], worker
