"""Predictions of whole files: all rows and columns come back, whatever they contain; answers that a
file has already are compared."""

import csv
import gzip
import json
import math
import shutil
from dataclasses import replace
from datetime import date

import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, cohen_kappa_score

from finetune.config import RunConfig
from finetune.data.columns import match_columns
from finetune.errors import DataError, JobError, StoreError
from finetune.inference import decision_rule, file_request, files
from finetune.inference.file_request import PredictionRequest
from finetune.inference.other_answers import OtherAnswers
from finetune.inference.predictor import Predictor
from finetune.inference.result_files import UNSURE, as_text
from finetune.inference.scorer import Scorer
from finetune.jobs import predict, workers
from finetune.owners import Visitor
from finetune.runs import events, pair_index
from finetune.runs.summary import ColumnNames
from finetune.tasks.base import MULTI_LABEL, REGRESSION, PredictOptions, SureRule, Target
from finetune.tasks.registry import task_of
from finetune.tasks.single_label import SingleLabel
from tests.support import toys
from tests.support.uploads import PAIRS, SIDES, judged, write_csv
from tests.support.waiting import until

ADDED = ["prediction", "probability_not_equivalent", "probability_equivalent", "error"]


@pytest.fixture
def run(store, toy_checkpoint):
    run = store.create(RunConfig(max_length=32))
    toys.copy_model(toy_checkpoint, run.best)
    return run


