"""Errands: work beside the training, each in a process of its own with a folder like a run's.

An examination, an assessment, a batch and an export are errands: started a few at a time, told by
their events, ended by one of them. What is done is the business of the module that the process
runs; stays free of torch, for the page.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from finetune import disk, logs
from finetune.disk import write_atomically
from finetune.errors import FinetuneError, JobError, StoreError
from finetune.jobs import workers
from finetune.runs import events
from finetune.runs.events import Event
from finetune.runs.store import Run, RunStore

_START_GRACE = 10.0  # seconds a folder may lack job.json while its process is being started


@dataclass(frozen=True)
class JobKind:
    """One kind of errand.

    Args:
        module: what the process runs, with `--folder`.
        folders: where such errands lie below the store, as a pattern.
        most: how many may go on at a time, for all visitors.
        busy: what is said of them when no more may.
    """

    module: str
    folders: str
    most: int
    busy: str


@dataclass(frozen=True)
class JobProgress:
    """How far an errand is.

    Args:
        status: `running`, `finished`, `stopped`, `failed`; empty where there is none.
        doing: what it does now.
        done, total: of whatever it counts; `total` 0 while unknown.
        step: the model it was about, as its last event says.
        error, remedy: why it failed.
    """

    status: str = ""
    doing: str = "starting"
    done: int = 0
    total: int = 0
    step: int = 0
    error: str = ""
    remedy: str = ""

    @property
    def running(self) -> bool:
        """Whether its process lives, or is just being started."""
        return self.status == "running"


def start_job(
    store: RunStore, place: Run, kind: JobKind, files: Mapping[str, str] | None = None
) -> None:
    """Start an errand, unless it is going on already.

    Args:
        place: its folder; what lay there is gone.
        files: name -> text of what it finds there.

    Raises:
        JobError: when too many go on, or no process can be started.
        StoreError: when the folder cannot be made.
    """
    with workers.store_lock(store):
        if workers.alive(place):
            return
        others = (Run(path) for path in store.root.glob(f"{kind.folders}/"))
        if sum(workers.alive(other) for other in others) >= kind.most:
            raise JobError(f"{kind.most} {kind.busy}.", "Try again in a minute.")
        # Twice: who collects a killed process may just write its signal there (`workers`).
        for _ in range(2):
            shutil.rmtree(place.folder, ignore_errors=True)
        try:
            place.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk.failure(place.folder, error, StoreError) from error
        try:
            for name, text in (files or {}).items():
                write_atomically(place.folder / name, text)
            workers.spawn_worker(place, kind.module, "--folder")
        except FinetuneError:
            shutil.rmtree(place.folder, ignore_errors=True)
            raise


def job_progress(place: Run) -> JobProgress:
    """How far an errand is, from its folder."""
    lives = workers.alive(place)  # asked first: it may end while the rest is read
    found = JobProgress()
    for event in place.tail()[0]:
        found = _after(found, event)
    if found.status:
        return found
    if lives or _is_young(place):
        return replace(found, status="running")
    if not place.folder.exists():
        return found
    return replace(
        found, status="failed", error="It ended without a word, perhaps for want of memory."
    )


def _after(known: JobProgress, event: Event) -> JobProgress:
    match event:
        case events.PhaseStarted():
            return JobProgress(doing=event.detail)
        case events.Progressed():
            return replace(known, done=event.done, total=event.total)
        case events.Finished():
            return replace(known, status="finished", step=event.step)
        case events.Stopped():
            return replace(known, status="stopped", step=event.step)
        case events.Failed():
            return replace(known, status="failed", error=event.error, remedy=event.remedy)
    return known


def _is_young(place: Run) -> bool:
    """Whether its process may be being started; a clock set back makes a folder young again."""
    if place.job_file.exists():
        return False
    try:
        return abs(time.time() - place.folder.stat().st_mtime) < _START_GRACE
    except OSError:
        return False


def run_job(
    place: Run,
    phase: events.Phase,
    work: Callable[[], Event],
    remedy: str = "",
    begins: str = "loading PyTorch",
) -> int:
    """Do the work in the errand's own process; the exit status: 0 done, 1 failed.

    Args:
        place: whose events tell how it went.
        phase: what the first event says.
        work: does it and gives the last event.
        remedy: what to do after an error nobody foresaw; the log has its traceback.
        begins: what the first event says is done.
    """
    try:
        place.append(events.PhaseStarted(phase=phase, detail=begins))
        place.append(work())
        return 0
    except FinetuneError as error:
        place.append(events.Failed(error=error.fact, remedy=error.remedy))
    except Exception as error:
        if disk.is_full(error):
            full = disk.failure("What was made", error, StoreError)
            place.append(events.Failed(error=full.fact, remedy=full.remedy))
            return 1
        logs.print_traceback()
        text = (logs.unsigned(str(error)).strip().splitlines() or [""])[0][:300]
        place.append(events.Failed(error=f"{type(error).__name__}: {text}", remedy=remedy))
    return 1
