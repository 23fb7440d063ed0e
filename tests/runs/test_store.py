"""Runs are folders: named once, read while they are written, isolated from damaged ones. They know
the pairs that they were trained on."""

from __future__ import annotations

import csv
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from finetune.config import RunConfig
from finetune.disk import write_atomically
from finetune.errors import ConfigError, NoSuchRun, StoreError
from finetune.inference import decision_rule, files
from finetune.jobs import cost, run_table
from finetune.owners import Visitor
from finetune.runs import events, pair_index
from finetune.runs.grids import data_name
from finetune.runs.run import Run
from finetune.runs.store import RunStore, named_run
from finetune.tasks.base import DecisionRule
from finetune.ui import choosers
from finetune.ui.run_view import table
from tests.support import toys
from tests.support.judging import judged, write_csv


def test_a_run_is_its_folder(store: RunStore) -> None:
    run, gone = store.create(RunConfig(name="first")), store.create(RunConfig())
    store.delete(gone)
    ahead = store.create(RunConfig(), run_id=f"20991231-235959-999999{'x' * 12}")
    newer = [store.create(RunConfig()).id for _ in range(2)]  # though the clock was set back
    assert [run.id for run in store.runs()] == [*newer[::-1], ahead.id, run.id]
    with pytest.raises(NoSuchRun):
        store.delete(Run(store.root / ".."))
    unknown: list[Any] = ["", "..", "../x", "/etc", gone.id, None, 7, ["x"], "a" * 10**6]
    for name in unknown:
        with pytest.raises(NoSuchRun):
            store.get(name)
    with pytest.raises(ConfigError):
        store.create(RunConfig(num_train_epochs=-1))
    again = RunStore(store.root).get(run.id)
    assert again.config() == RunConfig(name="first")
    assert again.title() == "first"


def test_runs_of_one_configuration_have_titles_of_their_own(
    store: RunStore, tmp_path: Path
) -> None:
    file = tmp_path / "tickets.csv"
    file.write_text("sentence1,sentence2,label\na,b,0\n")
    upload = RunConfig(dataset=store.uploads.add({"train": file}), checkpoint="owner/small")
    runs = [store.create(upload) for _ in range(3)]
    assert [run.title() for run in runs] == ["tickets-1", "tickets-2", "tickets-3"]
    assert runs[1].title(public=True) == "own-files-2"  # the file's name is private
    shutil.rmtree(runs[1].folder)
    assert store.create(upload).title() == "tickets-4"
    mine = upload.changed(name="mine")
    assert [store.create(mine).title() for _ in range(3)] == ["mine", "mine-2", "mine-3"]
    store.describe(runs[0], name="tickets first")
    assert runs[0].title() == runs[0].title(public=True) == "tickets first"
    with pytest.raises(ConfigError, match="name is the name of another run, tickets first"):
        store.describe(runs[2], name="tickets first")
    assert named_run(Path("tickets-3"), store.root).id == runs[2].id
    store.describe(runs[2], name="")  # its own again
    assert store.create(upload).title() == "tickets-5"  # tickets-1 was that of the first
    with pytest.raises(NoSuchRun):
        named_run(Path("tickets-1"), store.root)


def test_events_are_read_while_they_are_written(store: RunStore) -> None:
    """Each event is read once. Half a line waits for its end, and a damaged line hides no other."""
    run = store.create(RunConfig())
    run.append(events.Saved(step=1))
    assert stat.S_IMODE(run.events_file.stat().st_mode) & 0o022 == 0
    first, offset = run.tail()
    line = events.Saved(step=2).model_dump_json().encode() + b"\n"
    with run.events_file.open("ab") as file:
        file.write(line[:9])
    assert run.tail(offset) == ([], offset)
    assert run.state().reached == 1
    with run.events_file.open("ab") as file:
        file.write(line[9:] + b"\xff\x00garbage\n")
    run.append(events.Saved(step=3))
    second, end = run.tail(offset)
    assert [e.step for e in first + second if isinstance(e, events.Saved)] == [1, 2, 3]
    assert run.tail(end) == ([], end)
    summary = run.state()
    assert (summary.reached, summary.count) == (3, 3)
    with run.events_file.open("ab") as file:
        file.write(line[:9])  # of a writer that was killed
    run.append(events.Saved(step=4))
    assert run.state().reached == 4