def write(path, rows):
    """Write rows in the format of the ending; None is an empty cell."""
    names = [*rows[0]]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for line in (names, *([row.get(name) for name in names] for row in rows)):
            book.active.append(line)
        book.save(path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            writer = csv.DictWriter(file, names, delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    return path


def read(path):
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    if path.suffix == ".json":
        return list(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def predict_to(run, path, out, **columns):
    first, second = (columns.get(name, name) for name in SIDES)
    request = PredictionRequest(run.id, path.name, first, second)
    report, complete = files.predict_file(run, request, path, out)
    assert complete
    return report


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
def test_columns_are_matched_by_name_to_those_of_the_training(names, expected):
    trained = ColumnNames("frage1", "frage2", "gleich?")
    assert " ".join(match_columns(names.split(), trained)) == expected


def test_the_same_rows_come_out_with_the_models_answers(run, tmp_path):
    decision_rule.write_rule(run.best, threshold=0.999, temperature=3.0, positive="equivalent")
    lines = [("id", *SIDES, "label"), *((f"=row {n}", *pair) for n, pair in enumerate(PAIRS))]
    path = write_csv(tmp_path / "pairs.csv", lines)
    predictor = Predictor(run.best, 32)
    for option in ("threshold", "calibrated", "both_orders"):
        options = {option: True}
        report = judged(run, path, tmp_path / "out.csv", **options)
        rows, right = read(tmp_path / "out.csv"), 0
        assert [row["id"] for row in rows] == ["=row 0", "=row 1", "=row 2"]
        for row, (first, second, label) in zip(rows, PAIRS, strict=True):
            answer = predictor(first, second, PredictOptions(**options))
            assert row["prediction"] == answer.label
            for name, value in answer.probabilities.items():
                assert float(row[f"probability_{name}"]) == pytest.approx(value, abs=0.02)
            right += row["prediction"] == {"1": "equivalent"}.get(label, label)
        answers = {row["prediction"] for row in rows}
        assert option != "threshold" or answers == {"not_equivalent"}
        assert report["labelled"] == 3  # "1" is the second class
        assert report["scores"]["accuracy"][0] == pytest.approx(right / 3)
        assert sum(map(sum, report["confusion"])) == 3


def test_every_kind_of_file_comes_back_as_what_it_was(run, tmp_path):
    """Unreadable rows are marked in their place; any text gets an answer."""
    odd = ["\ud800 lone", "nul \0 byte", "\U0001f600" * 50, "\u65e5\u672c", "x " * 50_000]
    rows = [{"sentence1": text, "sentence2": "cat", "more": {"deep": [1]}} for text in odd]
    texts = {
        "a.jsonl": "".join(json.dumps(row) + "\n" for row in rows) + "not json\n",
        "a.json.gz": json.dumps(rows),
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
    cells = list(csv.DictReader(lines["a.csv"]))
    assert [bool(row["prediction"]) for row in cells] == [True, False, False, True]
    errors = ["line 3 has 1 fields where the first line has 2", "sentence1 is empty"]
    assert [row["error"] for row in cells] == ["", *errors, ""]
    assert (reports["a.csv"]["errors"], reports["a.csv"]["examples"]) == (2, errors)


def test_what_is_added_is_no_formula(run, tmp_path):
    """Class names may come from anybody, so they are escaped; the person's own cells are
    unchanged."""
    labels = {"0": '=HYPERLINK("http://example.com")', "1": "-1"}
    config = run.best / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"id2label": labels}))
    lines = [("=one", "sentence2", "id"), *((*pair[:2], "=1+1") for pair in PAIRS), ("", "b", "")]
    path = write_csv(tmp_path / "pairs.csv", lines)
    request = PredictionRequest(run.id, path.name, "=one", "sentence2")
    files.predict_file(run, request, path, tmp_path / "out.csv")
    rows = read(tmp_path / "out.csv")
    names = {'\'=HYPERLINK("http://example.com")', "-1"}
    assert {row["prediction"] for row in rows[:3]} <= names
    assert {row["id"] for row in rows[:3]} == {"=1+1"}
    assert rows[3]["error"] == "'=one is empty"


def test_progress_is_told_and_a_cancel_keeps_what_is_judged(run, tmp_path):
    path = write_csv(tmp_path / "x.csv", [SIDES, *((f"cat {n}", "x" * 900) for n in range(900))])
    out, progress, heads = tmp_path / "out.csv", [], []

    def on_progress(done, total):
        progress.append((done, total))
        if done >= 320:
            raise files.PredictionStopped

    request = PredictionRequest(run.id, path.name, *SIDES)
    report, whole = files.predict_file(
        run, request, path, out, on_progress, lambda rows: heads.append(rows[:])
    )
    assert (report["rows"], whole, progress) == (320, False, [(64, 900), (320, 900)])
    assert [row["sentence1"] for row in read(out)] == [f"cat {n}" for n in range(320)]
    assert [len(rows) for rows in heads] == [64, 320, 320]
    assert [row["row"] for row in heads[-1]] == list(range(320))
    assert max(len(row["cells"]["sentence2"]) for row in heads[-1]) == 500


@pytest.mark.parametrize(
    ("columns", "sentences", "message"),
    [
        ("one,two,three,four", ("", ""), r"No column of x\.csv is clearly sentence1: it has one"),
        ("sentence1,label", ("", ""), r"No column of x\.csv is clearly sentence2: it has"),
        ("sentence1,sentence2", ("", file_request.NONE), "is clearly sentence2"),
    ],
)
def test_a_file_of_unclear_columns_is_refused(store, run, tmp_path, columns, sentences, message):
    path = tmp_path / "x.csv"
    path.write_text(f"{columns}\na{',a' * columns.count(',')}\n", encoding="latin-1")
    with pytest.raises(DataError, match=message):
        predict.start_prediction(store, PredictionRequest(run.id, "x.csv", *sentences), path)


def test_what_cannot_be_predicted_is_refused(store, run, tmp_path, monkeypatch):
    path = write_csv(tmp_path / "x.csv", [SIDES, *(pair[:2] for pair in PAIRS)])
    untrained = PredictionRequest(store.create(RunConfig()).id, "x.csv", *SIDES)
    with pytest.raises(JobError, match="no model"):
        predict.start_prediction(store, untrained, path)

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StoreError, match="the disk is full"):
        predict.start_prediction(store, PredictionRequest(run.id, "x.csv", ""), path)
    assert not [*store.root.glob("batches/*"), *store.root.glob(".new-*")]


