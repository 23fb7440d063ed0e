"""Predictions of whole files: the same rows come back, whatever they contain."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl  # type: ignore[import-untyped]
import pyarrow.parquet as pq
import pytest

from finetune.config import RunConfig
from finetune.data.columns import match_columns
from finetune.errors import DataError, JobError, ModelError, StoreError
from finetune.inference import decision_rule, file_request, files
from finetune.inference.file_request import PredictionRequest
from finetune.inference.files import Window, WindowLogits, WindowScorer
from finetune.inference.predictor import Predictor
from finetune.inference.result_files import UNSURE
from finetune.jobs import predict, workers
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ColumnNames
from finetune.tasks.base import (
    PredictOptions,
    SureRule,
    Target,
)
from tests.support import toys
from tests.support.judging import PAIRS, SIDES, judged, write_csv
from tests.support.waiting import until


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    run = store.create(RunConfig(max_length=32))
    toys.copy_model(toy_checkpoint, run.best)
    return run


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("id frage1 frage2 gleich?", "frage1 frage2 gleich?"),  # by the names it was trained on
        ("Frage_2 note Frage_1", "Frage_1 Frage_2 "),  # no label where no name says so
        ("question1 question2 is_duplicate", "question1 question2 is_duplicate"),
        ("links rechts", "links rechts "),
        ("frage1 other", "frage1 other "),
        ("gleich? score question1 question2", "question1 question2 gleich?"),
        ("a b c d e", "a b "),
        ("c d e f", "  "),
    ],
)
def test_columns_are_matched_by_name_to_those_of_the_training(names: str, expected: str) -> None:
    trained = ColumnNames("frage1", "frage2", "gleich?")
    assert " ".join(match_columns(names.split(), trained)) == expected


@pytest.mark.parametrize(
    "options", [{}, {"threshold": True}, {"calibrated": True}, {"both_orders": True}]
)
def test_the_same_rows_come_out_with_the_models_answers(
    run: Run, tmp_path: Path, options: dict[str, Any]
) -> None:
    decision_rule.write_rule(run.best, threshold=0.999, temperature=3.0, positive="equivalent")
    lines = [("id", *SIDES, "label"), *((f"=row {n}", *pair) for n, pair in enumerate(PAIRS))]
    path = write_csv(tmp_path / "pairs.csv", lines)
    report = judged(run, path, tmp_path / "out.csv", **options)
    rows = read_csv(tmp_path / "out.csv")
    assert [row["id"] for row in rows] == ["=row 0", "=row 1", "=row 2"]
    predictor, right = Predictor(run.best, 32), 0
    for row, (first, second, label) in zip(rows, PAIRS, strict=True):
        answer = predictor(first, second, PredictOptions(**options))
        assert row["prediction"] == answer.label
        for name, value in answer.probabilities.items():
            assert float(row[f"probability_{name}"]) == pytest.approx(value, abs=0.02)
        right += row["prediction"] == {"1": "equivalent"}.get(label, label)
    if "threshold" in options:
        assert {row["prediction"] for row in rows} == {"not_equivalent"}
    assert report["labelled"] == 3  # "1" is the second class
    assert report["scores"]["accuracy"][0] == pytest.approx(right / 3)
    assert sum(map(sum, report["confusion"])) == 3


def test_every_kind_of_file_comes_back_as_what_it_was(run: Run, tmp_path: Path) -> None:
    """Unreadable rows are marked in their place; any text gets an answer."""
    odd = ["\ud800 lone", "nul \0 byte", "\U0001f600" * 50, "\u65e5\u672c", "x " * 50_000]
    rows = [{"sentence1": text, "sentence2": "cat", "more": {"deep": [1]}} for text in odd]
    texts = {
        "a.jsonl": "".join(json.dumps(row) + "\n" for row in rows) + "not json\n",
        "a.json.gz": json.dumps(rows),
        "a.tsv": "sentence1\tsentence2\nthe cat\ta dog\n",
        "a.csv": "sentence1,sentence2\nthe cat,a dog\nbroken\n ,a dog\nthe owl,a bee\n",
    }
    lines, reports = {}, {}
    for name, text in texts.items():
        contents = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(contents) if "gz" in name else contents)
        out = tmp_path / f"out.{'jsonl' if 'json' in name else name[2:]}"
        reports[name] = judged(run, tmp_path / name, out)
        lines[name] = out.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines["a.jsonl"]]
    assert [record.get("more") for record in records] == [{"deep": [1]}] * 5 + [None]
    assert "is not JSON" in records[5]["error"]
    assert (reports["a.jsonl"]["rows"], reports["a.jsonl"]["errors"]) == (6, 1)
    assert len(lines["a.json.gz"]) == 5
    assert lines["a.tsv"][1].startswith("the cat\ta dog\t")
    cells = list(csv.DictReader(lines["a.csv"]))
    assert [bool(row["prediction"]) for row in cells] == [True, False, False, True]
    errors = ["line 3 has 1 fields where the first line has 2", "sentence1 is empty"]
    assert [row["error"] for row in cells] == ["", *errors, ""]
    assert (reports["a.csv"]["errors"], reports["a.csv"]["examples"]) == (2, errors)


def test_what_is_added_is_no_formula(run: Run, tmp_path: Path) -> None:
    """Class names may come from anybody, so they are escaped; the person's own cells are
    unchanged."""
    labels = {"0": '=HYPERLINK("http://example.com")', "1": "-1"}
    config = run.best / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"id2label": labels}))
    lines = [("=one", "sentence2", "id"), *((*pair[:2], "=1+1") for pair in PAIRS), ("", "b", "")]
    path = write_csv(tmp_path / "pairs.csv", lines)
    request = PredictionRequest(run.id, path.name, "=one", "sentence2")
    files.predict_file(run, request, path, tmp_path / "out.csv")
    rows = read_csv(tmp_path / "out.csv")
    names = {'\'=HYPERLINK("http://example.com")', "-1"}
    assert {row["prediction"] for row in rows[:3]} <= names
    assert {row["id"] for row in rows[:3]} == {"=1+1"}
    assert rows[3]["error"] == "'=one is empty"
    book = openpyxl.Workbook()
    for line in lines:
        book.active.append(line)
        for cell in book.active[book.active.max_row]:
            cell.data_type = "s"  # what begins with = is a text here, and no formula
    book.save(tmp_path / "pairs.xlsx")
    request = replace(request, file="pairs.xlsx")
    files.predict_file(run, request, tmp_path / "pairs.xlsx", tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").open(encoding="utf-8-sig")))
    assert {row["id"] for row in rows[:3]} == {"'=1+1"}
    assert rows[0]["'=one"] == PAIRS[0][0]


def test_progress_is_told_and_a_cancel_keeps_what_is_judged(run: Run, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "x.csv", [SIDES, *((f"cat {n}", "x" * 900) for n in range(900))])
    out, progress, heads = tmp_path / "out.csv", [], []

    def on_progress(done: int, total: int) -> None:
        progress.append((done, total))
        if done >= 320:
            raise files.PredictionStopped

    request = PredictionRequest(run.id, path.name, *SIDES)
    report, whole = files.predict_file(
        run, request, path, out, on_progress, lambda rows: heads.append(rows[:])
    )
    assert (report["rows"], whole, progress) == (320, False, [(64, 900), (320, 900)])
    assert [row["sentence1"] for row in read_csv(out)] == [f"cat {n}" for n in range(320)]
    assert [len(rows) for rows in heads] == [64, 320, 320]
    assert [row["row"] for row in heads[-1]] == list(range(320))
    assert max(len(row["cells"]["sentence2"]) for row in heads[-1]) == 500


@pytest.mark.parametrize(
    ("columns", "sentences", "message"),
    [
        ("one,two,three,four", ("", ""), r"No column of x\.csv is clearly sentence1: it has one"),
        ("one,two", ("five", ""), "no column 'five'"),
        ("sentence1,label", ("", ""), r"No column of x\.csv is clearly sentence2: it has"),
        ("sentence1,sentence2", ("", file_request.NONE), "is clearly sentence2"),
        ("\x89PNG\r", ("", ""), "PNG"),
    ],
)
def test_a_file_whose_columns_are_not_clear_is_refused(
    store: RunStore, run: Run, tmp_path: Path,
    columns: str, sentences: tuple[str, str], message: str,
) -> None:  # fmt: skip
    path = tmp_path / "x.csv"
    path.write_text(f"{columns}\na{',a' * columns.count(',')}\n", encoding="latin-1")
    with pytest.raises(DataError, match=message):
        predict.start_prediction(store, PredictionRequest(run.id, "x.csv", *sentences), path)


def test_what_cannot_be_predicted_is_refused(
    store: RunStore, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_csv(tmp_path / "x.csv", [SIDES, *(pair[:2] for pair in PAIRS)])
    request = PredictionRequest(run.id, "x.csv", "", "sentence2")
    single = file_request.check_columns(request, path, ColumnNames(sentence2=""))
    assert (single.sentence1, single.sentence2) == ("sentence1", "")
    untrained = PredictionRequest(store.create(RunConfig()).id, "x.csv", *SIDES)
    with pytest.raises(JobError, match="no model"):
        predict.start_prediction(store, untrained, path)
    toys.overwrite(run.best, lambda weights: weights["classifier.weight"].fill_(float("nan")))
    with pytest.raises(ModelError, match="are not finite numbers: its file is damaged"):
        judged(run, path, tmp_path / "out.csv")

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StoreError, match="the disk is full"):
        predict.start_prediction(store, PredictionRequest(run.id, "x.csv", ""), path)
    assert not [*store.root.glob("batches/*"), *store.root.glob(".new-*")]


@pytest.fixture
def start(store: RunStore, run: Run, tmp_path: Path) -> Callable[[str, int], predict.PredictionJob]:
    """Starts the prediction of a file of so many rows."""

    def begin(name: str, count: int) -> predict.PredictionJob:
        labels = ["equivalent", "no"] * (count // 2)
        pairs = [(f"the cat {n} .", "a dog .", label) for n, label in enumerate(labels)]
        path = write_csv(tmp_path / name, [("text a", "text b", "is_same"), *pairs])
        request = PredictionRequest(run.id, name, "text a", "text b", "is_same")
        return predict.start_prediction(store, request, path)

    return begin


@pytest.mark.long
def test_a_batch_is_a_process_of_its_own_that_keeps_its_rows_when_it_is_cancelled(
    store: RunStore, start: Callable[[str, int], predict.PredictionJob]
) -> None:
    job = start("long.csv", 60_000)
    assert predict.PredictionJob.find(store, job.id).state().status == "running"
    until(lambda: job.state().done > 0, 60)
    job.cancel()
    until(lambda: job.state().status != "running", 60)
    assert job.state().status == "stopped"
    assert job.result is not None
    assert 0 < len(read_csv(job.result)) < 60_000
    assert events.Failed not in {type(event) for event in job.tail()[0]}


def test_a_batch_has_every_row_and_is_judged_by_the_labels_that_the_model_knows(
    start: Callable[[str, int], predict.PredictionJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "spawn_worker", lambda job, **_: None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the job sets it
    job = start("mine.csv", 300)
    assert job.carry_out() == 0
    state = job.state()
    assert (state.error, state.status, state.done) == ("", "finished", 300)
    assert len(state.rows) == 300
    assert sum(state.report["answers"].values()) == 300
    unsure = [row for row in state.rows if (row["margin"] or 0.0) < UNSURE]
    assert state.report["unsure"] == len(unsure)
    assert (state.report["labelled"], state.report["unknown_labels"]) == (150, 150)
    assert job.result is not None
    assert len(read_csv(job.result)) == 300


def test_a_batch_is_nobody_elses(
    store: RunStore, start: Callable[[str, int], predict.PredictionJob],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(workers, "spawn_worker", lambda job, **_: None)
    job = start("mine.csv", 2)
    for other in (Visitor(names=("b",)), Visitor(names=())):
        with pytest.raises(DataError, match="no such prediction"):
            predict.PredictionJob.find(store.for_visitor(other), job.id)
    for wrong in ("../x", "", None, 7, "x" * 10**6, job.id + "/../" + job.id):
        with pytest.raises(DataError, match="no such prediction"):
            predict.PredictionJob.find(store, wrong)


def test_what_is_judged_counts_with_what_is_uploaded(
    store: RunStore, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "spawn_worker", lambda job, **_: None)
    monkeypatch.setenv("FINETUNE_MAX_UPLOAD_MB", "1")
    ada, other = (store.for_visitor(Visitor(names=(f"browser:{name}",))) for name in ("ada", "bob"))
    trained = ada.create(RunConfig(max_length=32))
    toys.copy_model(run.best, trained.best)

    def write(name: str, kilobytes: int) -> Path:
        rows = [(*SIDES, "label"), (name * kilobytes * 1024, "b", "1")]
        return write_csv(tmp_path / f"{name}.csv", rows)

    def judge(name: str, kilobytes: int) -> str:
        path = write(name, kilobytes)
        return predict.start_prediction(ada, PredictionRequest(trained.id, path.name, ""), path).id

    ids = {judge("a", 300), judge("b", 300)}
    with pytest.raises(DataError, match=r"predictions 0\.6 MB; a visitor may have 1 MB"):
        ada.uploads.add({"train": write("c", 600)})
    assert other.uploads.add({"train": write("c", 600)})  # another's share is another's
    ada.create(RunConfig(dataset=ada.uploads.add({"train": write("d", 300)})))
    with pytest.raises(DataError, match=r"These files have 0\.8 MB"):
        judge("e", 800)
    assert {job.id for job in predict.newest_predictions(ada)} == ids  # in vain, so none goes


@pytest.mark.parametrize(
    ("names", "cells", "known"),
    [
        (("-1", "1"), ("0", "-1", "1.0"), 2),  # 0 is no number of a class here
        (("no", "yes"), ("0", "YES", "1.0"), 3),
        (("v1.0", "v2.0"), ("v1.0", "v2.0", "v2"), 2),
    ],
)
def test_labels_of_a_file_are_read_as_those_of_the_training_pairs(
    run: Run, tmp_path: Path, names: tuple[str, str], cells: tuple[str, ...], known: int
) -> None:
    config = json.loads((run.best / "config.json").read_text())
    config["id2label"] = dict(enumerate(names))
    config["label2id"] = {name: number for number, name in enumerate(names)}
    (run.best / "config.json").write_text(json.dumps(config))
    lines = [(first, second, cell) for (first, second, _), cell in zip(PAIRS, cells, strict=True)]
    path = write_csv(tmp_path / "pairs.csv", [(*SIDES, "label"), *lines])
    report = judged(run, path, tmp_path / "out.csv", label="label")
    assert (report["labelled"], report["unknown_labels"]) == (known, 3 - known)


class Known(WindowScorer):
    """A scorer of pairs whose answers are known: the longer the first sentence, the surer."""

    def __init__(self) -> None:
        self.target, self.precision = Target(("not_equivalent", "equivalent")), "fp32"

    def score(self, window: Window) -> WindowLogits:
        lengths = np.array([len(text) for text in window.first], np.float32)
        return WindowLogits(np.stack([0 * lengths, lengths], axis=1), None)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_rows_that_are_not_sure_are_decided_so_and_collected(
    run: Run, tmp_path: Path, ending: str
) -> None:
    texts = ["a", "", "a longer one", "bc"]
    lines = [(*SIDES, "decision"), *((text, "x", "mine") for text in texts)]
    path = write_csv(tmp_path / "pairs.csv", lines)
    out, review = (tmp_path / f"{name}.{ending}" for name in ("out", "review"))
    asked = PredictionRequest(run.id, "pairs.csv", *SIDES)

    def predict(**options: Any) -> dict[str, Any]:
        request = replace(asked, **options)
        return files.predict_file(run, request, path, out, scorer=Known(), review=review)[0]

    assert not {"sure", "undecided"} & predict().keys()
    assert not review.exists()
    rule = SureRule(0.02, 0.95, 0.99, examples=400, answered=200)
    decision_rule.write_rule(run.best, sure=rule)
    report = predict()
    assert report["unsure"] == 2
    assert (report["sure"]["column"], report["sure"]["error"]) == ("decision_2", 0.02)
    rows = rows_of(out)
    assert [row["decision"] for row in rows] == ["mine"] * 4
    decided = [row["decision_2"] or "" for row in rows]
    assert decided == ["unsure", "", "equivalent", "unsure"]
    assert [row["prediction_2"] or "" for row in rows] == ["equivalent", "", *["equivalent"] * 2]
    assert rows_of(review) == [row for row in rows if row["decision_2"] == "unsure"]
    review.unlink()
    other = predict(both_orders=True)
    assert "sure" not in other
    assert other["undecided"]
    assert not review.exists()


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return list(read_csv(path))
