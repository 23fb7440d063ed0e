"""What saved logits say: of ordinary runs, and of those with hardly anything to say."""

from __future__ import annotations

import warnings
from typing import Any

import gradio as gr
import numpy as np
import pyarrow as pa
import pytest
from sklearn import metrics as sk

from finetune.config import RunConfig
from finetune.errors import StoreError
from finetune.evaluation import examples, report, saved_predictions
from finetune.evaluation.report import HISTORIES, RunEvaluation
from finetune.evaluation.saved_predictions import SavedLogits, SwappedLogits
from finetune.inference.decision_rule import DecisionRule
from finetune.jobs import service
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary
from finetune.ui import evaluation_view
from finetune.ui.tabs.evaluate import Evaluation


def sure(answers: list[int], classes: int = 2, by: float = 2.0) -> np.ndarray:
    logits = np.zeros((len(answers), classes), np.float32)
    logits[np.arange(len(answers)), answers] = by
    return logits


def texts(labels: Any, paired: bool = True) -> pa.Table:
    size = len(labels)
    columns: dict[str, Any] = {"sentence1": [f"The cat {n} sat down." for n in range(size)]}
    if paired:
        columns["sentence2"] = [f"A cat did not sit {n % 3} times." for n in range(size)]
    return pa.table({**columns, "label": labels})


def evaluated(store: RunStore, steps: dict[int, np.ndarray], labels: list[int], best: int,
              names: tuple[str, ...] = ("no", "yes")) -> tuple[Run, RunSummary]:  # fmt: skip
    """A run with the saved logits of some evaluations."""
    run = store.create(RunConfig())
    run.append(events.Started(device="CPU"))
    run.append(
        events.Prepared(
            train_examples=9, validation_examples=len(labels), steps_per_epoch=1, total_steps=9,
            labels=list(names), parameters=1, precision="no",
            data={"positive_label": names[-1], "columns": {"sentence2": "b"}, "rows": {}},
        )
    )  # fmt: skip
    for step, logits in steps.items():
        saved_predictions.save_logits(run, step, logits, np.array(labels))
        scores = {"accuracy": 0.5, "f1": 0.5}
        run.append(
            events.Evaluated(step=step, epoch=1.0, metrics=scores, seconds=1, best=step <= best)
        )
    return run, service.run_summary(store, run)


def test_the_figures_are_those_of_independent_code(store: RunStore) -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 300)
    logits = draw.normal(0, 1, (300, 2)).astype(np.float32)
    logits[np.arange(300), labels] += 1.0
    run, summary = evaluated(store, {5: logits}, labels.tolist(), 5)
    found = report.evaluate_run(run, summary).analysis
    answers, score = logits.argmax(1), np.exp(logits[:, 1]) / np.exp(logits).sum(1)
    assert found.scores["accuracy"].value == pytest.approx(sk.accuracy_score(labels, answers))
    assert found.scores["f1"].value == pytest.approx(sk.f1_score(labels, answers))
    assert found.matthews == pytest.approx(sk.matthews_corrcoef(labels, answers))
    np.testing.assert_array_equal(found.confusion, sk.confusion_matrix(labels, answers))
    assert found.roc is not None
    assert found.roc.area == pytest.approx(sk.roc_auc_score(labels, score))
    assert found.precision_recall is not None
    assert found.precision_recall.area == pytest.approx(sk.average_precision_score(labels, score))
    assert found.classes[0].precision == pytest.approx(
        sk.precision_score(labels, answers, pos_label=0)
    )


def test_how_each_example_went(store: RunStore) -> None:
    """Right, wrong: over three evaluations; the second is kept, the last counts as well."""
    labels = [1, 1, 1, 1, 1]
    first, second = sure([1, 0, 1, 0, 0]), sure([1, 1, 0, 0, 0])
    third = sure([1, 0, 1, 1, 0])
    run, summary = evaluated(store, {1: first, 2: second, 3: third}, labels, 2)
    study = report.evaluate_run(run, summary)
    assert [HISTORIES[n] for n in study.history] == [
        "always right", "forgotten", "learned", "learned", "never learned",
    ]  # fmt: skip
    assert study.analysis.histories == {
        "always right": 1, "learned": 2, "forgotten": 1, "never learned": 1,
    }  # fmt: skip
    assert study.analysis.evaluations == 3


