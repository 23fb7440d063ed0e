"""Hugging Face Jobs as an engine: a container of the Hub's, billed by the minute.

Code, data and results travel in a private bucket of the user's; events come over the job's log. The
token is an argument here and a secret of the job; it stands in no file.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, TypeVar

from huggingface_hub import JobInfo
from pydantic import Field

from finetune import owners
from finetune.config import RunConfig
from finetune.engines import base, run_bucket, spending
from finetune.engines.base import AttemptStatus, Engine, EngineSpec, Machine, Shown, write_spec
from finetune.engines.run_bucket import RunBucket
from finetune.errors import ConfigError, JobError, PublishError, WrongAccount
from finetune.hub import client
from finetune.hub.client import Absent, HubClient, NoAnswer
from finetune.messages import message as _
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.run import Run

T = TypeVar("T")
_BUCKET = "finetune-jobs"
_LABEL = "finetune-run"
_TRANSFER = 3600.0  # seconds that a transfer may take, whatever its size
_DENIALS = 20  # consecutive answers that there is no such job, until that is believed
_TRIES, PAUSE = 5, 3.0  # requests for a bucket until it is believed gone, and seconds between them
_EXIT_CODE = re.compile(r"\bexit(?:ed)?\b[^\d-]*(-?\d+)", re.IGNORECASE)
_NO_MEMORY = re.compile(r"\bOOM|out of memory", re.IGNORECASE)
_LIVE = ("SCHEDULING", "RUNNING")
# Fetches this package, installs its requirements, and runs it.
_FETCH = (
    "import os,tarfile;from huggingface_hub import HfApi;"
    "HfApi().download_bucket_files(os.environ['FINETUNE_BUCKET'],"
    "[(os.environ['FINETUNE_CODE'],'code.tar.gz')],raise_on_missing_files=True);"
    "tarfile.open('code.tar.gz').extractall('.',filter='data')"
)


# Values of fields whose packages are not in requirements.txt.
_NOT_INSTALLED = (
    ("report_to", "trackio"), ("report_to", "wandb"), ("optim", "adamw_bnb_8bit"),
    ("attn_implementation", "flash_attention_2"),
)  # fmt: skip


class HubJobOptions(base.EngineOptions):
    """Options of a Hugging Face Job."""

    flavor: Annotated[str, Shown(_("Machine"))] = "cpu-upgrade"
    """The kind of machine; `hf jobs hardware` lists them with their prices."""
    minutes: Annotated[int, Shown(_("Minutes at most"))] = Field(30, ge=1, le=7 * 24 * 60)
    """The job is ended after so many minutes, whatever it is doing."""
    price: float = Field(default=0.0, ge=0)
    """US dollars an hour, as they were shown; a job whose price is another by now is not begun."""
    dollars_a_run: Annotated[float, Shown(_("Dollars a run at most"))] = Field(1.0, ge=0)
    """What the run may cost at most, all its attempts together."""
    dollars_a_day: Annotated[float, Shown(_("Dollars a day at most"))] = Field(5.0, ge=0)
    """What all your jobs of 24 hours may cost at most."""
    namespace: str = ""
    """Whose account pays: your own where empty, or an organisation's."""
    image: str = "python:3.12"
    """The Docker image, one with Python 3.11 or later."""

    @property
    def most(self) -> float:
        """Cost in US dollars of a job that uses all its minutes."""
        return self.price * self.minutes / 60


