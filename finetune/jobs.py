"""Worker processes: start one for a run, know whether it lives, stop it.

A worker is detached (its own session, no stdin, output to a file), so neither a closed tab nor
the app's end touches it. It is known by pid *and* start time: pids are reused. Stays free of
torch, so that the page opens fast; knows no page.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from finetune import catalog, events, launch
from finetune.config import DATA_FIELDS, RunConfig
from finetune.errors import DataError, JobError, StoreError
from finetune.report import Report
from finetune.store import Run, RunStore, write_atomically
from finetune.summary import ENDED, Summary

_SOURCE = Path(__file__).resolve().parent.parent
RESUMABLE = frozenset({"stopped", "failed", "interrupted"})
_START_GRACE = 10.0  # seconds a run may lack job.json while its worker is being started


def start(store: RunStore, config: RunConfig) -> Run:
    """Make a run and start its worker.

    Raises:
        ConfigError: when the configuration is wrong.
        DataError: when its pairs were examined and found impossible to train on.
        JobError: when another run is training, or no process can be started.
        StoreError: when the run folder cannot be made.
    """
    config.check()
    launch.processes(config)
    report = look(examination(store, config)).report
    if report is not None and report.blocked:
        raise DataError(report.blocked[0].title, f"{report.blocked[0].action} See Data.")
    with _starting(store):
        if (busy := active(store)) is not None:
            raise JobError(
                f"The run {busy.title()!r} is still training.",
                "Wait for its end or stop it, then press Train again.",
            )
        run = store.create(config)
        _begin(store, run)
    return run


def resume(store: RunStore, run: Run) -> None:
    """Let a run that ended before its last step go on from its last checkpoint.

    Raises:
        JobError: when it is finished or running, another one is, or no process can be started.
        StoreError: when its folder cannot be written.
    """
    with _starting(store):
        status = summary(store, run).status
        if status not in RESUMABLE:
            raise JobError(f"The run is {status}.", "Only one that ended too early can go on.")
        if (busy := active(store)) is not None:
            raise JobError(
                f"The run {busy.title()!r} is still training.",
                "Wait for its end or stop it, then press Resume again.",
            )
        run.config()
        run.job_file.unlink(missing_ok=True)
        run.resume()
        _begin(store, run)


def prepare(store: RunStore) -> None:
    """See to it that a worker waits which has imported already, while nothing trains.

    A convenience: where none can be had, a run starts as it always does, seconds later.
    """
    with contextlib.suppress(JobError, OSError), _starting(store):
        folder = Run(store.root / ".spare")
        if worker(folder) is None and active(store) is None:
            shutil.rmtree(folder.folder, ignore_errors=True)
            folder.folder.mkdir(parents=True)
            _spawn(folder, "finetune.spare", "--folder")


def _begin(store: RunStore, run: Run) -> None:
    """Give the run to the waiting worker if it can do it, else to one of its own."""
    if not _give(Run(store.root / ".spare"), run):
        _spawn(run)


def _give(spare: Run, run: Run, patience: float = 1.0) -> bool:
    """Whether the waiting worker has taken the run; it is not waited for, and ended if it hangs."""
    chosen = run.config()
    several = chosen.num_processes > 1 or chosen.accelerate_config
    process = worker(spare)
    if process is None or several or catalog.needs_hub(chosen.dataset, chosen.checkpoint):
        return False
    taken = False
    if (spare.folder / "ready").exists():
        _write_job(run, process.pid)
        _carried[process.pid] = run
        write_atomically(spare.folder / "run", str(run.folder.resolve()))
        until = time.monotonic() + patience
        while not (taken := (spare.folder / "taken").exists()) and time.monotonic() < until:
            time.sleep(0.01)
    if not taken:  # still importing, or hung: two would only be in each other's way
        run.job_file.unlink(missing_ok=True)
        with contextlib.suppress(psutil.Error):
            process.kill()
            process.wait(2)
    shutil.rmtree(spare.folder, ignore_errors=True)
    return taken


@contextlib.contextmanager
def _starting(store: RunStore) -> Iterator[None]:
    """One start at a time, whichever app or process asks."""
    store.root.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(store.root / ".starting.lock", timeout=10):
            yield
    except Timeout:
        raise JobError("Another run is just being started.", "Try again in a moment.") from None


def _spawn(run: Run, module: str = "finetune.train", flag: str = "--run") -> None:
    command = [sys.executable, "-m", module, flag, str(run.folder.resolve())]
    path = os.pathsep.join(filter(None, [str(_SOURCE), os.environ.get("PYTHONPATH", "")]))
    try:
        with run.log_file.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            )
    except OSError as error:
        raise JobError(f"No worker process could be started: {error}.") from error
    _write_job(run, process.pid)
    _carried[process.pid] = run
    # Collects the exit status, or the ended worker would stay a zombie while the app lives.
    threading.Thread(target=_reap, args=(process,), name=f"reap-{process.pid}", daemon=True).start()


_carried: dict[int, Run] = {}  # what this app's workers carry out, by pid


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for a worker's end and note the signal that ended it, which nobody else can know."""
    code = process.wait()
    run = _carried.pop(process.pid, None)
    if run is None or code >= 0:
        return
    job = run.read_json(run.job_file)
    if job.get("pid") == process.pid:
        with contextlib.suppress(StoreError):
            write_atomically(run.job_file, json.dumps({**job, "signal": -code}) + "\n")


