"""Exports a run's kept model as ONNX, beside its tokenizer.

What the page starts as a process of its own; where it writes is `conversions`' business, and how a
model is exported and compared `onnx`'.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from finetune.data import checkpoints
from finetune.jobs import background, export_jobs
from finetune.runs import events
from finetune.runs.store import Run


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 made, 1 failed."""
    parser = argparse.ArgumentParser(prog="python -m finetune.jobs.export", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="as the page makes it")
    place = Run(parser.parse_args(arguments).folder)
    run = Run(place.folder.parent.parent)

    def work() -> events.Event:
        step = run.summary().saved_step or 0
        _convert(run)
        return events.Finished(step=step, seconds=0.0)

    return background.run_job(place, "save", work)


def _convert(run: Run) -> None:
    from finetune.hub import onnx

    to = export_jobs.onnx_file(run)
    to.parent.mkdir(exist_ok=True)
    onnx.export_onnx(run.best, to, checkpoints.length_of(run.folder))
    for path in run.best.iterdir():  # the tokenizer and the classes, to read its input and output
        if path.is_file() and path.suffix in (".json", ".txt", ".model"):
            shutil.copy2(path, to.parent / path.name)


if __name__ == "__main__":
    sys.exit(main())
