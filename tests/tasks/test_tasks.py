"""Classes, scores and several labels: spelled, cut into splits, trained as the course's loop does,
answered as transformers does, read from other files."""

import datasets
import numpy as np
import pytest
import scipy.stats
import torch
import transformers

from finetune.config import RunConfig
from finetune.data import checks, splits
from finetune.errors import ConfigError, DataError
from finetune.evaluation import report, saved_predictions
from finetune.inference import decision_rule, file_request, files
from finetune.inference.file_request import PredictionRequest
from finetune.inference.scorer import Scorer
from finetune.metrics.calibration import conformal_margin
from finetune.runs.summary import ColumnNames
from finetune.tasks import base, cells
from finetune.tasks.classes import is_positive_plain, positive_class
from finetune.tasks.multi_label import MultiLabel
from finetune.tasks.registry import task_of
from finetune.tasks.regression import Regression
from finetune.tasks.single_label import SingleLabel
from finetune.training import model
from tests.support import course, toy_runs, uploads
from tests.support.toys import LISTED, graded_rows, labelled_rows
from tests.support.training import evaluations, fit, losses
from tests.support.uploads import judged, upload, write_csv


def test_changes_of_labels_are_written_as_words():
    config = RunConfig(label_map="spamm=spam 'very bad=bad' n/a= a=b=c")
    assert config.changed_labels == {"spamm": "spam", "very bad": "bad", "n/a": "", "a=b": "c"}
    for wrong in ("spam", "=a", "'a=b"):
        with pytest.raises(ConfigError, match="label_map must be changes such as old=new"):
            RunConfig(label_map=wrong)


@pytest.mark.parametrize(
    ("labels", "requested", "index"),
    [("0 1", "", 1), ("0 1", "0", 0), ("entailment not_entailment", "", 0), ("no yes", "YES", 1),
     ("ja nein", "", 0), ("\u5426 \u662f", "", 1), ("\uc544\ub2c8\uc624 \uc608", "", 1)],
)  # fmt: skip
def test_the_positive_class(labels, requested, index):
    assert positive_class(labels.split(), requested) == index
    assert is_positive_plain(labels.split())
    assert not any(is_positive_plain(unclear.split()) for unclear in ("1 2", "duplicate same"))


def check(folder, labels, validation=(), **values):
    """Check texts with these labels."""
    rows = [(f"text {n}", label) for n, label in enumerate(labels)]
    held = [(f"held {n}", label) for n, label in enumerate(validation)]
    name = upload(folder, "text,label", rows, held, ())
    config = RunConfig(dataset=name, checkpoint=str(folder / "none")).changed(**values)
    return checks.check_pairs(config, folder)


SPAM = ["spam", "ham"] * 60


def test_a_rare_class_holds_training_back_until_it_is_answered(tmp_path):
    report = check(tmp_path, [*SPAM, "spamm", "eggs", "eggs"], validation=SPAM)
    rare = report.blocked[0]
    assert (rare.kind, rare.count, rare.rows) == ("rare-classes", 3, {"train": [122, 123, 124]})
    assert "'eggs' (2), 'spamm' (1)" in rare.title
    merge, leave_out, keep = rare.remedies
    assert (merge.field, merge.value) == ("label_map", "spamm=spam")
    assert [(remedy.field, remedy.value) for remedy in (leave_out, keep)] == [
        ("rare_classes", "leave_out"), ("rare_classes", "keep"),
    ]  # fmt: skip
    config = RunConfig(dataset=upload(tmp_path, "text,label", [
        (f"text {n}", label) for n, label in enumerate([*SPAM, "spamm"])], (), ()))  # fmt: skip
    with pytest.raises(DataError, match=r"'spamm' \(1\).*label_map.*rare_classes"):
        splits.load_pairs(config, tmp_path)
    for answer, labels, rows in (
        ({"rare_classes": "keep"}, ["ham", "spam", "spamm"], 121),
        ({"rare_classes": "leave_out"}, ["ham", "spam"], 120),
        ({"label_map": "spamm=spam"}, ["ham", "spam"], 121),
        ({"label_map": "spamm="}, ["ham", "spam"], 120),
    ):
        pairs = splits.load_pairs(config.changed(**answer), tmp_path)
        assert [*pairs.target.names] == labels
        assert sum(len(split) for split in pairs.splits.values()) == rows