_MOST_LOOKS = 3  # examinations at a time, for all visitors
_KEPT_LOOKS = 100


@dataclass(frozen=True)
class Look:
    """How far an examination is.

    Args:
        running: whether its process lives.
        doing: what it does now; `done` of `total` rows, `total` 0 while unknown.
        report: what it found; None until it ends well.
        error, remedy: why it ended otherwise.
    """

    running: bool
    doing: str = ""
    done: int = 0
    total: int = 0
    report: Report | None = None
    error: str = ""
    remedy: str = ""


def examine(store: RunStore, config: RunConfig, again: bool = False) -> Run:
    """Look at the pairs of a configuration in a process of its own; the folder it writes into.

    What was examined before is not examined again, for whoever asks.

    Args:
        again: examine anew, since a source may have changed.

    Raises:
        JobError: when too many are going on, or no process can be started.
        StoreError: when the folder cannot be made.
    """
    folder = examination(store, config)
    with _starting(store):
        if worker(folder) is not None:
            return folder
        if look(folder).report is not None and not again:
            return folder
        others = (Run(path) for path in folder.folder.parent.glob("*/"))
        if sum(worker(other) is not None for other in others) >= _MOST_LOOKS:
            raise JobError(
                f"{_MOST_LOOKS} examinations are going on.", "Press Examine again in a moment."
            )
        shutil.rmtree(folder.folder, ignore_errors=True)
        _forget_old(folder.folder.parent)
        try:
            folder.folder.mkdir(parents=True)
        except OSError as error:
            raise StoreError(f"{folder.folder} cannot be made: {error.strerror}.") from error
        write_atomically(folder.folder / "config.json", config.to_json())
        _spawn(folder, "finetune.examine", "--folder")
    return folder


