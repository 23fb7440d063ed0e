"""The files that a worker may use in a shared app: only its own runs, uploads and caches.

The job's kind comes from the process that starts it, not from the job's folder, where a former
worker of the same run may have written.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from finetune import owners
from finetune.config import RunConfig
from finetune.data import needed_files
from finetune.engines import registry, spending
from finetune.environment.confinement import Confinement, of_children
from finetune.errors import FinetuneError
from finetune.runs.job_folder import JobFolder
from finetune.runs.run import Run


def of_run(run: Run) -> Confinement | None:
    """Return the files a training run's worker may use; None for all files of the app.

    A worker that follows a run on another engine is confined if the engine says so.
    """
    engine = registry.engine_of(run)
    if not owners.policy().confines_workers or not engine.confines_follower():
        return None
    root = run.folder.parent
    found = _folder(run.folder) | _pairs_of(run) | needed_files.of_counts(root, run.owner)
    with contextlib.suppress(FinetuneError):
        found |= needed_files.of_checkpoint(run.config().checkpoint)
        found |= of_children() if run.config().num_processes > 1 else Confinement()
    if engine.is_billed:
        found |= Confinement(writes=tuple(map(str, spending.files(root))))
    return found


def of_job(kind: str, root: Path, job: JobFolder, request: dict[str, Any]) -> Confinement | None:
    """Return the files another job's worker may use, by the job's kind and request."""
    if not owners.policy().confines_workers:
        return None
    if kind == "predict":
        return _folder(job.folder) | Confinement(reads=(str((root / request["run"]).resolve()),))
    if kind in ("check", "probe"):
        config = RunConfig(**(request["config"] if kind == "probe" else request))
        found = _folder(job.folder) | needed_files.of_pairs(config, root)
        for checkpoint in request["checkpoints"] if kind == "probe" else [config.checkpoint]:
            found |= needed_files.of_checkpoint(checkpoint)
        return found | needed_files.of_counts(root, job.owner)
    run = Run(job.folder.parent.parent)
    others = Confinement()  # of a comparison: the owner's other runs
    for run_id in [*request.get("runs", ()), *filter(None, [request.get("old")])]:
        others |= _folder(root / run_id) | _pairs_of(Run(root / run_id))
    return _folder(run.folder) | _pairs_of(run) | others


def _folder(folder: Path) -> Confinement:
    return Confinement(writes=(str(folder.resolve()),))


def _pairs_of(run: Run) -> Confinement:
    """Return the files of a run's pairs; none if its configuration cannot be read, as its worker
    will report."""
    with contextlib.suppress(FinetuneError):
        return needed_files.of_pairs(run.pinned_config(), run.folder.parent)
    return Confinement()
