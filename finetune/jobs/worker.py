"""The process of a background job: `python -m finetune.jobs.worker FOLDER`.

It is started with the job's lock, which the kernel releases when it ends, however it ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from finetune.environment import caches
from finetune.jobs.kinds import KINDS
from finetune.runs.job_folder import JobFolder


def main(folder: str) -> int:
    """Carry out the job of a folder; the exit status."""
    caches.ensure_cache_folder()
    job = JobFolder(Path(folder))
    return KINDS[job.kind].carry_out(job)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
