"""What is found of a kept model is kept beside it: when it is sure, and whether it is as good and
faster in int8."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import finetune
from finetune.__main__ import main
from finetune.environment import devices
from finetune.errors import DataError, ModelError, StoreError
from finetune.evaluation import abstention, quantization, report, saved_predictions
from finetune.hub import model_card, onnx
from finetune.inference import decision_rule, files, quantized
from finetune.inference.file_request import PredictionRequest
from finetune.inference.predictor import Predictor
from finetune.inference.quantized import QuantizationReport
from finetune.inference.scorer import Scorer
from finetune.jobs import evaluate as jobs
from finetune.metrics.calibration import probabilities
from finetune.runs import events
from finetune.tasks.base import MULTI_LABEL, REGRESSION, DecisionRule, PredictOptions, Target
from tests.support import toys
from tests.support.families import lively
from tests.support.made_runs import scored

NAMES = ("no", "yes")
PLAIN = PredictOptions()


def draw_logits(rows, classes=2, seed=0):
    """Logits of a model that is right as often as it says, and what is right."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 4, (rows, classes)).astype(np.float32)
    shares = probabilities(logits).cumsum(axis=1)
    truth = (draw.random((rows, 1)) > shares).sum(axis=1).clip(0, classes - 1)
    return logits, truth.tolist()


@pytest.fixture
def run(store, toy_checkpoint):
    """A run that has ended with a model, evaluated three times."""
    logits, truth = draw_logits(1500)
    steps = {step: logits + np.float32(step) for step in (1, 2, 3)}
    run, _ = scored(store, steps, truth, 3, NAMES)
    shutil.copytree(toy_checkpoint, run.best)
    run.append(events.Finished(step=3, seconds=1))
    return run


def test_a_rule_is_found_kept_and_followed(run):
    rule = finetune.answer_when_sure(run, error=0.05)
    found = abstention.answer_when_sure(run, error=0.05)
    assert found.rule == rule
    assert (found.rows, found.worth, found.candidates) == (1500, 1500, 3)
    assert 0.4 < rule.coverage < 1
    kept = decision_rule.read_rule(run.best)
    assert kept.sure == rule
    for rows, seed in ((1500, 0), (4000, 9)):  # also new rows: the model is as good there
        logits, truth = draw_logits(rows, seed=seed)
        given = decision_rule.sure_answers(logits, Target(NAMES), kept, PLAIN)
        assert seed or given.sum() == rule.answered
        assert (logits.argmax(axis=1) != truth)[given].mean() < 0.05
    assert decision_rule.sure_answers(logits, Target(NAMES), DecisionRule(), PLAIN) is None


def test_each_class_has_a_threshold_of_its_own(store):
    logits, truth = draw_logits(3000, 3)
    names = ("a", "b", "c")
    wrong = np.flatnonzero(logits.argmax(axis=1) == 2)[::3]
    for row in wrong:
        truth[row] = 0  # a third of the answers "c" is wrong, however sure
    run, _ = scored(store, {1: logits}, truth, 1, names)
    found = abstention.answer_when_sure(run, 0.05, per_class=True).rule
    assert (found.above, [name for name, _ in found.classes]) == (1, ["a", "b"])
    rule, answers = DecisionRule(sure=found), logits.argmax(axis=1)
    given = decision_rule.sure_answers(logits, Target(names), rule, PLAIN)
    assert set(answers[given]) == {0, 1}
    for index in (0, 1):
        assert (np.array(truth) != answers)[given & (answers == index)].mean() < 0.05


