"""Jobs of the loopback Hub. A job's container is a process of this machine.

It has its own folder as its disk and home, an environment of its own, and ends with all that it
started. Its image is only written down, and it is tried once.
"""

import contextlib
import json
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil

from tests.support.buckets import Refused, timestamp

Command = list[str]
Environment = dict[str, str]
PATH = "/usr/local/bin:/usr/bin:/bin"
ENDED = ("COMPLETED", "ERROR", "CANCELED")


@dataclass
class Flavor:
    """A machine to rent."""

    name: str
    cost: int | None  # millionths of a dollar for a minute
    cpu: str = "2 vCPU"
    ram: str = "16 GB"
    gpu: str = ""
    vram: str = ""

    def answer(self, name):
        """As the Hub describes it."""
        gpu = {"type": "gpu", "model": self.gpu, "quantity": "1", "vram": self.vram,
               "manufacturer": "Nvidia"}  # fmt: skip
        return {
            "name": name, "prettyName": self.name, "cpu": self.cpu, "ram": self.ram,
            "ephemeralStorage": "50 GB", "accelerator": gpu if self.gpu else None,
            "unitCostMicroUSD": self.cost, "unitLabel": "minute",
            "unitCostUSD": None if self.cost is None else self.cost / 1e6,
        }  # fmt: skip


_T4 = Flavor("Nvidia T4 - small", 6667, "4 vCPU", "15 GB", "T4", "16 GB")
SPACES = {"cpu-basic": Flavor("CPU Basic", 0), "t4-small": _T4}
MACHINES = {
    "cpu-basic": Flavor("CPU Basic", 167),
    "cpu-upgrade": Flavor("CPU Upgrade", 500, "8 vCPU", "32 GB"),
    "t4-small": _T4,
    "a10g-small": Flavor("Nvidia A10G - small", 16667, "4 vCPU", "15 GB", "A10G", "24 GB"),
}


