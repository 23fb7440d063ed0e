"""Run folders: the only truth about a run, readable by any process at any time.

    <root>/<run id>/
        config.json     the immutable RunConfig
        events.jsonl    append-only; status is a fold over it
        console.log     the worker's stdout and stderr
        job.json        pid and start time of the worker (written by `jobs`)
        STOP            its presence asks the worker to stop
        checkpoints/    what a run needs to go on, one folder a step; gone when it has finished
        best/           the best model so far, a plain `from_pretrained` folder
        predictions/    validation logits of each evaluation, one .npz a step
        tensorboard/    event files, where report_to asks for them

Beside them: `data/` (pairs read once), `uploads/`, `examinations/`, and `.spare/`, where a worker
waits for a run.

Knows no torch and no process: who runs, and whether it lives, is `jobs`' business.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from finetune import events, uploads
from finetune.config import RunConfig
from finetune.errors import ConfigError, NoSuchRun, StoreError
from finetune.events import Event
from finetune.summary import Summary, fold

_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[A-Za-z0-9_-]{8,24}")


def default_root() -> Path:
    """Where runs are kept unless told otherwise.

    `FINETUNE_RUNS` if set, else `runs/` beside the app, else (a read-only folder) the user's
    cache, else a temporary folder that the machine may clear.
    """
    if given := os.environ.get("FINETUNE_RUNS"):
        return Path(given).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    candidates = (Path(__file__).resolve().parent.parent / "runs", cache / "finetune" / "runs")
    for candidate in candidates:
        if _writable(candidate):
            return candidate
    return Path(tempfile.gettempdir()) / "finetune-runs"


def _writable(folder: Path) -> bool:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` so that a reader sees the old or the new, never a half.

    Raises:
        StoreError: when the disk is full or the folder cannot be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error}.",
            "Free some space or choose another folder with FINETUNE_RUNS.",
        ) from error


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Run:
    """One run folder. Cheap to make; holds nothing but the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def events_file(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def log_file(self) -> Path:
        return self.folder / "console.log"

    @property
    def job_file(self) -> Path:
        return self.folder / "job.json"

    @property
    def stop_file(self) -> Path:
        return self.folder / "STOP"

    @property
    def best(self) -> Path:
        return self.folder / "best"

    @property
    def checkpoints_folder(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def being_written(self) -> Path:
        """Where a checkpoint is until it is whole."""
        return self.checkpoints_folder / ".being-written"

    def checkpoints(self) -> list[Path]:
        """The complete checkpoints, the latest last."""
        return sorted(self.checkpoints_folder.glob("step-*/"))

    def begin_checkpoint(self) -> Path:
        """An empty folder to write a checkpoint into; what an earlier attempt left is removed."""
        shutil.rmtree(self.being_written, ignore_errors=True)
        self.being_written.mkdir(parents=True)
        return self.being_written

    def end_checkpoint(self, step: int, keep: int) -> None:
        """Make what was written the checkpoint of `step`; older ones beyond `keep` are removed.

        Everything is on the disk before the name is there: after a power cut a checkpoint is
        whole or absent.

        Raises:
            OSError: when the disk is full; the earlier checkpoints are untouched.
        """
        aside = self.being_written
        final = self.checkpoints_folder / f"step-{step:09d}"
        for path in (*aside.rglob("*"), aside):
            _to_disk(path)
        if final.exists():  # the same step, written before a resume
            shutil.rmtree(aside)
        else:
            os.replace(aside, final)
            _to_disk(self.checkpoints_folder)
        for old in self.checkpoints()[:-keep]:
            shutil.rmtree(old, ignore_errors=True)

    def resume(self) -> int:
        """Note that the run goes on, from its last checkpoint or from its beginning; the step.

        Raises:
            StoreError: when the folder cannot be written.
        """
        found = self.checkpoints()
        step = int(found[-1].name.rpartition("-")[2]) if found else 0
        self.stop_file.unlink(missing_ok=True)
        self.append(events.Resumed(step=step))
        return step

    @property
    def predictions(self) -> Path:
        return self.folder / "predictions"

    def config(self) -> RunConfig:
        """The run's configuration.

        Raises:
            StoreError: when `config.json` cannot be read or says what no run can do.
        """
        path = self.folder / "config.json"
        try:
            return RunConfig.from_json(path.read_text(encoding="utf-8"))
        except (OSError, ConfigError, UnicodeDecodeError) as error:
            raise StoreError(f"{path.name} of run {self.id} cannot be read: {error}") from error

    def title(self) -> str:
        """What to call the run on a page: its name, or its dataset and checkpoint."""
        try:
            config = self.config()
        except StoreError:
            return self.id
        dataset = "own files" if uploads.is_upload(config.dataset) else config.dataset
        return config.name or f"{config.checkpoint.rsplit('/')[-1]} on {dataset}"

    def append(self, event: Event) -> None:
        """Add one event; a single write, so lines of two processes never mix.

        Raises:
            StoreError: when the folder is gone or the disk is full.
        """
        line = (events.to_json(event) + "\n").encode()
        try:
            handle = os.open(self.events_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if os.write(handle, line) != len(line):
                    raise OSError("the disk is full")
            finally:
                os.close(handle)
        except OSError as error:
            raise StoreError(
                f"{self.events_file} cannot be written: {error.strerror or error}.",
                "Free some space; the model saved last is kept.",
            ) from error

    def tail(self, offset: int = 0) -> tuple[list[Event], int]:
        """The events after byte `offset`, and the offset to ask from next time.

        A last line without its newline is still being written and is left for the next call.
        """
        try:
            with self.events_file.open("rb") as file:
                file.seek(offset)
                text = file.read()
        except OSError:
            return [], offset
        whole = text[: text.rfind(b"\n") + 1]
        lines = whole.decode("utf-8", errors="replace").splitlines()
        return [e for e in map(events.from_json, lines) if e is not None], offset + len(whole)

    def request_stop(self) -> None:
        """Ask the worker to stop at its next step and keep the best model."""
        write_atomically(self.stop_file, "keep\n")

    def stop_requested(self) -> bool:
        """Whether someone asked this run to stop."""
        return self.stop_file.exists()

    def log_tail(self, size: int = 20_000) -> str:
        """The last `size` bytes of the worker's output."""
        try:
            with self.log_file.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - size))
                return file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""

    def log_size(self) -> int:
        """Bytes the worker has printed so far."""
        try:
            return self.log_file.stat().st_size
        except OSError:
            return 0

    def has_model(self) -> bool:
        """Whether a model was saved that can be loaded."""
        return (self.best / "config.json").exists()

    def read_json(self, path: Path) -> dict[str, Any]:
        """A JSON object of this folder; empty when it is missing or unreadable."""
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}


