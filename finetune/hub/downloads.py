"""What a person takes away from a run: its model as a zip, its events as CSV.

Written piece by piece, so that a model of gigabytes takes no memory and no second place on disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finetune.data import safe_csv
from finetune.errors import StoreError
from finetune.runs import events
from finetune.runs.run import Run

_PIECE = 2**20


class Pipe(io.RawIOBase):
    """Where a zip is written to and taken from, a piece at a time."""

    def __init__(self) -> None:
        self._pieces = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._pieces)
        self._pieces.clear()
        return taken


def model_zip(run: Run) -> Iterator[bytes]:
    """The best model as a zip of a `from_pretrained` folder, in pieces.

    Every file is opened before the first piece: a better model saved meanwhile does not mix in.

    Raises:
        StoreError: when there is no model.
    """
    if not run.has_model():
        raise StoreError(f"Run {run.id} has no model.", "It is there after the first evaluation.")
    return folder_zip(run.best, run.id)


def folder_zip(folder: Path, name: str) -> Iterator[bytes]:
    """The files of a folder as a zip in which they lie in a folder `name`, in pieces."""
    pipe = Pipe()
    with contextlib.ExitStack() as stack, zipfile.ZipFile(pipe, "w", zipfile.ZIP_STORED) as made:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        opened = [(path, stack.enter_context(path.open("rb"))) for path in paths]
        for path, file in opened:
            info = zipfile.ZipInfo.from_file(path, f"{name}/{path.relative_to(folder)}")
            with made.open(info, "w", force_zip64=True) as entry:
                while piece := file.read(_PIECE):
                    entry.write(piece)
                    yield pipe.take()
        made.close()
        yield pipe.take()


COLUMNS = (
    "event", "time", "step", "epoch", "loss", "learning_rate", "grad_norm", "samples_per_second",
    "accuracy", "f1", "validation_loss", "best", "text",
)  # fmt: skip


def events_csv(run: Run) -> Iterator[str]:
    """All of the run's events, a row each, in pieces; times are seconds since the epoch."""
    yield safe_csv.to_csv(COLUMNS, [])
    offset = 0
    while True:
        found, after = run.tail(offset, limit=_PIECE)
        if after == offset:
            return
        offset = after
        yield safe_csv.to_csv_rows(_cells(one) for one in found)


def _cells(event: events.Event) -> list[object]:
    known = dataclasses.asdict(event)
    if isinstance(event, events.Evaluated):
        known |= {**event.metrics, "validation_loss": event.metrics.get("loss")}
        known.pop("loss", None)
    known["text"] = " ".join(
        str(known[name]) for name in ("phase", "detail", "error", "remedy") if known.get(name)
    )
    return [known.get(name, "") if known.get(name) is not None else "" for name in COLUMNS]
