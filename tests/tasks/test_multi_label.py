"""Several labels: read, cut, trained as `Trainer` does, measured, and loaded elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import gradio as gr
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from finetune.config import RunConfig
from finetune.data import checks, splits
from finetune.data.check_report import CheckReport
from finetune.evaluation import abstention, baselines, report, saved_predictions
from finetune.findings import Finding
from finetune.inference import decision_rule, file_request, files
from finetune.inference.file_request import PredictionRequest
from finetune.inference.scorer import Scorer
from finetune.jobs import train
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ColumnNames, JobState
from finetune.tasks.base import MULTI_LABEL, SINGLE_LABEL, DecisionRule, PredictOptions, Target
from finetune.tasks.multi_label import MultiLabel
from finetune.tasks.registry import recognise
from finetune.ui import evaluation_view
from finetune.ui.html import macro
from finetune.ui.tabs.data import column_choices
from finetune.ui.tabs.evaluate import Evaluation
from finetune.uploads import Uploads
from tests.support import tabs, trainer, uploads
from tests.support.graded import LABELS, labelled_rows
from tests.support.hub import LoopbackHub
from tests.support.judging import judged, write_csv
from tests.support.training import evaluations, fit, losses, work_in_this_process

HEAD = "text,labels"
GIVEN = labelled_rows(24, 2)
TARGET = Target(("a", "b"), task=MULTI_LABEL)
CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "22"


@pytest.fixture
def pairs(tmp_path: Path) -> splits.Pairs:
    return uploads.pairs(tmp_path, HEAD, train=labelled_rows(64), validation=labelled_rows(24, 1))


def check(folder: Path, cells: list[str], **values: Any) -> CheckReport:
    rows = [(f"text {n} of many", cell) for n, cell in enumerate(cells)]
    dataset = uploads.upload(folder, HEAD, rows, rows[: len(rows) // 2], ())
    return checks.check_pairs(RunConfig(dataset=dataset).changed(**values), folder)


def found(checked: CheckReport, kind: str) -> Finding | None:
    return next((finding for finding in checked.findings if finding.kind == kind), None)


# 1. Reading


@pytest.mark.parametrize(
    "cell",
    ["['a", "[['a']]", "[[1, 2]]", "{'a': 'b', 'c': 'd'}", "[0.5, 0.5]"],
)
def test_what_is_no_list_is_not_read_as_one(tmp_path: Path, cell: str) -> None:
    checked = check(tmp_path, ["['a', 'b']", "['b']", cell] * 8)
    assert checked.labels == ["a", "b"]
    assert checked.splits[0].left_out == {"the label is left out or cannot be read": 8}


@pytest.mark.parametrize(
    ("cells", "task"),
    [
        (["billing;urgent", "billing", "urgent", "late;urgent", "late"], MULTI_LABEL),
        (["['a', 'b']", "['a']", "[]"], MULTI_LABEL),
        (['["a", "b"]', '["b"]'], MULTI_LABEL),
        ([["a"], ["b"], []], SINGLE_LABEL),
        ([["a", "b"], ["b"], []], MULTI_LABEL),
        (["spam", "ham"], SINGLE_LABEL),
        (["yes, please", "no, thanks", "maybe"], SINGLE_LABEL),
        (["[a]", "b"], SINGLE_LABEL),
        ([], SINGLE_LABEL),
    ],
)
def test_several_labels_are_recognised(cells: list[Any], task: str) -> None:
    assert recognise(cells).name == task


def test_the_check_says_how_cells_are_read_and_what_is_rare(tmp_path: Path) -> None:
    cells = ["a;b", "b", "", "A", "a; b"] * 12 + ["a;once"]
    checked = check(tmp_path, cells)
    assert not checked.blocked
    assert (checked.task, checked.labels) == (MULTI_LABEL, ["a", "b", "once"])
    assert checked.splits[0].classes == [37, 36, 1]
    assert checked.splits[0].left_out == {}
    read = found(checked, "several-labels")
    assert read is not None
    assert "';'" in read.action
    assert {remedy.field for remedy in read.remedies} == {"task"}
    rare = found(checked, "rare-labels")
    assert rare is not None
    assert "'once' (1)" in rare.title
    missing = found(checked, "missing-labels")
    assert missing is not None
    assert "validation" in missing.title
    without = found(checked, "no-labels")
    assert without is not None
    assert without.count == 12
    merged = check(tmp_path, cells, label_map="once=b")
    assert merged.labels == ["a", "b"]


def test_the_mark_can_be_chosen(tmp_path: Path) -> None:
    cells = ["x, y;z", "z", "x, y", "z;x, y"] * 8
    assert check(tmp_path, cells).labels == ["x, y", "z"]
    chosen = check(tmp_path, cells, label_separator=",")
    answered = found(chosen, "several-labels")
    assert answered is not None
    assert answered.done
    assert chosen.labels == ["x", "y", "y;z", "z", "z;x"]


def test_cells_that_are_no_list_are_named_and_left_out(tmp_path: Path) -> None:
    checked = check(tmp_path, ["['a', 'b']", "['b']", "['a'", "[]"] * 8)
    finding = found(checked, "unreadable-labels")
    assert finding is not None
    assert finding.count == 8 + 4
    assert checked.splits[0].left_out == {"the label is left out or cannot be read": 8}


def test_combinations_can_be_classes_and_one_label_is_none(tmp_path: Path) -> None:
    classes = check(tmp_path, ["a;b", "b", "a", "b;c", "c"] * 8, task=SINGLE_LABEL)
    assert classes.labels == ["a", "a;b", "b", "b;c", "c"]
    asked = found(classes, "several-labels")
    assert asked is not None
    assert [remedy.value for remedy in asked.remedies] == [MULTI_LABEL]
    single = check(tmp_path, ["a", ""] * 8, task=MULTI_LABEL)
    assert [finding.kind for finding in single.blocked] == ["one-label"]


def test_a_cut_split_keeps_each_labels_share(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    shares = np.array([0.5, 0.3, 0.1, 0.02])
    names = np.array(["w", "x", "y", "z"])
    rows = []
    for n in range(1000):
        rows.append((f"text {n}", ";".join(names[draw.random(4) < shares])))
    cut = uploads.pairs(tmp_path, HEAD, train=rows, task=MULTI_LABEL)
    counts = np.array([cut.counts["train"], cut.counts["validation"]])
    assert 90 <= len(cut.splits["validation"]) <= 110
    expected = counts.sum(axis=0) / 10
    assert np.abs(counts[1] - expected).max() <= 3
    assert counts[1][3] >= 1


# 2. Training


def test_it_trains_as_the_trainer_does(
    toy_config: RunConfig, still_checkpoint: Path, pairs: splits.Pairs, tmp_path: Path
) -> None:
    config = toy_config.changed(
        checkpoint=str(still_checkpoint),
        metric_for_best_model="micro_f1",
        decay_biases_and_norms=False,
    )
    happened, model = fit(config, pairs)
    expected, logits, weights = trainer.train(
        str(still_checkpoint), pairs.splits, tmp_path, outputs=3, problem_type=MULTI_LABEL,
        epochs=2, batch_size=8, rate=1e-3, seed=7,
    )  # fmt: skip
    assert losses(happened) == pytest.approx(expected, abs=1e-5)
    for name, value in model.state_dict().items():
        assert torch.allclose(value, weights[name], atol=1e-5), name
    truth = torch.tensor(pairs.splits["validation"]["label"])
    loss = torch.nn.functional.binary_cross_entropy_with_logits(torch.tensor(logits), truth)
    final = evaluations(happened)[-1].metrics
    assert final["loss"] == pytest.approx(float(loss), abs=1e-5)
    off = (logits > 0) != (truth.numpy() > 0)
    assert final["hamming_loss"] == pytest.approx(off.mean())
    assert final["subset_accuracy"] == pytest.approx((~off).all(axis=1).mean())


@pytest.mark.parametrize("values", [{"class_weights": "balanced"}, {"label_smoothing_factor": 0.2}])
def test_weights_and_smoothing_change_the_loss(
    toy_config: RunConfig, pairs: splits.Pairs, values: dict[str, Any]
) -> None:
    config = toy_config.changed(metric_for_best_model="micro_f1", max_steps=2)
    plain, changed = (fit(config.changed(**more), pairs)[0] for more in ({}, values))
    assert losses(plain)[0] != pytest.approx(losses(changed)[0], rel=1e-6)


# 3. Answers


def test_each_label_has_its_threshold() -> None:
    task, logits = MultiLabel(), np.array([[2.0, -1.0], [-2.0, -3.0]], np.float32)
    plain = task.answers(logits, TARGET)
    assert plain.values.tolist() == [[1, 0], [0, 0]]
    assert task.spell(plain.values, TARGET) == ["a", ""]
    rule = DecisionRule(thresholds=(("b", 0.2),))
    kept = task.answers(logits, TARGET, rule)
    assert kept.values.tolist() == [[1, 1], [0, 0]]
    without = task.answers(logits, TARGET, rule, PredictOptions(threshold=False))
    assert without.values.tolist() == plain.values.tolist()
    both = task.answers(logits, TARGET, swapped=-logits)
    assert both.probabilities == pytest.approx(np.full((2, 2), 0.5))
    chance = plain.probability_of(plain.values)
    assert chance == pytest.approx(
        [0.8808 * 0.7311, 0.8808 * 0.9526], abs=1e-4
    )  # of both labels, given and not given


def test_cells_of_another_file_are_read_and_written_alike() -> None:
    task, target = MultiLabel(), Target(("a", "B c", "d"), task=MULTI_LABEL)
    cells = ["a; b C", "", None, "d", "a;x"]
    targets, known = task.parse(cells, target)
    assert known.tolist() == [True, True, True, True, False]
    assert targets[:4].tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]
    answers = task.answers(targets[:4] * 2 - 1, target)
    rows = task.cells(answers, target, DecisionRule())
    assert [row[0] for row in rows] == ["a;B c", "", "", "d"]
    assert len(rows[0]) == len(task.columns(target, DecisionRule())) == 4
    assert task.counted(answers.values, target) == {"a": 1, "B c": 1, "d": 1}
    assert task.errors(answers.values, targets[:4]).tolist() == [0, 0, 0, 0]


def test_cells_of_another_file_may_have_other_marks() -> None:
    names = ("a", "b", "c, d")
    cells = ["a|b", "b;c, d", '["a", "c, d"]', "['b']", "c, d", "a, b", "a;x", "[]"]
    targets, known = MultiLabel().parse(cells, Target(names, task=MULTI_LABEL))
    assert known.tolist() == [True] * 6 + [False, True]
    assert targets[known].tolist() == [
        [1, 1, 0], [0, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0],
    ]  # fmt: skip


@pytest.fixture
def run(store: RunStore, toy_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A finished run of texts with several labels."""
    work_in_this_process(monkeypatch)
    store.root.mkdir()
    dataset = uploads.upload(store.root, HEAD, labelled_rows(96), labelled_rows(48, 1), ())
    made = store.create(toy_config.changed(dataset=dataset, num_train_epochs=4, eval_steps=24))
    train.carry_out_run(made, lambda event: None)
    return made