class RunStore:
    """All runs below one root.

    Args:
        root: the folder; made when the first run is.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self._folded: dict[str, tuple[int, Summary]] = {}
        self._lock = threading.Lock()

    def create(self, config: RunConfig) -> Run:
        """A new run folder with its configuration.

        Raises:
            ConfigError: when the configuration is wrong.
            StoreError: when the folder cannot be made.
        """
        config.check()
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_urlsafe(9)}"
        run = Run(self.root / name)
        try:
            run.folder.mkdir(parents=True)
        except OSError as error:
            raise StoreError(
                f"The run folder {run.folder} cannot be made: {error.strerror or error}.",
                "Choose a folder that can be written with FINETUNE_RUNS.",
            ) from error
        write_atomically(run.folder / "config.json", config.to_json())
        return run

    def get(self, run_id: object) -> Run:
        """The run of that id.

        Raises:
            NoSuchRun: for anything else, a path or another type included.
        """
        if not isinstance(run_id, str) or not _ID.fullmatch(run_id):
            raise NoSuchRun
        run = Run(self.root / run_id)
        if not (run.folder / "config.json").is_file():
            raise NoSuchRun
        return run

    def runs(self) -> list[Run]:
        """Every run, the newest first."""
        return list(self._newest())

    def _newest(self) -> Iterator[Run]:
        try:
            names: Iterable[str] = sorted(os.listdir(self.root), reverse=True)
        except OSError:
            return
        for name in names:
            if _ID.fullmatch(name) and (self.root / name / "config.json").is_file():
                yield Run(self.root / name)

    def summary(self, run: Run) -> Summary:
        """The fold over the run's events.

        Reads only what is new since this store last looked; the cache is a convenience, a fresh
        store gives the same answer. A log that shrank is read anew.
        """
        with self._lock:
            offset, summary = self._folded.get(run.id, (0, Summary()))
            size = run.events_file.stat().st_size if run.events_file.exists() else 0
            if size < offset:
                offset, summary = 0, Summary()
            if size > offset:
                fresh, offset = run.tail(offset)
                summary = fold(fresh, summary)
            self._folded[run.id] = (offset, summary)
            return summary

    def delete(self, run: Run) -> None:
        """Remove a run folder and all in it.

        Raises:
            StoreError: when something in it cannot be removed.
        """
        folder = self.get(run.id).folder
        aside = folder.with_name(f".deleted-{secrets.token_hex(8)}")
        try:
            folder.rename(aside)  # gone at once, also for a worker that still writes into it
            shutil.rmtree(aside, ignore_errors=True)
        except OSError as error:
            raise StoreError(
                f"Run {run.id} cannot be deleted: {error.strerror or error}."
            ) from error
        with self._lock:
            self._folded.pop(run.id, None)
