"""A confined process can use its own files and libraries, and no other files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from finetune.environment import confinement, landlock
from finetune.environment.confinement import Confinement
from tests.support.confined import needs_landlock, outcomes

ROOT = Path(__file__).resolve().parent.parent.parent
REFUSED = "PermissionError"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Create a folder of the process and one of somebody else, each with a file."""
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "file").write_text("canary")
    return own, other


@needs_landlock
def test_it_reaches_its_own_files_and_no_others(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = folders
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("canary")
    (own / "to-other").symlink_to(other / "file")
    mine, theirs = str(own / "file"), str(other / "file")
    allowed = [
        ("read", mine), ("write", mine), ("replace", mine), ("list_folder", str(own)),
        ("write", str(own / "new")), ("read_in_another_process", mine), ("read_in_a_thread", mine),
        ("read", "/proc/self/status"), ("read", "/proc/cpuinfo"), ("read", "/etc/passwd"),
        ("read", os.__file__), ("write", "/dev/null"), ("run", "true"),
    ]  # fmt: skip
    refused = [
        ("read", theirs), ("write", theirs), ("list_folder", str(other)),
        ("list_folder", str(tmp_path)), ("read", str(own / "to-other")),
        ("read_in_a_thread", theirs), ("read", str(tmp_path / ".netrc")),
        ("read_parents", "environ"), ("read_parents", "cmdline"), ("list_folder", "/proc"),
        ("list_folder", str(ROOT)), ("list_folder", "/dev/shm"),
        # Whoever is not confined would follow the link, or wait for the pipe.
        ("link", theirs, str(own / "link")), ("make_pipe", str(own / "pipe")),
    ]  # fmt: skip
    refused += [("read", "/etc/shadow")] * (os.geteuid() == 0)
    before, after = outcomes([*allowed, *refused], Confinement(writes=(str(own),)))
    assert before == ["done"] * len(before)
    assert after[: len(allowed)] == ["done"] * len(allowed)
    assert dict(zip(refused, after[len(allowed) :], strict=True)) == dict.fromkeys(refused, REFUSED)
    # What it may only read it does not change, be it a folder or a file.
    for reads in (str(other), theirs):
        actions = [("read", theirs), ("write", theirs)]
        _, after = outcomes(actions, Confinement(reads=(reads,), writes=(str(own),)))
        assert after == ["done", REFUSED]
    # A program that it starts, and a second name of another's file.
    others = [("read_in_another_process", theirs), ("hard_link", theirs, str(own / "link"))]
    before, after = outcomes(others, Confinement(writes=(str(own),)))
    assert before == ["done", "done"]
    assert "done" not in after


@pytest.mark.skipif(landlock.abi() < landlock.SCOPES_SINCE, reason="this kernel scopes no signals")
def test_it_sends_no_signal_to_the_app() -> None:
    before, after = outcomes([("signal_parent",)], Confinement())
    assert (before, after) == (["done"], [REFUSED])


@needs_landlock
@pytest.mark.parametrize("abi", [1, 2, 3, 5])
def test_an_older_kernel_confines_files_too(folders: tuple[Path, Path], abi: int) -> None:
    own, other = folders
    mine, theirs = str(own / "file"), str(other / "file")
    actions = [("read", mine), ("replace", mine), ("read", theirs), ("read_parents", "environ")]
    _, after = outcomes(actions, Confinement(writes=(str(own),)), abi)
    assert after == ["done", "done", REFUSED, REFUSED]


@needs_landlock
def test_a_process_with_threads_is_not_half_confined() -> None:
    code = (
        "import threading\n"
        "from finetune.environment.confinement import Confinement\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "try:\n"
        "    Confinement().enter()\n"
        "except OSError as error:\n"
        "    print(error, flush=True)\n"
        "open('/etc/hostname')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "a process with several threads cannot be confined\n", done.stderr


def test_an_environment_is_what_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = (
        "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "FINETUNE_WEBHOOK", "FINETUNE_SOMETHING_SECRET",
        "AWS_SECRET_ACCESS_KEY", "OAUTH_CLIENT_SECRET", "WANDB_API_KEY", "NVIDIA_API_KEY",
        "RAY_ADDRESS", "HF_HOME", "XDG_CACHE_HOME",
    )  # fmt: skip
    needed = ("FINETUNE_MAX_RUNS", "FINETUNE_VISITORS", "HF_ENDPOINT", "https_proxy", "LC_ALL")
    for name in (*secrets, *needed):
        monkeypatch.setenv(name, "canary")
    variables = confinement.visible_environment()
    assert not set(secrets) & set(variables)
    assert set(needed) <= set(variables)


def test_folders_of_modules_hold_no_home_and_no_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python lists every folder of `PYTHONPATH`, so confined processes can read all of it."""
    libraries = tmp_path / "libraries"
    for folder in (libraries, tmp_path / "temporary"):
        folder.mkdir()
    home = tmp_path / "homes" / "ada"
    monkeypatch.setenv("HOME", str(home))
    paths = [libraries, ROOT, home, home.parent, tmp_path, Path("/")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
    variables = Confinement(temporary=str(tmp_path / "temporary")).prepare()
    folders = variables["PYTHONPATH"].split(os.pathsep)
    assert folders == [str(tmp_path / "temporary" / "modules"), str(libraries)]


# As an ordinary user, whom the kernel does not let pass; its child tells what it can read of it.
_HIDES = """
import ctypes, os, sys
from finetune.environment import confinement
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
if sys.argv[1] == "hidden":
    confinement.hide_process()
if os.fork():
    os.wait()
else:
    if sys.argv[1] == "confined":
        confinement.of_children().enter()
    for name in ("environ", "maps"):
        try:
            text = open(f"/proc/{os.getppid()}/{name}", "rb").read()
            print(name, b"canary" in text or b"python" in text, flush=True)
        except OSError as error:
            print(name, type(error).__name__, flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the means is Linux's")
@pytest.mark.parametrize(
    ("how", "read"),
    [
        ("shown", "True"),
        ("hidden", REFUSED),
        pytest.param("confined", REFUSED, marks=needs_landlock),
    ],
)
def test_the_apps_environment_is_closed_to_processes_of_its_user(how: str, read: str) -> None:
    """Also to the processes of a run with several, which can only see that it exists."""
    variables = {**os.environ, "HF_TOKEN": "canary"}
    done = subprocess.run(
        [sys.executable, "-c", _HIDES, how],
        cwd=ROOT, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["environ", read, "maps", read], done.stderr
