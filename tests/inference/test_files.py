"""Whole files judged: the same rows come out, whatever is in them."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finetune.config import RunConfig
from finetune.data import safe_csv
from finetune.errors import DataError, JobError, ModelError, StoreError
from finetune.inference import decision_rule, file_request, files
from finetune.inference.decision_rule import PredictOptions
from finetune.inference.file_request import PredictionRequest
from finetune.inference.predictor import Predictor
from finetune.jobs import background, predict, workers
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.jobs.test_service import until
from tests.support import toys

PAIRS = [
    ("the cat sees a dog .", "a cat sees the dog .", "equivalent"),
    ("the cat sees a dog .", "a cat misses the dog .", "not_equivalent"),
    ("the owl likes a bee .", "a owl likes the bee .", "1"),
]


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    made = store.create(RunConfig(max_length=32))
    toys.copy_model(toy_checkpoint, made.best)
    return made


def judged(run: Run, path: Path, out: Path, **values: Any) -> dict[str, Any]:
    asked = file_request.check_columns(PredictionRequest(run.id, path.name, "", **values), path)
    report, whole = files.predict_file(run, asked, path, out)
    assert whole
    return report


def write_csv(path: Path, lines: Sequence[tuple[str, ...]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(lines)
    return path


def test_the_same_rows_come_out_with_the_models_answers(run: Run, tmp_path: Path) -> None:
    lines = [("id", "sentence1", "sentence2", "label")]
    lines += [(f"=row {n}", *pair) for n, pair in enumerate(PAIRS)]
    path = write_csv(tmp_path / "pairs.csv", lines)
    report = judged(run, path, tmp_path / "out.csv")
    found = list(csv.DictReader((tmp_path / "out.csv").open(encoding="utf-8")))
    assert [one["id"] for one in found] == ["=row 0", "=row 1", "=row 2"]
    predictor = Predictor(run.best, 32)
    for one, (first, second, _) in zip(found, PAIRS, strict=True):
        answer = predictor(first, second)
        assert one["prediction"] == answer.label
        assert one["error"] == ""
        for name, value in answer.probabilities.items():
            assert float(one[f"probability_{name}"]) == pytest.approx(value, abs=0.02)
    assert report["labelled"] == 3  # "1" is the second class
    right = sum(
        one["prediction"] == ("equivalent" if truth in ("1", "equivalent") else "not_equivalent")
        for one, (_, _, truth) in zip(found, PAIRS, strict=True)
    )
    assert report["scores"]["accuracy"][0] == pytest.approx(right / 3)
    assert sum(map(sum, report["confusion"])) == 3


def test_a_row_that_cannot_be_read_is_marked_in_its_place(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(
        "sentence1,sentence2\nthe cat,a dog\nbroken\n ,a dog\nthe owl,a bee\n", encoding="utf-8"
    )
    report = judged(run, path, tmp_path / "out.csv")
    found = list(csv.DictReader((tmp_path / "out.csv").open(encoding="utf-8")))
    assert [bool(one["prediction"]) for one in found] == [True, False, False, True]
    assert found[1]["error"] == "line 3 has 1 fields where the first line has 2"
    assert found[2]["error"] == "sentence1 is empty"
    assert (report["rows"], report["errors"]) == (4, 2)


def test_every_kind_of_file_comes_back_as_what_it_was(run: Run, tmp_path: Path) -> None:
    rows = [{"sentence1": one, "sentence2": two, "more": {"deep": [n]}}
            for n, (one, two, _) in enumerate(PAIRS)]  # fmt: skip
    text = "\n".join(map(json.dumps, rows)) + "\nnot json\n"
    (tmp_path / "pairs.jsonl").write_text(text)
    judged(run, tmp_path / "pairs.jsonl", tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    nested = [line.get("more") for line in lines]
    assert nested == [{"deep": [0]}, {"deep": [1]}, {"deep": [2]}, None]
    assert "is not JSON" in lines[3]["error"]

    with gzip.open(tmp_path / "pairs.json.gz", "wt") as file:
        json.dump(rows, file)
    judged(run, tmp_path / "pairs.json.gz", tmp_path / "out2.jsonl")
    assert len((tmp_path / "out2.jsonl").read_text().splitlines()) == 3

    table = pa.table({
        "sentence1": [one for one, _, _ in PAIRS], "sentence2": [two for _, two, _ in PAIRS],
        "day": pa.array([1, 2, 3], pa.date32()), "nested": [[1], [2], None],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "pairs.parquet")
    judged(run, tmp_path / "pairs.parquet", tmp_path / "out.parquet")
    out = pq.read_table(tmp_path / "out.parquet")
    assert out.select(table.column_names).equals(table)
    assert out.column("probability_equivalent").type == pa.float64()

    tab = write_csv(tmp_path / "x.csv", [("a;b",)])
    tab.rename(tmp_path / "pairs.tsv")
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\nthe cat\ta dog\n")
    judged(run, tmp_path / "pairs.tsv", tmp_path / "out.tsv")
    assert (tmp_path / "out.tsv").read_text().splitlines()[1].startswith("the cat\ta dog\t")


def test_binary_columns_are_read_as_training_reads_them(run: Run, tmp_path: Path) -> None:
    """Some writers say of no text that it is one."""
    sides = {f"sentence{at + 1}": [pair[at] for pair in PAIRS] for at in (0, 1)}
    labels = [label for _, _, label in PAIRS]
    path, out = tmp_path / "pairs.parquet", tmp_path / "out.parquet"
    answers = []
    for kind in (pa.string(), pa.binary()):
        table = pa.table(
            {name: pa.array(texts).cast(kind) for name, texts in sides.items()}
            | {"label": pa.array(labels).cast(kind)}
        )
        pq.write_table(table, path)
        report = judged(run, path, out)
        assert report["labelled"] == 3
        found = pq.read_table(out)
        assert found.select(table.column_names).equals(table)
        answers.append(found.column("probability_equivalent").to_pylist())
    assert answers[0] == answers[1]


def test_what_python_has_no_value_for_is_a_marked_row(run: Run, tmp_path: Path) -> None:
    when = pa.array([0, 2**60, 5], pa.int64()).cast(pa.timestamp("ms"))
    sides = [pa.array([pair[at] for pair in PAIRS]) for at in (0, 1)]
    names = ["sentence1", "sentence2", "when", "id"]
    pq.write_table(pa.table([*sides, when, pa.array([1, 2, 3])], names), tmp_path / "pairs.parquet")
    report = judged(run, tmp_path / "pairs.parquet", tmp_path / "out.parquet")
    assert (report["rows"], report["errors"]) == (3, 1)
    out = pq.read_table(tmp_path / "out.parquet")
    assert out.column("id").to_pylist() == [1, None, 3]
    assert "line 2 has a value that cannot be read" in out.column("error").to_pylist()[1]
    assert [one is None for one in out.column("prediction").to_pylist()] == [False, True, False]


def test_a_damaged_model_ends_the_batch_with_what_it_is(run: Run, tmp_path: Path) -> None:
    toys.overwrite(run.best, lambda found: found["classifier.weight"].fill_(float("nan")))
    path = write_csv(tmp_path / "x.csv", [("sentence1", "sentence2"), *(p[:2] for p in PAIRS)])
    with pytest.raises(ModelError, match="numbers that are none: its file is damaged"):
        judged(run, path, tmp_path / "out.csv")


def test_a_file_of_another_shape_than_the_models(store: RunStore, run: Run, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "x.csv", [("sentence1", "label"), ("the cat", "equivalent")])
    for second in ("", file_request.NONE):
        with pytest.raises(DataError, match=r"no column of x\.csv is chosen as sentence2: it has"):
            predict.start_prediction(store, PredictionRequest(run.id, "x.csv", "", second), path)
    pairs = write_csv(tmp_path / "y.csv", [("sentence1", "sentence2"), ("the cat", "a dog")])
    alone = file_request.check_columns(
        PredictionRequest(run.id, "y.csv", "", "sentence2"), pairs, paired=False
    )
    assert (alone.sentence1, alone.sentence2) == ("sentence1", "")


def test_any_text_gets_an_answer(run: Run, tmp_path: Path) -> None:
    odd = ["\ud800 lone", "nul \0 byte", "\U0001f600" * 50, "\u65e5\u672c\u8a9e", "<b>bold</b>",
           "x " * 50_000]  # fmt: skip
    lines = "".join(json.dumps({"sentence1": text, "sentence2": "cat"}) + "\n" for text in odd)
    (tmp_path / "odd.jsonl").write_text(lines)
    report = judged(run, tmp_path / "odd.jsonl", tmp_path / "out.jsonl")
    assert (report["rows"], report["errors"]) == (6, 0)


def test_what_is_added_is_no_formula(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class may be called anything, by whoever made the pairs; the person's own cells stay."""
    from finetune.inference.scorer import Scorer

    real = Scorer.__init__

    def named(self: Any, *given: Any, **more: Any) -> None:
        real(self, *given, **more)
        self.labels = ['=HYPERLINK("http://example.com")', "-1"]

    monkeypatch.setattr(Scorer, "__init__", named)
    lines = [("=one", "sentence2", "id"), *((*pair[:2], "=1+1") for pair in PAIRS), ("", "b", "")]
    path = write_csv(tmp_path / "pairs.csv", lines)
    asked = file_request.check_columns(
        PredictionRequest(run.id, path.name, "=one", "sentence2"), path
    )
    files.predict_file(run, asked, path, tmp_path / "out.csv")
    found = list(csv.DictReader((tmp_path / "out.csv").open(encoding="utf-8")))
    assert {one["prediction"] for one in found[:3]} <= {
        "'=HYPERLINK(\"http://example.com\")", "-1",
    }  # fmt: skip
    assert {one["id"] for one in found[:3]} == {"=1+1"}
    assert found[3]["error"] == "'=one is empty"
    assert [safe_csv.escape_formula(one) for one in ("-1", "+2,5", "-1+1", "@a", "=1")] == [
        "-1", "+2,5", "'-1+1", "'@a", "'=1",
    ]  # fmt: skip


