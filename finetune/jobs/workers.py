"""Worker processes: start one, know whether it lives, end it.

A worker is detached (its own session, no stdin, output to a file), so neither a closed tab nor
the app's end touches it. It lives as long as the lock of its folder is held: it is started with the
lock, and the system releases it when the worker ends, however it ends. Its pid and start time
(`process`) are written down too, and are needed only to send it a signal. Which run is started when
is `jobs`' business; stays free of torch, so that the page opens fast.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from finetune import disk, owners
from finetune.data import catalog
from finetune.disk import write_atomically
from finetune.errors import JobError, StoreError
from finetune.jobs import process
from finetune.runs.store import Run, RunStore

_SOURCE = Path(__file__).resolve().parent.parent.parent
TRAIN = "finetune.jobs.train"  # what carries a run out
PATIENCE, LIMIT = 4.0, 30.0  # seconds until a run that shall stop gets SIGTERM, and SIGKILL
STARTED_BY = "FINETUNE_STARTED_BY"  # tells a worker the pid of who started it
LOCKED = "FINETUNE_LOCKED"  # tells a worker the folder whose lock it, or its launcher, holds


@contextlib.contextmanager
def store_lock(store: RunStore) -> Iterator[None]:
    """One change at a time of what runs and what waits, whichever app or process makes it.

    Raises:
        JobError: when another change takes too long.
    """
    try:
        store.root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(store.root / ".starting.lock", timeout=10)
        with lock:
            yield
    except Timeout:
        raise JobError("Another run is just being started.", "Try again in a moment.") from None
    except OSError as error:
        raise disk.failure(store.root, error, StoreError) from error


def alive(run: Run) -> bool:
    """Whether a folder's worker lives, the launcher of several processes and their first included.

    Known from the moment it is started, before anything of it is written down.
    """
    return _held(run.lock_file) or _held(run.rank_lock_file)


def _held(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # two that ask do not see each other
        return False
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(handle)


def hold(path: Path) -> int | None:
    """A descriptor that holds a lock until every process that has it ends; None if it is held.

    Raises:
        OSError: when the file cannot be made.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    until = time.monotonic() + 1  # `alive` holds it too, for an instant
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        if time.monotonic() > until:
            os.close(handle)
            return None
        time.sleep(0.01)


@contextlib.contextmanager
def worker_lock(run: Run, launched: bool = False) -> Iterator[bool]:
    """Whether this process is the run's only worker.

    Args:
        launched: whether it is one of several; their launcher may hold the run's lock.
    """
    folder = str(run.folder.resolve())
    started_with = os.environ.get(LOCKED) == folder
    if started_with and not launched:
        yield True
        return
    try:
        handle = hold(run.rank_lock_file if started_with else run.lock_file)
    except OSError:  # a full disk or a deleted folder: it will be said where it matters
        yield True
        return
    if handle is None:
        yield False
        return
    before = os.environ.get(LOCKED, "")
    os.set_inheritable(handle, True)  # `launch.become` keeps it, and says so
    os.environ[LOCKED] = folder
    try:
        yield True
    finally:
        os.environ[LOCKED] = before
        os.close(handle)


def spawn_worker(
    run: Run,
    module: str = "",
    flag: str = "--run",
    devices: Sequence[str] = (),
    about_to: Callable[[], None] = lambda: None,
    cwd: Path | None = None,
) -> process.ProcessMark:
    """Start a worker for a folder; what identifies it.

    Args:
        module: what it runs; `TRAIN` where empty.
        devices: the accelerators it may use; all, where empty.
        about_to: called when the folder counts as `alive` already, before there is a process.
        cwd: where it runs; an empty folder by default, so that no name of a dataset or checkpoint
            can mean a file of this machine.

    Raises:
        JobError: when no process can be started.
        StoreError: when the folder cannot be written, or its former worker lives.
    """
    command = [sys.executable, "-m", module or TRAIN, flag, str(run.folder.resolve())]
    told = {"PYTHONUNBUFFERED": "1", STARTED_BY: str(os.getpid())}
    told |= {LOCKED: str(run.folder.resolve())}
    told |= {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}
    lock = _lock(run)
    try:
        about_to()
        with run.log_file.open("ab") as log:
            started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd or empty_folder(run),
                pass_fds=(lock,),
                env=_environment() | told,
            )
    except OSError as error:
        raise JobError(f"No worker process could be started: {error}.") from error
    finally:
        os.close(lock)  # the worker has it now
    _carried[started.pid] = run
    # Collects the exit status, or the ended worker would stay a zombie while the app lives.
    threading.Thread(target=_reap, args=(started,), name=f"reap-{started.pid}", daemon=True).start()
    try:
        return record_worker(run, started.pid, devices)
    except StoreError:  # a full disk: what could not be written down is to be begun anew
        started.kill()
        raise


def _lock(run: Run) -> int:
    try:
        lock = hold(run.lock_file)
    except OSError as error:
        raise StoreError(
            f"{run.lock_file} cannot be made: {error.strerror or error}.",
            "Free some space or choose another folder with FINETUNE_RUNS.",
        ) from error
    if lock is None:
        raise StoreError(f"{run.folder.name} is being worked on.", "Try again in a moment.")
    return lock


def empty_folder(run: Run) -> Path:
    """An empty folder for a worker to run in, within the run's own.

    Raises:
        OSError: when it cannot be made.
    """
    folder = run.folder.resolve() / ".cwd"
    shutil.rmtree(folder, ignore_errors=True)  # a library may have left something there
    folder.mkdir()
    return folder


_FOLDERS = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "XDG_CACHE_HOME", "WANDB_DIR")


