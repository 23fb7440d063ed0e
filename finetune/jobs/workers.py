"""Worker processes on this machine: start one for a job's folder, find it, end it.

A worker is detached (its own session, no stdin, output to a file), so that neither a closed tab nor
the app's end touches it. It inherits the folder's lock: `JobFolder.is_alive` is true from before
it is started until its last process ends. `process.json` is needed only to send it a signal.
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

from finetune import disk, owners
from finetune.data import catalog
from finetune.disk import write_atomically
from finetune.errors import JobError, StoreError
from finetune.runs.job_folder import JobFolder, hold_lock
from finetune.runs.run import Run
from finetune.runs.store import RunStore

WORKER = "finetune.jobs.worker"  # the module that a worker runs
STOP_PATIENCE, STOP_LIMIT = 4.0, 30.0  # seconds until SIGTERM, and until SIGKILL
LOCKED = "FINETUNE_LOCKED"  # tells a worker the folder whose lock it, or its launcher, holds
WARM = "warm"  # the kind of a worker that waits for a run
READY, RUN, TAKEN = "ready", "run", "taken"  # files by which the app and a warm worker talk
_SOURCE = Path(__file__).resolve().parent.parent.parent
# Folders that a worker is told by absolute paths, for it runs in another one.
_FOLDERS = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "XDG_CACHE_HOME", "WANDB_DIR")
_jobs: dict[int, JobFolder] = {}  # what this process's workers carry out, by pid


def spawn_worker(
    job: JobFolder, devices: Sequence[str] = (), cwd: Path | None = None, stdin: bytes = b""
) -> None:
    """Start a worker for a folder.

    Args:
        devices: the accelerators it may use; all, where empty.
        cwd: where it runs; an empty folder by default, so that no name of a dataset or checkpoint
            can mean a file of this machine.
        stdin: what it can read once; a secret stands in no argument, file or variable.
    """
    folder = str(job.folder.resolve())
    variables = _environment() | {"PYTHONUNBUFFERED": "1", LOCKED: folder}
    variables |= {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}
    with disk.writing(job.lock_file):
        lock = hold_lock(job.lock_file)
    if lock is None:
        raise StoreError("{id} is being worked on.", "Try again in a moment.", id=job.id)
    try:
        with job.log_file.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER, folder],
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd or empty_folder(job),
                pass_fds=(lock,),
                env=variables,
            )
    except OSError as error:
        raise JobError("No worker process could be started: {error}.", error=error) from error
    finally:
        os.close(lock)  # the worker has it now
    # Collects the exit status, or the ended worker would stay a zombie while the app lives.
    threading.Thread(target=_reap, args=(process,), name="reap", daemon=True).start()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(stdin)
    record_worker(job, process.pid, devices)


def empty_folder(job: JobFolder) -> Path:
    """An empty folder for a worker to run in, within the job's own."""
    folder = job.folder.resolve() / ".cwd"
    shutil.rmtree(folder, ignore_errors=True)  # a library may have left something there
    folder.mkdir()
    return folder