def test_the_bound_holds_only_of_answers_like_those_it_was_found_on(run):
    """Another threshold forgets the rule, a temperature does not."""
    sure = finetune.answer_when_sure(run, error=0.05)
    rule, target = decision_rule.read_rule(run.best), Target(NAMES)
    logits, _ = draw_logits(100, seed=5)
    plain = decision_rule.sure_answers(logits, target, rule, PLAIN)
    for options in (PredictOptions(calibrated=True), PredictOptions(threshold=False)):
        same = decision_rule.sure_answers(logits, target, replace(rule, temperature=3.0), options)
        np.testing.assert_array_equal(same, plain)
    both = PredictOptions(both_orders=True)
    assert decision_rule.sure_answers(logits, target, rule, both, logits) is None
    single = decision_rule.sure_answers(logits, target, rule, both)  # has no other order
    np.testing.assert_array_equal(single, plain)
    lower, without = replace(rule, threshold=0.4, positive="yes"), PredictOptions(threshold=False)
    assert decision_rule.sure_answers(logits, target, lower, PLAIN) is not None
    assert decision_rule.sure_answers(logits, target, lower, without) is None
    for values, kept in (({"temperature": 1.4}, sure), ({"threshold": None}, sure),
                         ({"threshold": 0.4}, None)):  # fmt: skip
        jobs.save_decision(run, run.state(), **values)
        assert decision_rule.read_rule(run.best).sure == kept


def test_rows_that_share_a_sentence_count_as_they_go_together(store):
    """Each sentence stands in two rows, which are right and wrong together."""
    logits, truth = draw_logits(1500)
    logits, truth = np.repeat(logits[::2], 2, axis=0), np.repeat(truth[::2], 2).tolist()
    run, _ = scored(store, {1: logits}, truth, 1, NAMES)
    shared = [f"question {row // 2}" for row in range(1500)]
    columns = {"sentence1": shared, "sentence2": [f"answer {row}" for row in range(1500)]}
    saved_predictions.save_examples(run, "validation", pa.table(columns | {"label": truth}))
    found = abstention.answer_when_sure(run, error=0.05)
    assert found.rows == 1500
    assert 730 <= found.worth <= 760
    unknown = replace(report.evaluate_run(run, run.state()), table=None)
    plain = abstention.measure(unknown, 0.05, 0.95)
    assert found.curve.upper[-1] > plain.curve.upper[-1] + 0.004
    assert found.curve.error[-1] == plain.curve.error[-1]


def test_the_test_set_serves_once_it_is_opened(run):
    with pytest.raises(StoreError, match="was not opened for this model"):
        abstention.answer_when_sure(run, split="test")
    logits, truth = draw_logits(500, seed=4)
    saved_predictions.save_logits(run, 3, logits, np.array(truth), "test")
    run.append(events.TestSetOpened(step=3, metrics={}))
    found = abstention.answer_when_sure(run, 0.05, split="test")
    assert (found.rows, found.candidates) == (500, 1)
    assert found.rule.split == "test"


def test_the_rows_of_several_labels_are_answered_whole_and_scores_have_none(run):
    study = report.evaluate_run(run, run.state())
    target = Target((), task=REGRESSION)
    with pytest.raises(DataError, match="A score is never left out"):
        abstention.measure(
            replace(study, analysis=replace(study.analysis, target=target)), 0.1, 0.9
        )
    labels = Target(("x", "y"), task=MULTI_LABEL)
    draw = np.random.default_rng(2)
    logits = draw.normal(0, 9, (800, 2)).astype(np.float32)
    shares = 1 / (1 + np.exp(-logits))
    truth = (draw.random(shares.shape) < shares).astype(np.int8)
    given = (logits > 0).astype(np.int8)
    sure = np.where(given > 0, shares, 1 - shares).prod(axis=1)
    several = replace(
        study, analysis=replace(study.analysis, target=labels), truth=truth, answers=given,
        errors=(given != truth).mean(axis=1), confidence=sure.astype(np.float32),
    )  # fmt: skip
    found = abstention.measure(several, 0.05, 0.95).rule
    answered = decision_rule.sure_answers(logits, labels, DecisionRule(sure=found), PLAIN)
    assert abs(int(answered.sum()) - found.answered) <= 1  # a probability is rounded
    with pytest.raises(DataError, match="A bound of each class is for rows of one class"):
        abstention.measure(several, 0.05, 0.95, per_class=True)


