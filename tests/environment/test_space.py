"""The app on a Space: its notices, a read-only source, no home, not root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from gradio_client import Client

from finetune.ui import auth

ROOT = Path(__file__).resolve().parent.parent.parent


def with_spaces(folder: Path) -> dict[str, str]:
    """An environment with a stand-in for a Space's package, which reports the functions that get a
    GPU."""
    (folder / "spaces.py").write_text(
        "import sys\n"
        "assert 'torch' not in sys.modules\n"
        "def GPU(function):\n"
        "    print('lends to', function.__name__)\n"
        "    return function\n"
    )
    return os.environ | {"PYTHONPATH": str(folder)}


def test_zerogpu_finds_a_function_in_the_app(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import app"], cwd=ROOT, env=with_spaces(tmp_path),
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "lends to zero_gpu_function\n"), done.stderr


@pytest.mark.long
def test_the_app_starts_and_trains_where_it_may_write_nothing() -> None:
    """The app runs without root and HOME, from a read-only source folder."""
    command = [sys.executable, "app.py"]
    if os.geteuid() == 0:  # root's power to write where the modes forbid it is taken
        tool = shutil.which("setpriv")
        if tool is None:
            pytest.skip("as root this needs setpriv (Debian: util-linux)")
        command = [tool, "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all",
                   *command]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="finetune-space-") as folder, ExitStack() as stack:
        source, temporary = Path(folder) / "app", Path(folder) / "tmp"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "finetune", source / "finetune", ignore=ignored)
        shutil.copytree(ROOT / "assets", source / "assets")
        shutil.copy(ROOT / "app.py", source)
        Path(folder).chmod(0o755)  # everybody may enter, unlike pytest's
        subprocess.run(["chmod", "-R", "a-w", source], check=True)
        stack.callback(lambda: subprocess.run(["chmod", "-R", "u+w", source], check=True))
        temporary.mkdir()
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("HOME", "HF_HOME", "FINETUNE_RUNS")}  # fmt: skip
        environment |= {
            "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1", "SPACE_ID": "ada/finetune",
            "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(source),
        }  # fmt: skip
        process = stack.enter_context(
            subprocess.Popen(
                command, cwd=source, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
        stack.callback(process.kill)
        assert process.stdout is not None
        printed, url = "", None
        while url is None:
            line = process.stdout.readline()
            assert line, printed
            printed += line
            url = re.search(r"local URL:\s+(http://\S+)", line)
        assert f"Runs are kept in {temporary}" in printed
        answer = httpx.get(url[1], timeout=60)
        assert answer.status_code == 200
        assert "no GPU" in answer.text
        token = httpx.post(f"{url[1]}{auth.ISSUE}", timeout=60).text
        client = Client(url[1], headers={auth.HEADER: token}, verbose=False)
        short = {"max_steps": 2, "max_length": 16, "max_eval_samples": 8}
        run = client.predict(short, api_name="/start_run")
        deadline = time.monotonic() + 120
        while run["status"] in ("waiting", "running") and time.monotonic() < deadline:
            time.sleep(0.5)
            run = client.predict(run["id"], api_name="/run_status")
        log = next(temporary.rglob(f"{run['id']}/console.log")).read_text()
        assert run["status"] == "finished", f"{run} {log[-3000:]}"
