"""Runs are folders of events: named once, read while they are written, isolated from damaged ones;
what their events add up to, and which pairs they were trained on."""

import copy
import csv
import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.disk import remove_folder, write_atomically
from finetune.errors import ConfigError, NoSuchRun, StoreError
from finetune.inference import decision_rule, files
from finetune.jobs import cost, run_table
from finetune.owners import Visitor
from finetune.runs import events, pair_index
from finetune.runs.events import Phase
from finetune.runs.grids import data_name
from finetune.runs.job_folder import JobFolder, hold_lock
from finetune.runs.queue import Queue
from finetune.runs.run import Run
from finetune.runs.store import RunStore, named_run
from finetune.runs.summary import MAX_POINTS, RunSummary
from finetune.tasks.base import DecisionRule
from finetune.ui import choosers
from finetune.ui.run_view import blank, table
from tests.support import toys
from tests.support.uploads import judged, write_csv


def test_a_run_is_its_folder(store):
    run, gone = store.create(RunConfig(name="first")), store.create(RunConfig())
    store.delete(gone)
    ahead = store.create(RunConfig(), run_id=f"20991231-235959-999999{'x' * 12}")
    newer = [store.create(RunConfig()).id for _ in range(2)]  # though the clock was set back
    assert [run.id for run in store.runs()] == [*newer[::-1], ahead.id, run.id]
    with pytest.raises(NoSuchRun):
        store.delete(Run(store.root / ".."))
    unknown = ["", "..", "../x", "/etc", gone.id, None, 7, ["x"], "a" * 10**6]
    for name in unknown:
        with pytest.raises(NoSuchRun):
            store.get(name)
    with pytest.raises(ConfigError):
        store.create(RunConfig(num_train_epochs=-1))
    again = RunStore(store.root).get(run.id)
    assert again.config() == RunConfig(name="first")
    assert again.title() == "first"


def test_runs_of_one_configuration_have_titles_of_their_own(store, tmp_path):
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


def test_events_are_read_while_they_are_written(store):
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
DAMAGE = {
    "nested deeply": b'{"tags": ' + DEEP + b"]" * 100_000 + b"}",
    "no text": b"\xff\xfe\x00",
    "no object": b"[1, 2]",
    "odd values": b'{"pid": {}, "born": [], "devices": 7, "owner": [], "name": {}, "signal": []}',
    "numbers that are none": b'{"created": NaN, "number": Infinity, "pid": NaN}',
    "numbers too large": b'{"created": 1' + b"0" * 400 + b', "pid": 1' + b"0" * 400 + b"}",
}