def test_a_class_of_validation_only_is_asked_about(tmp_path):
    report = check(tmp_path, SPAM, validation=[*SPAM, "eggs"])
    assert "'eggs' (0)" in report.blocked[0].title
    assert report.blocked[0].rows == {"validation": [122]}
    report = check(tmp_path, SPAM, validation=[*SPAM, "eggs"], rare_classes="leave_out")
    assert [split.rows for split in report.splits] == [120, 120]


SCORE = base.Target((), task=base.REGRESSION, low=0.0, high=5.0)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4", 4), ("-2.5", -2.5), ("3,75", 3.75), (",5", 0.5), ("1.234,5", 1234.5),
        ("1,234.5", 1234.5), ("1.234.567", 1234567), ("1,234,567", 1234567), ("85 %", 85),
        ("1e-3", 0.001), ("\u22124", -4), ("\uff13.5", 3.5), ("+.25", 0.25), ("1.234", 1.234),
        ("1,234", 1234), ("0,123", 0.123), ("1 234,5", 1234.5), ("1\u2019234", 1234),
        ("12,34,567", 1234567), ("-$5", -5), ("US$ 1,000", 1000), ("5 kr", 5), ("4 of 5", None),
        ("", None), ("1-2", None), ("1e99", None), ("inf", None), ("1.234.567,8", 1234567.8),
        ("12.05.2024", None), ("1,5,3", None), ("4,,5", None), ("A12", None), ("1 2", None),
    ],
)  # fmt: skip
def test_a_cell_is_a_number_with_point_or_comma(text, number):
    assert cells.to_number(text) == number


def test_a_cut_split_has_its_share_of_low_and_high_scores(tmp_path):
    rows = [(f"text {n}", n / 1000) for n in range(1000)]
    cut = uploads.pairs(tmp_path, "text,score", train=rows).splits["validation"]
    found = np.histogram(cut["label"], np.linspace(0, 1, 11))[0]
    assert found.sum() == 100
    assert set(found) <= {9, 10, 11}


def test_a_checkpoint_that_answers_with_a_score_keeps_its_output_layer(toy_checkpoint, tmp_path):
    tokenizer, scored, head = model.load_classifier(str(toy_checkpoint), SCORE, 32)
    assert head.text == ""  # it was a classifier of two classes
    model.save_model(scored, tokenizer, tmp_path / "scored")
    _, again, kept = model.load_classifier(str(tmp_path / "scored"), SCORE, 32)
    for name in ("classifier.weight", "classifier.bias"):
        assert torch.equal(again.state_dict()[name], scored.state_dict()[name])
    assert "its output layer is kept" in kept.text


def test_an_answer_is_a_score_with_its_interval():
    task, logits = Regression(), np.array([[4.25], [1.0], [123456.7]], np.float32)
    answers = task.answers(logits, SCORE)
    assert answers.values.dtype == np.float32
    assert answers.probabilities.shape == (3, 0)
    assert np.isnan(answers.probability_of(answers.values)).all()
    both = task.answers(logits, SCORE, swapped=logits + 1)
    assert both.values == pytest.approx(answers.values + 0.5)
    given = task.answers(logits, SCORE, options=base.PredictOptions(), swapped=logits + 1)
    assert given.values.tolist() == answers.values.tolist()
    assert task.spell(answers.values, SCORE) == ["4.25", "1", "123457"]
    rule = base.DecisionRule(margin=0.5)
    assert list(task.columns(SCORE, rule)) == ["prediction", "prediction_low", "prediction_high"]
    assert task.cells(answers, SCORE, rule)[0] == [4.25, 3.75, 4.75]
    assert list(task.columns(SCORE, base.NO_RULE)) == ["prediction"]
    assert task.cells(answers, SCORE, base.NO_RULE)[1] == [1.0]


def test_cells_of_another_file_are_on_a_side_of_the_cut():
    target = base.Target(("below 3", "from 3"))
    cells = ["1", "0", 3, "2,9", "From 3", "below 3", "high", None]
    targets, known = SingleLabel().parse(cells, target)
    assert targets.tolist() == [0, 0, 1, 0, 1, 0, -1, -1]
    assert known.tolist() == [True] * 6 + [False] * 2


HEAD = "text,labels"
TARGET = base.Target(("a", "b"), task=base.MULTI_LABEL)


