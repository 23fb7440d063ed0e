"""Worker processes on this machine: start one for a job's folder, find it, end it.

A worker is detached (its own session, no stdin, output to a file), so that it outlives the app. It
inherits the folder's lock, which makes `JobFolder.is_alive` true; `process.json` is for signals.

In a shared app a worker may use only its own runs, uploads and caches. The job's kind, by which
these are chosen, comes from the process that starts it, not from the job's folder, where a former
worker of the same run may have written.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import psutil

from finetune import disk, owners
from finetune.config import RunConfig
from finetune.data import catalog, hub_access
from finetune.engines import registry, spending
from finetune.environment import devices, project
from finetune.environment.confinement import Confinement, of_children, visible_environment
from finetune.errors import FinetuneError, JobError, StoreError
from finetune.runs import events
from finetune.runs.job_folder import JobFolder, hold_lock
from finetune.runs.run import Run
from finetune.runs.store import RunStore

WORKER = "finetune.jobs.worker"  # the module that a worker runs
STOP_PATIENCE, STOP_LIMIT = 4.0, 180.0  # seconds until SIGTERM, and until SIGKILL
LOCKED = "FINETUNE_LOCKED"  # tells a worker the folder whose lock it, or its launcher, holds
CONFINED = "FINETUNE_CONFINED"  # tells a worker its confinement
WARM, WARM_FOLDER = "warm", ".warm"  # the kind of a worker that waits for a run, and its folder
READY, RUN = "ready", "run.json"  # files by which a warm worker and the app talk
TEMPORARY = "finetune-worker-"  # prefix of a confined worker's temporary folder
# Folders passed to a worker as absolute paths, because it runs in another folder.
_FOLDERS = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "XDG_CACHE_HOME", "WANDB_DIR")
# Variables of a shared app's unconfined worker, in addition to those its engine reads.
_UNCONFINED = ("HOME", "TMPDIR", "HF_HOME", "XDG_CACHE_HOME")


def spawn_worker(
    job: JobFolder,
    accelerators: Sequence[str] = (),
    cwd: Path | None = None,
    stdin: bytes = b"",
    confinement: Confinement | None = None,
) -> None:
    """Start a worker for a folder.

    Args:
        accelerators: those it may use; all if empty.
        cwd: its working folder; an empty one by default, so that no name refers to a file.
        stdin: text it can read once: no argument, file or variable has a secret.
        confinement: files it may use, with a temporary folder added; all if None.
    """
    folder = str(job.folder.resolve())
    variables = _environment(confinement) | {"PYTHONUNBUFFERED": "1", LOCKED: folder}
    if confinement is not None:
        confinement |= Confinement(temporary=tempfile.mkdtemp(prefix=TEMPORARY))
        variables |= confinement.prepare() | {CONFINED: confinement.to_json()}
    if accelerators:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(accelerators)
    process = _spawn_locked(job, variables, cwd, bool(stdin))

    def reap() -> None:
        """Collect the exit status, or the ended worker would be a zombie while the app lives."""
        process.wait()
        if confinement is not None:
            shutil.rmtree(confinement.temporary, ignore_errors=True)

    threading.Thread(target=reap, name="reap", daemon=True).start()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(stdin)
    record_worker(job, process.pid, accelerators)


def _spawn_locked(
    job: JobFolder, variables: Mapping[str, str], cwd: Path | None, reads: bool
) -> subprocess.Popen[bytes]:
    """Start the process, which inherits the folder's lock. Its stdin is a pipe if it `reads`."""
    with disk.writing(job.lock_file):
        lock = hold_lock(job.lock_file)
    if lock is None:
        raise StoreError("{id} is being worked on.", "Try again in a moment.", id=job.id)
    try:
        with job.log_file.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", WORKER, str(job.folder.resolve())],
                stdin=subprocess.PIPE if reads else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd or empty_folder(job),
                pass_fds=(lock,),
                env=variables,
            )
    except OSError as error:
        if disk.is_full(error):
            raise disk.failure(job.folder, error, StoreError) from error
        raise JobError(
            "No worker process could be started: {error}.",
            "End other programs on the machine, then start it again.",
            error=error,
        ) from error
    finally:
        os.close(lock)  # the worker has it now


