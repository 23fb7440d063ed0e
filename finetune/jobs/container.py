"""Carries a run out in the container of a job on the Hub: `python -m finetune.jobs.container`, in
the folder that holds this package.

Trains on the container's disk, prints events as `LogLine`s and the worker's log as it is (one
writer: two would tear each other's lines), mirrors what is saved to the bucket, and awaits a stop.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

from huggingface_hub import HfApi

from finetune import disk
from finetune.engines import run_bucket
from finetune.engines.run_bucket import RunBucket
from finetune.engines.supervisor import split
from finetune.jobs import workers
from finetune.runs.run import Run

LOOK = 0.2  # seconds between two checks of the worker's output
ASK = 2.0  # seconds between two checks for a stop
_PAUSES = (2, 5, 10, 20, 40, 60, 60, 60)  # seconds between two tries of the last mirroring
_REST = 5.0  # of a mirroring's own time that passes until the next, and two seconds at least


def main() -> int:
    """Carry the run out. Returns the worker's exit status, if its events tell it."""
    run_id, attempt = os.environ["FINETUNE_JOB"].split()
    bucket = RunBucket(HfApi(), os.environ["FINETUNE_BUCKET"], run_id, int(attempt))
    root = Path("runs").resolve()
    root.mkdir()
    bucket.get(run_bucket.RUN, root / run_bucket.RUN)
    run = run_bucket.unpack_run(root / run_bucket.RUN, root, run_id)
    (root / run_bucket.RUN).unlink()
    relay = _Relay(run, int(attempt))
    workers.spawn_worker(run)
    asked = time.monotonic()
    mirror_at = asked + 2.0
    while run.is_alive():
        time.sleep(LOOK)
        relay.pass_on()
        now = time.monotonic()
        if now - asked > ASK and not run.stop_requested():
            asked = now
            with contextlib.suppress(Exception):  # there is none, or the next check has an answer
                bucket.get(run_bucket.STOP, run.stop_file)
        if now > mirror_at:
            _mirror(bucket, run)
            mirror_at = time.monotonic() + max(2.0, _REST * (time.monotonic() - now))
    for pause in _PAUSES:  # the last saved files are what counts
        if _mirror(bucket, run):
            break
        time.sleep(pause)
    relay.pass_on()
    state = run.state()
    return {"finished": 0, "stopped": 0, "failed": 1}[state.status] if state.end_recorded else 137


def _mirror(bucket: RunBucket, run: Run) -> bool:
    """Send the saved files. Returns True if that succeeded."""
    try:
        bucket.mirror(run)
    except Exception as error:  # the next one sends it
        print(f"the bucket did not take what was saved: {error}", flush=True)
        return False
    return True


class _Relay:
    def __init__(self, run: Run, attempt: int) -> None:
        self._run, self._attempt = run, attempt
        self._begin, self._logged = run.events_file.stat().st_size, 0

    def pass_on(self) -> None:
        """Print the events and lines that are new."""
        written = disk.read_part(self._run.events_file, self._begin)
        for log_line in split(written, self._attempt, self._begin):
            print(log_line.encode())
            self._begin = log_line.end
        text = disk.read_part(self._run.log_file, self._logged)
        text = text[: text.rfind(b"\n") + 1]
        self._logged += len(text)
        print(text.decode("utf-8", errors="replace"), end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
