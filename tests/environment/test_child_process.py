"""The child process that reads files for the app: its limits, and what is said beyond them."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finetune.config import RunConfig
from finetune.data import dataset_cache, splits, tables
from finetune.environment import child_process
from finetune.errors import DataError
from finetune.inference import file_request
from finetune.runs.store import RunStore
from tests.jobs.test_service import until

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = "tests.support.in_child"
FLAT = 100 * 2**20  # bytes


def test_a_function_is_called_in_another_process() -> None:
    text, pid = child_process.call(f"{HERE}:fine", "\u00e9\udcff", about="a.csv")
    assert text == "\u00e9\udcff"
    assert int(pid) != os.getpid()
    assert not psutil.pid_exists(int(pid))


def test_a_refusal_is_told_as_it_was_said() -> None:
    with pytest.raises(DataError, match=r"It is no table\. Bring one\.") as caught:
        child_process.call(f"{HERE}:refused", about="a.csv")
    assert caught.value.remedy == "Bring one."


@pytest.mark.parametrize(
    ("name", "limits", "said"),
    [
        ("endless", {"seconds": 1.0}, "a.csv took more than 1 s to read"),
        ("hungry", {"memory": 2**29}, "a.csv could not be read with 512 MiB of memory"),
        ("crashes", {}, "or breaks what reads it"),
    ],
)
def test_beyond_a_limit_the_child_ends_and_the_app_does_not(
    name: str, limits: dict[str, float], said: str
) -> None:
    before, children = psutil.Process().memory_info().rss, psutil.Process().children()
    with pytest.raises(DataError, match=said) as caught:
        child_process.call(f"{HERE}:{name}", about="a.csv", **limits)  # type: ignore[arg-type]
    assert "part of it" in caught.value.remedy
    assert psutil.Process().memory_info().rss - before < FLAT
    assert set(psutil.Process().children()) <= set(children)


def test_a_child_ends_with_the_app(processes: list[int]) -> None:
    code = (
        "from finetune.environment import child_process\n"
        f"child_process.call('{HERE}:endless', about='a.csv', seconds=500)"
    )
    app = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    processes.append(app.pid)
    until(lambda: bool(psutil.Process(app.pid).children()), 60)
    (child,) = psutil.Process(app.pid).children()
    processes.append(child.pid)
    app.kill()
    app.wait()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 60)


def test_what_reads_columns_loads_nothing_that_is_slow() -> None:
    loaded = child_process.call(f"{HERE}:modules", about="a.csv")
    assert "pyarrow" in loaded
    assert not {"torch", "datasets", "transformers", "gradio", "pandas"} & set(loaded)


def coded(values: int) -> bytes:
    """A Parquet file that says a long text once for so many rows."""
    buffer = io.BytesIO()
    text = "x" * 48_000
    columns = {"sentence1": [text] * values, "sentence2": ["b"] * values, "label": [1] * values}
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return buffer.getvalue()


def nested(lists: int) -> bytes:
    return gzip.compress(b'[{"sentence1": [' + b"[]," * lists + b'[]], "label": 1}]')


TOO_MUCH = r"has more JSON than is held in memory: at most 128 MiB and 4,194,304 values"
BOMBS = {
    "a.json.gz": (lambda: nested(20_000_000), TOO_MUCH),
    "b.json.gz": (
        lambda: gzip.compress(b'{"sentence1": [' + b"[]," * 20_000_000 + b"1]}"),
        TOO_MUCH,
    ),
    "c.json.gz": (lambda: gzip.compress(b"[" * 60_000_000), TOO_MUCH),
    "a.parquet": (lambda: coded(10_000), ""),
}


@pytest.mark.parametrize(
    "name",
    ["c.json.gz", *(pytest.param(name, marks=pytest.mark.long) for name in [*BOMBS][:2]),
     "a.parquet"],
)  # fmt: skip
def test_the_app_parses_no_file_and_its_memory_stays_flat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make, said = BOMBS[name]
    path = tmp_path / name
    path.write_bytes(make())
    assert path.stat().st_size < 200_000
    from finetune.data import sources

    assert sources  # what guesses the columns is loaded before memory is looked at
    monkeypatch.setattr(tables, "open_table", lambda *given: pytest.fail("parsed in the app"))
    before = psutil.Process().memory_info().rss
    if said:
        with pytest.raises(DataError, match=said) as caught:
            file_request.file_columns(path, name)
        assert caught.value.remedy
    else:
        known, _ = file_request.file_columns(path, name)
        assert known == ["sentence1", "sentence2", "label"]
    assert psutil.Process().memory_info().rss - before < FLAT


def test_pairs_that_are_not_kept_are_read_by_a_child(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sentence1,sentence2,label\n" + "a cat,a dog,1\nan owl,a fox,0\n" * 5)
    config = RunConfig(dataset=store.uploads.add({"train": path}))
    monkeypatch.setattr(tables, "open_table", lambda *given: pytest.fail("parsed in the app"))
    dataset_cache.ensure_cached(config, store.root)
    assert sum(splits.load_pairs(config, store.root).origin["rows"].values()) == 10
    monkeypatch.setattr(child_process, "call", lambda *given, **named: pytest.fail("read again"))
    dataset_cache.ensure_cached(config, store.root)


LONG = "x" * 48_000
SMALL = {
    "one text in every row": ({"sentence1": [LONG] * 10_000}, 10_000, ""),
    "after rows without one": (
        {"sentence1": [None] * 2_000 + [LONG] * 8_000}, 10_000, "",
    ),
    "a text that is too long": (
        {"sentence1": ["x" * 1_000_001] * 50 + ["y"]}, 1, "more than 1,000,000 characters",
    ),
}  # fmt: skip


def test_an_encoding_that_repeats_beginnings_is_refused(tmp_path: Path) -> None:
    table = pa.table({"sentence1": [f"{LONG}{n % 7}" for n in range(100)]})
    encoding = {"use_dictionary": False, "column_encoding": {"sentence1": "DELTA_BYTE_ARRAY"}}
    pq.write_table(table, tmp_path / "a.parquet", **encoding)
    with pytest.raises(DataError, match="'sentence1' in the encoding DELTA_BYTE_ARRAY") as caught:
        tables.open_table(tmp_path / "a.parquet")
    assert "another encoding" in caught.value.remedy


@pytest.mark.long
@pytest.mark.parametrize("kind", SMALL)
def test_a_small_parquet_file_is_read_in_little_memory(tmp_path: Path, kind: str) -> None:
    columns, rows, said = SMALL[kind]
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", compression="zstd")
    count, problems = child_process.call(
        f"{HERE}:parsed", str(tmp_path / "a.parquet"), about="a.parquet", memory=2**29
    )
    assert count == rows
    assert all(said in problem for problem in problems)
