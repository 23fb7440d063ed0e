"""Run folders: the only truth about a run, readable by any process at any time.

    <root>/<run id>/
        config.json     the immutable RunConfig
        about.json      whose it is, what it belongs to, and what they say of it (`about`)
        events.jsonl    append-only; status is a fold over it
        console.log     the worker's stdout and stderr
        job.json        pid and start of the worker, to signal it (written by `workers`)
        .lock           held by the worker while it lives: one run, one worker; .rank-lock by the
                        first of several processes
        STOP            its presence asks the worker to stop
        checkpoints/    what a run needs to go on, one folder a step, with the best model of that
                        moment; gone when it has finished
        best/           the best model so far, a plain `from_pretrained` folder
        predictions/    validation logits of each evaluation, one .npz a step
        seen/           numbers of the training and validation pairs (`seen`)
        tensorboard/    event files, where report_to asks for them

Beside them: `.queue/` (which runs wait), `data/` (pairs read once), `uploads/`, `examinations/`,
and `.spare/`, where a worker waits for a run.

Knows no torch and no process: who runs, and whether it lives, is `jobs`' business.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from finetune import disk, json_files, uploads
from finetune.config import RunConfig, is_upload
from finetune.disk import write_atomically
from finetune.environment.caches import is_writable, user_cache
from finetune.errors import ConfigError, DataError, NoSuchRun, StoreError
from finetune.owners import LOCAL_USER, Visitor
from finetune.runs import events
from finetune.runs.events import Event
from finetune.runs.metadata import RunMetadata
from finetune.runs.summary import RunSummary, fold_events

_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[A-Za-z0-9_-]{8,24}")


NOTES = "finetune"  # the key of a saved model's `config.json` that other programs ignore
_READ = 4 * 2**20  # bytes of events folded at a time


def default_root() -> Path:
    """Where runs are kept unless told otherwise.

    `FINETUNE_RUNS` if set, else (on a Space) a mounted bucket that can be written, else `runs/`
    beside the app, else (a read-only folder) the user's cache, else a temporary folder that the
    machine may clear. On a Space a `FINETUNE_RUNS` that cannot be written is passed over: the page
    says that runs are lost then, where it would not start otherwise.
    """
    on_space = bool(os.environ.get("SPACE_ID"))
    candidates = []
    if given := os.environ.get("FINETUNE_RUNS"):
        told = Path(os.path.expanduser(given))
        if not on_space:
            return told
        candidates.append(told)
    if on_space and os.path.ismount(_BUCKET):
        candidates.append(_BUCKET / "runs")
    candidates += [
        Path(__file__).resolve().parent.parent.parent / "runs",
        user_cache() / "finetune" / "runs",
    ]
    for candidate in candidates:
        if candidate.is_absolute() and is_writable(candidate):
            return candidate
    return Path(tempfile.gettempdir()) / "finetune-runs"


_BUCKET = Path("/data")  # where a Space's bucket is mounted unless told otherwise


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
    def lock_file(self) -> Path:
        return self.folder / ".lock"

    @property
    def rank_lock_file(self) -> Path:
        return self.folder / ".rank-lock"

    @property
    def stop_file(self) -> Path:
        return self.folder / "STOP"

    @property
    def best(self) -> Path:
        """The best model; the former one, where a crash came while it was replaced."""
        return disk.standing(self.folder / "best")

    def kept_step(self) -> int | None:
        """Optimizer steps that the model in `best/` has taken; None where there is no model, or it
        does not say, being of an earlier version."""
        return _kept_step(self.best)

    def summary(self) -> RunSummary:
        """The fold over all of the run's events, about the model that lies in `best/`."""
        return self.as_kept(fold_events(self.tail()[0]))

    def as_kept(self, summary: RunSummary) -> RunSummary:
        """The same about the model that lies in `best/`: after a crash or before a run goes on,
        that may be another than the last that the events tell of."""
        if not self.has_model():
            return replace(summary, saved_step=None)
        step = self.kept_step()
        return summary if step is None else replace(summary, saved_step=step)

    def rewind(self, checkpoint: Path | None) -> None:
        """Make `best/` what it was when a checkpoint was written, for the run goes on from there;
        empty where there was no model yet, or no checkpoint.

        Raises:
            StoreError: when it cannot be written; then it stays as it is.
        """
        then = checkpoint / "best" if checkpoint is not None else None
        step = _kept_step(then) if then is not None else None
        if step == self.kept_step():
            return
        best = self.folder / "best"
        if then is None or step is None:
            disk.remove_folder(best)
            return
        aside = best.with_name("best.new")
        shutil.rmtree(aside, ignore_errors=True)
        with disk.writing("The best model"):
            disk.link_folder(then, aside)
            disk.replace_folder(aside, best)

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
        """An empty folder to write a checkpoint into; what an earlier attempt left is removed.

        Raises:
            OSError: when the disk is full or the run's folder is gone, which is not made again.
        """
        shutil.rmtree(self.being_written, ignore_errors=True)
        self.checkpoints_folder.mkdir(exist_ok=True)
        self.being_written.mkdir()
        return self.being_written

    def end_checkpoint(self, step: int, keep: int) -> None:
        """Make what was written the checkpoint of `step`; older ones beyond `keep` are removed.

        Everything is on the disk before the name is there: after a power cut a checkpoint is
        whole or absent.

        Raises:
            OSError: when the disk is full; the earlier checkpoints are untouched.
        """
        name = f"step-{step:09d}"
        if same := sorted(self.checkpoints_folder.glob(f"{name}*/")):  # written before a resume
            name += f".{int(same[-1].suffix[1:] or 0) + 1:03d}"
        if self.has_model():
            disk.link_folder(self.best, self.being_written / "best")
        disk.sync_folder(self.being_written)
        os.replace(self.being_written, self.checkpoints_folder / name)
        disk.sync(self.checkpoints_folder)
        for old in self.checkpoints()[:-keep]:
            shutil.rmtree(old, ignore_errors=True)

    def resume(self) -> int:
        """Note that the run goes on, from its last checkpoint or from its beginning; the step.

        Raises:
            StoreError: when the folder cannot be written.
        """
        step = self.checkpoint_step()
        self.stop_file.unlink(missing_ok=True)
        self.mend()
        self.append(events.Resumed(step=step))
        return step

    def checkpoint_step(self) -> int:
        """The step that the run would go on from: its last checkpoint's, or 0."""
        found = self.checkpoints()
        return int(found[-1].stem.rpartition("-")[2]) if found else 0

    def mend(self) -> None:
        """End a line that a killed worker left half written, or the next would be lost with it.

        Raises:
            StoreError: when the folder cannot be written.
        """
        try:
            with self.events_file.open("rb+") as file:
                if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) is not None:
                    whole = file.read(1) == b"\n"
                    file.write(b"" if whole else b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise disk.failure(self.events_file, error, StoreError) from error

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
            return _config(str(path), _version(path))
        except (OSError, ConfigError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(
                f"{path.name} of run {self.id} cannot be read: {error}",
                "Its model, log and events are still there; start a new run to train again.",
            ) from error

    def config_as_begun(self) -> RunConfig:
        """Its configuration, a Hub dataset at the commit that its pairs were first read at: the
        dataset may have another one since.

        Raises:
            StoreError: as `config`.
        """
        chosen = self.config()
        prepared = fold_events(self.tail()[0]).prepared
        revision = prepared.data.get("revision") if prepared is not None else ""
        return chosen.changed(dataset_revision=str(revision)) if revision else chosen

    def about(self) -> RunMetadata:
        """Whose it is and what is said of it; nobody's and nothing where that cannot be read."""
        path = self.folder / "about.json"
        try:
            return _about(str(path), _version(path))
        except OSError:
            return RunMetadata()

    def describe(self, **values: Any) -> RunMetadata:
        """Change what a person says of the run: `name`, `tags`, `note`.

        Raises:
            ConfigError: naming what is too long.
            StoreError: when the folder is gone or cannot be written.
        """
        changed = replace(self.about(), **values).check()
        if not self.folder.is_dir():
            raise NoSuchRun
        write_atomically(self.folder / "about.json", changed.to_json())
        return changed

    def title(self) -> str:
        """What to call the run on a page: its name, or its checkpoint and pairs; a number where
        an older run has the same."""
        return self._title(self.about().pairs)

    def public_title(self) -> str:
        """The title without the names of a person's files, for what others read."""
        return self._title("")

    def _title(self, called: str) -> str:
        known = self.about()
        if known.name:
            return known.name
        try:
            plain = default_title(self.config(), called)
        except StoreError:
            return self.id
        return f"{plain} #{known.number}" if known.number > 1 else plain

    def append(self, event: Event) -> None:
        """Add one event; a single write, so lines of two processes never mix.

        Raises:
            StoreError: when the folder is gone or the disk is full.
        """
        line = (events.to_json(event) + "\n").encode()
        try:
            handle = os.open(self.events_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if (written := os.write(handle, line)) != len(line):
                    os.ftruncate(handle, os.fstat(handle).st_size - written)  # not half a line
                    raise OSError(errno.ENOSPC, "the disk is full")
            finally:
                os.close(handle)
        except OSError as error:
            raise disk.failure(
                self.events_file, error, StoreError, "; the model saved last is kept"
            ) from error

    def tail(self, offset: int = 0, most: int = -1) -> tuple[list[Event], int]:
        """The events after byte `offset`, and the offset to ask from next time.

        A last line without its newline is still being written and is left for the next call.

        Args:
            most: bytes to read at once; -1 for all there are.
        """
        try:
            with self.events_file.open("rb") as file:
                file.seek(offset)
                text = file.read(most)
                while most > 0 and len(text) == most and b"\n" not in text:
                    file.seek(offset)
                    most *= 2
                    text = file.read(most)
        except OSError:
            return [], offset
        whole = text[: text.rfind(b"\n") + 1]
        lines = whole.split(b"\n")
        return [e for e in map(events.from_json, lines) if e is not None], offset + len(whole)

    def request_stop(self, discard: bool = False, reason: str = "") -> None:
        """Ask the worker to stop at its next step, and to keep the best model or to discard it.

        Args:
            reason: why, where no person asked for it.
        """
        write_atomically(self.stop_file, ("discard\n" if discard else "keep\n") + reason)

    def exists(self) -> bool:
        """Whether the run is there: a library may have made the folder of a deleted one again."""
        return (self.folder / "config.json").is_file()

    def stop_requested(self) -> bool:
        """Whether someone asked this run to stop, or has removed it."""
        return self.stop_file.exists() or not self.folder.is_dir()

    def discard_requested(self) -> bool:
        """Whether its model shall not be kept."""
        return self._stop_told()[0] == "discard"

    def stop_reason(self) -> str:
        """Why it was asked to stop; empty where a person did."""
        return self._stop_told()[2].strip()

    def _stop_told(self) -> tuple[str, str, str]:
        try:
            return self.stop_file.read_text(encoding="utf-8").partition("\n")
        except OSError:
            return "", "", ""

    def discard(self) -> None:
        """Remove the model and the checkpoints; the events and the log stay."""
        disk.remove_folder(self.folder / "best")
        shutil.rmtree(self.checkpoints_folder, ignore_errors=True)

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

    @property
    def metrics(self) -> dict[str, float]:
        """The kept model's scores on the validation split, from 0 to 1 (`accuracy`, `f1`, and its
        `loss`); empty before the first evaluation."""
        best = fold_events(self.tail()[0]).best
        return dict(best.metrics) if best else {}

    def has_model(self) -> bool:
        """Whether a model was saved that can be loaded."""
        return (self.best / "config.json").exists()

    def read_json(self, path: Path) -> dict[str, Any]:
        """A JSON object of this folder; empty when it is missing or unreadable."""
        return json_files.read(path)


def _version(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


@lru_cache(maxsize=4096)
def _config(path: str, version: tuple[int, int, int]) -> RunConfig:
    """Parsed once a file: a page asks for it every second, and a list for hundreds."""
    return RunConfig.from_json(Path(path).read_text(encoding="utf-8"))


def _kept_step(model: Path) -> int | None:
    path = model / "config.json"
    try:
        return _noted_step(str(path), _version(path))
    except OSError:
        return None


@lru_cache(maxsize=4096)
def _noted_step(path: str, version: tuple[int, int, int]) -> int | None:
    notes = json_files.read(Path(path)).get(NOTES)
    step = notes.get("step") if isinstance(notes, dict) else None
    return step if type(step) is int else None


@lru_cache(maxsize=4096)
def _about(path: str, version: tuple[int, int, int]) -> RunMetadata:
    return RunMetadata.from_json(Path(path).read_text(encoding="utf-8", errors="replace"))


def default_title(config: RunConfig, called: str = "") -> str:
    """What a configuration is called: its name, or its checkpoint and pairs.

    Args:
        called: the person's name for the files of an upload; without it nothing is said of them.
    """
    pairs = (called or "own files") if is_upload(config.dataset) else config.dataset
    return config.name or f"{config.checkpoint.rstrip('/').rsplit('/')[-1]} on {pairs}"


class RunStore:
    """The runs below one root that a visitor may see; all of them unless told otherwise.

    Args:
        root: the folder; made when the first run is.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.visitor = LOCAL_USER
        self._folded: dict[str, tuple[int, RunSummary]] = {}
        self._locks: dict[str, threading.Lock] = {}  # one a run: a long one holds up nobody else

    def seen_by(self, visitor: Visitor) -> RunStore:
        """The same store, in which there are only this visitor's runs and uploads."""
        view = copy.copy(self)  # what is known of the runs is shared
        view.visitor = visitor
        return view

    @property
    def everyone(self) -> RunStore:
        """The same store with everybody's runs."""
        return self if self.visitor.alone else self.seen_by(LOCAL_USER)

    @property
    def uploads(self) -> uploads.Uploads:
        """The visitor's uploaded files."""
        place = self.root / "uploads"
        return uploads.Uploads(place, self.visitor, self._datasets, self.judged_bytes)

    def judged_bytes(self) -> int:
        """Bytes of the files that the visitor had judged (`batches`), as they were brought."""
        total = 0
        for folder in (self.root / "batches").glob("*/"):
            asked = Run(folder).read_json(folder / "asked.json")
            if self.visitor.owns(str(asked.get("owner", ""))):
                with contextlib.suppress(OSError):  # it makes room just now
                    total += sum(path.stat().st_size for path in folder.glob("input.*"))
        return total

    def brought_bytes(self) -> int:
        """Bytes of the files that all visitors have brought: uploads, and what was judged."""
        total = 0
        for pattern in ("uploads/*/*", "batches/*/input.*"):
            for path in self.root.glob(pattern):
                with contextlib.suppress(OSError):  # it makes room just now
                    total += path.stat().st_size
        return total

    def _datasets(self) -> set[str]:
        """What the visitor's runs are trained on."""
        found = set()
        for run in self.runs():
            with contextlib.suppress(StoreError):
                found.add(run.config().dataset)
        return found

    def new_id(self) -> str:
        """An id that nobody can guess; ids sort by when they were made."""
        return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_urlsafe(9)}"

    def create(self, config: RunConfig, run_id: str = "", group: str = "") -> Run:
        """A new run folder with its configuration; there whole or not at all.

        Args:
            run_id: from `new_id`, where it had to be known before.
            group: what it belongs together with.

        Raises:
            ConfigError: when the configuration is wrong.
            StoreError: when the folder cannot be made.
        """
        config.check()
        run = Run(self.root / (run_id or self.new_id()))
        pairs = self.called(config)
        about = RunMetadata(
            owner=self.visitor.name, group=group, created=time.time(),
            pairs=pairs, number=self._number(default_title(config, pairs)),
        )  # fmt: skip
        aside = run.folder.with_name(f".new-{run.id}")
        try:
            aside.mkdir(parents=True)
            write_atomically(aside / "about.json", about.to_json())
            write_atomically(aside / "config.json", config.to_json())
            os.replace(aside, run.folder)
        except (OSError, StoreError) as error:
            shutil.rmtree(aside, ignore_errors=True)
            if isinstance(error, StoreError):
                raise
            raise disk.failure(f"The run folder {run.folder}", error, StoreError) from error
        return run

    def called(self, config: RunConfig) -> str:
        """What the person calls the files of an upload; empty for other pairs, or none there."""
        if not is_upload(config.dataset):
            return ""
        try:
            return ", ".join(self.uploads.file_names(config.dataset).values())
        except DataError:
            return ""  # the training says so

    def _number(self, plain: str) -> int:
        """One more than the greatest number a run with this title has."""
        numbers = [0]
        for run in self.runs():
            known = run.about()
            with contextlib.suppress(StoreError):
                if default_title(run.config(), known.pairs) == plain:
                    numbers.append(known.number)
        return max(numbers) + 1

    def get(self, run_id: object) -> Run:
        """The run of that id.

        Raises:
            NoSuchRun: for anything else, a path, another type or another visitor's run included.
        """
        if not isinstance(run_id, str) or not _ID.fullmatch(run_id):
            raise NoSuchRun
        run = Run(self.root / run_id)
        if not run.exists() or not self._shows(run):
            raise NoSuchRun
        return run

    def _shows(self, run: Run) -> bool:
        return self.visitor.alone or self.visitor.owns(run.about().owner)

    def runs(self) -> list[Run]:
        """Every run, the newest first."""
        return list(self._newest())

    def _newest(self) -> Iterator[Run]:
        try:
            names: Iterable[str] = sorted(os.listdir(self.root), reverse=True)
        except OSError:
            return
        for name in names:
            run = Run(self.root / name)
            if _ID.fullmatch(name) and run.exists() and self._shows(run):
                yield run

    def summary(self, run: Run) -> RunSummary:
        """The fold over the run's events.

        Reads only what is new since this store last looked; the cache is a convenience, a fresh
        store gives the same answer. A log that shrank is read anew. Which model is kept is asked
        of `best/` each time.
        """
        with self._locks.setdefault(run.id, threading.Lock()):
            offset, summary = self._folded.get(run.id, (0, RunSummary()))
            size = run.events_file.stat().st_size if run.events_file.exists() else 0
            if size < offset:
                offset, summary = 0, RunSummary()
            while size > offset:
                fresh, after = run.tail(offset, most=_READ)
                if after == offset:
                    break
                summary, offset = fold_events(fresh, summary), after
            self._folded[run.id] = (offset, summary)
        return run.as_kept(summary)

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
        self._folded.pop(run.id, None)
        self._locks.pop(run.id, None)