def test_a_run_of_labels_is_evaluated_and_its_model_loads_anywhere(
    run: Run, store: RunStore
) -> None:
    state = run.state()
    assert state.status == "finished", state
    assert state.prepared is not None
    target = state.prepared.target
    assert (list(target.names), target.task) == (LABELS, MULTI_LABEL)
    # 1. The evaluation
    study = report.evaluate_run(run, state)
    best = state.best
    assert best is not None
    for name, score in study.analysis.scores.items():
        assert score.value == pytest.approx(best.metrics[name], abs=1e-6)
        assert score.low <= score.value <= score.high
    details = study.analysis.details
    assert details.errors == int((~study.right).sum())
    assert details.together.diagonal().tolist() == study.truth.sum(axis=0).tolist()
    for label, own in enumerate(details.labels):
        assert own.support == study.truth[:, label].sum()
        assert own.given == study.answers[:, label].sum()
        assert own.missed + own.wrong == (study.truth != study.answers)[:, label].sum()
    assert details.thresholds is not None
    # 2. The baselines
    assert 0 < state.baselines["always the commonest labels"]["micro_f1"] < 1
    assert state.baselines[baselines.TFIDF]["micro_f1"] > 0
    # 3. A threshold for each label, kept with the model
    levels = tuple(zip(LABELS, details.thresholds.thresholds, strict=True))
    assert evaluation_view.fitted_thresholds(study.analysis) == levels
    bound = abstention.answer_when_sure(run)
    shown = str(evaluation_view.view(study, state, DecisionRule(), JobState("none"), "", bound))
    assert 'id="keep-sure"' in shown
    assert 'data-sure="per_class"' not in shown
    assert 'id="save-thresholds"' in shown
    assert 'id="forget-thresholds"' not in shown
    part = Evaluation(store)
    with gr.Blocks():
        part.draw_choice()
        part.draw(lambda: None)
    for do, saved in (("keep", levels), ("drop", ()), ("keep", levels)):
        click = gr.EventData(None, {"do": do, "run": run.id})
        part.on_choice(tabs.NOBODY, click, {"opened": run.id})
        rule = decision_rule.read_rule(run.best)
        assert rule.thresholds == saved
    assert 'id="forget-thresholds"' in str(
        evaluation_view.view(study, state, rule, JobState("none"))
    )
    kept = report.evaluate_run(run, state)
    scorer = Scorer(run.best, 32)
    assert scorer.target == target
    assert study.table is not None
    texts = study.table.column("sentence1").to_pylist()
    logits = saved_predictions.read_logits(run, best.step, target).logits
    assert scorer.scores(texts, None) == pytest.approx(logits, abs=2e-3)
    answers = MultiLabel().answers(logits, target, DecisionRule(thresholds=levels))
    assert kept.answers.tolist() == answers.values.tolist()
    # 4. A file with a column of 0 and 1 for each label, of which one row says neither
    names = "hears | likes | sees"
    marks = [(text, *(int(name in cell.split(";")) for name in LABELS)) for text, cell in GIVEN]
    rows = [("text", *LABELS), *marks, (GIVEN[0][0], "likes", 0, 1)]
    file = write_csv(run.folder / "columns.csv", [tuple(map(str, row)) for row in rows])
    columns = ColumnNames("text", "", names)
    asked = file_request.check_columns(PredictionRequest(run.id, file.name, ""), file, columns)
    assert (asked.sentence1, asked.label) == ("text", names)
    by_columns, _whole = files.predict_file(run, asked, file, run.folder / "out.csv")
    file = write_csv(run.folder / "lists.csv", [("sentence1", "label"), *GIVEN])
    by_lists = judged(run, file, run.folder / "out.csv", ColumnNames("sentence1", "", "label"))
    assert by_columns["scores"] == by_lists["scores"]
    assert (by_columns["labelled"], by_columns["unknown_labels"]) == (len(GIVEN), 1)
    # 5. The model by itself, as transformers loads it
    ask = pipeline(
        "text-classification",
        top_k=None,
        function_to_apply="sigmoid",
        model=AutoModelForSequenceClassification.from_pretrained(run.best),
        tokenizer=AutoTokenizer.from_pretrained(run.best),
    )
    for text, shares in zip(texts, answers.probabilities.tolist(), strict=True):
        found = {one["label"]: one["score"] for one in ask([text])[0]}
        assert found == pytest.approx(dict(zip(LABELS, shares, strict=True)), abs=1e-4)


@pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside the project")
def test_the_case_with_lists_as_python_writes_them_is_read(tmp_path: Path) -> None:
    dataset = Uploads(tmp_path / "uploads").add({"train": CASES / "ml.csv"})
    loaded = splits.load_pairs(RunConfig(dataset=dataset), tmp_path)
    assert loaded.target.task == MULTI_LABEL
    assert loaded.target.names == ("complaint", "late", "praise")


# 4. Files


@pytest.fixture
def stories() -> list[dict[str, Any]]:
    rows = enumerate(labelled_rows(60))
    return [
        {"story": text, "tags": labels.split(";") if labels else []} for _, (text, labels) in rows
    ]


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_lists_of_typed_files_are_labels(
    tmp_path: Path, stories: list[dict[str, Any]], ending: str
) -> None:
    file = tmp_path / f"stories.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(stories), file)
    else:
        lines = [json.dumps(row) for row in stories]
        file.write_text("\n".join(lines) if ending == "jsonl" else f"[{','.join(lines)}]")
    dataset = Uploads(tmp_path / "uploads").add({"train": file})
    loaded = splits.load_pairs(RunConfig(dataset=dataset), tmp_path)
    assert list(loaded.target.names) == LABELS
    assert loaded.facts["columns"] == {"sentence1": "story", "sentence2": "", "label": "tags"}
    learned = [
        label for split in ("train", "validation") for label in loaded.splits[split]["label"]
    ]
    assert len(learned) == 60
    assert np.sum(learned, axis=0).tolist() == [
        sum(name in row["tags"] for row in stories) for name in LABELS
    ]