def test_labels_that_were_always_contradicted_are_suspected(store: RunStore) -> None:
    labels = [1, 1, 0, 1]
    doubted = np.array([[2, 0], [0.5, 0], [3, 0], [9, 0]], np.float32)
    run, summary = evaluated(store, {1: doubted, 2: doubted}, labels, 2)
    study = report.evaluate_run(run, summary)
    assert study.suspects.tolist() == [3]  # surely the other; the first is below nine in ten
    assert examples.select_examples(study, "suspected labels").tolist() == [3]


def test_examples_are_found_by_what_is_asked(store: RunStore) -> None:
    labels = [0, 1, 0, 1, 1]
    logits = np.array([[1, 0], [4, 0], [0, 2], [0, 3], [1, 0]], np.float32)
    run, summary = evaluated(store, {1: logits}, labels, 1)
    saved_predictions.save_examples(run, "validation", texts(labels))
    study = report.evaluate_run(run, summary)
    assert examples.select_examples(study).tolist() == [1, 2, 4]  # the surest first
    assert examples.select_examples(study, "wrong", label="yes").tolist() == [1, 4]
    assert examples.select_examples(study, "right").tolist() == [3, 0]
    assert examples.select_examples(study, "all", search="CAT 3").tolist() == [3]
    assert examples.select_examples(study, "all", by="row").tolist() == [0, 1, 2, 3, 4]
    assert examples.select_examples(study, "all", history="always right", by="row").tolist() == [
        0,
        3,
    ]
    assert examples.select_examples(study, "all", search="zebra").tolist() == []
    one = examples.example_rows(study, [1])[0]
    assert (one.label, one.answer, one.sentence1) == ("yes", "no", "The cat 1 sat down.")
    assert one.confidence == pytest.approx(1 / (1 + np.exp(-4)))
    assert one.words == 12


def test_order_says_what_flips(store: RunStore) -> None:
    labels = [0, 1, 1, 0]
    run, summary = evaluated(store, {1: sure(labels)}, labels, 1)
    other = sure([0, 0, 1, 0])
    saved_predictions.save_swapped_logits(run, SwappedLogits(1, np.arange(4), sure(labels), other))
    found = report.evaluate_run(run, summary).analysis.order
    assert found is not None
    assert (found.pairs, found.flips, found.worst[0]) == (4, 1, 1)
    probability = np.exp(2) / (1 + np.exp(2))
    assert found.difference == pytest.approx((2 * probability - 1) / 4, abs=1e-6)
    assert found.plain["accuracy"] == 1.0
    saved_predictions.save_swapped_logits(
        run, SwappedLogits(99, np.arange(4), other, other)
    )  # of another model
    assert report.evaluate_run(run, summary).analysis.order is None


def test_two_runs_on_the_same_pairs_are_compared(store: RunStore) -> None:
    labels = [0, 1] * 20
    right, wrong = sure(labels), sure([0] * 40)
    first = report.evaluate_run(*evaluated(store, {1: wrong}, labels, 1))
    second = report.evaluate_run(*evaluated(store, {1: right}, labels, 1))
    found = report.compare_runs(first, second)
    assert found is not None
    assert found is report.compare_runs(first, second)
    assert found.difference["accuracy"].value == pytest.approx(0.5)
    assert (found.mcnemar.first_only, found.mcnemar.second_only) == (0, 20)
    assert found.mcnemar.p == pytest.approx(2 * 0.5**20)
    assert found.disagreements == list(range(1, 40, 2))
    assert "B and A differ by more than chance" in evaluation_view.versus(first, second, found)
    same = report.compare_runs(first, first)
    assert "the same answer on each of the" in evaluation_view.versus(first, first, same)
    third = report.evaluate_run(*evaluated(store, {1: right[:30]}, labels[:30], 1))
    assert report.compare_runs(first, third) is None
    assert "different pairs" in evaluation_view.versus(first, third, None)


def test_it_is_computed_anew_only_when_something_changed(store: RunStore) -> None:
    run, summary = evaluated(store, {1: sure([0, 1])}, [0, 1], 1)
    first = report.evaluate_run(run, summary)
    assert report.evaluate_run(run, summary) is first
    saved_predictions.save_examples(run, "validation", texts([0, 1]))
    assert report.evaluate_run(run, summary) is not first