def _environment() -> dict[str, str]:
    """What a worker is told; its folders by absolute paths, for it runs in another one.

    Where several people share the app it has no token: a visitor must not read with its owner's
    what is private or gated, be it a dataset or a checkpoint.
    """
    told = {"WANDB_DIR": os.getcwd(), **os.environ}
    told |= {name: os.path.abspath(told[name]) for name in _FOLDERS if told.get(name)}
    paths = [str(_SOURCE), *filter(None, told.get("PYTHONPATH", "").split(os.pathsep))]
    told["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
    if not owners.is_shared():
        return told
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        told.pop(name, None)
    return told | {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}


_carried: dict[int, Run] = {}  # what this app's workers carry out, by pid


def _reap(started: subprocess.Popen[bytes]) -> None:
    """Wait for a worker's end and note the signal that ended it, which nobody else can know."""
    code = started.wait()
    run = _carried.pop(started.pid, None)
    if run is None or code >= 0:
        return
    job = run.read_json(run.job_file)
    if job.get("pid") == started.pid:
        with contextlib.suppress(StoreError):
            write_atomically(run.job_file, json.dumps({**job, "signal": -code}) + "\n")


def record_worker(run: Run, pid: int, devices: Sequence[str] = ()) -> process.ProcessMark:
    """Write down which process carries a run out, and on which accelerators; its mark.

    Raises:
        StoreError: when the folder is gone or the disk is full.
    """
    known = process.identify_process(pid) or {"pid": pid}
    write_atomically(run.job_file, json.dumps({**known, "devices": list(devices)}) + "\n")
    return known


def worker_process(run: Run) -> psutil.Process | None:
    """The process to signal; None when it has ended, its pid is another's now, or not known yet.

    Whether there is one at all is `alive`'s to say.
    """
    return process.find_process(run.read_json(run.job_file))


def worker_devices(run: Run) -> tuple[str, ...]:
    """The accelerators its worker was given; empty where it has all."""
    found = run.read_json(run.job_file).get("devices", [])
    return tuple(str(one) for one in found) if isinstance(found, list) else ()


def end_worker(run: Run, patience: float, limit: float) -> None:
    """See to it, in the background, that a worker that was asked to end does.

    What does not end in `patience` seconds gets SIGTERM, what does not end in `limit` seconds
    gets SIGKILL, its whole process group with it.
    """
    if alive(run):
        threading.Thread(
            target=_see_off, args=(run, patience, limit), name=f"stop-{run.id}", daemon=True
        ).start()


def kill_worker(run: Run, patience: float = 5.0) -> None:
    """End a worker at once, its whole process group with it, and wait until it is gone."""
    until = time.monotonic() + patience
    while alive(run) and (left := until - time.monotonic()) > 0:
        # One that was just started may not have a pid yet that anybody knows.
        if (found := worker_process(run)) is not None:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                _kill(found)
                found.wait(left)
        time.sleep(0.01)


def _see_off(run: Run, patience: float, limit: float) -> None:
    while (found := worker_process(run)) is None:
        if not alive(run):
            return
        time.sleep(0.05)
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        with contextlib.suppress(psutil.TimeoutExpired):
            found.wait(patience)
            return
        found.terminate()
        with contextlib.suppress(psutil.TimeoutExpired):
            found.wait(limit - patience)
            return
        _kill(found)


def _kill(found: psutil.Process) -> None:
    started = found.children(recursive=True)  # a launcher's processes have groups of their own
    # is_running compares births: a reused pid is not ours to kill.
    if found.is_running() and os.getpgid(found.pid) == found.pid:
        os.killpg(found.pid, signal.SIGKILL)
    else:
        found.kill()
    for child in started:
        with contextlib.suppress(psutil.Error):
            child.kill()


def _spare(store: RunStore) -> Run:
    return Run(store.root / ".spare")


def start_warm_worker(store: RunStore) -> None:
    """See to it that a worker waits which has imported already; once, though often called.

    A convenience: where none can be had, a run starts as it always does, seconds later.
    """
    folder = _spare(store)
    with contextlib.suppress(JobError, StoreError, OSError):
        if not alive(folder):
            shutil.rmtree(folder.folder, ignore_errors=True)
            folder.folder.mkdir(parents=True)
            spawn_worker(folder, "finetune.jobs.warm_worker", "--folder")


def give_to_warm_worker(
    store: RunStore, run: Run, patience: float = 1.0
) -> process.ProcessMark | None:
    """Hand the run to the waiting worker if it can do it; its mark, or None where it was not.

    It is not waited for, and ended if it hangs. Once it has taken the run it holds its lock.

    Raises:
        StoreError: when the run's folder cannot be written.
    """
    spare, chosen = _spare(store), run.config()
    several = chosen.num_processes > 1 or chosen.accelerate_config
    found = worker_process(spare)
    if found is None or several or catalog.needs_hub(chosen.dataset, chosen.checkpoint):
        return None
    known, taken = None, False
    if (spare.folder / "ready").exists():
        known = record_worker(run, found.pid)
        _carried[found.pid] = run
        write_atomically(spare.folder / "run", str(run.folder.resolve()))
        until = time.monotonic() + patience
        while not (taken := (spare.folder / "taken").exists()) and time.monotonic() < until:
            time.sleep(0.01)
    if not taken:  # still importing, or hung: two would only be in each other's way
        run.job_file.unlink(missing_ok=True)
        with contextlib.suppress(psutil.Error):
            found.kill()
            found.wait(2)
    shutil.rmtree(spare.folder, ignore_errors=True)
    return known if taken else None