REPORT = QuantizationReport(
    "dynamic", 400, "fp32", {"accuracy": (0.87, 0.868), "f1": (0.9, 0.899)}, 0.5, (100.0, 180.0),
    "a processor",
)  # fmt: skip


@pytest.fixture(scope="module")
def source(toy_checkpoint, tmp_path_factory):
    """A model of larger weights, and its ONNX file."""
    folder = tmp_path_factory.mktemp("int8")
    toys.copy_model(toy_checkpoint, folder / "toy")
    onnx.export_onnx(lively(folder / "toy"), folder / "model.onnx")
    return folder / "toy", folder / "model.onnx"


@pytest.fixture
def toy_run(store, source):
    toy_run = toys.finished_run(store, source[0])
    columns = zip(*toys.rows(80, seed=3), strict=True)
    names = ("sentence1", "sentence2", "label")
    table = pa.table(dict(zip(names, map(list, columns), strict=True)))
    saved_predictions.save_examples(toy_run, "validation", table)
    return toy_run


def test_as_good_is_within_the_bound_and_nothing_but_chance():
    changes = [
        ({"scores": {"accuracy": (0.87, 0.864)}}, False),
        ({"scores": {"accuracy": (0.87, 0.865)}}, True),  # the bound itself
        ({"scores": {"f1": (0.9, 0.906)}}, False),  # better by chance, not as good
        ({"p": 0.04}, False), ({"p": None}, True),  # no answer is right or wrong
    ]  # fmt: skip
    for change, good in changes:
        assert replace(REPORT, **change).as_good == good
    assert REPORT.speedup == pytest.approx(1.8)


@pytest.mark.parametrize("kind", ["dynamic", pytest.param("static", marks=pytest.mark.long)])
def test_both_kinds_answer_nearly_as_the_model(source, tmp_path, kind):
    plain = Scorer(source[0], 32, "fp32", threads=2)
    first, second, _ = map(list, zip(*toys.rows(40), strict=True))
    expected = plain.scores(first, second)
    file = tmp_path / "int8.onnx"
    quantized.quantize(source[1], file, kind, plain.inputs(list(zip(first, second, strict=True))))
    assert file.stat().st_size < source[1].stat().st_size
    small = Scorer(source[0], 32, "int8", "cuda", threads=2, int8_file=file)
    assert small.device.type == "cpu"  # where ONNX Runtime computes
    logits = small.scores(first, second)
    assert 0 < np.abs(logits - expected).max() < 0.5 * np.abs(expected).max()
    sure = np.abs(expected[:, 0] - expected[:, 1]) > np.abs(expected).max() / 2
    assert sure.sum() > 5
    assert (logits.argmax(1) == expected.argmax(1))[sure].all()


