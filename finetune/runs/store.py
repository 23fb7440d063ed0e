"""The store of runs: a folder of run folders, and what of it a visitor may see.

<root>/
    <run id>/       a run (`run`)
    .queue/         which runs wait
    checks/, batches/   other jobs (`job_folder`)
    data/, uploads/ pairs read once, and files that were brought
    .warm/          a worker that waits for a run
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from pathlib import Path

from finetune import disk, uploads
from finetune.config import RunConfig, is_upload
from finetune.disk import write_atomically
from finetune.environment.caches import is_writable, user_cache
from finetune.errors import DataError, NoSuchRun, StoreError
from finetune.owners import LOCAL_USER, Visitor
from finetune.runs.job_folder import JobFolder
from finetune.runs.metadata import RunMetadata
from finetune.runs.run import Run, default_title
from finetune.runs.summary import RunSummary, fold_events

_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[A-Za-z0-9_-]{8,24}")
_CHUNK = 4 * 2**20  # bytes of events folded at a time
_BUCKET = Path("/data")  # where a Space's bucket is mounted unless told otherwise


def default_root() -> Path:
    """Where runs are kept unless told otherwise.

    `FINETUNE_RUNS` if set, else (on a Space) a mounted bucket that can be written, else `runs/`
    beside the app, else (a read-only folder) the user's cache, else a temporary folder that the
    machine may clear. On a Space a `FINETUNE_RUNS` that cannot be written is passed over: the page
    says that runs are lost then, where it would not start otherwise.
    """
    on_space = bool(os.environ.get("SPACE_ID"))
    candidates = []
    if setting := os.environ.get("FINETUNE_RUNS"):
        requested = Path(os.path.expanduser(setting))
        if not on_space:
            return requested
        candidates.append(requested)
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

    def for_visitor(self, visitor: Visitor) -> RunStore:
        """The same store, in which there are only this visitor's runs and uploads."""
        view = copy.copy(self)  # shares what was read of the runs
        view.visitor = visitor
        return view

    @property
    def everyone(self) -> RunStore:
        """The same store with everybody's runs."""
        return self if self.visitor.alone else self.for_visitor(LOCAL_USER)

    @property
    def uploads(self) -> uploads.Uploads:
        """The visitor's uploaded files."""
        return uploads.Uploads(
            self.root / "uploads", self.visitor, self._datasets, self.batch_input_bytes
        )

    def batch_input_bytes(self) -> int:
        """Bytes of the files that the visitor has brought to be predicted."""
        folders = map(JobFolder, (self.root / "batches").glob("*/"))
        mine = [job.folder for job in folders if self.visitor.owns(job.owner)]
        return sum(_size(path) for folder in mine for path in folder.glob("input.*"))

    def uploaded_bytes(self) -> int:
        """Bytes of the files that all visitors have brought."""
        patterns = ("uploads/*/*", "batches/*/input.*")
        return sum(_size(path) for pattern in patterns for path in self.root.glob(pattern))

    def _datasets(self) -> set[str]:
        """What the visitor's runs are trained on."""
        datasets = set()
        for run in self.runs():
            with contextlib.suppress(StoreError):
                datasets.add(run.config().dataset)
        return datasets

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
        pairs = self._upload_names(config)
        about = RunMetadata(
            group=group, created=time.time(), pairs=pairs,
            number=self._number(default_title(config, pairs)),
        )  # fmt: skip
        aside = JobFolder(run.folder.with_name(f".new-{run.id}"))
        try:
            with disk.writing(f"The run folder {run.folder}"):
                aside.folder.mkdir(parents=True)
                aside.describe_job("train", self.visitor.name)
                write_atomically(aside.folder / "about.json", about.to_json())
                write_atomically(aside.folder / "config.json", config.to_json())
                os.replace(aside.folder, run.folder)
        finally:
            shutil.rmtree(aside.folder, ignore_errors=True)
        return run

    def _upload_names(self, config: RunConfig) -> str:
        """What the person calls the files of an upload; empty for other pairs, or none there."""
        if not is_upload(config.dataset):
            return ""
        try:
            return ", ".join(self.uploads.file_names(config.dataset).values())
        except DataError:
            return ""  # the training says so

    def _number(self, title: str) -> int:
        """One more than the greatest number a run with this title has."""
        numbers = [0]
        for run in self.runs():
            about = run.about()
            with contextlib.suppress(StoreError):
                if default_title(run.config(), about.pairs) == title:
                    numbers.append(about.number)
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
        return self.visitor.alone or self.visitor.owns(run.owner)

    def runs(self) -> list[Run]:
        """Every run, the newest first."""
        try:
            names = sorted(os.listdir(self.root), reverse=True)
        except OSError:
            return []
        runs = (Run(self.root / name) for name in names if _ID.fullmatch(name))
        return [run for run in runs if run.exists() and self._shows(run)]

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
                fresh, after = run.tail(offset, limit=_CHUNK)
                if after == offset:
                    break
                summary, offset = fold_events(fresh, summary), after
            self._folded[run.id] = (offset, summary)
        return run.with_kept_model(summary)

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


def _size(path: Path) -> int:
    """Bytes of a file; 0 where it was just removed."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