@pytest.mark.parametrize("name", ["config.json", "about.json", "job.json", "best/config.json"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_hides_no_other(store, name, damage):
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
    drawn = table(store, [*rows], blank())
    assert all(id_ in drawn for id_ in ids)
    (update, _hint), _ = choosers.choices(store, None)
    assert {value for _, value in update["choices"]} == ids
    assert cost.estimate_cost(store, RunConfig()).steps
    assert decision_rule.read_rule(damaged.best) == DecisionRule()
    mine = store.for_visitor(Visitor(("somebody",)))
    assert damaged.id not in {run.id for run in mine.runs()}  # what cannot be read is nobody's
    if name == "config.json":
        with pytest.raises(StoreError, match=r"config\.json of run .* cannot be read"):
            damaged.config()
        assert damaged.title() == "bundled-1"


def test_a_write_replaces_whole_or_not_at_all(tmp_path, monkeypatch):
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
def test_a_run_is_named_by_its_data(values, files, expected):
    assert data_name(RunConfig(**values), files) == expected


def test_a_run_of_an_older_version_has_a_name(store):
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
def toy_run(store, toy_checkpoint):
    toy_run = store.create(RunConfig(max_length=32))
    toys.copy_model(toy_checkpoint, toy_run.best)
    pair_index.write_pair_index(
        toy_run, {"train": hashes(TRAINED), "validation": hashes(VALIDATED)}
    )
    return toy_run


def hashes(pairs):
    return pair_index.pair_hashes(*(list(side) for side in zip(*pairs, strict=True)))


def contained(toy_run, split, numbers):
    index = pair_index.read_pair_index(toy_run)
    return index.among(split, numbers).tolist()


def labelled(pairs):
    return [(*pair, str(n % 2)) for n, pair in enumerate(pairs)]


def test_a_pair_is_known_in_either_order_and_as_leaks_are_compared(toy_run):
    pairs = [
        ("a cat sees the dog 3 .", "the cat sees dog 3 ."),
        ("The CAT  sees dog 3", "a cat sees\tthe dog 3!"),
        ("the cat sees dog 3 .", "a cat sees the dog 4 ."),
        ("the cat sees dog 3 .", ""),
        (None, 7),
    ]
    assert contained(toy_run, "train", hashes(pairs)) == [True, True, False, False, False]
    sentences = pair_index.pair_hashes(["the cat", "a dog"], None)
    pair_index.write_pair_index(toy_run, {"train": sentences[:1], "validation": sentences[:0]})
    assert contained(toy_run, "train", sentences) == [True, False]
    assert contained(toy_run, "validation", sentences) == [False, False]


def test_rows_that_were_trained_on_are_marked_and_scored_apart(toy_run, tmp_path):
    new = [(f"the bee has {n} .", f"a bee has {n} .") for n in range(30)]
    swapped = [pair[::-1] for pair in TRAINED[:5]]
    rows = [*labelled(TRAINED[5:]), *labelled(new), *labelled(swapped), *labelled(VALIDATED)]
    path = write_csv(tmp_path / "pairs.csv", [HEAD, *rows, ("", "a", "1")])
    report = judged(toy_run, path, tmp_path / "out.csv")
    assert (report["rows"], report["errors"]) == (81, 1)
    assert (report["trained_on"], report["validated_on"], report["labelled"]) == (40, 10, 80)
    expected = ["true"] * 35 + ["false"] * 30 + ["true"] * 5 + ["false"] * 10 + [""]
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        assert [line["trained_on"] for line in csv.DictReader(file)] == expected

    apart = report["not_trained_on"]
    others = write_csv(tmp_path / "new.csv", [HEAD, *labelled(new), *labelled(VALIDATED)])
    alone = judged(toy_run, others, tmp_path / "new-out.csv")
    assert alone["trained_on"] == 0
    assert "not_trained_on" not in alone
    assert apart == {name: alone[name] for name in ("labelled", "scores", "confusion")}
    assert apart["scores"] != report["scores"]
    few = [HEAD, *labelled(TRAINED), *labelled(new[: files.ENOUGH - 1])]
    report = judged(toy_run, write_csv(tmp_path / "few.csv", few), tmp_path / "few-out.csv")
    assert report["not_trained_on"] == {"labelled": files.ENOUGH - 1}
    (toy_run.folder / "seen" / "train").unlink()
    report = judged(toy_run, path, tmp_path / "out.csv")
    assert not {"trained_on", "not_trained_on"} & report.keys()
    assert "trained_on" not in (tmp_path / "out.csv").read_text().splitlines()[0]


EXAMPLES = [
    *toys.story(),
    events.PhaseStarted(phase=Phase.DOWNLOAD, detail="bert \u00e9 \x00"),
    events.FirstBatch(
        shapes={"input_ids": [1, 2], "labels": [1]}, lengths=[1], padded=0.5, positions=[0, 1],
        tokens=[["[CLS]", "[PAD]"]], ids=[[2, 0]], attention_mask=[[1, 0]], labels=["yes"],
    ),
    events.BaselinesMeasured(baselines={"always the commonest answer": {"f1": 0.8}}),
    events.TestSetOpened(step=3, metrics={"f1": 0.7}, threshold=0.4, at_threshold={"f1": 0.71}),
    events.Stopped(step=3, seconds=1.0),
    events.Failed(error="a\nb", remedy="c"),
    events.Resumed(step=2),
    events.Progressed(done=10, total=20, detail="reading train"),
]  # fmt: skip
BY_KIND = {getattr(event, "event", ""): event for event in EXAMPLES}


def test_an_event_survives_its_line_without_numbers_that_are_not_finite():
    """A score that is none is left out, and the evaluation counts: its model may be the best."""
    for event in BY_KIND.values():
        line = event.model_dump_json()
        assert "\n" not in line
        assert events.from_json(line) == event
        later = {**json.loads(line), "field_of_a_later_version": 3}
        assert events.from_json(json.dumps(later)) == event
    step = BY_KIND["step"].model_copy(update={"loss": float("nan")})
    assert json.loads(step.model_dump_json())["loss"] is None
    scored = evaluated(1, 0.8, best=True)
    infinite = scored.model_copy(update={"metrics": {"f1": 0.8, "loss": float("inf")}})
    assert events.from_json(infinite.model_dump_json()) == scored


def test_a_line_that_is_no_event_is_skipped():
    wrong = [
        ("step", {"step": 1.5}), ("saved", {"step": "7"}), ("prepared", {"labels": [1, 2]}),
        ("evaluated", {"metrics": {"f1": "0.8"}}), ("evaluated", {"metrics": [0.8]}),
        ("first_batch", {"ids": [["2", 0]]}), ("saved", {"event": "unknown"}),
    ]  # fmt: skip
    lines = [BY_KIND[kind].model_dump_json() for kind, _ in wrong]
    for line, (_, values) in zip(lines, wrong, strict=True):
        assert events.from_json(json.dumps(json.loads(line) | values)) is None
    for line in ("", "{", "null", "[]", "7", '{"event": "saved"}'):
        assert events.from_json(line) is None


def stepped(step, time, rate=8.0):
    return events.Stepped(
        time=time, step=step, epoch=step / 10, loss=1 / step, learning_rate=1e-5,
        samples_per_second=rate,
    )  # fmt: skip


def evaluated(step, f1, best):
    return events.Evaluated(step=step, epoch=1.0, metrics={"f1": f1}, seconds=1.0, best=best)


def test_a_whole_run():
    (prepared,) = [event for event in toys.story() if isinstance(event, events.Prepared)]
    empty = RunSummary().fold([])
    assert (empty.status, empty.step, empty.total_steps) == ("waiting", 0, 0)
    assert (empty.best, empty.seconds_left) == (None, None)
    stream = [
        events.Started(time=100.0, device="CPU"), prepared.model_copy(update={"total_steps": 20}),
        stepped(1, 110.0), stepped(11, 120.0), evaluated(11, 0.7, best=True), events.Saved(step=11),
        evaluated(20, 0.6, best=False), events.Finished(time=140.0, step=20, seconds=30.0),
    ]  # fmt: skip
    halfway = RunSummary().fold(stream[:4])
    assert (halfway.status, halfway.phase, halfway.seconds_left) == ("running", "train", 9.0)
    whole = copy.deepcopy(halfway).fold(stream[4:])
    assert whole == RunSummary().fold(stream)
    assert whole.status == "finished"
    assert whole.ended - whole.began == 40.0
    assert whole.best.step == whole.saved_step == 11


def test_what_is_done_again_is_forgotten():
    stream = [stepped(1, 1), stepped(4, 4), evaluated(4, 0.5, best=True), events.Saved(step=4)]
    stream += [stepped(8, 8), evaluated(8, 0.6, best=True), events.Saved(step=8)]
    failed = RunSummary().fold([*stream, events.Failed(error="too big", remedy="make it smaller")])
    assert (failed.status, failed.error, failed.remedy) == ("failed", "too big", "make it smaller")
    resumed = failed.fold([events.Resumed(step=4)])
    assert (resumed.status, resumed.error, resumed.remedy) == ("running", "", "")
    assert [event.step for event in resumed.train] == [1, 4]
    assert resumed.best.step == resumed.saved_step == 4


def test_a_long_curve_is_thinned_evenly_and_one_slow_interval_does_not_move_the_speed():
    last = 3 * MAX_POINTS + 1
    curve = RunSummary().fold(
        stepped(n, n, 0.1 if n == last - 5 else 10.0) for n in range(1, last + 1)
    )
    steps = [event.step for event in curve.train]
    assert len(steps) <= MAX_POINTS
    assert steps[0] == 1
    assert steps[-1] == curve.step == last
    assert set(np.diff(steps[:-1])) == {4}
    assert curve.samples_per_second == 10.0


def test_the_time_between_the_lives_of_a_run_is_not_counted(monkeypatch):
    """A run that was stopped for a night, killed silently or failed continues the next day."""

    def seconds(stream, now=90_020.0, waits=False):
        monkeypatch.setattr(events, "now", lambda: now)
        state = RunSummary().fold(stream)
        return run_table.training_seconds(replace(state, status="waiting") if waits else state)

    start = [events.Started(time=100.0, device="CPU"), stepped(1, 110.0), stepped(2, 160.0)]
    stopped = [*start[:2], events.Stopped(time=160.0, step=9, seconds=50.0)]
    resumed = events.Resumed(time=90_000.0, step=1)
    again = [resumed, events.Started(time=90_005.0, device="CPU"), stepped(2, 90_010.0)]
    assert seconds(stopped) == 50.0
    assert seconds([*stopped, *again]) == 65.0
    assert seconds([*stopped, *again, events.Failed(time=90_030.0, error="x")]) == 75.0
    assert seconds([*stopped, *again, events.Finished(step=20, seconds=75.0)]) == 75.0
    loading = events.Stopped(time=90_007.0, step=0, seconds=0.0)
    assert seconds([*stopped, *again[:2], loading]) == 50.0
    for end in ([], [events.Failed(time=160.0, error="x")]):
        dead = [*start, *end, events.TestSetOpened(time=50_000.0, step=1, metrics={})]
        assert seconds(dead, waits=True) == 60.0
        assert seconds([*dead, resumed]) == 80.0
        assert seconds([*dead, *again]) == 75.0
        assert seconds([*dead, *again], now=7.0) == 65.0  # the clock was set back


@pytest.fixture
def run(tmp_path):
    return RunStore(tmp_path / "runs").create(RunConfig())


def begin(job):
    job.append(events.PhaseStarted(phase=Phase.START))


def test_without_a_worker_a_run_was_interrupted_or_stopped(run):
    begin(run)
    lock = hold_lock(run.lock_file)
    assert (run.state().status, run.state().end_recorded) == ("running", False)
    os.close(lock)
    assert (run.state().status, run.state().end_recorded) == ("interrupted", False)
    run.request_stop(reason="It took too long.")
    assert (run.state().status, run.state().error) == ("stopped", "It took too long.")
    run.append(events.Finished(step=3, seconds=1.0))
    assert (run.state().status, run.state().end_recorded) == ("finished", True)


def test_what_waits_has_not_ended_for_those_who_ask(run):
    run.append(events.Failed(error="the network"))
    Queue(run.folder.parent).add(run.id)
    assert (run.state().status, run.state().error) == ("waiting", "")
    assert run.state().end_recorded  # so that its next worker notes that it goes on
    Queue(run.folder.parent).remove(run.id)
    assert (run.state().status, run.state().error) == ("failed", "the network")


def test_another_job_in_the_same_folder_begins_anew(tmp_path):
    job = JobFolder(tmp_path / "check")
    assert job.state().status == "none"
    for ending in (events.Failed(error="too long"), events.Finished(step=0, seconds=0.0)):
        remove_folder(job.folder)
        job.folder.mkdir()
        assert job.state().status == "interrupted"
        begin(job)
        job.append(events.Progressed(done=1, total=1000))
        job.append(ending)
        assert job.state().error == getattr(ending, "error", "")
    assert job.state().status == "finished"
