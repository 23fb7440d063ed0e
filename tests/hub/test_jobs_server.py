"""Jobs and buckets of the loopback Hub, with the real clients over HTTP."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import HfApi, Volume
from huggingface_hub.errors import (
    BucketBatchError,
    BucketNotFoundError,
    HfHubHTTPError,
    JobNotFoundError,
)

from tests.support.hub import TOKEN, LoopbackHub
from tests.support.jobs import Job

RUNS = "ada/runs"
Start = Callable[..., Job]

SLOWLY = """
import pathlib, time
for number in range(3):
    print("line", number, flush=True)
    while not pathlib.Path(f"after-{number}").exists():
        time.sleep(0.02)
"""


@pytest.fixture
def api(hub: LoopbackHub) -> HfApi:
    return HfApi(endpoint=hub.url, token=TOKEN)


@pytest.fixture
def start(hub: LoopbackHub, api: HfApi) -> Start:
    """Start a job that runs Python code, with the real client."""

    def run(code: str, image: str = "python:3.12", **options: Any) -> Job:
        command = [sys.executable, "-c", code]
        job = api.run_job(image=image, command=command, namespace="ada", **options)
        assert job.id == hub.jobs.last.id
        return hub.jobs.last

    return run


def stranger(hub: LoopbackHub) -> HfApi:
    hub.add_user("token-of-eve", "eve")
    return HfApi(endpoint=hub.url, token="token-of-eve")


def log(api: HfApi, job: Job, **options: Any) -> list[str]:
    return list(api.fetch_job_logs(job_id=job.id, namespace="ada", follow=True, **options))


def status(error: pytest.ExceptionInfo[HfHubHTTPError]) -> int:
    return error.value.response.status_code


def test_files_go_into_a_bucket_and_come_back(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    weights = np.sin(np.arange(200_000, dtype=np.float32)).tobytes() + b"odd"
    files = {
        "run/model.bin": os.urandom(20_000_000), "run/log.txt": b"a line\n" * 9000, "no": b"",
        "weights": weights,
    }  # fmt: skip
    for _ in range(2):
        url = api.create_bucket(RUNS, private=True, exist_ok=True)
    assert url.url == f"{hub.url}/buckets/{RUNS}"
    api.batch_bucket_files(RUNS, add=[(content, path) for path, content in files.items()])
    info = api.bucket_info(RUNS)
    assert (info.private, info.total_files) == (True, 4)
    assert info.size == sum(map(len, files.values()))

    entries = {entry.path: entry for entry in api.list_bucket_tree(RUNS, recursive=True)}
    assert list(entries) == sorted(files)
    assert [entry.path for entry in api.list_bucket_tree(RUNS)] == ["run", "no", "weights"]
    assert [entry.path for entry in api.list_bucket_tree(RUNS, "run/")] == list(entries)[1:3]
    [known] = api.get_bucket_paths_info(RUNS, ["run/log.txt", "missing"])
    assert (known.path, known.size) == ("run/log.txt", 63_000)

    api.download_bucket_files(RUNS, [(path, tmp_path / path) for path in files])
    for path, content in files.items():
        assert (tmp_path / path).read_bytes() == content == hub.buckets[RUNS].read(path)
    with pytest.raises(BucketBatchError, match="does not exist"):
        api.batch_bucket_files(RUNS, delete=["run/model.bin", "missing"])
    assert set(hub.buckets[RUNS].files) == {"no", "run/log.txt", "weights"}
    api.delete_bucket(RUNS)
    with pytest.raises(BucketNotFoundError):
        api.bucket_info(RUNS)
    assert not [path for _, path, _ in hub.requests if "telemetry" in path]


def test_what_another_test_sent_need_not_be_sent_again(
    hub: LoopbackHub, api: HfApi, tmp_path: Path
) -> None:
    content = os.urandom(300_000)
    for _ in range(2):  # the client remembers over a reset
        api.create_bucket(RUNS)
        api.batch_bucket_files(RUNS, add=[(content, "file")])
        api.download_bucket_files(RUNS, [("file", tmp_path / "file")])
        assert (tmp_path / "file").read_bytes() == content
        hub.reset()
        hub.add_user(TOKEN, "ada")


def test_a_private_bucket_is_seen_by_its_owners_alone(hub: LoopbackHub, api: HfApi) -> None:
    api.create_bucket(RUNS, private=True)
    api.create_bucket("ada/public")
    other, nobody = stranger(hub), HfApi(endpoint=hub.url, token=False)
    for client, expected in ((other, 404), (nobody, 401)):
        with pytest.raises(BucketNotFoundError) as caught:
            client.bucket_info(RUNS)
        assert status(caught) == expected
        assert client.bucket_info("ada/public").total_files == 0
    for bucket in (RUNS, "ada/public"):
        with pytest.raises(Exception, match=r"40[34]\b"):
            other.batch_bucket_files(bucket, add=[(b"mine", "file")])
        assert not hub.buckets[bucket].files
    with pytest.raises(HfHubHTTPError) as refused:
        other.create_bucket("ada/another")
    assert status(refused) == 403


@pytest.mark.parametrize(
    "fault",
    [
        {"path": "/v1/xorbs", "status": 500},
        {"path": "/v1/xorbs", "cut": True, "after": 100_000},
        {"path": "/v1/shards", "status": 503},
        {"path": "/xorbs/[0-9a-f]+$", "method": "GET", "cut": True, "after": 100_000},
        {"path": "/v1/reconstructions", "status": 500},
    ],
)
def test_transfers_go_on_after_a_fault(
    hub: LoopbackHub, api: HfApi, tmp_path: Path, fault: dict[str, object]
) -> None:
    content = os.urandom(1_000_000)
    api.create_bucket(RUNS)
    ordered = hub.fail(**fault)
    api.batch_bucket_files(RUNS, add=[(content, "file")])
    api.download_bucket_files(RUNS, [("file", tmp_path / "file")])
    assert (tmp_path / "file").read_bytes() == content
    assert ordered.times == 0


def test_hardware_has_prices_that_a_test_may_change(hub: LoopbackHub, api: HfApi) -> None:
    machines = {machine.name: machine for machine in api.list_jobs_hardware()}
    assert list(machines) == ["cpu-basic", "cpu-upgrade", "t4-small", "a10g-small"]
    machine = machines["t4-small"]
    assert (machine.unit_cost_micro_usd, machine.unit_label) == (6667, "minute")
    assert machine.accelerator is not None
    assert machine.accelerator.model == "T4"
    assert machines["cpu-basic"].accelerator is None
    hub.jobs.hardware["cpu-basic"].cost = 200
    hub.jobs.hardware["t4-small"].cost = None
    del hub.jobs.hardware["a10g-small"]
    prices = {machine.name: machine.unit_cost_micro_usd for machine in api.list_jobs_hardware()}
    assert prices == {"cpu-basic": 200, "cpu-upgrade": 500, "t4-small": None}


def test_a_log_is_followed_while_its_job_runs(hub: LoopbackHub, api: HfApi, start: Start) -> None:
    hub.jobs.keep_alive = 0.01
    job = start(SLOWLY)
    lines = api.fetch_job_logs(job_id=job.id, namespace="ada", follow=True)
    for number, line in enumerate(lines):
        assert (line, job.stage, len(job.text)) == (f"line {number}", "RUNNING", number + 1)
        (job.folder / f"after-{number}").touch()
    info = api.inspect_job(job_id=job.id)
    assert (info.status.stage, info.status.message) == ("COMPLETED", None)
    assert None not in (info.created_at, info.started_at, info.finished_at)
    assert log(api, job, tail=2) == ["line 1", "line 2"]
    assert job.lines[0][1].startswith("===== Job started at 20")


def test_a_container_has_its_own_environment_and_folder(
    hub: LoopbackHub, api: HfApi, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_TEST", "1")
    hub.jobs.prepare = lambda command, environment: (command, environment | {"ADDED": "too"})
    api.create_bucket(RUNS)
    job = start(
        "import os; print(sorted(os.environ)); print(os.environ['KEY'], os.environ['WORD'], "
        "os.environ['ADDED'], os.listdir())",
        env={"WORD": "plain"}, secrets={"KEY": "secret"}, labels={"app": "finetune"},
        volumes=[Volume(type="bucket", source=RUNS, mount_path="/data")], flavor="t4-small",
    )  # fmt: skip
    names, values = log(api, job)
    assert values == "secret plain too []"
    assert "OF_THE_TEST" not in names
    info = api.inspect_job(job_id=job.id)
    assert "secret'" not in repr(info)
    assert (info.flavor, info.environment) == ("t4-small", {"WORD": "plain"})
    assert info.volumes is not None
    assert info.volumes[0].mount_path == "/data"
    assert [found.id for found in api.list_jobs(namespace="ada", labels={"app": "finetune"})] == [
        job.id
    ]
    assert not list(api.list_jobs(namespace="ada", labels={"app": "other"}))
    assert not list(api.list_jobs(namespace="ada", status="RUNNING"))


def test_how_jobs_fail(hub: LoopbackHub, api: HfApi, start: Start) -> None:
    hub.jobs.images_without_python.add("ubuntu:24.04")
    failed, bare = start("raise SystemExit(3)"), start("", image="ubuntu:24.04")
    assert log(api, bare) == ["bash: line 1: python: command not found"]
    slow = start("import time; time.sleep(60)", timeout=1)
    lost = start("import time; time.sleep(60)")
    hub.jobs.kill(lost.wait("RUNNING").id)
    found = [api.inspect_job(job_id=job.wait().id).status for job in (failed, bare, slow, lost)]
    assert [(status.stage, status.message) for status in found] == [
        ("ERROR", "Job failed with exit code: 3"),
        ("ERROR", "Job failed with exit code: 127"),
        ("ERROR", "Job timeout"),
        ("ERROR", "Job failed: the machine was lost"),
    ]


def test_a_cancelled_job_takes_all_its_processes_along(
    hub: LoopbackHub, api: HfApi, start: Start
) -> None:
    job = start(
        "import subprocess, time; subprocess.Popen(['sleep', '60'], start_new_session=True); "
        "print('on', flush=True); time.sleep(60)"
    )
    lines = api.fetch_job_logs(job_id=job.id, namespace="ada", follow=True)
    assert next(iter(lines)) == "on"
    assert len(job.processes()) == 2
    api.cancel_job(job_id=job.id)
    assert api.inspect_job(job_id=job.id).status.stage == "CANCELED"
    assert list(lines) == []
    assert not job.processes()


def test_a_job_may_be_cancelled_before_it_has_a_machine(
    hub: LoopbackHub, api: HfApi, start: Start
) -> None:
    hub.jobs.scheduling = 60
    job = start("print('never')")
    assert api.inspect_job(job_id=job.id).status.stage == "SCHEDULING"
    api.cancel_job(job_id=job.id)
    assert log(api, job) == []
    assert api.inspect_job(job_id=job.id).status.stage == "CANCELED"


def test_nothing_outlives_the_server(hub: LoopbackHub, start: Start) -> None:
    job = start("import time; time.sleep(60)").wait("RUNNING")
    hub.reset()
    assert not job.processes()
    assert not job.folder.exists()


def test_a_log_that_is_cut_goes_on(hub: LoopbackHub, api: HfApi, start: Start) -> None:
    job = start(SLOWLY)
    cut = hub.fail(path="/logs", cut=True, after=215)  # amid the event of the second line
    lines = []
    for line in api.fetch_job_logs(job_id=job.id, namespace="ada", follow=True):
        lines.append(line)
        (job.folder / f"after-{len(lines) - 1}").touch()
    assert lines == ["line 0", "line 1", "line 2"]
    assert cut.times == 0
    assert len([path for _, path, _ in hub.requests if path.endswith("/logs")]) == 2


def test_the_client_gives_up_a_log_that_is_cut_after_its_job(
    hub: LoopbackHub, api: HfApi, start: Start
) -> None:
    """The client itself gives up; callers that need every line must ask again when the job is
    over."""
    job = start("print('first'); print('second')").wait()
    hub.fail(path="/logs", cut=True, after=215)
    assert log(api, job) == ["first"]
    assert log(api, job) == ["first", "second"]


def test_logs_misbehave_as_they_are_told(hub: LoopbackHub, api: HfApi, start: Start) -> None:
    hub.jobs.longest_line, hub.jobs.lines_twice = 4, True
    job = start("print('abcdef')").wait()
    assert log(api, job) == ["abcd", "abcd", "ef", "ef"]
    hub.jobs.lines_twice, hub.jobs.log_continues = False, True
    assert log(api, job) == []


def test_a_stage_may_lag_behind_its_log(hub: LoopbackHub, api: HfApi, start: Start) -> None:
    hub.jobs.stage_lag = 60
    job = start("print('done')")
    assert list(api.fetch_job_logs(job_id=job.id, namespace="ada")) == ["done"]
    assert api.inspect_job(job_id=job.id).status.stage == "RUNNING"
    hub.jobs.cancel(job.id)
    assert job.wait().stage == "CANCELED"


def test_a_container_talks_to_the_hub_that_started_it(
    hub: LoopbackHub, api: HfApi, start: Start
) -> None:
    api.create_bucket(RUNS, private=True)
    job = start(
        "from huggingface_hub import HfApi, whoami; "
        f"HfApi().batch_bucket_files({RUNS!r}, add=[(whoami()['name'].encode(), 'name')])",
        secrets={"HF_TOKEN": TOKEN},
    )
    assert job.wait().stage == "COMPLETED", job.text
    assert hub.buckets[RUNS].read("name") == b"ada"


def test_jobs_are_their_owners(hub: LoopbackHub, api: HfApi, start: Start) -> None:
    job, other = start(""), stranger(hub)
    with pytest.raises(JobNotFoundError):
        other.inspect_job(job_id=job.id, namespace="ada")
    with pytest.raises(JobNotFoundError):
        other.cancel_job(job_id=job.id, namespace="ada")
    with pytest.raises(HfHubHTTPError) as signed_out:
        HfApi(endpoint=hub.url, token=False).inspect_job(job_id=job.id, namespace="ada")
    assert status(signed_out) == 401
    hub.add_user(TOKEN, "ada", pays=False)
    with pytest.raises(HfHubHTTPError) as unpaid:
        start("")
    hub.add_user(TOKEN, "ada", "read")
    with pytest.raises(HfHubHTTPError) as read_only:
        start("")
    assert (status(unpaid), status(read_only)) == (402, 403)
    assert list(hub.jobs.all) == [job.id]


def test_a_job_is_refused_what_is_not_there(hub: LoopbackHub, start: Start) -> None:
    with pytest.raises(HfHubHTTPError, match="Invalid flavor: t9-huge"):
        start("", flavor="t9-huge")
    with pytest.raises(HfHubHTTPError) as missing:
        start("", volumes=[Volume(type="bucket", source=RUNS, mount_path="/data")])
    assert status(missing) == 404
    hub.fail(method="POST", path="/api/jobs/ada$", status=500)
    with pytest.raises(HfHubHTTPError) as broken:
        start("")
    assert status(broken) == 500
    assert not hub.jobs.all


def test_answers_may_be_late(hub: LoopbackHub, api: HfApi, start: Start) -> None:
    job = start("").wait()
    gate = hub.hold(f"/api/jobs/ada/{job.id}$")
    begun = time.monotonic()
    threading.Timer(0.2, gate.set).start()
    assert api.inspect_job(job_id=job.id).status.stage == "COMPLETED"
    assert time.monotonic() - begun >= 0.2
