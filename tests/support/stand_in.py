"""A worker that trains nothing: `python -m tests.support.stand_in FOLDER`.

Everything about it is a worker's (the lock, the events, the signals, the checkpoints) but what
happens in a step, so that it begins in a quarter of a second and tests of the queue can kill it
often.
"""

import json
import math
import os
import sys
import time
from pathlib import Path

from finetune.environment import pace
from finetune.jobs import pipeline, worker, workers
from finetune.runs import events
from finetune.runs.events import Phase

EVERY = 10  # steps between checkpoints
PAUSE = 0.01  # seconds a step takes
BEST_RATE = 7e-5  # learning rate of the best scores
# Names a file. As long as it is there, a worker takes no more steps than it says.
HOLD = "FINETUNE_TEST_HOLD"


def use(monkeypatch):
    """Let workers be stand-ins. They are not confined: tests lie where a worker looks for nothing,
    and `HOLD` is no variable of the app."""
    monkeypatch.setattr(workers, "WORKER", "tests.support.stand_in")
    monkeypatch.setattr(workers, "run_files", lambda run: None)
    monkeypatch.setattr(workers, "visible_environment", lambda: dict(os.environ))


def write(path, text):
    """Change such a file, which a worker may be reading."""
    aside = path.with_suffix(".aside")
    aside.write_text(text)
    os.replace(aside, path)


def may_take(step):
    try:
        return step <= int(Path(os.environ.get(HOLD, "")).read_text())
    except (OSError, ValueError):
        return True


def stages(run, stop):
    """What `train_events` yields, step for step, with nothing behind it."""
    total = run.config().max_steps
    yield events.Started(device="none")
    yield events.Prepared(
        train_examples=8 * total, validation_examples=8, steps_per_epoch=total, total_steps=total,
        labels=["no", "yes"], parameters=1, precision="no",
    )  # fmt: skip
    yield events.PhaseStarted(phase=Phase.TRAIN)
    stop.looping = True
    checkpoints = run.checkpoints()
    step = json.loads((checkpoints[-1] / "state.json").read_text())["step"] if checkpoints else 0
    if checkpoints:
        yield events.Resumed(step=step)
    while step < total:
        time.sleep(PAUSE)
        while not may_take(step + 1) and not stop():
            time.sleep(PAUSE)
        if may_take(step + 1):
            step += 1
            yield events.Stepped(
                step=step, epoch=step / total, loss=1 / step, learning_rate=1e-3,
                samples_per_second=8 / PAUSE,
            )  # fmt: skip
        if stop():
            yield events.Stopped(step=step, seconds=step * PAUSE)
            return
        if step % EVERY == 0:
            away = abs(math.log10((run.config().learning_rate or BEST_RATE) / BEST_RATE))
            scores = {"f1": step / total / (1 + away), "accuracy": 0.5, "loss": 1 / step}
            yield events.Evaluated(
                step=step, epoch=step / total, metrics=scores, seconds=0, best=True
            )
            run.best.mkdir(exist_ok=True)
            (run.best / "config.json").write_text("{}")
            yield events.Saved(step=step)
            (run.begin_checkpoint() / "state.json").write_text(json.dumps({"step": step}))
            run.end_checkpoint(step, keep=1)
    yield events.Finished(step=step, seconds=step * PAUSE)


if __name__ == "__main__":
    pipeline.train_events = stages
    worker.IMPORTED = ()
    pace.measure_pace = lambda: None
    if sys.argv[1] == "--run":
        from finetune.cli.train import train

        sys.exit(train(sys.argv[1:]))
    sys.exit(worker.main(sys.argv[1]))