DEEP = b"[" * 100_000
DAMAGE: dict[str, bytes] = {
    "nested deeply": b'{"tags": ' + DEEP + b"]" * 100_000 + b"}",
    "no text": b"\xff\xfe\x00",
    "no object": b"[1, 2]",
    "odd values": b'{"pid": {}, "born": [], "devices": 7, "owner": [], "name": {}, "signal": []}',
    "numbers that are none": b'{"created": NaN, "number": Infinity, "pid": NaN}',
    "numbers too large": b'{"created": 1' + b"0" * 400 + b', "pid": 1' + b"0" * 400 + b"}",
}


@pytest.mark.parametrize("name", ["config.json", "about.json", "job.json", "best/config.json"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_hides_no_other(store: RunStore, name: str, damage: str) -> None:
    """Every list of runs is read with one damaged and one valid run."""
    whole, damaged = store.create(RunConfig(name="whole")), store.create(RunConfig())
    for run in (whole, damaged):
        run.best.mkdir()
        (run.best / "config.json").write_text("{}", encoding="utf-8")
        run.append(events.Started(device="CPU", processes=1))
    (damaged.folder / name).write_bytes(DAMAGE[damage])
    ids = {whole.id, damaged.id}
    assert {run.id for run in store.runs()} == ids
    statuses = {run.state().status for run in store.runs()}
    assert statuses <= {"running", "interrupted"}
    rows = run_table.run_rows(store)
    assert {row.id for row in rows} == ids
    drawn = table([*rows], "created", True)
    assert all(id_ in drawn for id_ in ids)
    update, _ = choosers.choices(store, None)
    assert {value for _, value in update["choices"]} == ids
    assert cost.estimate_cost(store, RunConfig()).steps
    assert decision_rule.read_rule(damaged.best) == DecisionRule()
    mine = store.for_visitor(Visitor(("somebody",)))
    assert damaged.id not in {run.id for run in mine.runs()}  # what cannot be read is nobody's
    if name == "config.json":
        with pytest.raises(StoreError, match=r"config\.json of run .* cannot be read"):
            damaged.config()
        assert damaged.title() == "bundled-1"


def test_a_write_replaces_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match="the disk is full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize(
    ("values", "files", "expected"),
    [
        ({}, "", "bundled"), ({"dataset": "glue/mrpc"}, "", "mrpc"),
        ({"dataset": "nyu-mll/glue", "dataset_config_name": "sst2"}, "", "sst2"),
        ({"dataset": "upload/x"}, "Support tickets (2026).xlsx, check.csv", "Support-tickets-2026"),
        ({"dataset": "upload/x"}, "\ubb38\uc758.csv", "\ubb38\uc758"),
        ({"dataset": "upload/x"}, f"{'long' * 30}.csv", "long" * 6),
        ({"dataset": "upload/x"}, "", "own-files"), ({"dataset": "upload/x"}, "!.csv", "own-files"),
    ],
)  # fmt: skip
def test_a_run_is_named_by_its_data(values: dict[str, Any], files: str, expected: str) -> None:
    assert data_name(RunConfig(**values), files) == expected


def test_a_run_of_an_older_version_has_a_name(store: RunStore) -> None:
    run = store.create(RunConfig())
    about = json.loads((run.folder / "about.json").read_text())
    del about["title"]
    (run.folder / "about.json").write_text(json.dumps(about | {"number": 2}))
    assert run.title() == f"bundled-{run.id[:15]}"
    assert store.create(RunConfig()).title() == "bundled-1"


TRAINED = [(f"the cat sees dog {n} .", f"a cat sees the dog {n} .") for n in range(40)]
VALIDATED = [(f"the owl likes bee {n} .", f"a owl likes the bee {n} .") for n in range(10)]
HEAD = ("sentence1", "sentence2", "label")


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    run = store.create(RunConfig(max_length=32))
    toys.copy_model(toy_checkpoint, run.best)
    pair_index.write_pair_index(run, {"train": hashes(TRAINED), "validation": hashes(VALIDATED)})
    return run


def hashes(pairs: list[tuple[Any, Any]]) -> Any:
    return pair_index.pair_hashes(*(list(side) for side in zip(*pairs, strict=True)))


def contained(run: Run, split: str, numbers: Any) -> list[bool]:
    index = pair_index.read_pair_index(run)
    assert index is not None
    return index.among(split, numbers).tolist()  # type: ignore[no-any-return]


def labelled(pairs: list[tuple[str, str]]) -> list[tuple[str, ...]]:
    return [(*pair, str(n % 2)) for n, pair in enumerate(pairs)]


def test_a_pair_is_known_in_either_order_and_as_leaks_are_compared(run: Run) -> None:
    pairs: list[tuple[Any, Any]] = [
        ("a cat sees the dog 3 .", "the cat sees dog 3 ."),
        ("The CAT  sees dog 3", "a cat sees\tthe dog 3!"),
        ("the cat sees dog 3 .", "a cat sees the dog 4 ."),
        ("the cat sees dog 3 .", ""),
        (None, 7),
    ]
    assert contained(run, "train", hashes(pairs)) == [True, True, False, False, False]
    sentences = pair_index.pair_hashes(["the cat", "a dog"], None)
    pair_index.write_pair_index(run, {"train": sentences[:1], "validation": sentences[:0]})
    assert contained(run, "train", sentences) == [True, False]
    assert contained(run, "validation", sentences) == [False, False]


def test_rows_that_were_trained_on_are_marked_and_scored_apart(run: Run, tmp_path: Path) -> None:
    new = [(f"the bee has {n} .", f"a bee has {n} .") for n in range(30)]
    swapped = [pair[::-1] for pair in TRAINED[:5]]
    rows = [*labelled(TRAINED[5:]), *labelled(new), *labelled(swapped), *labelled(VALIDATED)]
    path = write_csv(tmp_path / "pairs.csv", [HEAD, *rows, ("", "a", "1")])
    report = judged(run, path, tmp_path / "out.csv")
    assert (report["rows"], report["errors"]) == (81, 1)
    assert (report["trained_on"], report["validated_on"], report["labelled"]) == (40, 10, 80)
    expected = ["true"] * 35 + ["false"] * 30 + ["true"] * 5 + ["false"] * 10 + [""]
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        assert [line["trained_on"] for line in csv.DictReader(file)] == expected

    apart = report["not_trained_on"]
    others = write_csv(tmp_path / "new.csv", [HEAD, *labelled(new), *labelled(VALIDATED)])
    alone = judged(run, others, tmp_path / "new-out.csv")
    assert alone["trained_on"] == 0
    assert "not_trained_on" not in alone
    assert apart == {name: alone[name] for name in ("labelled", "scores", "confusion")}
    assert apart["scores"] != report["scores"]
    few = [HEAD, *labelled(TRAINED), *labelled(new[: files.ENOUGH - 1])]
    report = judged(run, write_csv(tmp_path / "few.csv", few), tmp_path / "few-out.csv")
    assert report["not_trained_on"] == {"labelled": files.ENOUGH - 1}
    (run.folder / "seen" / "train").unlink()
    report = judged(run, path, tmp_path / "out.csv")
    assert not {"trained_on", "not_trained_on"} & report.keys()
    assert "trained_on" not in (tmp_path / "out.csv").read_text().splitlines()[0]