@pytest.fixture
def start(store, run, tmp_path):
    """Starts the prediction of a file of so many rows."""

    def begin(name, count):
        labels = ["equivalent", "no"] * (count // 2)
        pairs = [(f"the cat {n} .", "a dog .", label) for n, label in enumerate(labels)]
        path = write_csv(tmp_path / name, [("text a", "text b", "is_same"), *pairs])
        request = PredictionRequest(run.id, name, "text a", "text b", "is_same")
        return predict.start_prediction(store, request, path)

    return begin


@pytest.mark.long
def test_a_batch_is_a_process_of_its_own_that_keeps_its_rows_when_it_is_cancelled(store, start):
    job = start("long.csv", 60_000)
    assert predict.PredictionJob.find(store, job.id).state().status == "running"
    until(lambda: job.state().done > 0)
    job.cancel()
    until(lambda: job.state().status != "running")
    assert job.state().status == "stopped"
    assert 0 < len(read(job.result)) < 60_000
    assert events.Failed not in {type(event) for event in job.tail()[0]}


def test_a_batch_has_every_row_and_is_judged_by_the_labels_known(start, monkeypatch, capsys):
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
    told = as_text(state.report | {"left_out": ["parts"]})
    assert "150 rows with a label that the model does not know are in no score" in told
    assert "nested columns that the result lacks: parts" in told
    assert len(read(job.result)) == 300


def test_what_is_judged_counts_with_what_is_uploaded(store, run, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "spawn_worker", lambda job, **_: None)
    monkeypatch.setenv("FINETUNE_MAX_UPLOAD_MB", "1")
    ada, other = (store.for_visitor(Visitor(names=(f"browser:{name}",))) for name in ("ada", "bob"))
    trained = ada.create(RunConfig(max_length=32))
    toys.copy_model(run.best, trained.best)

    def write(name, kilobytes):
        rows = [(*SIDES, "label"), (name * kilobytes * 1024, "b", "1")]
        return write_csv(tmp_path / f"{name}.csv", rows)

    def judge(name, kilobytes):
        path = write(name, kilobytes)
        return predict.start_prediction(ada, PredictionRequest(trained.id, path.name, ""), path).id

    kept = judge("a", 600)
    with pytest.raises(DataError, match=r"predictions 0\.6 MB; a visitor may have 1 MB"):
        ada.uploads.add({"train": write("c", 600)})
    assert other.uploads.add({"train": write("c", 600)})  # another's share is another's
    ada.create(RunConfig(dataset=ada.uploads.add({"train": write("d", 300)})))
    with pytest.raises(DataError, match=r"These files have 0\.8 MB"):
        judge("e", 800)
    assert [job.id for job in predict.PredictionJob.newest(ada)] == [kept]  # in vain, so none goes


@pytest.mark.parametrize(
    ("names", "cells", "known"),
    [
        (("-1", "1"), ("0", "-1", "1.0"), [False, True, True]),  # 0 is no number of a class here
        (("no", "yes"), ("0", "YES", "1.0"), [True, True, True]),
        (("v1.0", "v2.0"), ("v1.0", "v2.0", "v2"), [True, True, False]),
    ],
)
def test_labels_of_a_file_are_read_as_those_of_the_training_pairs(names, cells, known):
    assert SingleLabel().parse(cells, Target(names))[1].tolist() == known


class Known(Scorer):
    """A scorer of pairs whose answers are known: the longer the first sentence, the surer."""

    def __init__(self):
        self.target, self.precision = Target(("not_equivalent", "equivalent")), "fp32"

    def scores(self, sentence1, sentence2=None):
        lengths = np.array([len(text) for text in sentence1], np.float32)
        return np.stack([0 * lengths, lengths], axis=1)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_rows_that_are_not_sure_are_decided_so_and_collected(run, tmp_path, ending):
    texts = ["a", "", "a longer one", "bc"]
    lines = [(*SIDES, "decision"), *((text, "x", "mine") for text in texts)]
    path = write_csv(tmp_path / "pairs.csv", lines)
    out, review = (tmp_path / f"{name}.{ending}" for name in ("out", "review"))
    asked = PredictionRequest(run.id, "pairs.csv", *SIDES)

    def predict(**options):
        request = replace(asked, **options)
        return files.predict_file(run, request, path, out, scorer=Known(), review=review)[0]

    assert not {"sure", "undecided"} & predict().keys()
    assert not review.exists()
    rule = SureRule(0.02, 0.95, 0.99, examples=400, answered=200)
    decision_rule.write_rule(run.best, sure=rule)
    report = predict()
    assert report["unsure"] == 2
    assert (report["sure"]["column"], report["sure"]["error"]) == ("decision_2", 0.02)
    rows = read(out)
    assert [row["decision"] for row in rows] == ["mine"] * 4
    decided = [row["decision_2"] or "" for row in rows]
    assert decided == ["unsure", "", "equivalent", "unsure"]
    assert [row["prediction_2"] or "" for row in rows] == ["equivalent", "", *["equivalent"] * 2]
    assert read(review) == [row for row in rows if row["decision_2"] == "unsure"]
    review.unlink()
    other = predict(both_orders=True)
    assert "sure" not in other
    assert other["undecided"]
    assert not review.exists()


def test_rows_of_empty_cells_come_back_and_blank_lines_do_not(run, tmp_path):
    """pandas reads such files in the same way."""
    blank = dict.fromkeys(("id", *SIDES))
    known = [dict(zip(blank, cells, strict=True)) for cells in (("1", "cat", "dog"), "2ab")]
    texts = {
        "a.csv": "\n,,\nid,sentence1,sentence2\n,,\n1,cat,dog\n\n  \n,,\n2,owl,bee\n,,\n\n",
        "a.tsv": "id\tsentence1\tsentence2\n\t\t\n1\tcat\tdog\n\n\t\t\n2\towl\tbee\n\t\t\n",
        "one.csv": 'sentence1\n""\ncat\n\n""\nowl\n""\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    write(tmp_path / "a.xlsx", [blank, known[0], blank, known[1], {**blank, "id": "3"}])
    for name in (*texts, "a.xlsx"):
        columns = {"sentence2": ""} if name == "one.csv" else {}
        report = predict_to(run, tmp_path / name, tmp_path / "out.jsonl", **columns)
        rows = read(tmp_path / "out.jsonl")
        assert [bool(row["prediction"]) for row in rows] == [False, True, False, True, False], name
        assert {row["error"] for row in rows if not row["prediction"]} == {"sentence1 is empty"}
        assert (report["rows"], report["errors"]) == (5, 3)


@pytest.mark.parametrize(
    ("source", "target"),
    [("csv", "parquet"), ("jsonl", "json"), ("parquet", "jsonl"), ("xlsx", "tsv")],
)
def test_any_file_becomes_any_format(run, tmp_path, source, target):
    text = 'tab\t, comma, "quote"\nand a line'
    rows = [
        {"id": number, "share": 0.5 + number, **dict(zip(SIDES, pair, strict=False)), "note": text}
        for number, pair in enumerate(PAIRS)
    ]
    path, out = write(tmp_path / f"in.{source}", rows), tmp_path / f"out.{target}"
    predict_to(run, path, out)
    result = read(out)
    assert [list(row) for row in result] == [[*rows[0], *ADDED]] * 3
    is_text = source in ("csv", "tsv") or target in ("csv", "tsv")
    for row, before in zip(result, rows, strict=True):
        assert {name: row[name] for name in before} == {
            name: str(cell) if is_text else cell for name, cell in before.items()
        }
        assert row["prediction"] in ("equivalent", "not_equivalent")
        assert sum(float(row[name]) for name in ADDED[1:3]) == pytest.approx(1, abs=2e-6)


def test_cells_that_a_format_has_no_type_for_become_text(run, tmp_path):
    odd = {"day": date(2024, 2, 29), "raw": b"ab", "share": math.nan, "yes": True, "none": None}
    rows = [{"sentence1": "=cat", "sentence2": "\u732b", **odd}]
    path = tmp_path / "a.parquet"
    names = {"info": {"features": {"mood": {"names": ["sad", "glad"]}}}}  # of the numbers
    table = pa.Table.from_pylist([{**rows[0], "parts": [1, 2], "mood": 1}])
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(names)}), path)
    for name in ("out.json", "out.csv", "out.parquet"):
        assert predict_to(run, path, tmp_path / name)["left_out"] == ["parts"]
    with pytest.raises(DataError, match=r"cannot be \.xlsx"):
        predict_to(run, path, tmp_path / "out.xlsx")
    (json_row,), (csv_row,) = read(tmp_path / "out.json"), read(tmp_path / "out.csv")
    texts = {"day": "2024-02-29", "raw": "ab", "mood": "glad"}
    assert json_row.items() >= ({**rows[0], **texts, "share": None}).items()
    texts |= {"share": "nan", "yes": "true", "none": ""}
    assert csv_row.items() >= ({**rows[0], **texts}).items()
    # And types that are known only once all rows are read.
    first = {
        "sentence1": "a", "sentence2": "b", "n": 1, "big": 2**70, "list": [1], "lone": "\ud800",
    }  # fmt: skip
    second = {"sentence1": "c", "sentence2": "d", "n": 1.5, "flag": False, "lone": None}
    mixed = [first, second]
    predict_to(run, write(tmp_path / "a.jsonl", mixed), tmp_path / "out.parquet")
    result = pq.read_table(tmp_path / "out.parquet")
    assert result.select(["n", "big", "list", "lone", "flag"]).to_pydict() == {
        "n": [1.0, 1.5], "big": [str(2**70), None], "list": ["[1]", None], "lone": ["?", None],
        "flag": [None, False],
    }  # fmt: skip
    predict_to(run, tmp_path / "a.jsonl", tmp_path / "out.csv")
    assert [row["list"] for row in read(tmp_path / "out.csv")] == ["[1]", ""]


