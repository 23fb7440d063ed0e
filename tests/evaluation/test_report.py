"""What saved logits say: of ordinary runs, of those with hardly anything to say, of slices; and one
advice after a run."""

from dataclasses import replace
from pathlib import Path

import gradio as gr
import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import fisher_exact
from statsmodels.stats.multitest import multipletests

from finetune.config import RunConfig
from finetune.evaluation import examples, report, saved_predictions, slices
from finetune.evaluation.advice import advise
from finetune.evaluation.report import Verdict
from finetune.evaluation.slices import Traits
from finetune.metrics.catalog import ACCURACY, F1
from finetune.metrics.intervals import Interval
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.summary import JobState, RunSummary
from finetune.tasks.base import REGRESSION, DecisionRule, Target
from finetune.ui import evaluation_view
from finetune.ui.tabs.evaluate import Evaluation
from tests.support.made_runs import scored, sure

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def texts(labels, paired=True):
    size = len(labels)
    columns = {"sentence1": [f"The cat {n} sat down." for n in range(size)]}
    if paired:
        columns["sentence2"] = [f"A cat did not sit {n % 3} times." for n in range(size)]
    return pa.table({**columns, "label": labels})


def study_of(store, logits, labels, *extra):
    """The evaluation of a run that was evaluated once."""
    return report.evaluate_run(*scored(store, {1: logits}, labels, 1, *extra))


def test_examples_are_found_by_what_is_asked(store):
    labels = [0, 1, 0, 1, 1]
    logits = np.array([[1, 0], [4, 0], [0, 2], [0, 3], [1, 0]], np.float32)
    run, summary = scored(store, {1: logits}, labels, 1)
    saved_predictions.save_examples(run, "validation", texts(labels))
    study = report.evaluate_run(run, summary)
    # The surest first.
    asked = [
        ([1, 2, 4], (), {}), ([1, 4], ("wrong",), {"label": "yes"}), ([3, 0], ("right",), {}),
        ([3], ("all",), {"search": "CAT 3"}), ([1, 3, 2, 0, 4], ("all",), {}),
    ]  # fmt: skip
    for expected, filters, named in asked:
        assert examples.select_examples(study, *filters, **named).tolist() == expected


def test_two_runs_on_the_same_pairs_are_compared(store):
    labels = [0, 1] * 20
    first, second = study_of(store, sure([0] * 40), labels), study_of(store, sure(labels), labels)
    comparison = report.compare_runs(first, second, [ACCURACY, F1])
    assert comparison.difference["accuracy"].value == pytest.approx(-0.5)
    assert (comparison.first_only, comparison.second_only) == (0, 20)
    assert comparison.p == pytest.approx(2 * 0.5**20)
    assert comparison.disagreements == list(range(1, 40, 2))
    assert not comparison.is_better(F1)
    better = report.compare_runs(second, first, [F1])
    assert better.is_better(F1)
    third = study_of(store, sure(labels[:30]), labels[:30])
    assert report.compare_runs(first, third, [F1]) is None


def test_a_verdict_has_the_gain_the_errors_and_a_better_threshold(store):
    """Ten of the twenty positives are called negative, by a little."""
    labels = [0] * 20 + [1] * 20
    logits = sure([*[0] * 30, *[1] * 10])
    logits[20:30] = [0.2, 0]
    run, summary = scored(store, {1: logits}, labels, 1)
    summary.baselines = {"a": {"f1": 0.6}, "b": {"f1": 0.5, "accuracy": 0.9}}
    verdict = report.run_verdict(run, summary)
    assert (verdict.baseline, verdict.errors, verdict.examples) == ("a", 10, 40)
    assert verdict.gain.value == pytest.approx(verdict.score.value - 0.6)
    assert verdict.better_threshold.f1.value == 1.0 > verdict.score.value
    threshold = verdict.better_threshold.threshold
    assert 1 / (1 + np.exp(2)) < threshold < 1 / (1 + np.exp(0.2))