def test_what_was_saved_with_the_model_is_used_when_asked_for(run: Run, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "pairs.csv", [("sentence1", "sentence2"), *(p[:2] for p in PAIRS)])
    decision_rule.write_rule(run.best, threshold=0.999, temperature=3.0, positive="equivalent")
    ways = [{"threshold": True}, {"calibrated": True}, {"both_orders": True}, {}]
    predictor = Predictor(run.best, 32)
    for way in ways:
        judged(run, path, tmp_path / "out.csv", **way)
        found = list(csv.DictReader((tmp_path / "out.csv").open(encoding="utf-8")))
        for one, (first, second, _) in zip(found, PAIRS, strict=True):
            answer = predictor(first, second, PredictOptions(**way))
            assert one["prediction"] == answer.label, way
            assert float(one["probability_equivalent"]) == pytest.approx(
                answer.probabilities["equivalent"], abs=0.02
            )
        if "threshold" in way:
            assert {one["prediction"] for one in found} == {"not_equivalent"}


def test_windows_hold_what_they_say(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the file, no more than a window of rows is held."""
    monkeypatch.setattr(files, "WINDOW", 10)
    lines = [("sentence1", "sentence2"), *((f"the cat {n}", "a dog") for n in range(35))]
    path = write_csv(tmp_path / "pairs.csv", lines)
    told: list[tuple[int, int]] = []
    heads: list[int] = []
    asked = file_request.check_columns(PredictionRequest(run.id, path.name, ""), path)
    files.predict_file(
        run,
        asked,
        path,
        tmp_path / "out.csv",
        lambda done, total: told.append((done, total)),
        lambda rows: heads.append(len(rows)),
    )
    assert told == [(10, 35), (20, 35), (30, 35), (35, 35)]
    assert heads == [10, 20, 30, 35]
    found = list(csv.DictReader((tmp_path / "out.csv").open(encoding="utf-8")))
    assert [one["sentence1"] for one in found] == [f"the cat {n}" for n in range(35)]


def test_the_first_rows_are_soon_there_and_long_ones_are_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = [files.InputRow({"sentence1": "the cat", "more": [n]}) for n in range(10_000)]
    sizes = [len(window) for window in files._windows(short)]
    assert sizes == [64, 256, 1024, 4096, 4096, 464]
    long = [files.InputRow({"sentence1": "x" * 2**20, "n": n}) for n in range(9)]
    assert [len(window) for window in files._windows(long)] == [4, 4, 1]


def test_a_cancel_is_heard_between_the_first_windows(run: Run, tmp_path: Path) -> None:
    lines = [("sentence1", "sentence2"), *((f"the cat {n}", "x" * 900) for n in range(900))]
    path, out, heads = write_csv(tmp_path / "x.csv", lines), tmp_path / "out.csv", []

    def told(done: int, total: int) -> None:
        if done >= 320:
            raise files.Cancelled

    asked = file_request.check_columns(PredictionRequest(run.id, path.name, ""), path)
    report, whole = files.predict_file(
        run, asked, path, out, told, lambda rows: heads.append(rows[:])
    )
    assert (report["rows"], whole) == (320, False)
    assert len(out.read_text().splitlines()) == 321
    assert [len(rows) for rows in heads] == [64, 100]
    assert max(len(row["sentence2"]) for row in heads[-1]) == 500


def test_a_file_that_cannot_be_meant_is_refused(store: RunStore, run: Run, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "x.csv", [("one", "two", "three", "four"), ("a", "b", "c", "d")])
    with pytest.raises(DataError, match=r"No column of x\.csv is clearly the first sentence"):
        predict.start_prediction(store, PredictionRequest(run.id, "x.csv", ""), path)
    with pytest.raises(DataError, match="no column 'five'"):
        predict.start_prediction(store, PredictionRequest(run.id, "x.csv", "five"), path)
    (tmp_path / "image.csv").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(DataError, match="PNG"):
        predict.start_prediction(
            store, PredictionRequest(run.id, "image.csv", ""), tmp_path / "image.csv"
        )
    with pytest.raises(JobError, match="no model"):
        predict.start_prediction(
            store, PredictionRequest(store.create(RunConfig()).id, "x.csv", "one"), path
        )


@pytest.mark.slow
def test_a_batch_is_a_process_of_its_own(store: RunStore, run: Run, tmp_path: Path) -> None:
    lines = [("text a", "text b", "is_same")]
    lines += [(f"the cat {n} .", "a dog .", "no" if n % 2 else "equivalent") for n in range(300)]
    path = write_csv(tmp_path / "mine.csv", lines)
    asked = PredictionRequest(run.id, "mine.csv", "text a", "text b", "is_same")
    made = predict.start_prediction(store, asked, path)
    assert predict.prediction_state(predict.get_prediction(store, made.id)).status == "running"
    until(lambda: predict.prediction_state(made).status != "running", 60)
    found = predict.prediction_state(made)
    assert found.error == ""
    assert (found.status, found.done, len(found.head)) == ("finished", 300, 100)
    assert found.report["labelled"] == 150
    assert found.report["unknown_labels"] == 150
    assert made.result is not None
    assert len(made.result.read_text().splitlines()) == 301
    # Another visitor has no such batch.
    for other in (Visitor(names=("b",)), Visitor(names=())):
        with pytest.raises(DataError, match="no such prediction"):
            predict.get_prediction(store.for_visitor(other), made.id)
    for wrong in ("../x", "", None, 7, "x" * 10**6, made.id + "/../" + made.id):
        with pytest.raises(DataError, match="no such prediction"):
            predict.get_prediction(store, wrong)


@pytest.mark.slow
def test_a_cancelled_batch_keeps_what_is_judged(store: RunStore, run: Run, tmp_path: Path) -> None:
    lines = [("sentence1", "sentence2"), *((f"the cat {n} .", "a dog .") for n in range(120_000))]
    path = write_csv(tmp_path / "long.csv", lines)
    made = predict.start_prediction(store, PredictionRequest(run.id, "long.csv", ""), path)
    until(lambda: predict.prediction_state(made).done > 0, 60)
    predict.cancel_prediction(made)
    until(lambda: predict.prediction_state(made).status != "running", 30)
    found = predict.prediction_state(made)
    assert found.status == "stopped"
    assert made.result is not None
    kept = len(made.result.read_text().splitlines()) - 1
    assert 0 < kept < 120_000
    assert events.Failed not in {type(one) for one in made.tail()[0]}


def test_a_visitor_has_bounds(
    store: RunStore, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_MAX_UPLOAD_MB", "0")
    path = write_csv(tmp_path / "x.csv", [("sentence1", "sentence2"), ("a", "b")])
    visitor = Visitor(names=("browser:ada",))
    mine = store.for_visitor(visitor).create(RunConfig(max_length=32))
    toys.copy_model(run.best, mine.best)
    with pytest.raises(DataError, match="a visitor may bring 0 MB"):
        predict.start_prediction(
            store.for_visitor(visitor), PredictionRequest(mine.id, "x.csv", ""), path
        )


def test_what_is_judged_counts_with_what_is_uploaded(
    store: RunStore, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_MAX_UPLOAD_MB", "1")
    monkeypatch.setattr(workers, "spawn_worker", lambda job, stdin: None)
    ada, other = (store.for_visitor(Visitor(names=(f"browser:{name}",))) for name in ("ada", "bob"))
    mine = ada.create(RunConfig(max_length=32))
    toys.copy_model(run.best, mine.best)

    def write(name: str, kilobytes: int) -> Path:
        rows = [("sentence1", "sentence2", "label"), (name * kilobytes * 1024, "b", "1")]
        return write_csv(tmp_path / f"{name}.csv", rows)

    def judge(name: str, kilobytes: int) -> predict.PredictionJob:
        path = write(name, kilobytes)
        return predict.start_prediction(ada, PredictionRequest(mine.id, path.name, ""), path)

    first, second = judge("a", 300), judge("b", 300)
    os.utime(first.folder / "job.json", (0, 0))
    with pytest.raises(DataError, match=r"what you had judged 0\.6 MB; a visitor may have 1 MB"):
        ada.uploads.add({"train": write("c", 600)})
    assert other.uploads.add({"train": write("c", 600)})  # another's share is another's
    ada.create(RunConfig(dataset=ada.uploads.add({"train": write("d", 300)})))
    with pytest.raises(DataError, match=r"These files have 0\.8 MB"):
        judge("e", 800)
    assert {one.id for one in predict.newest_predictions(ada)} == {
        first.id,
        second.id,
    }  # in vain, so none goes
    third = judge("f", 300)
    assert {one.id for one in predict.newest_predictions(ada)} == {second.id, third.id}


def test_others_start_while_a_file_is_copied(
    store: RunStore, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "spawn_worker", lambda job, stdin: None)
    path = write_csv(tmp_path / "x.csv", [("sentence1", "sentence2"), ("a", "b")])
    ada, bob = (store.for_visitor(Visitor(names=(f"browser:{name}",))) for name in ("ada", "bob"))
    for visitor in (ada, bob):
        toys.copy_model(run.best, visitor.create(RunConfig(max_length=32)).best)
    real = shutil.copyfile
    copied: list[Path] = []

    def slow(source: Path, target: Path) -> None:
        if not copied:
            copied.append(target)
            with background.store_lock(store):
                assert predict.newest_predictions(store) == []  # what is not whole is not shown
            predict.start_prediction(bob, PredictionRequest(bob.runs()[0].id, "x.csv", ""), path)
        real(source, target)

    monkeypatch.setattr(shutil, "copyfile", slow)
    made = predict.start_prediction(ada, PredictionRequest(ada.runs()[0].id, "x.csv", ""), path)
    assert copied[0].parent != made.folder
    assert made.input.read_bytes() == path.read_bytes()
    assert len(predict.newest_predictions(store)) == 2
    assert {one.name for one in (store.root / "batches").iterdir()} == {
        one.id for one in predict.newest_predictions(store)
    }


def test_a_file_that_cannot_be_copied_leaves_nothing(
    store: RunStore, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    path = write_csv(tmp_path / "x.csv", [("sentence1", "sentence2"), ("a", "b")])
    with pytest.raises(StoreError, match="the disk is full"):
        predict.start_prediction(store, PredictionRequest(run.id, "x.csv", ""), path)
    assert not list(store.root.glob("batches/*"))
    assert not list(store.root.glob(".new-*"))