@pytest.mark.parametrize(
    ("ending", "own"),
    [("csv", "Error"), ("jsonl", "PROBABILITY_EQUIVALENT"), ("parquet", "trained_on")],
)
def test_a_column_of_the_files_own_is_kept(run, tmp_path, ending, own):
    """Even if it is the sentence column; all added columns then have other names."""
    hashes = pair_index.pair_hashes([PAIRS[0][0]], [PAIRS[0][1]])
    pair_index.write_pair_index(run, {"train": hashes, "validation": hashes[:0]})
    rows = [{own: first, "reference": second} for first, second, _ in PAIRS]
    path = write(tmp_path / f"in.{ending}", [*rows, {own: None, "reference": "a"}])
    out = tmp_path / f"out.{ending}"
    report = predict_to(run, path, out, sentence1=own, sentence2="reference")
    result = read(out)
    names = [f"{name}_2" for name in (*ADDED[:3], "trained_on", "error")]
    assert report["columns"] == names
    assert [list(row) for row in result] == [[own, "reference", *names]] * 4
    assert [{own: row[own], "reference": row["reference"]} for row in result[:3]] == rows
    assert all(row["prediction_2"] for row in result[:3])
    assert [str(row["trained_on_2"]).lower() for row in result[:3]] == ["true", "false", "false"]
    assert result[3]["error_2"] == f"{own} is empty"


