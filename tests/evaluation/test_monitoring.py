"""Whether a model still holds on a file: judged from counts, with few false alarms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import finetune
from finetune import __main__ as command
from finetune.errors import DataError
from finetune.evaluation import file_shift, monitoring
from finetune.evaluation.file_shift import Aggregates, Labelled, Reference
from finetune.inference.file_request import PredictionRequest
from finetune.metrics import label_free
from finetune.runs import pair_index
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support import monitored

BINS = label_free.CONFIDENCE_BINS
BINNED = ("confidence", "lengths", "unknown")


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    return monitored.monitored_run(store, toy_checkpoint)


def test_other_words_and_lengths_are_seen_from_counts_alone(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the command does
    pairs = monitored.rows(150, 2, words="9?%", long=8)
    file, counts = monitored.write_rows(tmp_path / "new.csv", pairs), tmp_path / "counts.json"
    words = ["monitor", str(run.folder), str(file), "--aggregates", str(counts)]
    assert command.main(words) == 1
    first = json.loads(capsys.readouterr().out)
    assert first["verdict"] != "as before"
    assert {"lengths", "words"} <= {one["of"] for one in first["changes"] if one["changed"]}
    assert "sees" not in counts.read_text()
    file.unlink()
    assert command.main(["monitor", str(run.folder), str(counts)]) == 1
    assert json.loads(capsys.readouterr().out) == first
    values = json.loads(counts.read_text()) | {"model": "another 8"}
    counts.write_text(json.dumps(values))
    with pytest.raises(DataError, match="another 8"):
        finetune.still_holds(run, counts)


def test_labels_of_some_rows_measure_the_accuracy_and_too_few_rows_are_not_judged(
    run: Run, tmp_path: Path
) -> None:
    pairs = monitored.rows(150, 2)
    file = monitored.write_rows(tmp_path / "new.csv", pairs)
    labels = monitored.write_rows(tmp_path / "labels.csv", pairs[:60], labelled=True)
    judged = finetune.still_holds(run, file, labels)
    assert judged.labelled == 60
    assert judged.measured is not None
    assert judged.measured.low < judged.measured.value < judged.measured.high
    assert judged.measured_shares is not None
    assert sum(one.value for one in judged.measured_shares.values()) == pytest.approx(1)
    few = monitored.write_rows(tmp_path / "few.csv", pairs[:5], labelled=True)
    with pytest.raises(DataError, match="5 labels are too few"):
        finetune.still_holds(run, file, few)
    short = monitored.write_rows(tmp_path / "short.csv", monitored.rows(49, 2))
    with pytest.raises(DataError, match="49 rows of the file are new"):
        finetune.still_holds(run, short)
    (run.predictions / "validation.parquet").unlink()
    with pytest.raises(DataError, match="not kept"):
        finetune.still_holds(run, file)


def test_counts_that_cannot_be_are_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the command does
    file, counts = tmp_path / "new.csv", tmp_path / "counts.json"
    monitored.write_rows(file, monitored.rows(150, 2))
    words = ["monitor", str(run.folder), str(file), "--aggregates", str(counts)]
    assert command.main(words) == 0
    values = json.loads(counts.read_text())

    def many(rows: int) -> dict[str, Any]:
        binned = {name: [rows, *[0] * (len(values[name]) - 1)] for name in BINNED}
        return {"rows": rows, "answers": {"equivalent": rows}, **binned}

    wrong: list[dict[str, Any]] = [
        {"confidence": [1, 2, 3]}, {"lengths": [150]}, {"lengths": []}, {"unknown": [200, -50]},
        {"answers": {"equivalent": -1}}, {"words": [2.0, 0.5]}, {"rows": 10},
        {"confidence": []}, {"answers": {"equivalent": 149}}, {"answers": {"something": 150}},
        {"answers": {"equivalent": 10**40}}, {"rows": "many"}, {"answers": [150]}, {"model": None},
        many(10**18), many(2001),
    ]  # fmt: skip
    for changed_values in wrong:
        counts.write_text(json.dumps(values | changed_values))
        capsys.readouterr()
        assert command.main(["monitor", str(run.folder), str(counts)]) == 2, changed_values
        assert "error: These are no counts of a file" in capsys.readouterr().err
    counts.write_text(json.dumps(values | many(10)))
    with pytest.raises(DataError, match="counts are of 10 rows"):
        finetune.still_holds(run, counts)


def test_rows_of_the_run_are_left_out_and_rows_that_share_sentences_count_for_less(
    run: Run, tmp_path: Path
) -> None:
    pairs = monitored.rows(120, 2)
    first, second, _ = zip(*pairs[:60], strict=True)
    seen = pair_index.pair_hashes(first, second)
    pair_index.write_pair_index(run, {"train": seen[:40], "validation": seen[40:]})
    again = [(first, f"{second} a", label) for first, second, label in pairs]
    file = monitored.write_rows(tmp_path / "new.csv", pairs + again)
    # Of the 60 pairs that were seen the variants are new.
    judged, counts = monitoring.monitor_file(run, file, PredictionRequest(run.id, file.name, ""))
    assert judged.rows == counts.rows == 180
    assert 0.6 < counts.parts["lengths"] < 0.8  # of 60 the variant is as long
    assert judged.verdict == "as before"
    file = monitored.write_rows(tmp_path / "new.csv", pairs)
    assert finetune.still_holds(run, file).rows == 60


def counts_of(
    draw: np.random.Generator, rows: int, sure: float = 0.5, yes: float = 0.6
) -> tuple[Aggregates, np.ndarray[Any, Any]]:
    """Counts of rows, and which of them are right by confidence."""
    shares = np.exp(-(((np.arange(BINS) - sure * 40) / 12) ** 2))
    confidence = draw.multinomial(rows, shares / shares.sum())
    right = draw.binomial(confidence, -np.expm1(-(np.arange(BINS) + 4) / 10))
    answers = draw.multinomial(rows, [yes, 1 - yes])
    lengths = draw.multinomial(rows, np.ones(20) / 20)
    unknown = draw.multinomial(rows, [0.95, 0.05])
    found = Aggregates(
        "run 8", rows, dict(zip(("yes", "no"), answers.tolist(), strict=True)),
        confidence.tolist(), lengths.tolist(), unknown.tolist(), (0.5, float(draw.random())),
    )  # fmt: skip
    return found, right


def reference_of(draw: np.random.Generator, rows: int) -> Reference:
    counts, right = counts_of(draw, rows)
    wrong = np.array(counts.confidence) - right
    confusion = [[rows // 2, rows // 10], [rows // 10, rows // 3]]
    return Reference(counts, [wrong.tolist(), right.tolist()], confusion, ["yes", "no"])


def test_files_like_the_reference_seldom_raise_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_free, "_PERMUTATIONS", 399)
    monkeypatch.setattr(label_free, "_RESAMPLES", 50)
    draw = np.random.default_rng(0)
    verdicts = [
        file_shift.judge(reference_of(draw, 300), counts_of(draw, 200)[0]).verdict
        for _ in range(150)
    ]
    assert np.mean([one != "as before" for one in verdicts]) <= 0.086  # 0.05 + 2 standard errors


def test_a_file_with_less_confidence_asks_for_training_and_labels_overrule() -> None:
    draw = np.random.default_rng(0)
    reference = reference_of(draw, 400)
    assert "As before" in file_shift.sentence(file_shift.judge(reference, reference.counts))
    file, _ = counts_of(draw, 400, sure=0.1)
    judged = file_shift.judge(reference, file)
    assert judged.verdict == "train anew"
    assert {one.of for one in judged.changes if one.changed} == {"confidence"}
    assert "the confidence, and fewer answers" in file_shift.sentence(judged)
    bins = draw.permutation(np.repeat(np.arange(BINS), file.confidence)).tolist()[:100]
    good = Labelled(["yes"] * 100, ["yes"] * 97 + ["no"] * 3, bins)
    overruled = file_shift.judge(reference, file, good)
    assert (overruled.verdict, overruled.labelled) == ("changed", 100)
    bad = Labelled(["yes"] * 100, ["yes"] * 40 + ["no"] * 60, bins)
    assert file_shift.judge(reference, file, bad).verdict == "train anew"