def test_texts_of_other_pairs_are_not_shown(store: RunStore) -> None:
    run, summary = evaluated(store, {1: sure([0, 1])}, [0, 1], 1)
    saved_predictions.save_examples(run, "validation", texts([1, 1]))
    assert report.evaluate_run(run, summary).table is None


def test_nothing_evaluated_is_said(store: RunStore) -> None:
    run = store.create(RunConfig())
    with pytest.raises(StoreError, match="Nothing was evaluated yet"):
        report.evaluate_run(run, service.run_summary(store, run))


def drawn(study: RunEvaluation) -> str:
    """Everything the page shows of it."""
    summary = RunSummary(baselines={"majority class": {"f1": 0.5, "accuracy": 0.5}})
    text = evaluation_view.view(study, summary, DecisionRule(0.4, 1.2, "yes"))
    rows = examples.select_examples(study, "all")
    return text + evaluation_view.examples(
        examples.example_rows(study, rows[:20].tolist()),
        len(rows),
        0,
        study.analysis.labels,
        {},
        True,
    )


@pytest.mark.parametrize(
    ("labels", "logits", "classes"),
    [
        ([0], np.ones((1, 2)), 2),
        ([1] * 10, np.ones((10, 2)), 2),
        ([0, 1] * 5, sure([0, 1] * 5), 2),
        ([0, 1] * 5, np.full((10, 2), np.nan), 2),
        ([0, 1] * 100, np.where(np.eye(200, 2) > 0, np.inf, -np.inf), 2),
        ([0, 1] * 100, np.full((200, 2), 1e30), 2),
        ([0] * 12, np.ones((12, 1)), 1),
        (list(range(1000)), sure([n % 7 for n in range(1000)], 1000), 1000),
        ([2] * 30, sure([2] * 30, 3), 3),
    ],
    ids=["one", "one class", "ten", "NaN", "infinite", "huge", "a single class", "1000 classes",
         "one of three"],
)  # fmt: skip
def test_hardly_anything_to_say_is_shown_sensibly(
    store: RunStore, labels: list[int], logits: np.ndarray, classes: int
) -> None:
    names = tuple(f"<b>{n}</b>" for n in range(classes))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run, summary = evaluated(store, {1: logits.astype(np.float32)}, labels, 1, names)
        saved_predictions.save_examples(run, "validation", texts(labels, paired=classes != 3))
        study = report.evaluate_run(run, summary)
        text = drawn(study)
    assert "nan" not in text.lower().replace("nano", "")
    assert "<b>0</b>" not in text  # names are escaped
    assert len(text) < 400_000
    assert study.analysis.examples == len(labels)
    if not np.isfinite(logits).all():
        assert "are no numbers" in text


def test_a_better_model_is_called_better_only_when_that_is_sure() -> None:
    labels = [0, 1] * 100
    answers = [*labels[:160], *(1 - n for n in labels[160:])]
    scored = SavedLogits(1, sure(answers), np.array(labels))
    study = report.compute_evaluation(scored, ["no", "yes"], 1)
    assert "Better than the baselines" in evaluation_view.sentence(
        study.analysis, {"a": {"f1": 0.6}}
    )
    assert "Not surely better" in evaluation_view.sentence(study.analysis, {"a": {"f1": 0.79}})
    assert "Worse than a baseline" in evaluation_view.sentence(study.analysis, {"a": {"f1": 0.95}})
    assert "no baseline" in evaluation_view.sentence(study.analysis, {})


def confused(counts: list[list[int]]) -> RunEvaluation:
    """A study whose confusion matrix is this; the classes are a, b, c, ..."""
    cells = [(true, said) for true, row in enumerate(counts) for said in range(len(row))
             for _ in range(row[said])]  # fmt: skip
    truth, answers = (list(column) for column in zip(*cells, strict=True))
    scored = SavedLogits(1, sure(answers, len(counts)), np.array(truth))
    table = pa.table({"sentence1": ["a cat"] * len(truth), "label": truth})
    return report.compute_evaluation(scored, list("abcdefgh")[: len(counts)], 1, table)