def test_a_key_that_comes_late_in_a_file_is_kept_too(run, tmp_path):
    """Only the first thousand rows of JSON determine its columns. No rows are a list, too."""
    rows = [{"sentence1": "cat", "sentence2": "dog"}] * 1100
    path = write(tmp_path / "in.jsonl", [*rows, {**rows[0], "prediction": "mine"}])
    for name in ("out.jsonl", "out.csv"):
        predict_to(run, path, tmp_path / name)
        last = read(tmp_path / name)[-1]
        assert last["prediction"] == "mine"
        assert last["prediction_2"] in ("equivalent", "not_equivalent")
    (tmp_path / "in.csv").write_text("sentence1,sentence2\n")
    predict_to(run, tmp_path / "in.csv", tmp_path / "out.json")
    assert read(tmp_path / "out.json") == []


NAMES = ("no", "yes")


def compared(target, answers, columns, labels=None, label_map=""):
    """The report of columns by name, their rows read in two windows."""
    task = task_of(target)
    others = OtherAnswers(task, target, [*columns], label_map)
    values, rows = np.array(answers), []
    for part in (slice(0, 13), slice(13, None)):
        records = [
            dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)
        ]
        cells = labels[part] if labels else []
        own, numbers = values[part], [*range(len(values))][part]
        truth, known = task.parse(cells, target) if labels else (own, np.zeros(len(own), bool))
        others.add(records[part], cells)
        rows.append((numbers, own, truth, known, np.array([numbers, numbers]).T))
    reported = others.report(*map(np.concatenate, zip(*rows, strict=True)))
    return {one.pop("column"): one for one in reported}