def test_a_cut_split_keeps_each_labels_share(tmp_path):
    draw, names = np.random.default_rng(0), np.array(["w", "x", "y", "z"])
    marked = draw.random((1000, 4)) < [0.5, 0.3, 0.1, 0.02]
    rows = [(f"text {n}", ";".join(names[marks])) for n, marks in enumerate(marked)]
    cut = uploads.pairs(tmp_path, HEAD, train=rows, task=base.MULTI_LABEL)
    counts = np.array([cut.counts["train"], cut.counts["validation"]])
    assert 90 <= len(cut.splits["validation"]) <= 110
    expected = counts.sum(axis=0) / 10
    assert np.abs(counts[1] - expected).max() <= 3
    assert counts[1][3] >= 1


def test_each_label_has_its_threshold():
    task, logits = MultiLabel(), np.array([[2.0, -1.0], [-2.0, -3.0]], np.float32)
    plain = task.answers(logits, TARGET)
    assert plain.values.tolist() == [[1, 0], [0, 0]]
    assert task.spell(plain.values, TARGET) == ["a", ""]
    rule = base.DecisionRule(thresholds=(("b", 0.2),))
    kept = task.answers(logits, TARGET, rule)
    assert kept.values.tolist() == [[1, 1], [0, 0]]
    without = task.answers(logits, TARGET, rule, base.PredictOptions(threshold=False))
    assert without.values.tolist() == plain.values.tolist()
    both = task.answers(logits, TARGET, swapped=-logits)
    assert both.probabilities == pytest.approx(np.full((2, 2), 0.5))
    chance = plain.probability_of(plain.values)
    assert chance == pytest.approx(
        [0.8808 * 0.7311, 0.8808 * 0.9526], abs=1e-4
    )  # of both labels, given and not given


def test_cells_of_another_file_may_have_other_marks():
    names = ("a", "b", "c, d")
    cells = ["a|b", "b;c, d", '["a", "c, d"]', "['b']", "c, d", "a, b", "a;x", "[]"]
    targets, known = MultiLabel().parse(cells, base.Target(names, task=base.MULTI_LABEL))
    assert known.tolist() == [True] * 6 + [False, True]
    assert targets[known].tolist() == [
        [1, 1, 0], [0, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0],
    ]  # fmt: skip


def test_labels_of_another_file_are_changed_as_in_training():
    changes, names = {"maybe": "yes", "junk": ""}, ("no", "yes")
    cells = ["yes", "NO ", "maybe", "junk", ""]
    targets, known = SingleLabel().parse(cells, base.Target(names), changes)
    assert (targets[:3].tolist(), known.tolist()) == ([1, 0, 1], [True, True, True, False, False])
    cells, both = ["maybe;no", "junk", "other"], base.Target(names, task=base.MULTI_LABEL)
    targets, known = MultiLabel().parse(cells, both, changes)
    assert (targets.tolist(), known.tolist()) == ([[1, 1], [0, 0], [0, 0]], [True, True, False])


def test_lists_of_a_hub_dataset_are_labels(tmp_path, hub):
    kinds = datasets.List(datasets.ClassLabel(names=LISTED))
    features = datasets.Features({"text": datasets.Value("string"), "labels": kinds})
    rows = [{"text": text, "labels": [*filter(None, labels.split(";"))]} for text, labels in
            labelled_rows(60)]  # fmt: skip
    datasets.Dataset.from_list(rows, features=features).to_parquet(tmp_path / "train.parquet")
    files = {"train.parquet": (tmp_path / "train.parquet").read_bytes()}
    hub.add_repo("ada/stories", "dataset", files)
    loaded = splits.load_pairs(RunConfig(dataset="ada/stories"), tmp_path)
    assert loaded.target.task == base.MULTI_LABEL
    assert list(loaded.target.names) == LISTED


FUNCTIONS = {base.SINGLE_LABEL: "softmax", base.REGRESSION: "none", base.MULTI_LABEL: "sigmoid"}