def test_a_class_that_is_missed_is_named_whatever_its_size() -> None:
    good = confused([[40, 2, 0], [3, 50, 0], [1, 2, 0]]).analysis
    assert evaluation_view.missed(good) == {2: True}
    for text in (evaluation_view.weakness(good), evaluation_view.view(
        confused([[40, 2, 0], [3, 50, 0], [1, 2, 0]]), RunSummary(), DecisionRule())):  # fmt: skip
        assert "It never answers c (0 of 3 right)" in text
        assert "No kind of pair is surely worse" not in text
    assert "Too few to judge, fewer than 10: class: c (3)." in evaluation_view.weakness(good)


def test_a_class_below_chance_is_named_and_a_found_one_is_not() -> None:
    worse = confused([[5, 25], [25, 5]]).analysis
    assert evaluation_view.missed(worse) == {0: False, 1: False}
    assert "Worse than chance at a (5 of 30 right), b" in evaluation_view.weakness(worse)
    seldom = confused([[97, 3], [20, 5]]).analysis  # seldom said, but more often where it is true
    assert evaluation_view.missed(seldom) == {}
    fine = confused([[28, 2], [2, 28]]).analysis
    assert evaluation_view.weakness(fine) == "No kind of pair is surely worse than the rest."


def test_many_missed_classes_are_counted() -> None:
    counts = [[4] + [0] * 7 for _ in range(8)]
    assert "and 1 more" in evaluation_view.missed_sentences(confused(counts).analysis)
    always = evaluation_view.view(confused(counts), RunSummary(), DecisionRule())
    assert 'id="missed"' not in always  # the verdict above says it: one answer for all


def test_when_all_kinds_are_small_none_is_judged() -> None:
    text = evaluation_view.weakness(confused([[3, 0], [0, 3]]).analysis)
    assert "No kind of pair has enough examples to be judged." in text
    assert "surely worse" not in text


def test_an_area_below_one_half_is_explained_and_not_called_sure_when_it_is_not() -> None:
    assert evaluation_view.backwards({"a": (0.5, 50), "b": (0.9, 50)}, 100) == ""
    sure_ = evaluation_view.backwards({"a": (0.2, 50)}, 100)
    assert "below 0.5 for a (0.200)" in sure_
    assert "may be swapped" in sure_
    assert "can be chance" in evaluation_view.backwards({"a": (0.47, 10)}, 20)
    assert 'id="backwards"' in evaluation_view.view(
        confused([[2, 28], [28, 2]]), RunSummary(), DecisionRule()
    )
    several = confused([[0, 20, 0], [20, 0, 0], [0, 0, 9]])
    assert "ranks worse than chance" in evaluation_view.view(several, RunSummary(), DecisionRule())


def test_where_no_label_is_suspected_the_nearest_are_offered(store: RunStore) -> None:
    labels = [1, 1, 0, 1]
    logits = np.array([[2, 0], [0.5, 0], [3, 0], [0, 4]], np.float32)
    run, summary = evaluated(store, {1: logits, 2: logits}, labels, 2)
    saved_predictions.save_examples(run, "validation", texts(labels))
    study = report.evaluate_run(run, summary)
    assert study.suspects.tolist() == []
    assert examples.most_doubted_errors(study).tolist() == [
        0,
        1,
    ]  # wrong ones, the most doubted first
    assert examples.most_doubted_errors(study, search="cat 1").tolist() == [1]
    assert examples.most_doubted_errors(study, most=1).tolist() == [0]
    shown = errors(store, run, "suspected labels")
    assert "None is sure; these are the nearest." in shown
    assert shown.index('data-row="0"') < shown.index('data-row="1"')


@pytest.mark.parametrize("which", ["wrong", "right", "all", "suspected labels"])
def test_a_label_can_be_corrected_in_any_view(store: RunStore, which: str) -> None:
    labels = [1, 1, 0, 1]
    doubted = np.array([[2, 0], [0.5, 0], [3, 0], [9, 0]], np.float32)
    run, _ = evaluated(store, {1: doubted, 2: doubted}, labels, 2)
    saved_predictions.save_examples(run, "validation", texts(labels))
    shown = errors(store, run, which)
    assert "<select data-row=" in shown
    assert "None is sure" not in shown


def errors(store: RunStore, run: Run, which: str) -> str:
    """The table of examples as the page draws it."""
    tab = Evaluation(store)
    with gr.Blocks():
        tab.draw(lambda: None)
    view = {"opened": run.id}
    return str(tab.on_filter(None, view, which, "", "", "confidence", "")[tab.table])
