"""The process of a background job: `python -m finetune.jobs.worker FOLDER`.

It is started with the job's lock, which the kernel releases when it ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from finetune.environment import caches
from finetune.errors import StoreError
from finetune.jobs import workers
from finetune.jobs.kinds import KINDS
from finetune.runs.job_folder import JobFolder


def main(folder: str) -> int:
    """Carry out the job of a folder; the exit status."""
    caches.ensure_cache_folder()
    job = JobFolder(Path(folder))
    if job.read_json(job.process_file).get("pid") != os.getpid():
        with contextlib.suppress(StoreError):  # who started it was killed before it could
            accelerators = filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
            workers.record_worker(job, os.getpid(), tuple(accelerators))
    return KINDS[job.kind].carry_out(job)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