def test_columns_of_answers_are_compared_and_the_labels_say_who_is_right():
    draw = np.random.default_rng(0)
    truth = draw.integers(0, 2, 60)
    ours, theirs = (np.where(draw.random(60) < right, truth, 1 - truth) for right in (0.9, 0.7))
    spelled = [NAMES[one].upper() for one in theirs]
    spelled[5] = ""  # not answered
    columns = {"gpt": spelled, "id": [*range(60)], "flag": [*theirs], "city": ["no where"] * 60,
               "always": ["yes"] * 60, "none": [None] * 60}  # fmt: skip
    found = compared(Target(NAMES), ours, columns, [NAMES[one] for one in truth])
    assert [*found] == ["gpt"]
    (gpt,), kept = found.values(), np.arange(60) != 5
    assert gpt["rows"] == gpt["labelled"] == 59
    a, b, c = ours[kept], theirs[kept], truth[kept]
    assert gpt["agreement"]["equal"][0] == accuracy_score(a, b)
    value, low, high = gpt["agreement"]["kappa"]
    assert value == pytest.approx(cohen_kappa_score(a, b))
    assert low < value < high
    only = int(((a == c) & (b != c)).sum()), int(((b == c) & (a != c)).sum())
    p = binomtest(only[0], sum(only)).pvalue
    assert gpt["right"] == {"first": only[0], "second": only[1], "neither": 0, "p": p}
    assert gpt["scores"]["accuracy"] == [accuracy_score(c, a), accuracy_score(c, b)]
    assert gpt["difference"]["accuracy"][0] == pytest.approx((a == c).mean() - (b == c).mean())
    assert gpt["differ"] == np.flatnonzero(kept & (ours != theirs)).tolist()
    merged = compared(Target(NAMES), [0, 1] * 20, {"gpt": ["never", "yes"] * 20}, None, "never=no")
    assert merged["gpt"]["agreement"]["equal"][0] == 1.0
    # Numbers of classes count if the labels are numbers.
    answers, columns = [0, 1] * 20, {"second": ["1", "1", "0", "1"] * 10}
    assert compared(Target(NAMES), answers, columns) == {}
    assert [*compared(Target(NAMES), answers, columns, ["0", "1"] * 20)] == ["second"]
    assert [*compared(Target(("0", "1")), answers, columns)] == ["second"]


def test_scores_and_sets_of_labels_are_compared_as_such():
    target = Target((), task=REGRESSION, low=0, high=5)
    scores = np.linspace(0, 5, 40, dtype=np.float32)
    columns = {"person": [f"{one / 2 + 1:.2f}" for one in scores], "year": [*range(1990, 2030)]}
    found = compared(target, scores, columns, [f"{one:.2f}" for one in scores])
    assert [*found] == ["person"]
    person = found["person"]
    assert person["agreement"]["pearson"][0] == pytest.approx(1, abs=0.001)
    assert person["agreement"]["difference"][0] == pytest.approx(-0.25, abs=0.01)
    assert person["difference"]["mae"][0] < 0
    assert "right" not in person
    several = Target(("a", "b"), task=MULTI_LABEL)
    sets = np.array([[1, 0], [1, 1], [0, 0], [0, 1]] * 10)
    found = compared(several, sets, {"other": ["a", "a;b", "a", "b"] * 10})
    assert found["other"]["agreement"]["equal"][0] == 0.75
    assert {"kappa a", "kappa b"} < {*found["other"]["agreement"]}
    columns = {"some": [*["a", "b"] * 6, *[""] * 28], "notes": [*["so so"] * 9, "a", *[" "] * 30]}
    found = compared(several, sets, columns)
    assert [(name, of["rows"]) for name, of in found.items()] == [("some", 12)]