@pytest.mark.parametrize("kind", toy_runs.KINDS)
def test_a_model_answers_alike_by_itself(kind, trained, tmp_path):
    """As transformers loads it, as a `CrossEncoder` reads it, and as its run was evaluated."""
    run = toy_runs.runs_by_name(trained.store(tmp_path / "runs"))[kind]
    state = run.state()
    target, study = state.prepared.target, report.evaluate_run(run, state)
    for name, score in study.analysis.scores.items():
        assert score.value == pytest.approx(state.best.metrics[name], abs=1e-6)
        assert score.low <= score.value <= score.high
    assert all(measured for measured in state.baselines.values())
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run.best)
    ask = transformers.pipeline(
        "text-classification", top_k=None, function_to_apply=FUNCTIONS[target.task], model=model,
        tokenizer=transformers.AutoTokenizer.from_pretrained(run.best),
    )  # fmt: skip
    rows = study.table.to_pylist()[:20]
    inputs = [
        {"text": row["sentence1"]} | ({"text_pair": row["sentence2"]} if "sentence2" in row else {})
        for row in rows
    ]
    logits = saved_predictions.read_logits(run, state.best.step, target).logits[:20]
    answers = task_of(target).answers(logits, target)
    expected = answers.probabilities if target.names else answers.values[:, None]
    for row, values in zip(ask(inputs), expected.tolist(), strict=True):
        found = {one["label"]: one["score"] for one in row}
        names = target.names or tuple(model.config.id2label.values())
        assert found == pytest.approx(dict(zip(names, values, strict=True)), abs=2e-3)
    assert Scorer(run.best, 32).target == target
    if target.task == base.REGRESSION:  # no sigmoid behind the only output
        activation = {"activation_fn": "torch.nn.modules.linear.Identity"}
        assert model.config.sentence_transformers == activation
        margin = conformal_margin(study.answers - study.truth)
        assert decision_rule.read_rule(run.best).margin == pytest.approx(margin, rel=1e-5)


def test_a_file_with_a_column_for_each_label_is_measured_as_one_with_lists(trained, tmp_path):
    """A row whose cells say neither yes nor no is left out."""
    run = toy_runs.runs_by_name(trained.store(tmp_path / "runs"))[toy_runs.LABELS]
    given, names = labelled_rows(24, 2), " | ".join(LISTED)
    marks = [(text, *(int(name in cell.split(";")) for name in LISTED)) for text, cell in given]
    rows = [("text", *LISTED), *marks, (given[0][0], "likes", 0, 1)]
    file = write_csv(tmp_path / "columns.csv", [tuple(map(str, row)) for row in rows])
    columns = ColumnNames("text", "", names)
    request = PredictionRequest(run.id, file.name, "")
    asked = file_request.check_columns(request, file, columns, run.config())
    assert (asked.sentence1, asked.label) == ("text", names)
    by_columns, _whole = files.predict_file(run, asked, file, tmp_path / "out.csv")
    file = write_csv(tmp_path / "lists.csv", [("sentence1", "label"), *given])
    by_lists = judged(run, file, tmp_path / "out.csv", ColumnNames("sentence1", "", "label"))
    assert by_columns["scores"] == by_lists["scores"]
    assert (by_columns["labelled"], by_columns["unknown_labels"]) == (len(given), 1)


# Of a task the columns, the rows, the number of outputs and the metric that chooses.
TASKS = {
    base.REGRESSION: ("sentence1,sentence2,score", graded_rows, 1, "pearson"),
    base.MULTI_LABEL: ("text,labels", labelled_rows, 3, "micro_f1"),
}


@pytest.mark.parametrize("task", TASKS)
def test_it_trains_as_the_courses_loop_does(task, toy_config, still_checkpoint, tmp_path):
    head, rows, outputs, metric = TASKS[task]
    pairs = uploads.pairs(tmp_path, head, train=rows(64), validation=rows(24, 1))
    config = toy_config.changed(checkpoint=str(still_checkpoint), metric_for_best_model=metric)
    happened, model = fit(config, pairs)
    expected, logits, weights = course.train(
        str(still_checkpoint), pairs.splits, num_labels=outputs, problem_type=task,
        ignore_mismatched_sizes=True,
    )  # fmt: skip
    assert losses(happened) == pytest.approx(expected, abs=1e-5)
    for name, value in model.state_dict().items():
        assert torch.allclose(value, weights[name], atol=1e-5), name
    truth, final = np.array(pairs.splits["validation"]["label"]), evaluations(happened)[-1].metrics
    if task == base.REGRESSION:
        answers = logits[:, 0]
        metrics = {
            "pearson": scipy.stats.pearsonr(answers, truth).statistic,
            "spearmanr": scipy.stats.spearmanr(answers, truth).statistic,
            "mae": np.abs(answers - truth).mean(), "rmse": np.sqrt(((answers - truth) ** 2).mean()),
            "loss": ((answers - truth) ** 2).mean(),
        }  # fmt: skip
    else:
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        off = (logits > 0) != (truth > 0)
        metrics = {
            "hamming_loss": off.mean(),
            "subset_accuracy": (~off).all(axis=1).mean(),
            "loss": float(loss(torch.tensor(logits), torch.tensor(truth))),
        }
    assert {name: final[name] for name in metrics} == pytest.approx(metrics, abs=1e-4)