class HubJobs(Engine):
    """The engine, for the owner of a token. Raises PublishError for an invalid token, and from
    every method if the Hub refuses or does not answer."""

    name, label = "hub-job", _("Hugging Face Job")
    Options = HubJobOptions
    places = 100
    is_billed = needs_token = True
    usual_machine = "t4-small"
    removal_note = _("What its jobs have left in your bucket on the Hub is removed too.")

    def __init__(self, token: str = "") -> None:
        stored = client.stored_token() if not token and owners.policy().stored_token else None
        self._client = HubClient(token or stored)
        self._api, self._token = self._client.api, token or stored or ""
        self._denials = 0  # the number of latest answers that there is no such job

    @classmethod
    def check_config(cls, config: RunConfig) -> None:
        super().check_config(config)
        problem = _("needs a package that a Hugging Face Job does not install")
        values = config.to_dict()
        if problems := {name: problem for name, value in _NOT_INSTALLED if values[name] == value}:
            raise ConfigError(problems)

    @classmethod
    def keeps(cls, spec: EngineSpec) -> bool:
        return bool(spec.kept_in)

    def machines(self) -> list[Machine]:
        listed = self._client.call(_("Asking for the machines"), self._api.list_jobs_hardware)
        machines = []
        for kind in listed:
            hours = 60 if kind.unit_label == "minute" else 1
            details = ", ".join(filter(None, [kind.pretty_name, kind.cpu, kind.ram]))
            machines.append(Machine(kind.name, details, (kind.unit_cost_usd or 0) * hours))
        return sorted(machines, key=lambda machine: machine.price)

    def price(self, spec: EngineSpec) -> float:
        prices = {machine.name: machine.price for machine in self.machines()}
        if spec.machine not in prices:
            raise JobError(
                "{engine}: there is no machine {flavor!r}.", "Choose one of: {flavors}.",
                engine=self.label, flavor=spec.machine, flavors=", ".join(prices),
            )  # fmt: skip
        return prices[spec.machine]

    def submit(self, run: Run, spec: EngineSpec) -> str:
        namespace = _options(spec).namespace or self._client.account().name
        # A former worker may have been killed while the Hub began the attempt.
        asked = spending.spent_in(run, spec.attempt) > 0
        places = {namespace, *spec.kept_in} if asked else {namespace}

        find = partial(self._begun, run, spec, places)
        if job := self._look_for(run, find) if asked else find():
            return job
        self._reserve(run, spec)
        try:
            bucket = self._send(run, spec, namespace)
            try:
                return self._start(run, spec, namespace, bucket)
            except NoAnswer as error:
                with contextlib.suppress(PublishError):
                    if job := self._look_for(run, find):
                        return job
                raise JobError(
                    "{fact} It is not known whether the job has begun.",
                    "Resume to look for it again; a new one begins only if there is none. To end "
                    "it, delete the run.",
                    fact=error.fact,
                ) from None
        except PublishError:
            spending.note(run, spec.attempt, 0.0)
            raise

    def _reserve(self, run: Run, spec: EngineSpec) -> None:
        """Note the attempt's maximum cost. JobError beyond a limit, or for another price."""
        options, price = _options(spec), self.price(spec)
        if abs(price - options.price) > 1e-6:
            # The next question shows the present price.
            write_spec(run, spec, options={**spec.options, "price": price})
            raise JobError(
                "{flavor} costs ${price:.2f} an hour, and was shown at ${shown:.2f}.",
                "Look at the new price and start again.",
                flavor=options.flavor,
                price=price,
                shown=options.price,
            )
        limits = options.dollars_a_run, options.dollars_a_day
        spending.reserve(run, spec.attempt, options.most, *limits)

    def _start(self, run: Run, spec: EngineSpec, namespace: str, bucket: RunBucket) -> str:
        """Start the job of a run that was sent. Returns the job's name."""
        options = _options(spec)
        variables = {
            "FINETUNE_BUCKET": f"{namespace}/{_BUCKET}",
            "FINETUNE_CODE": bucket.path(run_bucket.CODE),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "FINETUNE_JOB": f"{run.id} {spec.attempt}",
        }
        hub = next(line for line in run_bucket.pinned_requirements() if "huggingface" in line)
        steps = [
            f"python -m pip install -q {hub}",
            f'python -c "{_FETCH}"',
            "python -m pip install -q -r requirements.txt",
            "exec python -m finetune.jobs.container",
        ]
        info = self._client.call(
            _("Starting the job"),
            lambda: self._api.run_job(
                image=options.image,
                command=["bash", "-c", " && ".join(steps)],
                env=variables,
                secrets={"HF_TOKEN": self._token},
                flavor=options.flavor,
                timeout=options.minutes * 60,
                labels={_LABEL: run.id, "attempt": str(spec.attempt)},
                namespace=namespace,
            ),
            stoppable=False,
        )
        return f"{namespace}/{info.id}"

    def _begun(self, run: Run, spec: EngineSpec, places: set[str]) -> str | None:
        """Return the name of the attempt's job, which may have ended; None if there is none.
        JobError if a job of a former attempt is at work."""
        for namespace in sorted(places):
            for job in self._jobs(run, namespace):
                if _attempt(job) == spec.attempt:  # it was started without being recorded
                    spending.note(run, spec.attempt, _options(spec).most)
                    return f"{namespace}/{job.id}"
                if _is_live(job):
                    raise JobError(
                        "A former job of this run, {job}, is still at work.",
                        "Wait for its end, or end it with `hf jobs cancel {job}`.",
                        job=job.id,
                    )
        return None

    def _look_for(self, run: Run, find: Callable[[], str | None]) -> str | None:
        """Look for a job whose start was not answered. Returns its name, or None."""
        run.append(events.PhaseStarted(phase=Phase.LOOK))
        return self._client.look_for(find)

    def _jobs(self, run: Run, namespace: str) -> list[JobInfo]:
        """Return all jobs of the run that the Hub still lists."""

        def ask() -> list[JobInfo]:
            return list(self._api.list_jobs(labels={_LABEL: run.id}, namespace=namespace))

        try:
            return self._client.call(_("Looking for jobs of this run"), ask)
        except Absent:
            self._check_account(namespace)
            raise

    def _check_account(self, namespace: str) -> None:
        """Raise `WrongAccount` for a token of another namespace, which sees nothing of this one."""
        account = self._client.account()
        if namespace not in account.namespaces:
            raise WrongAccount(
                "What the run has on the Hub is {namespace}'s, and this token is {name}'s.",
                "Sign in as {namespace}, or give a token of theirs.",
                namespace=namespace,
                name=account.name,
            ) from None

    def _send(self, run: Run, spec: EngineSpec, namespace: str) -> RunBucket:
        """Upload the job's files into the bucket, and note its owner in the run's spec."""
        bucket = self._bucket_of(run, spec, namespace)
        kept_in = tuple(dict.fromkeys((*spec.kept_in, namespace)))
        write_spec(run, spec, kept_in=kept_in)

        def send() -> None:
            name = f"{namespace}/{_BUCKET}"
            self._api.create_bucket(name, private=True, exist_ok=True)
            packed = run.folder / f".{run_bucket.RUN}"  # one that a killed worker left is replaced
            run_bucket.pack_run(run, packed)
            bucket.put({run_bucket.CODE: run_bucket.code_archive(), run_bucket.RUN: packed})
            packed.unlink()

        self._client.call(_("Sending the run"), send, patience=_TRANSFER)
        return bucket

    def state(self, run: Run, spec: EngineSpec) -> AttemptStatus:
        info = self._find_job(run, spec.job)
        self._denials = 0 if info else self._denials + 1
        if info is None:
            reason = _("The Hub knows no job {job}.", job=spec.job)
            if self._denials < _DENIALS:
                raise PublishError(reason, _("It is asked again."))
            return AttemptStatus("ended", reason=reason, missing=True)
        stage, text = (info.status.stage, info.status.message) if info.status else ("RUNNING", "")
        if stage in _LIVE:
            return AttemptStatus("running" if stage == "RUNNING" else "waiting")
        options, text = _options(spec), text or ""
        cost, begun, ended = options.most, info.started_at or info.created_at, info.finished_at
        if begun is not None and ended is not None:  # each minute begun is billed
            cost = options.price * -(-(ended - begun).total_seconds() // 60) / 60
        spending.note(run, spec.attempt, cost)
        if stage == "COMPLETED":
            return AttemptStatus("ended", 0)
        if "timeout" in text.lower():
            reason = _("The job was ended after its {n} minutes.", n=options.minutes)
            return AttemptStatus("ended", 1, reason)
        code = 137 if _NO_MEMORY.search(text) else 1  # that of SIGKILL if it ran out of memory
        if named := _EXIT_CODE.search(text):
            code = int(named[1])
        reason = _("The job has ended: {text}.", text=text or stage.lower())
        return AttemptStatus("ended", code, reason)

    def knows(self, run: Run, spec: EngineSpec) -> bool:
        return self._find_job(run, spec.missing) is not None

    def _find_job(self, run: Run, job: str) -> JobInfo | None:
        """Find a job by its name, or by the run's label if the Hub does not know the name."""
        namespace, job_id = job.split("/")
        try:
            return self._client.call(
                _("Asking for the job"),
                lambda: self._api.inspect_job(job_id=job_id, namespace=namespace),
            )
        except Absent:
            listed = self._jobs(run, namespace)
            return next((found for found in listed if found.id == job_id), None)

    def follow(self, run: Run, spec: EngineSpec) -> Iterator[str]:
        namespace, job_id = spec.job.split("/")
        yield from self._api.fetch_job_logs(job_id=job_id, namespace=namespace, follow=True)

    def stop(self, run: Run, spec: EngineSpec, now: bool = False) -> None:
        namespace, job_id = spec.job.split("/")
        if now:
            self._client.call(
                _("Ending the job"),
                lambda: self._api.cancel_job(job_id=job_id, namespace=namespace),
            )
        else:
            content = run.stop_file.read_bytes()
            bucket = self._bucket_of(run, spec, namespace)
            self._client.call(_("Stopping the job"), lambda: bucket.put({run_bucket.STOP: content}))

    def fetch(self, run: Run, spec: EngineSpec) -> bytes:
        namespace = spec.job.split("/")[0]
        bucket, action = self._bucket_of(run, spec, namespace), _("Fetching what was saved")
        saved = self._of_bucket(action, namespace, lambda: bucket.fetch(run), _TRANSFER)
        return saved or b""

    def _of_bucket(
        self, action: str, namespace: str, ask: Callable[[], T], patience: float = 0.0
    ) -> T | None:
        """Return a bucket's answer; None if the Hub says several times that it was deleted."""
        for tried in range(1, _TRIES + 1):
            try:
                return self._client.call(action, ask, patience=patience)
            except Absent as error:
                self._check_account(namespace)
                denied = error
            time.sleep(PAUSE if tried < _TRIES else 0)
        try:
            self._client.call(action, lambda: self._api.bucket_info(f"{namespace}/{_BUCKET}"))
        except Absent:
            return None
        raise denied

    def _end(self, run: Run, spec: EngineSpec) -> None:
        """End the run's jobs, and note the cost of the present attempt."""
        jobs = [(place, job) for place in spec.kept_in for job in self._jobs(run, place)]
        under_way = spec.may_be_at_work
        if spec.is_unheard:
            spending.note(run, spec.attempt, 0.0)  # if no job is this attempt's
        for namespace, job in jobs:
            update = {"job": f"{namespace}/{job.id}", "attempt": _attempt(job)}
            of_job = spec.model_copy(update=update)
            if _is_live(job):
                self.stop(run, of_job, now=True)
            elif not (under_way and _attempt(job) == spec.attempt):
                continue
            if spec.engine == self.name:
                self.state(run, of_job)  # which notes its cost

    def remove(self, run: Run, spec: EngineSpec) -> None:
        self._end(run, spec)
        for namespace in spec.kept_in:
            bucket = self._bucket_of(run, spec, namespace)
            self._of_bucket(_("Emptying the bucket"), namespace, bucket.empty)

    def _bucket_of(self, run: Run, spec: EngineSpec, namespace: str) -> RunBucket:
        return RunBucket(self._api, f"{namespace}/{_BUCKET}", run.id, spec.attempt)


def _options(spec: EngineSpec) -> HubJobOptions:
    return HubJobOptions(**spec.options)


def _is_live(job: JobInfo) -> bool:
    return job.status is not None and job.status.stage in _LIVE


def _attempt(job: JobInfo) -> int:
    return int((job.labels or {}).get("attempt", 0))
