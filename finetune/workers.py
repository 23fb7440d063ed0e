"""Worker processes: start one, know whether it lives, end it.

A worker is detached (its own session, no stdin, output to a file), so neither a closed tab nor
the app's end touches it. It is known by pid *and* birth (`process`). Which run is started when is
`jobs`' business; stays free of torch, so that the page opens fast.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from finetune import catalog, process, visitors
from finetune.errors import JobError, StoreError, remedy_of_disk
from finetune.store import Run, RunStore, write_atomically

_SOURCE = Path(__file__).resolve().parent.parent
TRAIN = "finetune.train"  # what carries a run out
STARTED_BY = "FINETUNE_STARTED_BY"  # tells a worker the pid of who started it


@contextlib.contextmanager
def changing(store: RunStore) -> Iterator[None]:
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
        raise StoreError(
            f"{store.root} cannot be written: {error.strerror or error}.",
            remedy_of_disk(error, "Free some space or choose another folder with FINETUNE_RUNS."),
        ) from error


@contextlib.contextmanager
def alone_with(run: Run) -> Iterator[bool]:
    """Whether this process is the run's only worker; the system lets go of a killed one's hold."""
    lock = FileLock(run.lock_file, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    except OSError:  # a full disk or a deleted folder: it will be said where it matters
        yield True
        return
    try:
        yield True
    finally:
        lock.release()


def spawn(
    run: Run,
    module: str = "",
    flag: str = "--run",
    devices: Sequence[str] = (),
    cwd: Path | None = None,
) -> process.Mark:
    """Start a worker for a folder; what identifies it.

    Args:
        module: what it runs; `TRAIN` where empty.
        devices: the accelerators it may use; all, where empty.
        cwd: where it runs; an empty folder by default, so that no name of a dataset or checkpoint
            can mean a file of this machine.

    Raises:
        JobError: when no process can be started.
        StoreError: when the folder cannot be written.
    """
    command = [sys.executable, "-m", module or TRAIN, flag, str(run.folder.resolve())]
    chosen = {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}
    try:
        with run.log_file.open("ab") as log:
            started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd or empty_folder(run),
                env=_environment()
                | {"PYTHONUNBUFFERED": "1", STARTED_BY: str(os.getpid())}
                | chosen,
            )
    except OSError as error:
        raise JobError(f"No worker process could be started: {error}.") from error
    _carried[started.pid] = run
    # Collects the exit status, or the ended worker would stay a zombie while the app lives.
    threading.Thread(target=_reap, args=(started,), name=f"reap-{started.pid}", daemon=True).start()
    return note(run, started.pid, devices)


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
    if not visitors.shared():
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


def note(run: Run, pid: int, devices: Sequence[str] = ()) -> process.Mark:
    """Write down which process carries a run out, and on which accelerators; its mark.

    Raises:
        StoreError: when the folder is gone or the disk is full.
    """
    known = process.mark(pid) or {"pid": pid}
    write_atomically(run.job_file, json.dumps({**known, "devices": list(devices)}) + "\n")
    return known


def worker(run: Run) -> psutil.Process | None:
    """The living worker of a run; None when it has ended, or its pid now belongs to another."""
    return process.find(run.read_json(run.job_file))


def devices(run: Run) -> tuple[str, ...]:
    """The accelerators its worker was given; empty where it has all."""
    found = run.read_json(run.job_file).get("devices", [])
    return tuple(str(one) for one in found) if isinstance(found, list) else ()


def end(run: Run, patience: float, limit: float) -> None:
    """See to it, in the background, that a worker that was asked to end does.

    What does not end in `patience` seconds gets SIGTERM, what does not end in `limit` seconds
    gets SIGKILL, its whole process group with it.
    """
    if (found := worker(run)) is not None:
        threading.Thread(
            target=_see_off,
            args=(found, patience, limit),
            name=f"stop-{found.pid}",
            daemon=True,
        ).start()


def kill(run: Run) -> None:
    """End a worker at once, its whole process group with it, and wait until it is gone."""
    if (found := worker(run)) is not None:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            _kill(found)
            found.wait(5)


def _see_off(found: psutil.Process, patience: float, limit: float) -> None:
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
    # is_running compares births: a reused pid is not ours to kill.
    if found.is_running() and os.getpgid(found.pid) == found.pid:
        os.killpg(found.pid, signal.SIGKILL)
    else:
        found.kill()


def _spare(store: RunStore) -> Run:
    return Run(store.root / ".spare")


def prepare(store: RunStore) -> None:
    """See to it that a worker waits which has imported already; once, though often called.

    A convenience: where none can be had, a run starts as it always does, seconds later.
    """
    folder = _spare(store)
    with contextlib.suppress(JobError, StoreError, OSError):
        if worker(folder) is None:
            shutil.rmtree(folder.folder, ignore_errors=True)
            folder.folder.mkdir(parents=True)
            spawn(folder, "finetune.spare", "--folder")


def give(store: RunStore, run: Run, patience: float = 1.0) -> process.Mark | None:
    """Hand the run to the waiting worker if it can do it; its mark, or None where it was not.

    It is not waited for, and ended if it hangs.

    Raises:
        StoreError: when the run's folder cannot be written.
    """
    spare, chosen = _spare(store), run.config()
    several = chosen.num_processes > 1 or chosen.accelerate_config
    found = worker(spare)
    if found is None or several or catalog.needs_hub(chosen.dataset, chosen.checkpoint):
        return None
    known, taken = None, False
    if (spare.folder / "ready").exists():
        known = note(run, found.pid)
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