@pytest.mark.parametrize(
    ("labels", "logits", "classes"),
    [
        ([0], np.ones((1, 2)), 2),
        ([0, 1] * 5, np.full((10, 2), np.nan), 2),
        ([0, 1] * 100, np.where(np.eye(200, 2) > 0, np.inf, -np.inf), 2),
        ([0] * 12, np.ones((12, 1)), 1),
        (list(range(1000)), sure([n % 7 for n in range(1000)], 1000), 1000),
        ([2] * 30, sure([2] * 30, 3), 3),
    ],
    ids=["one", "NaN", "infinite", "a single class", "1000 classes", "one of three"],
)
def test_hardly_anything_to_say_is_shown_sensibly(store, labels, logits, classes):
    names = tuple(f"<b>{n}</b>" for n in range(classes))
    run, summary = scored(store, {1: logits.astype(np.float32)}, labels, 1, names)
    saved_predictions.save_examples(run, "validation", texts(labels, paired=classes != 3))
    study = report.evaluate_run(run, summary)
    measured = RunSummary(baselines={"always the commonest answer": {"f1": 0.5}})
    rule, job = DecisionRule(0.4, 1.2, "b"), JobState("none")
    text = evaluation_view.view(study, measured, rule, job) + errors(store, run, "all")
    assert "nan" not in text.lower().replace("nano", "")
    assert "<b>0</b>" not in text  # names are escaped
    assert len(text) < 400_000
    assert study.analysis.examples == len(labels)
    assert ("are no numbers" in text) == (not np.isfinite(logits).all())


def test_labels_that_were_always_contradicted_are_suspected_and_can_be_corrected(store):
    """The fourth is surely the other, or as the model has it; the first is below nine in ten."""
    labels = [1, 1, 0, 1]
    for fourth, suspects in (([9, 0], [3]), ([0, 4], [])):
        logits = np.array([[2, 0], [0.5, 0], [3, 0], fourth], np.float32)
        run, summary = scored(store, {1: logits, 2: logits}, labels, 2)
        saved_predictions.save_examples(run, "validation", texts(labels))
        study = report.evaluate_run(run, summary)
        assert study.suspected_labels.tolist() == suspects
        assert examples.select_examples(study, "suspected labels").tolist() == suspects
        table = errors(store, run, "suspected labels")
        assert ("<select data-row=" in table) == bool(suspects)


def errors(store, run, which):
    """The table of examples as the page draws it."""
    tab = Evaluation(store)
    with gr.Blocks():
        tab.draw_choice(None)
        tab.draw(lambda: None)
    view = {"opened": run.id}
    return str(tab.on_filter(None, view, which, "", "")[tab.table])


def test_the_range_of_the_training_scores_makes_no_other_pairs():
    def answered(truth, low=0.0):
        target = Target((), task=REGRESSION, low=low, high=5.0)
        return report.KeptAnswers(Run(Path()), target, truth, None, truth)

    truth = np.arange(4.0)
    assert report.same_pairs(answered(truth), answered(truth, 1.0))
    assert not report.same_pairs(answered(truth), answered(truth + 1, 1.0))
    other = replace(answered(truth), target=Target(("a", "b")))
    assert not report.same_pairs(answered(truth), other)


FINISHED = events.Finished(step=40, seconds=1)


def summary_of(scores, metric="f1", end=FINISHED, every=10):
    """A run of four epochs of ten steps, evaluated at its end and regularly before."""
    steps = range(40 - every * (len(scores) - 1), 41, every)
    stream = [
        events.Prepared(
            train_examples=80, validation_examples=100, steps_per_epoch=10, total_steps=40,
            labels=["no", "yes"], parameters=1, precision="no",
        )
    ]  # fmt: skip
    best = None
    for step, score in zip(steps, scores, strict=True):
        better = best is None or (score < best if metric == "loss" else score > best)
        best = score if better else best
        stream.append(
            events.Evaluated(
                step=step, epoch=step / 10, metrics={metric: score}, seconds=1, best=better
            )
        )
        stream += [events.Saved(step=step)] if better else []
    return RunSummary().fold([*stream, end])


def verdict(errors=30, gain=0.1, always=None):
    """Of a model of F1 0.9, give or take 0.04."""
    around = None if gain is None else Interval(gain, gain - 0.05, gain + 0.05)
    score = Interval(0.9, 0.86, 0.94)
    return Verdict("F1", score, "TF-IDF", 0.5, around, always, errors, 100, None, None)


LONGER, SEED = {"num_train_epochs": 8}, {"seed": 43}


@pytest.mark.parametrize(
    ("scores", "judged", "kind", "changes"),
    [
        ([0.6, 0.7, 0.8, 0.9], {}, "longer", LONGER),
        ([0.6, 0.9, 0.8, 0.7], {}, "falls", {"num_train_epochs": 2}),
        ([0.6, 0.9, 0.9, 0.9], {}, "level", SEED),  # the first of equals is kept
        ([0.6, 0.9, 0.89, 0.885], {}, "level", SEED),  # no more than chance
        ([0.6, 0.9, 0.7, 0.89], {}, "level", SEED),  # it came back
        ([0.9], {}, "once", {"eval_steps": 4}),
        ([0.6, 1.0, 1.0, 1.0], {"errors": 0}, "perfect", SEED),
        ([0.6, 0.7, 0.8, 0.9], {"gain": -0.1}, "below", LONGER),
        ([0.6, 0.9, 0.8, 0.7], {"gain": -0.1}, "below", {}),
        ([0.6, 0.6, 0.6, 0.6], {"always": "yes"}, "below", {"class_weights": "balanced"}),
        ([0.6, 0.7, 0.8, 0.9], {"gain": -0.04}, "longer", LONGER),  # not surely below
    ],
)
def test_the_advice_follows_from_the_curve(scores, judged, kind, changes):
    advice = advise(summary_of(scores), RunConfig(), verdict(**judged))
    assert (advice.kind, advice.changes) == (kind, changes)
    assert (advice.last_step, advice.seeds) == (40, 3 if changes == SEED else 1)


