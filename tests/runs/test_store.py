from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from finetune.config import RunConfig
from finetune.disk import write_atomically
from finetune.errors import ConfigError, NoSuchRun, StoreError
from finetune.inference import decision_rule
from finetune.jobs import cost, run_table, service
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore, default_root
from finetune.ui import model_chooser
from finetune.ui.run_table_view import table


def test_a_run_is_its_folder(store: RunStore) -> None:
    run = store.create(RunConfig(name="first"))
    again = RunStore(store.root).get(run.id)
    assert again.config() == RunConfig(name="first")
    assert again.title() == "first"
    assert [r.id for r in store.runs()] == [run.id]


def test_runs_of_one_configuration_have_titles_of_their_own(
    store: RunStore, tmp_path: Path
) -> None:
    file = tmp_path / "tickets.csv"
    file.write_text("sentence1,sentence2,label\na,b,0\n")
    upload = RunConfig(dataset=store.uploads.add({"train": file}), checkpoint="owner/small")
    runs = [store.create(upload) for _ in range(3)]
    assert [run.title() for run in runs] == [
        "small on tickets.csv", "small on tickets.csv #2", "small on tickets.csv #3"
    ]  # fmt: skip
    assert runs[1].public_title() == "small on own files #2"  # the file's name is nobody's business
    shutil.rmtree(runs[1].folder)
    assert store.create(upload).title() == "small on tickets.csv #4"
    assert store.create(upload.changed(name="mine")).title() == "mine"
    runs[0].describe(name="tickets first")
    assert runs[0].title() == runs[0].public_title() == "tickets first"


def test_a_wrong_configuration_makes_no_folder(store: RunStore) -> None:
    with pytest.raises(ConfigError):
        store.create(RunConfig(num_train_epochs=0))
    assert store.runs() == []


@pytest.mark.parametrize(
    "wrong", ["", "..", "../x", "/etc", "20260101-000000-" + "a" * 12, None, 7, ["x"], "a" * 10**6]
)
def test_anything_else_is_no_run(store: RunStore, wrong: Any) -> None:
    with pytest.raises(NoSuchRun):
        store.get(wrong)


def test_events_are_read_once_from_where_one_left(store: RunStore) -> None:
    run = store.create(RunConfig())
    run.append(events.Saved(step=1))
    first, offset = run.tail()
    run.append(events.Saved(step=2))
    second, end = run.tail(offset)
    assert [e.step for e in first + second if isinstance(e, events.Saved)] == [1, 2]
    assert run.tail(end) == ([], end)


def test_a_half_written_line_waits_for_its_end(store: RunStore) -> None:
    run = store.create(RunConfig())
    run.append(events.Saved(step=1))
    line = events.to_json(events.Saved(step=2)).encode() + b"\n"
    with run.events_file.open("ab") as file:
        file.write(line[:9])
    assert store.summary(run).reached == 1
    with run.events_file.open("ab") as file:
        file.write(line[9:])
    assert store.summary(run).reached == 2


def test_a_corrupt_line_hides_no_other(store: RunStore) -> None:
    run = store.create(RunConfig())
    run.append(events.Saved(step=1))
    with run.events_file.open("ab") as file:
        file.write(b"\xff\x00garbage\n")
    run.append(events.Saved(step=3))
    assert store.summary(run).reached == 3
    assert store.summary(run).count == 2


def test_the_summary_of_a_fresh_store_is_the_same(store: RunStore) -> None:
    run = store.create(RunConfig())
    for step in (1, 2):
        run.append(events.Saved(step=step))
        store.summary(run)
    assert RunStore(store.root).summary(run) == store.summary(run)


def test_a_corrupt_configuration_is_said(store: RunStore) -> None:
    run = store.create(RunConfig())
    (run.folder / "config.json").write_text("{")
    with pytest.raises(StoreError, match=r"config\.json"):
        run.config()
    assert run.title() == run.id


DEEP = b"[" * 100_000
DAMAGE: dict[str, bytes] = {
    "nested deeply": DEEP,
    "nested deeply within": b'{"tags": ' + DEEP + b"]" * 100_000 + b"}",
    "nested as deeply as can be read": b'{"name": ' + b"[" * 900 + b"]" * 900 + b"}",
    "no text": b"\xff\xfe\x00",
    "no object": b"[1, 2]",
    "empty": b"",
    "null": b"null",
    "odd values": b'{"pid": {}, "born": [], "devices": 7, "owner": [], "name": {}, "signal": []}',
    "numbers that are none": b'{"created": NaN, "number": Infinity, "pid": NaN}',
    "numbers too large": b'{"created": 1' + b"0" * 400 + b', "pid": 1' + b"0" * 400 + b"}",
}


@pytest.mark.parametrize("name", ["config.json", "about.json", "job.json", "best/config.json"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_hides_no_other(store: RunStore, name: str, damage: str) -> None:
    """Every list of runs there is, with one whose file is damaged and one that is whole."""
    whole, damaged = store.create(RunConfig(name="whole")), store.create(RunConfig())
    for run in (whole, damaged):
        run.best.mkdir()
        (run.best / "config.json").write_text("{}", encoding="utf-8")
        run.append(events.Started(device="CPU", processes=1))
    (damaged.folder / name).write_bytes(DAMAGE[damage])
    ids = {whole.id, damaged.id}
    assert {run.id for run in store.runs()} == ids
    assert {service.run_summary(store, run).status for run in store.runs()} <= {
        "running",
        "interrupted",
    }
    rows = run_table.run_rows(store)
    assert {row.id for row in rows} == ids
    drawn = table([*rows], "", "created", True)
    assert whole.title() == "whole"
    assert whole.id in drawn
    assert damaged.id in drawn
    update = model_chooser.choices(store, None)
    assert update["visible"]
    assert {value for _, value in update["choices"]} == ids
    assert cost.estimate_cost(store, RunConfig()).steps
    assert decision_rule.read_rule(damaged.best) == decision_rule.DecisionRule()
    mine = store.for_visitor(Visitor(("somebody",)))
    assert damaged.id not in {run.id for run in mine.runs()}  # what cannot be read is nobody's
    assert mine.create(RunConfig()).id in {run.id for run in mine.runs()}


def test_delete_removes_the_folder_and_nothing_else(store: RunStore) -> None:
    gone, kept = store.create(RunConfig()), store.create(RunConfig())
    store.delete(gone)
    assert [r.id for r in store.runs()] == [kept.id]
    with pytest.raises(NoSuchRun):
        store.delete(Run(store.root / ".."))


def test_a_write_replaces_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    def read_only(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="the disk is full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]
    monkeypatch.setattr(os, "fsync", read_only)
    with pytest.raises(StoreError, match="the disk is read-only") as caught:
        write_atomically(path, "new")
    assert caught.value.remedy == "Make it writable, or choose another folder with FINETUNE_RUNS."


def test_a_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(StoreError, match="Not a directory"):
        RunStore(tmp_path / "runs").create(RunConfig())


def test_no_secret_is_readable_by_its_mode(store: RunStore) -> None:
    run = store.create(RunConfig())
    run.append(events.Saved(step=1))
    assert stat.S_IMODE(run.events_file.stat().st_mode) & 0o022 == 0


def test_the_root_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINETUNE_RUNS", str(tmp_path / "elsewhere"))
    assert default_root() == tmp_path / "elsewhere"