def empty_folder(job: JobFolder) -> Path:
    """Create an empty folder for a worker to run in, within the job's own."""
    folder = job.folder.resolve() / ".cwd"
    shutil.rmtree(folder, ignore_errors=True)  # a library may have left something there
    folder.mkdir()
    return folder


def _environment(confinement: Confinement | None) -> dict[str, str]:
    """Return a worker's environment, without the owner's secrets in a shared app."""
    policy, own = owners.policy(), cast(Mapping[str, str], os.environ)
    if policy.confines_workers:
        own = visible_environment()
        if confinement is None:
            of_engines = (engine.owners_variables for engine in registry.ENGINES.values())
            names = {*_UNCONFINED, *chain(*of_engines)}
            own |= {name: os.environ[name] for name in names & os.environ.keys()}
    variables = {"WANDB_DIR": os.getcwd(), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **own}
    variables |= {name: os.path.abspath(variables[name]) for name in _FOLDERS if name in variables}
    return variables | {"PYTHONPATH": project.python_path()} | policy.worker_environment()


def record_worker(job: JobFolder, pid: int, accelerators: Sequence[str] = ()) -> None:
    """Record which process carries a job out, and its accelerators."""
    record = {"pid": pid, "started": 0.0, "devices": list(accelerators)}
    with contextlib.suppress(psutil.Error):  # it has ended already
        record["started"] = _start_time(psutil.Process(pid))
    disk.write_atomically(job.process_file, json.dumps(record) + "\n")


def _start_time(process: psutil.Process) -> float:
    """Return the seconds from boot to the process's start, which clock changes do not affect."""
    return float(process.create_time() - psutil.boot_time())


def worker_process(job: JobFolder) -> psutil.Process | None:
    """Return the process that carries a job out; None if it has ended or its pid was reused."""
    record = disk.read_json(job.process_file)
    with contextlib.suppress(psutil.Error, KeyError, TypeError, ValueError, OverflowError):
        process = psutil.Process(record["pid"])
        if abs(_start_time(process) - record["started"]) < 1 and job.is_alive():
            return process
    return None


def worker_devices(job: JobFolder) -> tuple[str, ...]:
    """Return the accelerators given to the worker; empty if it has all."""
    return tuple(map(str, disk.read_json(job.process_file).get("devices", [])))


def end_worker(job: JobFolder, patience: float = STOP_PATIENCE, limit: float = STOP_LIMIT) -> None:
    """In a thread, end a stopping worker: SIGTERM after `patience` seconds, SIGKILL at `limit`."""

    def end() -> None:
        with contextlib.suppress(psutil.Error):
            if process := worker_process(job):
                _, alive = psutil.wait_procs([process], patience)
                if alive:
                    process.terminate()
                    psutil.wait_procs([process], limit - patience)
                    kill_worker(job)
        if isinstance(job, Run) and job.discard_requested() and not job.is_alive():
            summary = job.state()
            if not summary.end_recorded:  # it was killed before it could discard the run
                step, seconds = job.checkpoint_step(), summary.worked_until_now
                job.append(events.Stopped(step=step, seconds=seconds, discarded=True))
                job.discard()

    threading.Thread(target=end, name=f"stop-{job.id}", daemon=True).start()


def kill_worker(job: JobFolder) -> None:
    """End a worker and its child processes at once, and wait until they are gone."""
    if process := worker_process(job):
        members = [process]
        with contextlib.suppress(psutil.NoSuchProcess):
            members += process.children(recursive=True)
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(members, 5)


@contextlib.contextmanager
def worker_lock(run: Run, rank: bool = False) -> Iterator[bool]:
    """Make this process, in a terminal, the worker of a run. Yields True if it is the only one. The
    launcher of a `rank`, one of several processes, may hold the folder's lock."""
    folder, former = str(run.folder.resolve()), os.environ.get(LOCKED, "")
    if former == folder and not rank:
        yield True
        return
    with disk.writing(run.lock_file):
        handle = hold_lock(run.rank_lock_file if former == folder else run.lock_file)
    if handle is None:
        yield False
        return
    os.set_inheritable(handle, True)  # `train.launch_if_several` keeps it, and says so
    os.environ[LOCKED] = folder
    try:
        if former != folder:
            accelerators = devices.list_accelerators()[: run.config().num_processes]
            record_worker(run, os.getpid(), accelerators)
        yield True
    finally:
        os.environ[LOCKED] = former
        os.close(handle)


