"""A child process reads files for the app within limits, and a confined process uses its own files
and libraries, and no other files. The app on a Space: its notices, a read-only source, not root."""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gradio_client import Client

from finetune.config import RunConfig
from finetune.data import dataset_cache, splits, table_formats
from finetune.environment import child_process, confinement, landlock
from finetune.environment.confinement import Confinement
from finetune.errors import DataError
from finetune.inference import file_request
from finetune.runs.summary import ColumnNames
from finetune.ui import auth
from tests.support.confined import needs_landlock, outcomes
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = "tests.support.in_child"
FLAT = 100 * 2**20  # bytes
LONG = "x" * 48_000


def test_a_function_is_called_in_another_process():
    text, pid, *modules = child_process.call(f"{HERE}:fine", "\u00e9\udcff", about="a.csv")
    assert text == "\u00e9\udcff"
    assert pid != os.getpid()
    assert not psutil.pid_exists(pid)
    # What reads a table loads nothing that is slow.
    assert "pyarrow" in modules
    assert not {"torch", "datasets", "transformers", "gradio", "pandas"} & set(modules)


@pytest.mark.parametrize(
    ("name", "limits", "fact", "remedy"),
    [
        ("endless", {"seconds": 0.6}, "a.csv took more than 1 s to read.", "Upload a part of it"),
        ("hungry", {"memory": 2**29}, "a.csv could not be read with 512 MiB of memory", "Upload a"),
    ],
)
def test_beyond_a_limit_the_child_ends_and_the_app_does_not(name, limits, fact, remedy):
    before, children = psutil.Process().memory_info().rss, psutil.Process().children()
    with pytest.raises(DataError) as caught:
        child_process.call(f"{HERE}:{name}", about="a.csv", **limits)
    assert caught.value.fact.startswith(fact)
    assert caught.value.remedy.startswith(remedy)
    assert psutil.Process().memory_info().rss - before < FLAT
    assert set(psutil.Process().children()) <= set(children)


def test_visitors_take_turns(processes):
    """Two of Ada's files take long to read: Bob's is read beside the first of them."""

    def read(visitor, function):
        child_process.asker.set(visitor)
        return child_process.call(f"{HERE}:{function}", *["a"][: function == "fine"], about="a")

    def children():
        return list(psutil.Process().children())

    before = len(children())
    with ThreadPoolExecutor(4) as pool:
        hers = [pool.submit(read, "ada", "endless") for _ in range(3)]
        until(lambda: len(children()) > before)
        assert pool.submit(read, "bob", "fine").result(60)
        with pytest.raises(DataError, match="Several of your files are being read"):
            pool.submit(read, "ada", "fine").result(60)
        while not all(one.done() for one in hers):
            for child in children()[before:]:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
    assert all(isinstance(one.exception(), DataError) for one in hers)


def test_a_child_ends_with_the_app(processes):
    code = (
        "from finetune.environment import child_process\n"
        f"child_process.call('{HERE}:endless', about='a.csv', seconds=500)"
    )
    app = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    processes.append(psutil.Process(app.pid))
    until(lambda: bool(psutil.Process(app.pid).children()))
    (child,) = psutil.Process(app.pid).children()
    processes.append(child)
    app.kill()
    app.wait()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_the_app_parses_no_file_and_its_memory_stays_flat(tmp_path, monkeypatch):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"[[[" * 2_000_000))
    assert path.stat().st_size < 200_000
    monkeypatch.setattr(table_formats, "open_table", lambda *_: pytest.fail("parsed in the app"))
    before = psutil.Process().memory_info().rss
    with pytest.raises(DataError, match=r"has more JSON than is held in memory") as caught:
        file_request.file_columns(path, path.name, ColumnNames())
    assert caught.value.remedy
    assert psutil.Process().memory_info().rss - before < FLAT


def test_an_encoding_that_repeats_beginnings_is_refused(tmp_path):
    table = pa.table({"sentence1": [f"{LONG}{n % 7}" for n in range(100)]})
    encoding = {"use_dictionary": False, "column_encoding": {"sentence1": "DELTA_BYTE_ARRAY"}}
    pq.write_table(table, tmp_path / "a.parquet", **encoding)
    with pytest.raises(DataError, match="'sentence1' in the encoding DELTA_BYTE_ARRAY"):
        table_formats.open_table(tmp_path / "a.parquet")


def test_pairs_that_are_not_kept_are_read_by_a_child(store, tmp_path, monkeypatch):
    columns = {"sentence1": ["a"] * 20, "sentence2": ["b"] * 20, "label": [0, 1] * 10}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    config = RunConfig(dataset=store.uploads.add({"train": tmp_path / "a.parquet"}))
    monkeypatch.setattr(table_formats, "open_table", lambda *_: pytest.fail("parsed in the app"))
    dataset_cache.ensure_cached(config, store.root)
    assert sum(splits.load_pairs(config, store.root).facts["rows"].values()) == 20
    monkeypatch.setattr(child_process, "call", lambda *_, **__: pytest.fail("read again"))
    dataset_cache.ensure_cached(config, store.root)