def _forget_old(parent: Path) -> None:
    """Keep the newest examinations; one that is asked for again is made again."""
    found = sorted(parent.glob("*/"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[_KEPT_LOOKS:]:
        if worker(Run(path)) is None:
            shutil.rmtree(path, ignore_errors=True)


def abandon(folder: Run) -> None:
    """End an examination nobody waits for, and forget what it has written."""
    if (process := worker(folder)) is not None:
        with contextlib.suppress(psutil.Error):
            process.kill()
            process.wait(2)
        shutil.rmtree(folder.folder, ignore_errors=True)


def examination(store: RunStore, config: RunConfig) -> Run:
    """Where the examination of a configuration's pairs is, or would be."""
    values = [getattr(config, name) for name in (*DATA_FIELDS, "checkpoint", "max_length")]
    name = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:24]
    return Run(store.root / "examinations" / name)


def look(folder: Run) -> Look:
    """How far an examination is, from its folder."""
    alive = worker(folder) is not None  # asked first: it may end while the rest is read
    found = folder.read_json(folder.folder / "report.json")
    if found:
        with contextlib.suppress(TypeError, KeyError, ValueError):
            return Look(False, report=Report.from_dict(found))
    doing, done, total = "starting", 0, 0
    for event in folder.tail()[0]:
        match event:
            case events.Failed():
                return Look(False, error=event.error, remedy=event.remedy)
            case events.Entered():
                doing, done, total = event.detail, 0, 0
            case events.Progressed():
                done, total = event.done, event.total
    starting = folder.folder.exists() and not folder.job_file.exists()
    if alive or (starting and time.time() - _changed(folder) < _START_GRACE):
        return Look(True, doing, done, total)
    if not folder.folder.exists():
        return Look(False)
    log = folder.log_tail(2000).strip().splitlines()
    return Look(
        False,
        error="The examination ended without a word, perhaps for want of memory.",
        remedy=f"Try a part of the file. {log[-1] if log else ''}".strip(),
    )


def adopt(run: Run) -> None:
    """Note the calling process as the worker of `run`: a run begun in a terminal."""
    _write_job(run, os.getpid())


def _write_job(run: Run, pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(pid).create_time()
        write_atomically(run.job_file, json.dumps({"pid": pid, "started": started}) + "\n")


def worker(run: Run) -> psutil.Process | None:
    """The living worker of a run; None when it has ended, or its pid now belongs to another."""
    job = run.read_json(run.job_file)
    try:
        process = psutil.Process(int(job["pid"]))
        same = abs(process.create_time() - float(job["started"])) < 0.05
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (KeyError, TypeError, ValueError, psutil.Error):
        return None


def summary(store: RunStore, run: Run) -> Summary:
    """The fold over the run's events, and what its process says where they are silent.

    A dead worker without a last event was interrupted; or stopped, where a stop was asked for.
    """
    known = store.summary(run)
    if known.status in ENDED:
        return known
    if worker(run) is not None:
        return replace(known, status="running")
    known = store.summary(run)  # it may have written its last event just before it ended
    if known.status in ENDED:
        return known
    if not run.job_file.exists() and time.time() - _changed(run) < _START_GRACE:
        return known
    if run.stop_requested():
        return replace(known, status="stopped", ended=_changed(run))
    killed = run.read_json(run.job_file).get("signal") == signal.SIGKILL
    return replace(
        known,
        status="interrupted",
        ended=_changed(run),
        error="The worker was killed, as the system does when memory runs out." * killed,
        remedy=_SMALLER * killed,
    )


_SMALLER = (
    "Free some memory and press Resume, or start anew with a smaller per_device_train_batch_size "
    "and more gradient_accumulation_steps, which learns the same."
)


def _changed(run: Run) -> float:
    paths = (run.events_file, run.folder / "config.json")
    return max((p.stat().st_mtime for p in paths if p.exists()), default=0.0)


def active(store: RunStore) -> Run | None:
    """The run that is training now, or None."""
    for run in store.runs():
        if summary(store, run).status in {"running", "waiting"}:
            return run
    return None


def stop(run: Run, patience: float = 4.0, limit: float = 30.0) -> None:
    """Ask a run to end and keep its best model; see to it in the background.

    The file is enough while the loop runs. What does not end in `patience` seconds gets SIGTERM,
    what does not end in `limit` seconds gets SIGKILL, its whole process group with it.

    Raises:
        StoreError: when the request cannot be written.
    """
    run.request_stop()
    if (process := worker(run)) is not None:
        threading.Thread(
            target=_see_off,
            args=(process, patience, limit),
            name=f"stop-{process.pid}",
            daemon=True,
        ).start()


def _see_off(process: psutil.Process, patience: float, limit: float) -> None:
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(patience)
            return
        process.terminate()
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(limit - patience)
            return
        # is_running compares start times: a reused pid is not ours to kill.
        if process.is_running() and os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