def _environment() -> dict[str, str]:
    """The environment of a worker.

    Where several people share the app it has no token: a visitor must not read with its owner's
    what is private or gated, be it a dataset or a checkpoint.
    """
    variables = {"WANDB_DIR": os.getcwd(), **os.environ}
    variables |= {name: os.path.abspath(variables[name]) for name in _FOLDERS if name in variables}
    paths = [str(_SOURCE), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    variables["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
    if not owners.is_shared():
        return variables
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        variables.pop(name, None)
    return variables | {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for a worker's end and note the signal that ended it, which nobody else can know."""
    code, job = process.wait(), _jobs.pop(process.pid, None)
    record = job.read_json(job.process_file) if job else {}
    if job and code < 0 and record.get("pid") == process.pid:
        with contextlib.suppress(StoreError):
            write_atomically(job.process_file, json.dumps({**record, "signal": -code}) + "\n")


def record_worker(job: JobFolder, pid: int, devices: Sequence[str] = ()) -> None:
    """Write down which process carries a job out, and on which accelerators."""
    record = {"pid": pid, "started": 0.0, "devices": list(devices)}
    with contextlib.suppress(psutil.Error):  # it has ended already
        record["started"] = _start_time(psutil.Process(pid))
    write_atomically(job.process_file, json.dumps(record) + "\n")
    _jobs[pid] = job


def _start_time(process: psutil.Process) -> float:
    """Seconds from the machine's start to the process's: a clock that is set changes nothing."""
    return float(process.create_time() - psutil.boot_time())


def worker_process(job: JobFolder) -> psutil.Process | None:
    """The process that carries a job out; None when it has ended, or its pid is another's now."""
    record = job.read_json(job.process_file)
    with contextlib.suppress(psutil.Error, KeyError, TypeError, ValueError, OverflowError):
        process = psutil.Process(record["pid"])
        if abs(_start_time(process) - record["started"]) < 1 and job.is_alive():
            return process
    return None


def worker_devices(job: JobFolder) -> tuple[str, ...]:
    """The accelerators its worker was given; empty where it has all."""
    return tuple(map(str, job.read_json(job.process_file).get("devices", [])))


def was_killed(job: JobFolder) -> bool:
    """Whether SIGKILL ended its worker, as far as the app that started it saw that."""
    return bool(job.read_json(job.process_file).get("signal") == signal.SIGKILL)


def end_worker(job: JobFolder, patience: float = STOP_PATIENCE, limit: float = STOP_LIMIT) -> None:
    """See to it, in the background, that a worker that was asked to stop ends.

    Args:
        patience, limit: seconds until it gets SIGTERM, and until it is killed.
    """

    def end() -> None:
        while (process := worker_process(job)) is None:  # just started: it is not recorded yet
            if not job.is_alive():
                return
            time.sleep(0.05)
        with contextlib.suppress(psutil.Error):
            _, alive = psutil.wait_procs([process], patience)
            if alive:
                process.terminate()
                _, alive = psutil.wait_procs([process], limit - patience)
            if alive:
                _kill(process)

    threading.Thread(target=end, name=f"stop-{job.id}", daemon=True).start()


def kill_worker(job: JobFolder, patience: float = 5.0) -> None:
    """End a worker at once, with the processes it has started, and wait until it is gone."""
    deadline = time.monotonic() + patience
    while job.is_alive() and (left := deadline - time.monotonic()) > 0:
        if (process := worker_process(job)) is not None:
            with contextlib.suppress(psutil.Error):
                _kill(process)
                process.wait(left)
        time.sleep(0.01)


def _kill(process: psutil.Process) -> None:
    for member in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            member.kill()


@contextlib.contextmanager
def worker_lock(job: JobFolder, rank: bool = False) -> Iterator[bool]:
    """Whether this process is the job's only worker; for a training run in a terminal.

    Args:
        rank: whether it is one of several processes; their launcher may hold the folder's lock.
    """
    folder, former = str(job.folder.resolve()), os.environ.get(LOCKED, "")
    if former == folder and not rank:
        yield True
        return
    with disk.writing(job.lock_file):
        handle = hold_lock(job.rank_lock_file if former == folder else job.lock_file)
    if handle is None:
        yield False
        return
    os.set_inheritable(handle, True)  # `distributed.exec_launcher` keeps it, and says so
    os.environ[LOCKED] = folder
    try:
        yield True
    finally:
        os.environ[LOCKED] = former
        os.close(handle)


def start_warm_worker(store: RunStore) -> None:
    """See to it that a worker waits for a run. Without one, a run takes longer to start."""
    waiting = _warm_folder(store)
    with contextlib.suppress(JobError, StoreError, OSError):
        if not waiting.is_alive():
            shutil.rmtree(waiting.folder, ignore_errors=True)
            waiting.folder.mkdir(parents=True)
            waiting.describe_job(WARM, "", {"parent": os.getpid()})
            spawn_worker(waiting)


def give_to_warm_worker(store: RunStore, run: Run, patience: float = 1.0) -> bool:
    """Hand the run to the waiting worker if it can do it; whether it was taken.

    Once it has taken the run it holds its lock. One that still imports, or hangs, is ended: two
    would only be in each other's way.
    """
    waiting, config = _warm_folder(store), run.config()
    several = config.num_processes > 1 or config.accelerate_config
    worker = worker_process(waiting)
    if worker is None or several or catalog.needs_hub(config.dataset, config.checkpoint):
        return False
    taken = False
    if (waiting.folder / READY).exists():
        record_worker(run, worker.pid)
        write_atomically(waiting.folder / RUN, str(run.folder.resolve()))
        deadline = time.monotonic() + patience
        while not (taken := (waiting.folder / TAKEN).exists()) and time.monotonic() < deadline:
            time.sleep(0.01)
    if not taken:
        run.process_file.unlink(missing_ok=True)
        kill_worker(waiting)
    shutil.rmtree(waiting.folder, ignore_errors=True)
    return taken


def _warm_folder(store: RunStore) -> JobFolder:
    return JobFolder(store.root / ".warm")