def test_no_other_seeds_are_advised_if_counting_words_makes_no_error_either():
    words = {"counting words (TF-IDF)": {"accuracy": 1.0, "f1": 1.0}}
    summary = summary_of([0.6, 1.0, 1.0]).fold([events.BaselinesMeasured(baselines=words)])
    for errors, kind, action in ((0, "needless", "try"), (30, "level", "errors")):
        advice = advise(summary, RunConfig(), verdict(errors=errors))
        assert (advice.kind, advice.action, advice.seeds) == (kind, action, 1)


def test_a_loss_is_better_the_lower_and_a_run_without_its_end_is_resumed():
    config = RunConfig(metric_for_best_model="loss", max_steps=40)
    for losses, kind, steps in (
        ([0.9, 0.7, 0.5, 0.4], "longer", 80), ([0.9, 0.4, 0.5, 0.7], "falls", 20),
    ):  # fmt: skip
        advice = advise(summary_of(losses, "loss"), config, verdict())
        assert (advice.kind, advice.changes) == (kind, {"max_steps": steps})
    failed, training = events.Failed(error="x"), events.PhaseStarted(phase=events.Phase.TRAIN)
    for end in (events.Stopped(step=40, seconds=1), failed, training):
        advice = advise(summary_of([0.6, 0.7, 0.8, 0.9], end=end), RunConfig(), verdict())
        assert (advice.kind, advice.changes) == ("resume", {})


@pytest.mark.parametrize(
    ("trait", "first", "second", "value"),
    [
        ("words", "The cat sat on 12 mats .", "the cat did n't sit", 6 + 6),
        ("overlap", "a a b", "b", 0.5), ("overlap", "", "", 0),
        ("overlap", "naïve café", "NAÏVE CAFÉ", 1),
        ("overlap", "我们去北京。", "我们在北京，Hello世界", 4 / 9),  # a character is a word
        ("number", "It costs $ 5", "", True), ("number", "eighty-one", "", True),
        ("number", "the tenor", "", False), ("number_differs", "1,000 of 3", "3 of 1000", False),
        ("number_differs", "5 %", "5.5 %", True), ("number_differs", "two", "three", False),
        ("negation", "NEVER", "", True), ("negation", "did n't", "", True),
        ("negation", "didn’t", "", True), ("negation", "a notable knot", "", False),
        ("negation_differs", "didn't", "yes", True), ("negation_differs", "no", "never", False),
    ],
)  # fmt: skip
def test_a_trait_of_a_pair_is_read(trait, first, second, value):
    assert getattr(slices.pair_traits([first], [second]), trait)[0] == value


def test_a_slice_is_weak_by_fishers_test_after_holm():
    """As libraries have it that compute both."""
    random, weak = np.random.default_rng(6), 0
    for seed in range(4):
        draw = np.random.default_rng(seed)  # as of a set of pairs of news
        number, negation = draw.random(300) < 0.6, draw.random(300) < 0.2
        traits = Traits(
            words=draw.integers(18, 62, size=300), overlap=draw.beta(5, 5, size=300).round(2),
            number=number, number_differs=number & (draw.random(300) < 0.5),
            negation=negation, negation_differs=negation & (draw.random(300) < 0.4),
        )  # fmt: skip
        right = random.random(300) < np.where(traits.negation, 0.7, 0.88)
        answers = np.where(right, 0.0, 1.0)
        parts = slices.score_slices(traits, np.arange(300) % 2, answers, ["no", "yes"])
        p_values = []
        for part in parts:
            hits = round(part.result.value * part.count)
            table = [[hits, part.count - hits], [right.sum() - hits, 0]]
            table[1][1] = 300 - part.count - table[1][0]
            p_values.append(fisher_exact(table, alternative="less").pvalue)
        judgements = multipletests(p_values, alpha=0.05, method="holm")[0]
        assert [part.weak for part in parts] == judgements.tolist()
        weak += judgements.any()
    assert 0 < weak < 4