@pytest.mark.parametrize("kept", [True, False])
def test_it_is_used_published_and_named_where_it_pays(toy_run, source, monkeypatch, tmp_path, kept):
    monkeypatch.setattr(QuantizationReport, "as_good", True)
    monkeypatch.setattr(quantization, "is_faster", lambda rounds: kept)
    report = quantization.quantize_model(toy_run, source[1], toy_run.best_step())
    assert (report.kept, report.pairs) == (kept, 80)
    assert quantized.read_report(toy_run.best) == report
    assert quantized.is_enabled(toy_run.best) == (toy_run.best / quantized.MODEL).is_file() == kept
    precisions = {"int8"} if kept else {"fp32", "bf16"}
    assert Predictor.from_run(toy_run)("the cat", "a dog").precision in precisions
    file = tmp_path / "pairs.csv"
    file.write_text("sentence1,sentence2\nthe cat,a dog\n")
    request = PredictionRequest(toy_run.id, file.name, "sentence1", "sentence2")
    judged, _ = files.predict_file(toy_run, request, file, tmp_path / "out.csv")
    assert judged["precision"] in precisions
    if kept:
        assert quantized.serves(toy_run.best, "cpu")
        assert not quantized.serves(toy_run.best, "cuda")
        for bound in (decision_rule.SureRule(0.02, 0.95, 0.9), None):  # of the original model
            decision_rule.write_rule(toy_run.best, sure=bound)
            assert quantized.serves(toy_run.best, "cpu") == (bound is None)
        monkeypatch.setattr(devices, "processor_name", lambda: "another processor")
        assert not quantized.serves(toy_run.best, "cpu")
        assert Predictor.from_run(toy_run)("the cat", "a dog").precision != "int8"
        assert quantized.is_enabled(toy_run.best)
        monkeypatch.setattr(devices, "processor_name", lambda: report.processor)
        (toy_run.best / quantized.MODEL).write_bytes(b"damaged")
        with pytest.raises(ModelError, match="int8 file of this model cannot be loaded"):
            Predictor.from_run(toy_run)
    card = model_card.card_text(toy_run, toy_run.state(), "me/model")
    assert ("onnx/model_quantized.onnx" in card) == ("validation pairs accuracy" in card) == kept
    decision_rule.write_rule(toy_run.best, threshold=0.3, positive="equivalent")
    card = model_card.card_text(toy_run, toy_run.state(), "me/model")  # scores of another threshold
    assert "validation pairs accuracy" not in card
    again = quantization.quantize_model(toy_run, source[1], toy_run.best_step())
    assert again.thresholds == '[0.3, "equivalent", []]' != report.thresholds
    shutil.rmtree(toy_run.best)
    toys.copy_model(source[0], toy_run.best)  # a better one was saved: int8 was of the former
    assert not quantized.is_enabled(toy_run.best)


@pytest.mark.parametrize(
    ("rounds", "faster"),
    [
        ([(2.0, 1.0)] * 7, None),  # too few to tell
        ([(2.0, 1.0)] * 8, True), ([(1.0, 2.0)] * 8, False),
        ([(1.01, 1.0)] * 11 + [(1.0, 90.0)], True),  # disturbed once
        ([(1.01, 1.0)] * 7 + [(1.0, 1.01)] * 5, None),
    ],
)  # fmt: skip
def test_what_is_faster_is_told_by_many_rounds(rounds, faster):
    assert quantization.is_faster(rounds) is faster


@pytest.mark.parametrize(("name", "kept"), [("a", True), ("model_quantized.onnx", False)])
def test_an_export_writes_files_of_its_name(toy_run, tmp_path, capsys, monkeypatch, kept, name):
    """In fp32 under the name asked for, in int8 beside it; what else is there stays."""

    def quantize(toy_run, file, step):
        (toy_run.best / "onnx").mkdir()
        (toy_run.best / quantized.MODEL).write_text("in int8")
        return replace(REPORT, kept=kept)

    monkeypatch.setattr(quantization, "quantize_model", quantize)
    monkeypatch.setattr(onnx, "export_onnx", lambda folder, to: to.write_text("in fp32") * 0.0)
    others = {"model_quantized.onnx", "b.onnx", "model.onnx", "a.onnx.data"} - {name}
    for other in others:
        (tmp_path / other).write_text("a person's")
    assert main(["export", "--run", str(toy_run.folder), "--to", str(tmp_path / name)]) == 0
    assert "int8 (dynamic) on 400 validation rows: accuracy" in capsys.readouterr().out
    small = Path(name).stem + ".int8" + Path(name).suffix
    expected = {name: "in fp32"} | dict.fromkeys(others, "a person's")
    expected |= {small: "in int8"} if kept else {}
    assert {
        path.name: path.read_text() for path in tmp_path.glob("*") if path.is_file()
    } == expected
    model = str(toy_run.best / "model.safetensors")
    for words in (["--run", str(toy_run.folder)], ["--model", str(toy_run.best)]):
        assert main(["export", *words, "--to", model]) == 2
        assert "is in the folder of the model" in capsys.readouterr().err
