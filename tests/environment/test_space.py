"""The app as a Space has it: its notices, a read-only source, no home, not root."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gradio_client import Client

from finetune.environment import caches, devices, space
from finetune.runs import store
from finetune.runs.store import RunStore
from finetune.ui import app, auth

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def on_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_ID", "ada/finetune")
    for name in ("SPACES_ZERO_GPU", "ACCELERATOR", "FINETUNE_RUNS"):
        monkeypatch.delenv(name, raising=False)


def test_elsewhere_nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPACE_ID", raising=False)
    assert space.current_space(tmp_path) is None
    assert app._notices(RunStore(tmp_path)) == []


def test_what_a_space_lacks_is_said(
    on_a_space: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "list_accelerators", lambda: ())
    found = space.current_space(tmp_path)
    assert found is not None
    assert (found.hardware, found.zero, found.gpus, found.lasting) == ("CPU", False, 0, False)
    said = " ".join(found.notices())
    assert "no GPU" in said
    assert "lost when this Space restarts" in said
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    zero = space.current_space(tmp_path)
    assert zero is not None
    assert "Training needs ordinary GPU hardware" in zero.notices()[0]
    monkeypatch.delenv("SPACES_ZERO_GPU")
    monkeypatch.setattr(devices, "list_accelerators", lambda: ("0",))
    monkeypatch.setenv("ACCELERATOR", "t4-small")
    monkeypatch.setattr(space, "is_mounted", lambda path: True)
    whole = space.current_space(tmp_path)
    assert whole is not None
    assert (whole.hardware, whole.notices()) == ("t4-small", [])
    assert 'id="hardware"' in app._notices(RunStore(tmp_path))[0]


def test_a_mount_is_told_from_the_disk_and_from_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bucket").mkdir()
    mounted = {str(tmp_path / "bucket")}
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) in mounted or str(path) == "/")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/elsewhere")
    assert space.is_mounted(tmp_path / "bucket" / "runs" / "deeper")
    assert not space.is_mounted(tmp_path / "runs")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    assert not space.is_mounted(tmp_path / "bucket" / "runs")


def test_without_a_home_the_libraries_write_to_a_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "mine"))
    caches.ensure_cache_folder()
    assert os.environ["HF_HOME"] == str(tmp_path / "mine")
    monkeypatch.setenv("HF_HOME", "/proc/nothing/can/be/made/here")
    monkeypatch.setattr(caches, "is_writable", lambda folder: "/proc" not in str(folder))
    caches.ensure_cache_folder()
    assert Path(os.environ["HF_HOME"]).parent == Path(tempfile.gettempdir())


def test_a_bucket_is_used_where_it_can_be_written(
    on_a_space: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bucket = tmp_path / "data"
    bucket.mkdir()
    monkeypatch.setattr(store, "_BUCKET", bucket)
    assert store.default_root() != bucket / "runs"  # nothing is mounted there
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == bucket)
    assert store.default_root() == bucket / "runs"
    monkeypatch.setattr(store, "is_writable", lambda folder: bucket not in folder.parents)
    monkeypatch.setenv("FINETUNE_RUNS", str(bucket / "mine"))
    assert bucket not in store.default_root().parents  # it cannot be written


def with_spaces(folder: Path) -> dict[str, str]:
    """An environment with a stand-in for the package of a Space, which tells what is lent to."""
    (folder / "spaces.py").write_text(
        "import sys\n"
        "assert 'torch' not in sys.modules\n"
        "def GPU(function):\n"
        "    print('lends to', function.__name__)\n"
        "    return function\n"
    )
    return os.environ | {"PYTHONPATH": str(folder)}


def test_zerogpu_finds_a_function_in_the_app(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import app"], cwd=ROOT, env=with_spaces(tmp_path),
        capture_output=True, text=True,
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (0, "lends to lent\n"), found.stderr


NOBODY = 65534


def unprivileged() -> list[str]:
    """A command's beginning that makes it somebody else's than root's; empty for who is none.

    Where nobody else may read the Python that runs this, it stays root's, without the power to
    write where the modes forbid it.
    """
    if os.geteuid() != 0:
        return []
    tool = shutil.which("setpriv")
    if tool is None:
        pytest.skip("as root this needs setpriv (Debian: util-linux)")
    nobody = [tool, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    code = "import numpy, subprocess, sys; subprocess.run([sys.executable, '-V'], check=True)"
    tried = subprocess.run([*nobody, sys.executable, "-c", code], capture_output=True)
    if tried.returncode == 0:
        return nobody
    return [tool, "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="finetune-space-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.long
def test_the_app_starts_and_trains_where_it_may_write_nothing(place: Path) -> None:
    """Not as root, from a source folder that is read-only, without HOME."""
    source = place / "app"
    shutil.copytree(ROOT / "finetune", source / "finetune", ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copytree(ROOT / "assets", source / "assets")
    shutil.copy(ROOT / "app.py", source)
    for path in (source, *source.rglob("*")):
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    temporary = place / "tmp"
    temporary.mkdir()
    temporary.chmod(0o777)
    known = {name: value for name, value in os.environ.items()
             if name not in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "FINETUNE_RUNS")}  # fmt: skip
    environment = known | {
        "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1", "SPACE_ID": "ada/finetune",
        "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(source),
    }  # fmt: skip
    app = subprocess.Popen(
        [*unprivileged(), sys.executable, "app.py"], cwd=source, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert app.stdout is not None
    try:
        printed = ""
        for line in app.stdout:
            printed += line
            if found := re.search(r"local URL:\s+(http://\S+)", line):
                break
        else:
            raise AssertionError(printed)
        with urllib.request.urlopen(found[1], timeout=30) as answer:
            text = answer.read().decode()
        assert answer.status == 200
        assert "Finetune" in text
        assert f"Runs are kept in {temporary}" in printed
        assert "no GPU" in text
        token = httpx.post(f"{found[1]}{auth.ISSUE}", timeout=30).text
        client = Client(found[1], headers={auth.HEADER: token}, verbose=False)
        short = {"max_steps": 2, "max_length": 16, "max_eval_samples": 8}
        run = client.predict(short, api_name="/start_run")
        deadline = time.monotonic() + 120
        while run["status"] in ("waiting", "running") and time.monotonic() < deadline:
            time.sleep(0.5)
            run = client.predict(run["id"], api_name="/run_status")
        log = next(temporary.rglob(f"{run['id']}/console.log")).read_text()
        assert run["status"] == "finished", f"{run} {log[-3000:]}"
    finally:
        app.kill()
        app.stdout.close()
        app.wait(10)
        for path in (source, *source.rglob("*")):
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
    assert not list(source.rglob("*.pyc"))
