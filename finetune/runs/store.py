"""The store of runs: a folder of run folders, as far as a visitor may see them.

<root>/
    <run id>/       a run (`run`)
    .queue/         the waiting runs
    checks/, batches/   other jobs (`job_folder`)
    data/, uploads/ cached pairs, and uploaded files
    .warm/          a worker that waits for a run
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from finetune import disk, uploads
from finetune.config import RunConfig, is_upload
from finetune.environment import project
from finetune.environment.caches import is_writable, user_cache
from finetune.errors import ConfigError, DataError, NoSuchRun, StoreError
from finetune.messages import message as _
from finetune.metrics import catalog
from finetune.owners import LOCAL_USER, Visitor
from finetune.runs import grids
from finetune.runs.job_folder import JobFolder, forget_state
from finetune.runs.run import SPEC, Run, RunMetadata
from finetune.tasks.registry import deciding_metric

_TIME = "%Y%m%d-%H%M%S-%f"  # begins an id
_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[A-Za-z0-9_-]{8,24}")
_BUCKET = Path("/data")  # where a Space's bucket is mounted unless told otherwise


def default_root() -> Path:
    """Return `FINETUNE_RUNS`, or the first writable folder of: `runs/` in a Space's mounted bucket,
    `runs/` beside the app, the user's cache, a temporary folder. On a Space `FINETUNE_RUNS` must be
    writable, too."""
    temporary = Path(tempfile.gettempdir())
    user = user_cache() / "finetune" / "runs"
    candidates = [project.ROOT / "runs", user, temporary / "finetune-runs"]
    on_space = bool(os.environ.get("SPACE_ID"))
    if on_space and os.path.ismount(_BUCKET):
        candidates.insert(0, _BUCKET / "runs")
    if setting := os.environ.get("FINETUNE_RUNS"):
        requested = Path(os.path.expanduser(setting))
        if not on_space:
            return requested
        candidates.insert(0, requested)
    writable = (path for path in candidates if path.is_absolute() and is_writable(path))
    return next(writable, candidates[-1])


def named_run(name: Path, root: Path) -> Run:
    """Find a run by its folder, or by id or name below `root`; the name of a bundle is that of its
    model. Raises NoSuchRun, with the nearest names, if there is none."""
    with contextlib.suppress(OSError):  # a name that no folder can have
        for run in (Run(name), Run(root / name)):
            if run.exists() or run.events_file.is_file():
                return run
    runs = RunStore(root).runs()[::-1]  # of two with one name the newest
    models = {bundle.name: bundle.model() for bundle in bundles(runs)}
    named = {name: run for name, run in models.items() if run} | {run.title(): run for run in runs}
    if found := named.get(str(name)):
        return found
    raise NoSuchRun(str(name), difflib.get_close_matches(str(name), named, cutoff=0.4))


def as_run(run: Run | Path | str, root: Path | None = None) -> Run:
    """Find a run by its folder, or by its id or name in a folder of runs, which is the default one
    if None; or raise NoSuchRun."""
    if isinstance(run, Run):
        return run
    if not isinstance(run, str | Path) or not str(run):
        raise StoreError("run is {run!r}.", "Give a run, its folder, its id or its name.", run=run)
    return named_run(Path(run), root or default_root())


def as_store(store: RunStore | Path | str | None) -> RunStore:
    """Return a store, or that of a folder; the default one if None."""
    return store if isinstance(store, RunStore) else RunStore(store or default_root())


def new_id(root: Path) -> str:
    """Make an id that nobody can guess, for a folder in `root`. It sorts behind those that are
    there, even if the clock was set back."""
    now, names = datetime.now(), os.listdir(root) if root.is_dir() else []
    newest = max(filter(_ID.fullmatch, names), default="")[:22]
    with contextlib.suppress(ValueError):  # there is none
        now = max(now, datetime.strptime(newest, _TIME) + timedelta(microseconds=1))
    return f"{now:{_TIME}}{secrets.token_urlsafe(9)}"


class RunStore:
    """The runs below a root that a visitor may see; all runs if no visitor is given."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.visitor = LOCAL_USER

    def for_visitor(self, visitor: Visitor) -> RunStore:
        """A view of this store with only a visitor's runs and uploads."""
        view = copy.copy(self)
        view.visitor = visitor
        return view

    @property
    def everyone(self) -> RunStore:
        """A view of this store with everybody's runs."""
        return self if self.visitor.sees_all else self.for_visitor(LOCAL_USER)

    @property
    def uploads(self) -> uploads.Uploads:
        folder, used = self.root / "uploads", self._datasets
        return uploads.Uploads(folder, self.visitor, used, self.batch_input_bytes)

    def batch_input_bytes(self) -> int:
        """Bytes of the files that the visitor uploaded to be predicted."""
        paths = self.root.glob("batches/*/input.*")
        return sum(_size(p) for p in paths if self.visitor.owns(JobFolder(p.parent).owner))

    def uploaded_bytes(self) -> int:
        """Bytes of the files that all visitors uploaded."""
        patterns = ("uploads/*/*", "batches/*/input.*")
        return sum(_size(path) for pattern in patterns for path in self.root.glob(pattern))

    def _datasets(self) -> set[str]:
        used = set()
        for run in self.runs():
            with contextlib.suppress(StoreError):
                used.add(run.config().dataset)
        return used

    def taken_names(self) -> set[str]:
        """The names of all visible runs, including those replaced by another name."""
        return {name for run in self.runs() for name in (run.title(), run.about().title)}

    def new_name(self, config: RunConfig, stem: str = "") -> str:
        """Return a free name for a run: its configuration's own, `stem` and a number as in
        `grid 2`, or its data's name and a number as in `tickets-3`."""
        data = grids.data_name(config, self._file_names(config))
        taken, counter = self.taken_names(), " " if stem else "-"
        return grids.new_name(config.name, stem or data, taken, counter)

    def _file_names(self, config: RunConfig) -> str:
        """The person's names of uploaded files; "" if there are none."""
        if is_upload(config.dataset):
            with contextlib.suppress(DataError):  # its files are gone; training reports it
                return ", ".join(self.uploads.file_names(config.dataset).values())
        return ""

    def create(
        self, config: RunConfig, run_id: str = "", group: str = "", spec: str = "", title: str = ""
    ) -> Run:
        """Create a run folder with its configuration, completely or not at all. `spec` are the
        contents of its `engine.json`, if any; `title` is a free name, by default `new_name`."""
        run = Run(self.root / (run_id or new_id(self.root)))
        about = RunMetadata(
            group=group, created=time.time(), pairs=self._file_names(config),
            title=title or self.new_name(config),
        )  # fmt: skip
        aside = JobFolder(run.folder.with_name(f".new-{run.id}"))
        try:
            with disk.writing(f"The run folder {run.folder}"):
                aside.folder.mkdir(parents=True)
                aside.describe_job("train", self.visitor.name)
                disk.write_atomically(aside.folder / "about.json", about.model_dump_json(indent=2))
                disk.write_atomically(aside.folder / "config.json", config.to_json())
                if spec:
                    disk.write_atomically(aside.folder / SPEC, spec)
                os.replace(aside.folder, run.folder)
        finally:
            shutil.rmtree(aside.folder, ignore_errors=True)
        return run

    def get(self, run_id: object) -> Run:
        """Return the run of an id; NoSuchRun if none, or for a path or another visitor's run."""
        if isinstance(run_id, str) and (run := self._visible_run(run_id)):
            return run
        raise NoSuchRun

    def runs(self) -> list[Run]:
        """All visible runs, the newest first."""
        try:
            names = sorted(os.listdir(self.root), reverse=True)
        except OSError:
            return []
        return [run for run in map(self._visible_run, names) if run is not None]

    def is_model(self, run: Run) -> bool:
        """True if a run's model is the one that stands for its bundle."""
        model = Bundle(run.bundle(), self.bundle_of(run)).model()
        return model is not None and model.id == run.id

    def bundle_of(self, run: Run) -> list[Run]:
        """Return all runs of a run's bundle, the newest first; of a single run that one."""
        if not (name := run.bundle()):
            return [run]
        key = name, run.owner
        return [each for each in self.runs() if (each.bundle(), each.owner) == key] or [run]

    def _visible_run(self, name: str) -> Run | None:
        run = Run(self.root / name)
        if not _ID.fullmatch(name) or not run.exists():
            return None
        return run if self.visitor.sees_all or self.visitor.owns(run.owner) else None

    def describe(self, run: Run, name: str = "", **values: Any) -> None:
        """Change name, tags or note (`Run.describe`). ConfigError if a visible run has the name."""
        if name in {other.title() for other in self.runs() if other.id != run.id}:
            problem = _("is the name of another run, {name}; choose another", name=name)
            raise ConfigError({"name": problem})
        run.describe(name=name, **values)

    def delete(self, run: Run) -> None:
        """Remove a run's folder."""
        folder = self.get(run.id).folder
        aside = folder.with_name(f".deleted-{secrets.token_hex(8)}")
        with disk.writing(f"The run folder {folder}"):
            folder.rename(aside)  # gone at once, also for a worker that still writes into it
        shutil.rmtree(aside, ignore_errors=True)
        forget_state(run)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@dataclass(frozen=True)
