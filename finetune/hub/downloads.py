"""Downloads of a run: its model as a zip, streamed without a copy in memory or on disk, and its
events as CSV."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from finetune.data import csv_cells
from finetune.errors import StoreError
from finetune.metrics.catalog import LOSS
from finetune.runs import events
from finetune.runs.run import Run

_PIECE = 2**20  # bytes
_COLUMNS = (
    "event", "time", "step", "epoch", "loss", "learning_rate", "grad_norm", "samples_per_second",
    "busy", "memory", "validation_loss", "best", "text",
)  # fmt: skip


class _Buffer(bytearray):
    """A file in memory that a zip is written to, emptied after each piece."""

    def write(self, data: bytes) -> int:
        self.extend(data)
        return len(data)

    def flush(self) -> None:
        pass


def saved_model(run: Run) -> Path:
    """The folder of a run's best model; StoreError if there is none."""
    if not run.has_model():
        raise StoreError(
            "Run {id} has no model.", "One is saved at the first evaluation.", id=run.id
        )
    return run.best


def model_zip(run: Run) -> Iterator[bytes]:
    """The best model as a zip of a `from_pretrained` folder, in pieces."""
    return folder_zip(saved_model(run), run.id)


def folder_zip(folder: Path, name: str) -> Iterator[bytes]:
    """Zip the files of a folder, in pieces, below a folder `name`.

    All files are opened first, so that a model saved in the meantime is not mixed in.
    """
    buffer = _Buffer()
    with contextlib.ExitStack() as stack, zipfile.ZipFile(cast(IO[bytes], buffer), "w") as archive:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = [(path, stack.enter_context(path.open("rb"))) for path in paths]
        for path, file in files:
            inside = f"{name}/{path.relative_to(folder)}"
            if "/." in inside:  # a killed process may have left it half written
                continue
            info = zipfile.ZipInfo.from_file(path, inside)
            with archive.open(info, "w", force_zip64=True) as entry:
                while piece := file.read(_PIECE):
                    entry.write(piece)
                    yield bytes(buffer)
                    buffer.clear()
    yield bytes(buffer)


def events_csv(run: Run) -> Iterator[str]:
    """All events of a run as CSV, one a row; times are seconds since the epoch."""
    happened = run.tail()[0]
    measured = (event.metrics for event in happened if isinstance(event, events.Evaluated))
    added = dict.fromkeys(name for metrics in measured for name in metrics if name != LOSS.name)
    columns = tuple(dict.fromkeys((*_COLUMNS, *added)))
    yield csv_cells.to_csv([columns, *(_cells(event, columns) for event in happened)])


def _cells(event: events.Event, columns: Sequence[str]) -> list[object]:
    values: dict[str, Any] = dict(vars(event))
    if isinstance(event, events.Evaluated):
        values |= event.metrics | {"validation_loss": event.metrics.get(LOSS.name)}
        values[LOSS.name] = None
    texts = (values.get(name) for name in ("phase", "detail", "error", "remedy"))
    values["text"] = " ".join(str(text) for text in texts if text)
    return ["" if values.get(name) is None else values[name] for name in columns]