@pytest.mark.long
@pytest.mark.parametrize(
    ("columns", "rows", "reason"),
    [
        ({"sentence1": [LONG] * 10_000}, 10_000, ""),
        ({"sentence1": [None] * 2_000 + [LONG] * 8_000}, 10_000, ""),
        ({"sentence1": ["x" * 1_000_001] * 50 + ["y"]}, 1, "more than 1,000,000 characters"),
    ],
    ids=["one text in every row", "after rows without one", "a text that is too long"],
)
def test_a_small_parquet_file_is_read_in_little_memory(tmp_path, columns, rows, reason):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", compression="zstd")
    count, problems = child_process.call(
        f"{HERE}:parsed", str(tmp_path / "a.parquet"), about="a.parquet", memory=2**29
    )
    assert count == rows
    assert all(reason in problem for problem in problems)


REFUSED = "PermissionError"


@pytest.fixture
def folders(tmp_path):
    """Create a folder of the process and one of somebody else, each with a file."""
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "file").write_text("canary")
    return own, other


@needs_landlock
def test_it_reaches_its_own_files_and_no_others(folders, tmp_path, monkeypatch):
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
        ("make", str(own / "link"), "symlink", theirs), ("make", str(own / "pipe"), "mkfifo"),
    ]  # fmt: skip
    refused += [("read", "/etc/shadow")] * (os.geteuid() == 0)
    refused += [("signal_parent",)] * (landlock.abi() >= landlock.SCOPES_SINCE)
    # A program that it starts, and a second name of another's file: in the way of the means.
    others = [("read_in_another_process", theirs), ("make", str(own / "link"), "link", theirs)]
    confinement = Confinement(writes=(str(own),))
    before, after = outcomes([*allowed, *refused, *others], confinement)
    assert before == ["done"] * len(before)
    assert after[: len(allowed)] == ["done"] * len(allowed)
    told = after[len(allowed) : -len(others)]
    assert dict(zip(refused, told, strict=True)) == dict.fromkeys(refused, REFUSED)
    assert "done" not in after[-len(others) :]
    # What it may only read it does not change, be it a folder or a file.
    for reads in (str(other), theirs):
        actions = [("read", theirs), ("write", theirs)]
        _, after = outcomes(actions, Confinement(reads=(reads,), writes=(str(own),)))
        assert after == ["done", REFUSED]


@needs_landlock
@pytest.mark.parametrize("abi", [1, 3])
def test_an_older_kernel_confines_files_too(folders, abi):
    own, other = folders
    mine, theirs = str(own / "file"), str(other / "file")
    actions = [("read", mine), ("replace", mine), ("read", theirs), ("read_parents", "environ")]
    _, after = outcomes(actions, Confinement(writes=(str(own),)), abi)
    assert after == ["done", "done", REFUSED, REFUSED]


@needs_landlock
def test_a_process_with_threads_is_not_half_confined():
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


def test_an_environment_is_what_is_listed(monkeypatch):
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


def test_folders_of_modules_hold_no_home_and_no_runs(monkeypatch, tmp_path):
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
    [("shown", "True"), ("hidden", REFUSED),
     pytest.param("confined", REFUSED, marks=needs_landlock)],
)  # fmt: skip
def test_the_apps_environment_is_closed_to_processes_of_its_user(how, read):
    """Also to the processes of a run with several, which can only see that it exists."""
    variables = {**os.environ, "HF_TOKEN": "canary"}
    done = subprocess.run(
        [sys.executable, "-c", _HIDES, how],
        cwd=ROOT, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["environ", read, "maps", read], done.stderr


def test_zerogpu_finds_a_function_in_the_app(tmp_path):
    """By a stand-in for a Space's package, which ends with the name of what gets a GPU."""
    (tmp_path / "spaces.py").write_text(
        "import sys\n"
        "assert 'torch' not in sys.modules\n"
        "def GPU(function):\n"
        "    raise SystemExit(f'lends to {function.__name__}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import app"], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stderr == "lends to zero_gpu_function\n"


@pytest.mark.long
def test_the_app_starts_and_trains_where_it_may_write_nothing():
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
        printed, url = "", None
        while url is None:
            line = process.stdout.readline()
            assert line, printed
            printed += line
            url = re.search(r"local URL:\s+(http://\S+)", line)
        assert f"Runs are kept in {temporary}" in printed
        answer = httpx.get(url[1], timeout=240)
        assert answer.status_code == 200
        assert "no GPU" in answer.text
        token = httpx.post(f"{url[1]}{auth.ISSUE}", timeout=240).text
        client = Client(url[1], headers={auth.HEADER: token}, verbose=False)
        short = {"max_steps": 2, "max_length": 16, "max_eval_samples": 8}
        run = client.predict(short, api_name="/start_run")
        deadline = time.monotonic() + 120
        while run["status"] in ("waiting", "running") and time.monotonic() < deadline:
            time.sleep(0.5)
            run = client.predict(run["id"], api_name="/run_status")
        log = next(temporary.rglob(f"{run['id']}/console.log")).read_text()
        assert run["status"] == "finished", f"{run} {log[-3000:]}"