def start_warm_worker(store: RunStore) -> None:
    """Start a warm worker if there is none. Without one, a run takes longer to start."""
    waiting = JobFolder(store.root / WARM_FOLDER)
    with contextlib.suppress(JobError, StoreError, OSError):
        if not waiting.is_alive():
            shutil.rmtree(waiting.folder, ignore_errors=True)
            waiting.folder.mkdir(parents=True)
            waiting.describe_job(WARM, "", {"parent": os.getpid()})
            confinement = Confinement() if owners.policy().confines_workers else None
            spawn_worker(waiting, confinement=confinement)


def give_to_warm_worker(
    store: RunStore, run: Run, confinement: Confinement | None = None, patience: float = 1.0
) -> bool:
    """Offer the run to the warm worker. Returns True if it accepted. A worker that is still
    importing, or hangs, is ended: two would be in each other's way."""
    waiting, config = JobFolder(store.root / WARM_FOLDER), run.config()
    several = config.num_processes > 1 or config.accelerate_config
    hub = catalog.needs_hub(config.dataset, config.checkpoint, config.foreign_metrics)
    worker = worker_process(waiting)
    if worker is None or several or hub:
        return False
    if (waiting.folder / READY).exists():
        record_worker(run, worker.pid)
        request = {"run": str(run.folder.resolve())}
        if confinement is not None:
            request["confinement"] = confinement.to_json()
        disk.write_atomically(waiting.folder / RUN, json.dumps(request))
        deadline = time.monotonic() + patience
        while not run.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
    if not (taken := run.is_alive()):
        run.process_file.unlink(missing_ok=True)
        kill_worker(waiting)
    shutil.rmtree(waiting.folder, ignore_errors=True)
    return taken


def run_files(run: Run) -> Confinement | None:
    """Return the files a training run's worker may use; None for all files of the app.

    A worker that follows a run on another engine is confined if the engine says so.
    """
    engine = registry.engine_of(run)
    if not owners.policy().confines_workers or not engine.confines_follower():
        return None
    root = run.folder.parent
    found = _folder(run.folder) | _pairs_of(run) | hub_access.of_counts(root, run.owner)
    with contextlib.suppress(FinetuneError):
        found |= hub_access.of_checkpoint(run.config().checkpoint)
        found |= of_children() if run.config().num_processes > 1 else Confinement()
    if engine.is_billed:
        found |= Confinement(writes=tuple(map(str, spending.files(root))))
    return found


def job_files(kind: str, root: Path, job: JobFolder, request: dict[str, Any]) -> Confinement | None:
    """Return the files another job's worker may use, by the job's kind and request."""
    if not owners.policy().confines_workers:
        return None
    if kind in ("predict", "answers"):
        folder = job.folder if kind == "predict" else job.folder.parent
        runs = [root / run for run in (request["run"],) if run]  # "" is the small model of answers
        return _folder(folder) | Confinement(reads=tuple(str(run.resolve()) for run in runs))
    if kind in ("label", "check", "probe"):
        found = _folder(job.folder) | hub_access.of_counts(root, job.owner)
        if kind != "label":
            found |= hub_access.of_pairs(RunConfig(**request.get("config", request)), root)
        for checkpoint in request.get("checkpoints") or [request["checkpoint"]]:
            found |= hub_access.of_checkpoint(checkpoint)
        return found
    run = Run(job.folder.parent.parent)
    others = Confinement()  # of a comparison: the owner's other runs
    for run_id in [*request.get("runs", ()), *filter(None, [request.get("old")])]:
        others |= _folder(root / run_id) | _pairs_of(Run(root / run_id))
    return _folder(run.folder) | _pairs_of(run) | others


def _folder(folder: Path) -> Confinement:
    return Confinement(writes=(str(folder.resolve()),))


def _pairs_of(run: Run) -> Confinement:
    """Return the files of a run's pairs; none if its configuration cannot be read."""
    with contextlib.suppress(FinetuneError):
        return hub_access.of_pairs(run.pinned_config(), run.folder.parent)
    return Confinement()
