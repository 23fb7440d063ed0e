"""Predicts every row of a file with a run's model: the worker and the command line."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from finetune.disk import write_atomically
from finetune.environment import caches
from finetune.errors import FinetuneError
from finetune.inference.file_request import PredictionRequest, check_columns
from finetune.inference.files import Cancelled, RunningTotals, predict_file, result_suffix
from finetune.jobs import background
from finetune.jobs.prediction_jobs import PredictionJob
from finetune.runs import events
from finetune.runs.store import Run, default_root
from finetune.runs.summary import fold_events


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 judged, 1 failed."""
    caches.ensure_cache_folder()
    parser = argparse.ArgumentParser(prog="python -m finetune predict", description=__doc__)
    parser.add_argument("--folder", type=Path, help="a batch's folder, as the page makes it")
    parser.add_argument("--run", help="a run's id, or its folder")
    parser.add_argument("--runs", type=Path, help=f"(default: {default_root()})")
    parser.add_argument("--file", type=Path, help="CSV, TSV, JSONL, JSON or Parquet, also .gz")
    parser.add_argument("--out", type=Path, help="where the result goes")
    for name in ("sentence1_column", "sentence2_column", "label_column"):
        parser.add_argument(f"--{name}", default="", help="guessed from the names where absent")
    for name in ("both_orders", "threshold", "calibrated"):
        parser.add_argument(f"--{name}", action="store_true")
    given = parser.parse_args(arguments)
    _few_arenas()
    os.environ["HF_HUB_OFFLINE"] = "1"  # the model lies here; nobody is to be asked for it
    if given.folder:
        return _carry_out(PredictionJob(given.folder))
    if not (given.run and given.file and given.out):
        parser.error("--run, --file and --out are needed")
    run = Run(Path(given.run) if "/" in given.run else (given.runs or default_root()) / given.run)
    asked = PredictionRequest(
        run.id, given.file.name, given.sentence1_column, given.sentence2_column,
        given.label_column, given.both_orders, given.threshold, given.calibrated,
    )  # fmt: skip
    try:
        asked = check_columns(asked, given.file, fold_events(run.tail()[0]).paired)
        report, _ = predict_file(run, asked, given.file, given.out, _Bar())
    except (FinetuneError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=2, ensure_ascii=False))
    return 0


def _few_arenas() -> None:
    """Let the threads share the C library's heaps: each of its own keeps what it once needed, and
    a long file would slowly take a quarter more memory."""
    most_arenas = -8  # M_ARENA_MAX of glibc's malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another system, another C library
        ctypes.CDLL(None).mallopt(most_arenas, 1)


class _Bar:
    """Progress in a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        from tqdm import tqdm

        self._bar = self._bar or tqdm(total=total or None, unit="row")
        self._bar.update(done - self._bar.n)


def _carry_out(batch: PredictionJob) -> int:
    def on_signal(number: int, frame: FrameType | None) -> None:
        raise Cancelled

    signal.signal(signal.SIGTERM, on_signal)
    began = last = time.monotonic()
    tally = RunningTotals()

    def told(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5 or done == total:
            if any(tally.overlap().values()):
                so_far = {"rows": tally.rows, **tally.overlap()}
                write_atomically(batch.folder / "report.json", json.dumps(so_far))
            batch.append(events.Progressed(done=done, total=total))
            last = time.monotonic()
        if batch.stop_requested():
            raise Cancelled

    def head(rows: list[dict[str, Any]]) -> None:
        text = json.dumps({"rows": rows}, ensure_ascii=False, default=str)
        write_atomically(batch.folder / "head.json", text)

    def work() -> events.Event:
        try:
            asked = batch.asked()
            run = Run(batch.folder.parent.parent / asked.run)
            out = batch.folder / f"result{result_suffix(batch.input)}"
            report, whole = predict_file(run, asked, batch.input, out, told, head, tally)
        except Cancelled:
            return events.Stopped(step=0, seconds=time.monotonic() - began)
        seconds = time.monotonic() - began
        text = json.dumps(report | {"seconds": seconds}, ensure_ascii=False)
        write_atomically(batch.folder / "report.json", text)
        kind = events.Finished if whole else events.Stopped
        return kind(step=0, seconds=seconds)

    return background.run_job(batch, "start", work)


if __name__ == "__main__":
    sys.exit(main())
