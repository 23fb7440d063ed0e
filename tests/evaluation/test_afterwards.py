"""A run's model is measured after its training: on its splits by processes of their own, and on a
file of others, from counts and with few false alarms."""

import json
import shutil

import numpy as np
import pytest

import finetune
from finetune import __main__ as command
from finetune.config import RunConfig
from finetune.data import splits
from finetune.errors import DataError
from finetune.evaluation import (
    corrections,
    file_shift,
    monitoring,
    report,
    saved_predictions,
    test_set,
)
from finetune.evaluation.file_shift import Aggregates, Reference
from finetune.inference.file_request import PredictionRequest
from finetune.jobs import evaluate, train
from finetune.metrics import label_free
from finetune.runs import events, pair_index
from tests.support import made_runs, toy_runs, toys
from tests.support.training import work_in_this_process
from tests.support.uploads import judged, write_csv


@pytest.fixture
def run(trained, store):
    """A copy of a run of the toy, to do anything with."""
    return toy_runs.runs_by_name(trained.store(store.root))[toy_runs.CLASSES]


def test_a_split_has_one_score_whoever_computes_it(run, tmp_path, monkeypatch):
    """The loop evaluates in the precision of training. What it found is replaced by what the model
    answers when it is asked: in the evaluation, in the run's curve and in a predicted file."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):  # as the job sets them
        monkeypatch.setenv(name, "1")
    summary = run.state()
    step, target = summary.best.step, summary.prepared.target
    rough = saved_predictions.read_logits(run, step, target)
    noise = np.random.default_rng(0).normal(0, 2, rough.logits.shape).astype(np.float32)
    saved_predictions.save_logits(run, step, rough.logits + noise, rough.labels)
    evaluate.score(run, test=False)
    table = saved_predictions.read_examples(run)
    rows = [*zip(*(map(str, column) for column in table.to_pydict().values()), strict=True)]
    file = write_csv(tmp_path / "validation.csv", [tuple(table.column_names), *rows])
    predicted = judged(run, file, tmp_path / "out.csv", label="label")["scores"]
    summary = run.state()
    (point,) = (one for one in summary.validation if one.step == step)
    analysis = report.evaluate_run(run, summary).analysis
    for name, score in analysis.scores.items():
        found = summary.best.metrics[name], point.metrics[name], predicted[name][0]
        assert found == pytest.approx([score.value] * 3, abs=1e-9)
        ends = [summary.best.intervals[name], predicted[name][1:]]
        assert ends == [pytest.approx([score.low, score.high], abs=1e-9)] * 2


def test_the_test_set_is_sealed_until_it_is_opened(run):
    assert not (run.predictions / "test.npz").exists()
    assert run.state().opened == ()
    test_set.open_test_set(run)
    summary = run.state()
    (opened,) = summary.opened
    analysis = report.evaluate_run(run, summary, "test").analysis
    assert (summary.status, analysis.examples) == ("finished", 40)
    assert analysis.scores["accuracy"].value == pytest.approx(opened.metrics["accuracy"])
    test_set.open_test_set(run)
    assert len(run.state().opened) == 2  # each time is written down


def test_corrected_labels_become_pairs_to_train_on(store, run):
    names = ["no", "yes"]
    table = saved_predictions.read_examples(run)
    before = [names[label] for label in table.column("label").to_pylist()]
    other = names[1 - names.index(before[3])]
    corrections.correct_label(run, 3, other, names)
    assert corrections.read_corrections(run) == {3: other}
    for row, label in ((80, other), (3, "maybe")):
        with pytest.raises(DataError, match="no such example or class"):
            corrections.correct_label(run, row, label, names)
    lines = corrections.corrections_csv(run, names).splitlines()
    assert lines[0].split(",") == [*run.state().columns[:3], "label_before"]
    assert [n for n, line in enumerate(lines[1:]) if line.endswith(f",{before[3]}")] == [3]
    config = corrections.corrections_upload(store, run)
    assert (config.sentence2_column, config.label_column) == ("sentence2", "label")
    pairs = splits.load_pairs(config, store.root)
    after = [pairs.target.names[label] for label in pairs.splits["validation"]["label"]]
    assert after == [*before[:3], other, *before[4:]]
    original = splits.load_pairs(run.config(), store.root).splits["train"]
    assert pairs.splits["train"]["sentence2"][:] == original["sentence2"][:]
    corrections.correct_label(run, 3, before[3], names)  # taken back
    assert corrections.read_corrections(run) == {}
    with pytest.raises(DataError, match="No label was corrected"):
        corrections.corrections_upload(store, run)


@pytest.mark.long
def test_a_hub_dataset_is_read_as_the_run_did(hub, store, toy_checkpoint, tmp_path, monkeypatch):
    work_in_this_process(monkeypatch)

    def files(count):
        folder = toys.write_pairs(tmp_path / str(count), train=count)
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    repo = hub.add_repo("ada/moving", "dataset", files(48))
    config = RunConfig(checkpoint=str(toy_checkpoint), max_length=32, max_steps=4)
    run = store.create(config.changed(dataset="ada/moving", mixed_precision="no"))
    assert train.carry_out_run(run, lambda event: None) == 0
    first = run.state().prepared
    assert run.pinned_config().dataset_revision == repo.head
    assert len(list((store.root / "data").glob("*/"))) == 1  # read once
    repo.commit("other rows", {**files(60)})
    assert splits.load_pairs(run.config(), store.root).fingerprint != first.fingerprint
    shutil.rmtree(run.predictions)
    test_set.score_kept_model(run)
    test_set.open_test_set(run)
    table = saved_predictions.read_examples(run)
    label = first.labels[1 - table.column("label")[0].as_py()]
    corrections.correct_label(run, 0, label, first.labels)
    assert corrections.corrections_upload(store, run).dataset.startswith("upload/")
    run.append(events.Stopped(step=4, seconds=0.0))  # only such a run goes on
    assert train.carry_out_run(run, lambda event: None) == 0
    again = run.state().prepared
    assert again.fingerprint == first.fingerprint
    assert run.config().dataset_revision == ""


BINS = label_free.CONFIDENCE_BINS
BINNED = ("confidence", "lengths", "unknown")


@pytest.fixture
def toy_run(store, toy_checkpoint):
    return made_runs.monitored_run(store, toy_checkpoint)


def test_other_words_are_seen_from_counts_that_can_be(toy_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the command does
    pairs = made_runs.new_rows(150, 2, words="9?%", long=8)
    file, counts = made_runs.write_rows(tmp_path / "new.csv", pairs), tmp_path / "counts.json"
    words = ["monitor", str(toy_run.folder), str(file), "--aggregates", str(counts)]
    assert command.main(words) == 1
    first = json.loads(capsys.readouterr().out)
    assert first["verdict"] != "as before"
    assert {"lengths", "words"} <= {one["of"] for one in first["changes"] if one["changed"]}
    assert "sees" not in counts.read_text()
    assert command.main(["monitor", str(toy_run.folder), str(counts)]) == 1
    assert json.loads(capsys.readouterr().out) == first
    values = json.loads(counts.read_text())

    def many(rows):
        binned = {name: [rows, *[0] * (len(values[name]) - 1)] for name in BINNED}
        return {"rows": rows, "answers": {"equivalent": rows}, **binned}

    wrong = [
        {"rows": "many"}, {"model": None}, {"lengths": []}, {"unknown": [200, -50]},
        {"words": [2.0, 0.5]}, {"answers": {"equivalent": 149}}, {"answers": {"other": 150}},
        many(2001), many(10), {"model": "another 8"},
    ]  # fmt: skip
    others = {8: "counts are of 10 rows", 9: "another 8"}
    for number, change in enumerate(wrong):
        counts.write_text(json.dumps(values | change))
        with pytest.raises(DataError, match=others.get(number, "These are no counts of a file")):
            finetune.still_holds(toy_run, counts)


def test_labels_of_some_rows_measure_the_accuracy_and_few_rows_are_not_judged(toy_run, tmp_path):
    pairs = made_runs.new_rows(150, 2)
    file = made_runs.write_rows(tmp_path / "new.csv", pairs)
    labels = made_runs.write_rows(tmp_path / "labels.csv", pairs[:60], labelled=True)
    judged = finetune.still_holds(toy_run, file, labels)
    assert judged.labelled == 60
    assert judged.measured.low < judged.measured.value < judged.measured.high
    assert sum(one.value for one in judged.measured_shares.values()) == pytest.approx(1)
    few = made_runs.write_rows(tmp_path / "few.csv", pairs[:5], labelled=True)
    with pytest.raises(DataError, match="5 labels are too few"):
        finetune.still_holds(toy_run, file, few)
    short = made_runs.write_rows(tmp_path / "short.csv", made_runs.new_rows(49, 2))
    with pytest.raises(DataError, match="49 rows of the file are new"):
        finetune.still_holds(toy_run, short)
    (toy_run.predictions / "validation.parquet").unlink()
    with pytest.raises(DataError, match="not kept"):
        finetune.still_holds(toy_run, file)


def test_rows_of_the_run_are_left_out_and_those_that_share_sentences_count_less(toy_run, tmp_path):
    pairs = made_runs.new_rows(120, 2)
    first, second, _ = zip(*pairs[:60], strict=True)
    seen = pair_index.pair_hashes(first, second)
    pair_index.write_pair_index(toy_run, {"train": seen[:40], "validation": seen[40:]})
    again = [(first, f"{second} a", label) for first, second, label in pairs]
    file = made_runs.write_rows(tmp_path / "new.csv", pairs + again)
    # Of the 60 pairs that were seen the variants are new.
    judged, counts = monitoring.monitor_file(
        toy_run, file, PredictionRequest(toy_run.id, file.name, "")
    )
    assert judged.rows == counts.rows == 180
    assert 0.6 < counts.parts["lengths"] < 0.8  # of 60 the variant is as long
    assert judged.verdict == "as before"
    file = made_runs.write_rows(tmp_path / "new.csv", pairs)
    assert finetune.still_holds(toy_run, file).rows == 60


def counts_of(draw, rows, sure=0.5, yes=0.6):
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


def reference_of(draw, rows):
    counts, right = counts_of(draw, rows)
    wrong = np.array(counts.confidence) - right
    confusion = [[rows // 2, rows // 10], [rows // 10, rows // 3]]
    return Reference(counts, [wrong.tolist(), right.tolist()], confusion, ["yes", "no"])


def test_files_like_the_reference_seldom_raise_an_alarm(monkeypatch):
    monkeypatch.setattr(label_free, "_PERMUTATIONS", 399)
    monkeypatch.setattr(label_free, "_RESAMPLES", 50)
    draw = np.random.default_rng(0)
    verdicts = [
        file_shift.judge(reference_of(draw, 300), counts_of(draw, 200)[0]).verdict
        for _ in range(150)
    ]
    assert np.mean([one != "as before" for one in verdicts]) <= 0.086  # 0.05 + 2 standard errors


def test_a_file_with_less_confidence_asks_for_training_and_labels_overrule():
    draw = np.random.default_rng(0)
    reference = reference_of(draw, 400)
    assert "As before" in file_shift.sentence(file_shift.judge(reference, reference.counts))
    file, _ = counts_of(draw, 400, sure=0.1)
    judged = file_shift.judge(reference, file)
    assert judged.verdict == "train anew"
    assert {one.of for one in judged.changes if one.changed} == {"confidence"}
    assert "the confidence, and fewer answers" in file_shift.sentence(judged)
    bins = draw.permutation(np.repeat(np.arange(BINS), file.confidence)).tolist()[:100]
    given = ["yes"] * 100
    good, bad = (["yes"] * right + ["no"] * (100 - right) for right in (97, 40))
    overruled = file_shift.with_labels(judged, reference, file, given, good, bins)
    assert (overruled.verdict, overruled.labelled) == ("changed", 100)
    overruled = file_shift.with_labels(judged, reference, file, given, bad, bins)
    assert overruled.verdict == "train anew"