@dataclass
class Job:
    """A job, its container and its log."""

    id: str
    namespace: str
    user: str
    spec: dict[str, Any]  # as it was asked for, but its secrets
    secrets: Environment
    folder: Path  # the container's disk
    created: float = field(default_factory=time.time)
    started: float | None = None
    finished: float | None = None
    stage: str = "SCHEDULING"
    message: str | None = None
    lines: list[tuple[float, str]] = field(default_factory=list)
    log_ended: bool = False
    process: subprocess.Popen[bytes] | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def write(self, line):
        """Add a line to the log."""
        with self.changed:
            self.lines.append((time.time(), line))
            self.changed.notify_all()

    def start(self):
        """Go from waiting to running, unless it has ended."""
        with self.changed:
            if self.stage != "SCHEDULING":
                return False
            self.stage, self.started = "RUNNING", time.time()
        self.write(f"===== Job started at {timestamp(self.started)[:19].replace('T', ' ')} =====")
        return True

    def end(self, stage, message=None):
        """Give it its last stage, unless it has one."""
        with self.changed:
            if self.stage not in ENDED:
                self.stage, self.message, self.finished = stage, message, time.time()
            self.changed.notify_all()

    def end_log(self):
        with self.changed:
            self.log_ended = True
            self.changed.notify_all()

    def wait_for_lines(self, number):
        """The lines of the log after so many; none if it ends."""
        with self.changed:
            self.changed.wait_for(lambda: self.log_ended or len(self.lines) > number)
            return self.lines[number:]

    def processes(self):
        """All processes of its container, whatever sessions they made for themselves."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("JOB_ID") == self.id:
                    found.append(process)
        return found

    def kill(self):
        """End its container at once, and wait until it is gone."""
        until = time.monotonic() + 5
        while (left := self.processes()) and time.monotonic() < until:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.01)

    def answer(self):
        """As the Hub describes it, without the values of its secrets."""
        spec = self.spec
        times = {"createdAt": self.created, "startedAt": self.started, "finishedAt": self.finished}
        return {
            "id": self.id, "owner": {"id": f"id-{self.namespace}", "name": self.namespace,
                                     "type": "user" if self.namespace == self.user else "org"},
            "status": {"stage": self.stage, "message": self.message},
            "command": spec["command"], "arguments": spec.get("arguments", []),
            "environment": spec.get("environment", {}), "secrets": {}, "flavor": spec["flavor"],
            "dockerImage": spec.get("dockerImage"), "labels": spec.get("labels"),
        } | {name: moment and timestamp(moment) for name, moment in times.items()}  # fmt: skip


def _as_is(command, environment):
    return command, environment


@dataclass
class Jobs:
    """All jobs, and how the machines behave: a test sets what it needs."""

    environment: Environment = field(default_factory=dict)  # that every container has
    all: dict[str, Job] = field(default_factory=dict)  # by id, the latest last
    hardware: dict[str, Flavor] = field(default_factory=lambda: {**MACHINES})
    prepare: Callable[[Command, Environment], tuple[Command, Environment]] = _as_is
    lines_twice: bool = False  # whether logs repeat every line
    threads: list[threading.Thread] = field(default_factory=list)

    @property
    def last(self):
        """The latest job."""
        return next(reversed(self.all.values()))

    def run(self, namespace, user, spec):
        """Start a job in the background."""
        folder = Path(tempfile.mkdtemp(prefix="finetune-job-"))
        hidden = spec.pop("secrets", {})
        job = Job(secrets.token_hex(12), namespace, user, spec, hidden, folder)
        self.all[job.id] = job
        self.threads.append(threading.Thread(target=self._attend, args=(job,), daemon=True))
        self.threads[-1].start()
        return job

    def kill(self, job_id, message="The machine was lost", stage="ERROR"):
        """What happens to machines, or what a user does: its container is killed."""
        job = self.all[job_id]
        if job.stage not in ENDED:
            job.end(stage, message)
            job.kill()

    def close(self):
        """Kill all containers and remove their disks."""
        for job in list(self.all.values()):
            self.kill(job.id, None, "CANCELED")
        for thread in self.threads:
            thread.join(10)
        for job in self.all.values():
            shutil.rmtree(job.folder, ignore_errors=True)

    def _attend(self, job):
        """From a job's first moment to its last."""
        stage, message = self._contain(job) if job.start() else (job.stage, job.message)
        job.end(stage, message)
        job.end_log()

    def _contain(self, job):
        """Run a container to its end; how it ended."""
        command, environment = self._prepared(job)
        process = subprocess.Popen(
            command, env=environment, cwd=job.folder, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        job.process = process
        reader = threading.Thread(target=self._read, args=(job, process.stdout), daemon=True)
        reader.start()
        if job.stage in ENDED:  # meanwhile, while there was nothing to kill
            job.kill()
        process.wait()
        job.kill()  # what it left behind
        reader.join(10)
        code = process.returncode
        code = 128 - code if code < 0 else code  # as a shell tells a signal
        return ("ERROR", f"Job failed with exit code: {code}") if code else ("COMPLETED", None)

    def _prepared(self, job):
        base = {"PATH": PATH, "HOME": str(job.folder), "LANG": "C.UTF-8"}
        environment = {**base, **self.environment, **job.spec.get("environment", {}), **job.secrets}
        command = [*job.spec["command"], *job.spec.get("arguments", [])]
        command, environment = self.prepare(command, environment)
        return command, {**environment, "JOB_ID": job.id}

    def _read(self, job, output):
        """Take a container's lines as they come."""
        with output:
            for raw in output:
                job.write(raw.decode(errors="replace").removesuffix("\n"))


# The requests.


def hardware(request):
    flavors = request.hub.jobs.hardware
    request._json([flavor.answer(name) for name, flavor in flavors.items()])


def _check_member(request, namespace):
    """Refuse whoever may not see what is run in a namespace."""
    if request.user is None or not request.user.belongs_to(namespace):
        raise Refused(404, "", "Job not found")


def _find(request, namespace, job):
    _check_member(request, namespace)
    found = request.hub.jobs.all.get(job)
    if found is None or found.namespace != namespace:
        raise Refused(404, "", "Job not found")
    return found


def run(request, namespace):
    """Refuse what may not be run, or start it."""
    user, spec, jobs = request._writer(namespace), json.loads(request.body), request.hub.jobs
    if not user.pays:
        raise Refused(402, "", "Jobs take a payment method or credits")
    request._json(jobs.run(namespace, user.name, spec).answer())


def listing(request, namespace):
    """The jobs of a namespace, the latest first."""
    _check_member(request, namespace)
    query = parse_qs(urlsplit(request.path).query)
    labels = [tuple(label.split("=", 1)) for label in query.get("label", [])]
    request._json(
        [
            job.answer() for job in reversed(list(request.hub.jobs.all.values()))
            if job.namespace == namespace
            and set(labels) <= set((job.spec.get("labels") or {}).items())
        ]
    )  # fmt: skip


def inspect(request, namespace, job):
    request._json(_find(request, namespace, job).answer())


def cancel(request, namespace, job):
    found = _find(request, namespace, job)
    request._writer(namespace)
    request.hub.jobs.kill(job, None, "CANCELED")
    request._json(found.answer())


def logs(request, namespace, job):
    """Stream a log as server-sent events, until the job is over or the client has gone."""
    found, number = _find(request, namespace, job), 0
    request.start_stream("text/event-stream")
    while new := found.wait_for_lines(number):
        number += len(new)
        for moment, line in new:
            event = json.dumps({"data": line, "timestamp": timestamp(moment)})
            request.stream(f"data: {event}\n\n".encode() * (1 + request.hub.jobs.lines_twice))
    request.end_stream()


def routes():
    namespace, job = r"(?P<namespace>[\w.-]+)", r"(?P<job>[0-9a-f]{24})"
    yield "GET", r"/api/jobs/hardware", hardware
    yield "POST", rf"/api/jobs/{namespace}", run
    yield "GET", rf"/api/jobs/{namespace}", listing
    yield "GET", rf"/api/jobs/{namespace}/{job}", inspect
    yield "POST", rf"/api/jobs/{namespace}/{job}/cancel", cancel
    yield "GET", rf"/api/jobs/{namespace}/{job}/logs", logs
