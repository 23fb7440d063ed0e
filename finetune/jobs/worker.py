"""The process of a background job: `python -m finetune.jobs.worker FOLDER`.

A warm worker imports all and waits for a run that needs no Hub, so that training begins at once.
"""

import contextlib
import gc
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import cast

from finetune import disk, owners
from finetune.environment import caches, devices, pace
from finetune.environment.confinement import Confinement, limit_memory
from finetune.jobs import workers
from finetune.metrics import modules
from finetune.runs.job_folder import JobFolder, hold_lock
from finetune.runs.run import Run

LIFETIME = 3600.0  # seconds without a run after which a warm worker ends
IMPORTED: tuple[str, ...] = (  # the first is what the first optimizer would import
    "torch._dynamo", "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto", "finetune.data.splits", "finetune.jobs.train",
    "finetune.training.dataloaders", "finetune.training.loop", "finetune.training.model",
    "sklearn.metrics",
)  # fmt: skip


JOBS = {  # kind of job -> its module, imported when needed, and class
    "check": "check:CheckJob",
    "evaluate": "evaluate:EvaluationJob",
    "compare": "evaluate:ComparisonJob",
    "predict": "predict:PredictionJob",
    "probe": "probe:ProbeJob",
    "label": "label:LabelJob",
    "answers": "label_answers:AnswersJob",
    "export": "publish:ExportJob",
    "push": "publish:PushJob",
}


def carry_out(kind: str, folder: Path) -> int:
    """Carry out a folder's job. Returns the exit status."""
    if kind == "train":
        from finetune.jobs.train import train_job

        return train_job(folder)
    job = resolve_name(f"finetune.jobs.{JOBS[kind]}")(folder)
    job.end_in_time()
    return cast(int, job.carry_out())


def main(folder: str) -> int:
    """Carry out the job of a folder. Returns the exit status."""
    gc.set_threshold(100_000)  # PyTorch and transformers are imported in a sixth less time
    caches.ensure_cache_folder()
    job, text = JobFolder(Path(folder)), os.environ.pop(workers.CONFINED, "")
    confinement = Confinement.from_json(text) if text else None
    if confinement is not None:
        limit_memory(owners.policy().limits.worker_bytes)
    if job.id != workers.WARM_FOLDER:
        if confinement is not None:
            confinement.enter()  # before it reads a visitor's files
        return carry_out(job.description["kind"], job.folder)
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    devices.choose_tokenizer_threads()
    for name in IMPORTED:
        import_module(name)
    modules.import_evaluate()
    pace.measure_pace()
    run = wait_for_run(job.folder, job.request["parent"], confinement)
    if run is None:
        return 0
    os.chdir(workers.empty_folder(run))  # its own went with the folder it waited in
    log = os.open(run.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    return carry_out("train", run.folder)


def wait_for_run(folder: Path, parent: int, own: Confinement | None = None) -> Run | None:
    """Wait for a run to carry out. Returns None if no run came, or the parent process or the folder
    is gone. If the app says so, this process is confined to the run and its `own` temporary folder.
    """
    deadline = time.monotonic() + LIFETIME
    with contextlib.suppress(OSError):
        (folder / workers.READY).touch()
        while os.getppid() == parent and time.monotonic() < deadline and folder.is_dir():
            if (folder / workers.RUN).exists():
                request = disk.read_json(folder / workers.RUN)
                run = Run(Path(request["run"]))
                if own is not None:
                    (Confinement.from_json(request["confinement"]) | own).enter()
                if hold_lock(run.lock_file) is None:
                    return None
                os.environ[workers.LOCKED] = str(run.folder)
                return run
            time.sleep(0.02)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