class Bundle:
    """The runs of one click, as a cross-validation, seeds, a grid or a search's trials; or a single
    run. Their names share the first part: `search 2 · trial 3`, `tickets-3 · fold 2`. Wherever a
    model is chosen, a bundle is one entry."""

    name: str
    runs: list[Run] = field(default_factory=list)  # the newest first

    @property
    def is_picked(self) -> bool:
        """True if its model is the best of several seeds, or of a grid."""
        several = len(self.runs) > 1 and not self.runs[0].about().study
        return several and not any(map(_is_fold, self.runs))

    def model(self) -> Run | None:
        """Return the run whose model stands for all: of a cross-validation the one on all rows, of
        a search the best trial, of other bundles the best run. None if there is none yet."""
        kept = [run for run in self.runs if run.has_model() and not _is_fold(run)]
        if not self.runs[0].bundle() or any(map(_is_fold, self.runs)):
            return next(iter(kept), None)
        trials = [run for run in kept if run.about().study]
        return max(trials or kept, key=_score, default=None)


def bundles(runs: Iterable[Run]) -> list[Bundle]:
    """Return the bundles of some runs, in the order of their first ones."""
    found: dict[tuple[str, str], Bundle] = {}
    for run in runs:
        name = run.bundle()
        key = (run.owner, name) if name else (run.id, "")
        found.setdefault(key, Bundle(name or run.title())).runs.append(run)
    return [*found.values()]


def _is_fold(run: Run) -> bool:
    """True if the run holds out a fold. A configuration that cannot be read says nothing."""
    try:
        return run.config().fold > 0
    except StoreError:
        return False


def _score(run: Run) -> float:
    """The score of the run's best model, the greater the better; -inf if it has not finished."""
    summary = run.state()
    if summary.status != "finished" or summary.best is None:
        return float("-inf")
    name = deciding_metric(run.config(), summary.task)
    return catalog.find(name).rank(summary.best.metrics.get(name, float("nan")))