def test_lists_of_a_hub_dataset_are_labels(
    tmp_path: Path, stories: list[dict[str, Any]], hub: LoopbackHub
) -> None:
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "labels": datasets.List(datasets.ClassLabel(names=LABELS)),
        }
    )
    made = datasets.Dataset.from_list(
        [{"text": row["story"], "labels": row["tags"]} for row in stories], features=features
    )
    made.to_parquet(tmp_path / "train.parquet")
    hub.add_repo(
        "ada/stories", "dataset", {"train.parquet": (tmp_path / "train.parquet").read_bytes()}
    )
    loaded = splits.load_pairs(RunConfig(dataset="ada/stories"), tmp_path)
    assert loaded.target.task == MULTI_LABEL
    assert list(loaded.target.names) == LABELS


def test_a_column_for_each_label_is_asked_about_and_read(tmp_path: Path) -> None:
    rows: list[uploads.Row] = [
        (text, *(int(name in labels.split(";")) for name in LABELS))
        for text, labels in labelled_rows(60)
    ]
    dataset = uploads.upload(tmp_path, f"text,{','.join(LABELS)}", rows, (), ())
    asked = checks.check_pairs(RunConfig(dataset=dataset), tmp_path)
    together = asked.blocked[0].remedies[0]
    assert (together.field, together.value) == ("label_column", "hears | likes | sees")
    config = RunConfig(dataset=dataset, label_column=str(together.value))
    checked = checks.check_pairs(config, tmp_path)
    assert (checked.task, checked.labels) == (MULTI_LABEL, LABELS)
    assert not checked.blocked
    choices = column_choices(checked)
    assert [value for _, value in choices[2]] == ["", "text", *LABELS, "hears | likes | sees"]
    assert not choices[3]  # no label is the positive one
    note = found(checked, "several-labels")
    assert note is not None
    assert (note.title, note.remedies) == (
        "Each of these columns is a label: hears | likes | sees", []
    )  # fmt: skip
    drawn = str(macro("checks.html", "overview")(checked))
    assert "<option selected>hears | likes | sees</option>" in drawn
    assert "Labels in train" in drawn
    total = np.sum([split.classes for split in checked.splits], axis=0)
    assert total.tolist() == np.sum([row[1:] for row in rows], axis=0).tolist()


def test_a_column_for_a_label_has_0_or_1(tmp_path: Path) -> None:
    rows = [(f"text {n}", n % 2, "maybe" if n == 5 else (n // 2) % 2) for n in range(40)]
    dataset = uploads.upload(tmp_path, "text,a,b", rows, (), ())
    checked = checks.check_pairs(RunConfig(dataset=dataset, label_column="a | b"), tmp_path)
    unread = found(checked, "unreadable-labels")
    assert unread is not None
    assert (unread.rows, unread.examples[0].label) == ({"train": [7]}, "a, maybe")
    wrong = checks.check_pairs(RunConfig(dataset=dataset, label_column="a | c"), tmp_path)
    assert "no column 'a | c'" in wrong.blocked[0].title
