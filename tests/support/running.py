"""Runs that a test starts as the app does, here or on another engine: what the tests' Hub needs to
carry jobs out, and what tests wait for and compare."""

import hashlib
import os
import sys
import time
from pathlib import Path

from finetune.config import RunConfig
from finetune.engines import supervisor
from finetune.engines.base import AttemptStatus, Engine, EngineSpec
from finetune.engines.supervisor import LogLine
from finetune.jobs import scheduler, service, workers
from finetune.runs import events
from finetune.runs.summary import ENDED
from tests.support.waiting import until


def start(store, config, processes):
    run = service.start_run(store, config)

    def begun():
        """A run that has just ended may still hold the place: no app is here to look again."""
        scheduler.dispatch_queue(store)
        return workers.worker_process(run) is not None

    until(begun)
    process = workers.worker_process(run)
    processes.append(process)
    return run, process


ROOT = Path(__file__).resolve().parent.parent.parent
# Libraries that a person does not wait for before there is something to train or predict.
SLOW = {"torch", "transformers", "datasets", "accelerate", "scipy", "sklearn", "matplotlib"}


def command(store, config, launcher):
    options = []
    for name, value in config.to_dict().items():
        if isinstance(value, bool):
            options.append(f"--{name}" if value else f"--no-{name}")
        elif value != getattr(RunConfig(), name):
            options += [f"--{name}", str(value)]
    return [*launcher, "-m", "finetune", "train", "--runs", str(store.root), *options]


def losses(run):
    return [loss for _, loss in steps(run)]


_BIN = str(Path(sys.executable).parent)
TOTAL = 200  # steps of a slow run


def let_jobs_train(hub, monkeypatch, token):
    """Let the Hub's containers have this environment, for they reach no index of packages; the
    spec of a run on its cheapest machine. The token is that of `hf auth login` here."""

    def prepare(command, variables):
        script = command[-1].replace("python -m pip install", "true")
        path = os.pathsep.join([_BIN, variables["PATH"]])
        return [*command[:-1], script], variables | {"PATH": path, "OMP_NUM_THREADS": "1"}

    hub.jobs.prepare = prepare
    monkeypatch.setenv("HF_TOKEN", token)
    price = (hub.jobs.hardware["cpu-basic"].cost or 0) * 60 / 1e6
    return EngineSpec(
        engine="hub-job", options={"flavor": "cpu-basic", "minutes": 10, "price": price}
    )


def slow_run(store, checkpoint, pairs):
    """A run of the toys whose steps take a moment, so that it is met at work."""
    return RunConfig(
        dataset=store.uploads.add({path.stem: path for path in pairs.glob("*.csv")}),
        checkpoint=str(checkpoint), max_length=32, learning_rate=1e-3, logging_steps=1,
        max_steps=TOTAL, eval_steps=TOTAL // 2, save_steps=10, per_device_train_batch_size=2,
        gradient_accumulation_steps=24, mixed_precision="no",
    )  # fmt: skip


def engine_values(form, choice):
    """What the form's controls send when this is chosen."""
    boxes = [choice.values.get(name, box.value) for (_, name), box in form.controls.items()]
    return [choice.engine, *boxes, choice.agreed, choice.prices, choice.typed]


def wait(store, run, *statuses, when=None):
    """Wait for one of these statuses, or until what is known of a run at work is so."""
    deadline = time.monotonic() + 240
    while True:
        scheduler.dispatch_queue(store)  # there is no app here that looks again
        summary = run.state()
        if summary.status in statuses or (when and summary.status == "running" and when(summary)):
            return summary
        assert time.monotonic() < deadline, (summary.status, summary.phase, run.log_tail())
        assert summary.status not in ENDED, (summary.status, summary.error, run.log_tail())
        time.sleep(0.05)


def after(step):
    """Whether a run has come further than this."""
    return lambda summary: summary.step > step


def weights(run):
    return hashlib.sha256((run.best / "model.safetensors").read_bytes()).hexdigest()


def steps(run):
    return [
        (event.step, event.loss) for event in run.tail()[0] if isinstance(event, events.Stepped)
    ]


def resume(store, run, spec=None):
    """Let it go on, once its former worker has left."""
    while run.is_alive():
        time.sleep(0.05)
    service.resume_run(store, run, spec, agreed=True)


RATE = 10  # events a second


def simulate(run, engine):
    """Carry a run out on an engine; its exit status."""
    return supervisor.carry_out(run, open_engine=lambda spec, token: engine)


class SimulatedJob(Engine):
    """An engine whose attempts only write: ten steps a second, for some seconds."""

    name = "hub-job"

    def __init__(self, seconds):
        self.lines = []
        self._seconds, self._ends = seconds, 0.0

    def line(self, step):
        event = events.Stepped(
            step=step, epoch=0.0, loss=1 / step, learning_rate=1e-5, samples_per_second=8.0
        )
        return event.model_dump_json().encode()

    def submit(self, run, spec):
        self._ends = time.monotonic() + self._seconds
        return "simulated"

    def state(self, run, spec):
        return AttemptStatus("running" if time.monotonic() < self._ends else "ended", exit_code=0)

    def follow(self, run, spec):
        offset = spec.sent
        while time.monotonic() < self._ends:
            time.sleep(1 / RATE)
            self.lines.append(self.line(len(self.lines) + 1))
            log_line = LogLine(spec.attempt, offset, self.lines[-1])
            offset = log_line.end
            yield log_line.encode()

    def stop(self, run, spec, now=False):
        self._ends = 0.0

    def fetch(self, run, spec):
        return b" " * (spec.sent - 1) + b"\n" + b"".join(line + b"\n" for line in self.lines)

    def remove(self, run, spec):
        self.stop(run, spec)
