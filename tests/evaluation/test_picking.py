"""What new pairs will show is said wherever a score is that was picked as the best of several."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from finetune.config import Range, RunConfig
from finetune.evaluation import picking, report, saved_predictions
from finetune.hub import model_card
from finetune.metrics.catalog import F1, find, tallied_scores
from finetune.metrics.intervals import Interval
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState
from finetune.search import driver, results
from finetune.search.space import Budget
from finetune.tasks.base import MULTI_LABEL, REGRESSION, DecisionRule, Target
from finetune.tasks.registry import task_of
from finetune.ui import compare_view, evaluation_view, run_view, search_view
from finetune.ui.html import macro
from tests.support.picked_runs import picked_run


def texts(store: RunStore, run: Run) -> dict[str, str]:
    """What the page and the card say of a run."""
    summary = run.state()
    study = report.evaluate_run(run, summary)
    drawn = evaluation_view.view(study, summary, DecisionRule(), JobState("none"))
    return {
        "verdict": str(run_view.verdict(run, summary)),
        "evaluation": str(drawn),
        "card": model_card.card_text(run, summary, "ada/pairs"),
    }


def test_the_best_of_ten_equals_is_said_to_be_worse_on_new_pairs(store: RunStore) -> None:
    run = picked_run(store, 10)
    summary = run.state()
    analysis = report.evaluate_run(run, summary).analysis
    measured, expected = analysis.scores["f1"], analysis.expected["f1"]
    # All are right on the same share of endless pairs; the mean over the evaluations is near it.
    every = [scored.metrics["f1"] for scored in summary.validation]
    assert measured.value == pytest.approx(max(every))
    assert measured.value - np.mean(every) > 0.02
    assert expected.value == pytest.approx(np.mean(every), abs=0.02)
    assert expected.low < measured.low


def test_what_is_said_of_the_best_of_ten_equals_is_what_new_pairs_show(store: RunStore) -> None:
    run = picked_run(store, 10)
    run.append(events.BaselinesMeasured(baselines={"TF-IDF": {"accuracy": 0.6, "f1": 0.6}}))
    summary = run.state()
    analysis = report.evaluate_run(run, summary).analysis
    expected = analysis.expected["f1"]
    verdict = report.run_verdict(run, summary)
    assert verdict.gain is not None
    assert verdict.gain.value == pytest.approx(expected.value - 0.6)
    said = texts(store, run)
    words = f"best of 10 evaluations on these pairs: on new ones expect F1 {expected.value:.3f}"
    assert words in said["verdict"]
    assert words in said["evaluation"]
    assert "expected on new pairs" in said["evaluation"]
    accuracy = analysis.expected["accuracy"].value
    assert f"| this model, expected on new pairs | {accuracy:.4f}" in said["card"]
    assert "picked among 10 evaluations" in said["card"]


@pytest.mark.parametrize(
    ("target", "metric"),
    [
        (Target((), task=REGRESSION, high=5.0), "pearson"),
        (Target(("a", "b", "c"), task=MULTI_LABEL), "micro_f1"),
    ],
)
def test_scores_and_several_labels_are_picked_too(
    store: RunStore, target: Target, metric: str
) -> None:
    """Ten evaluations that differ by chance alone."""
    run, draw = store.create(RunConfig()), np.random.default_rng(0)
    task = task_of(target)
    truth = draw.random((200, 3)).round().astype(np.float32)
    truth = truth if target.names else truth[:, 0]
    run.append(events.Started(device="CPU"))
    run.append(
        events.Prepared(
            train_examples=9, validation_examples=200, steps_per_epoch=1, total_steps=10,
            labels=[*target.names], task=target.task, parameters=1, precision="no",
            data={"low": 0.0, "high": 5.0, "rows": {}},
        )
    )  # fmt: skip
    reached: list[float] = []
    for step in range(1, 11):
        logits = 2 * truth - 1 + draw.normal(size=truth.shape).astype(np.float32)
        logits = logits.reshape(200, -1)
        saved_predictions.save_logits(run, step, logits, truth)
        scores = task.scores(task.plain_answers(logits), truth, target, task.metrics)
        best = scores[metric] > max(reached, default=-1.0)
        reached.append(scores[metric])
        run.append(events.Evaluated(step=step, epoch=1, metrics=scores, seconds=1, best=best))
    picked = picking.run_picking(run, run.state())
    assert picked is not None
    assert picked.bias.keys() == {each.name for each in task.metrics}
    mean, top = float(np.mean(reached)), max(reached)
    expected = picked.expected({metric: top})[metric]
    assert top > expected
    assert expected == pytest.approx(mean, abs=top - mean)
    for name, added in picked.bias.items():
        assert find(name).rank(added) > 0
    said = str(macro("picked.html", "sentence")(Interval(expected, 0.1, 0.9), 10, metric))
    assert f"on new ones expect {metric} {expected:.3f}" in said


def test_nothing_is_said_where_nothing_was_picked(store: RunStore) -> None:
    """After one evaluation, or where the other one was never near."""
    once, twice = picked_run(store, 1), picked_run(store, 2)
    best = twice.state().best
    assert best is not None
    kept = saved_predictions.read_logits(twice, best.step, Target(("no", "yes")))
    saved_predictions.save_logits(twice, 3 - best.step, -kept.logits, kept.labels)
    for run in (once, twice):
        for text in texts(store, run).values():
            assert "expected on new" not in text
    assert "expect" not in str(compare_view.comparison(store, [once.id, twice.id]))


def test_a_card_whose_evaluations_are_gone_says_that_the_model_was_chosen(store: RunStore) -> None:
    run = picked_run(store, 3)
    for path in run.predictions.iterdir():
        path.unlink()
    card = model_card.card_text(run, run.state(), "ada/pairs")
    assert "The model was chosen on them, so the figures flatter it somewhat." in card
    assert "expected on new pairs" not in card


def test_runs_are_compared_without_what_picking_adds_to_each(store: RunStore) -> None:
    many, one = picked_run(store, 20, seed=1), picked_run(store, 1, seed=4)
    studies = [report.evaluate_run(run, run.state()) for run in (many, one)]
    comparison = report.compare_runs(studies[0], studies[1], [F1])
    assert comparison is not None
    plain = studies[0].analysis.scores["f1"].value - studies[1].analysis.scores["f1"].value
    expected = studies[0].analysis.expected["f1"].value
    added = studies[0].analysis.scores["f1"].value - expected
    assert added > 0.02
    assert comparison.difference["f1"].value == pytest.approx(plain - added)
    assert expected < studies[1].analysis.scores["f1"].value < expected + added
    text = str(compare_view.comparison(store, [many.id, one.id]))
    assert "F1, expected on new pairs" in text
    assert text.index(f"{expected:.3f}") > text.index("F1, expected on new pairs")
    # First stands the one of which more is expected.
    one.describe(name="evaluated once")
    assert "A (evaluated once)" in str(compare_view.comparison(store, [many.id, one.id]))


@pytest.mark.parametrize("metric", ["f1", "loss"])
def test_the_best_of_a_search_was_picked_among_all_evaluations_of_all_trials(
    store: RunStore, metric: str
) -> None:
    runs = [picked_run(store, 5, seed, metric_for_best_model=metric) for seed in range(6)]
    rate = {"learning_rate": Range(1e-6, 1e-3, log=True)}
    study = driver.begin_search(store, runs[0].config(), dict(rate), Budget(trials=6))
    rows = []
    for number, run in enumerate(runs):
        run.describe(study=study.id)
        scored = run.state().best
        assert scored is not None
        score = scored.metrics[metric]
        rows.append(results.TrialRow(number, run.id, "finished", {}, score, {1: score}))
    best = results.best_trial(rows, study.minimize)
    assert best is not None
    run = store.get(best.run_id)
    expectation = results.expected_score(store, study, rows, best)
    assert expectation is not None
    assert expectation.candidates == 30
    assert expectation.value is not None
    assert best.score is not None
    alone = report.evaluate_run(run, run.state()).analysis
    if metric == "loss":
        assert expectation.value > best.score
        assert expectation.interval is None
    else:
        assert expectation.value < alone.expected["f1"].value < best.score
        assert expectation.interval is not None
        assert expectation.interval.value == expectation.value
    assert "picked among 30 evaluations" in model_card.card_text(run, run.state(), "ada/best")
    # A trial that was not the best was picked among its own evaluations only.
    worst = store.get(next(row for row in rows if row is not best).run_id)
    text = model_card.card_text(worst, worst.state(), "ada/other")
    assert "picked among 30 evaluations" not in text


def test_a_search_says_what_to_expect_of_its_best_trial(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = picked_run(store, 2)
    rate = {"learning_rate": Range(1e-6, 1e-3, log=True)}
    study = driver.begin_search(store, run.config(), dict(rate), Budget(trials=2))
    rows = [
        results.TrialRow(n, run.id, "finished", {"learning_rate": 1e-4}, 0.8, {}) for n in (0, 1)
    ]
    monkeypatch.setattr(results, "list_trials", lambda *_: rows)
    found = results.Expectation(30, 0.764, Interval(0.764, 0.7, 0.82))
    for expectation, words in (
        (
            found,
            "best of the 30 evaluations of all trials on the validation split: on new pairs "
            "expect F1 0.764 (95% 0.700 to 0.820)",
        ),
        (replace(found, interval=None), "expect F1 0.764."),
        (None, "so the score is a little too good"),
        (replace(found, value=None), ""),
    ):
        monkeypatch.setattr(results, "expected_score", lambda *_, found=expectation: found)
        text = str(search_view.page(store, study.id))
        assert words in text
        assert ("expect" in text) == words.startswith(("best", "expect"))
        assert ("a little too good" in text) == (expectation is None)


def _graded_run(store: RunStore, wrong: slice) -> Run:
    """A run of one evaluation on 200 pairs, wrong on these of them."""
    run = picked_run(store, 1)
    labels = saved_predictions.read_logits(run, 1, Target(("no", "yes"))).labels
    answers = labels.copy()
    answers[wrong] = 1 - answers[wrong]
    saved_predictions.save_logits(run, 1, 4 * np.eye(2, dtype=np.float32)[answers], labels)
    scores = tallied_scores(labels, answers, 2)
    run.append(events.Evaluated(step=1, epoch=1.0, metrics=scores, seconds=1.0, best=True))
    return run


@pytest.mark.parametrize("gone", [False, True])
def test_a_search_compares_its_trials_on_the_same_pairs(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """Trials 0 and 2 score about the same, within the interval of the best one, which is 1. What 1
    gets wrong, 0 gets wrong too, so 0 is surely worse. Nobody knows that without predictions."""
    wrong = [slice(0, 41), slice(0, 30), slice(15, 55), slice(0, 110)]
    runs = [_graded_run(store, which) for which in wrong]
    if gone:
        for run in runs[:1] + runs[2:]:
            (run.predictions / "step-000001.npz").unlink()
    space = {"learning_rate": Range(1e-6, 1e-3, log=True)}
    study = driver.begin_search(store, runs[0].config(), dict(space), Budget(trials=4))
    rows = []
    for number, run in enumerate(runs):
        best = run.state().best
        assert best is not None
        score = best.metrics["f1"]
        values = {"learning_rate": 1e-4}
        rows.append(results.TrialRow(number, run.id, "finished", values, score, {10: score}))
    monkeypatch.setattr(results, "list_trials", lambda *_: rows)
    found = results.within_chance(store, study, rows, rows[1])
    assert found is not None
    assert found.interval.low < min(row.score or 0 for row in rows[:3])
    assert found.trials == ([2, 0] if gone else [2])
    text = " ".join(str(search_view.page(store, study.id)).split())
    said = text.partition('id="chance">')[2].partition("</p>")[0]
    assert f"{found.interval.low:.3f} to {found.interval.high:.3f}" in said
    assert ("the search has found better ones" in said) == gone
    # Without an equal one it says so; without another one it says nothing.
    monkeypatch.setattr(results, "list_trials", lambda *_: [rows[1], rows[3]])
    assert "better than every other finished trial" in str(search_view.page(store, study.id))
    monkeypatch.setattr(results, "list_trials", lambda *_: rows[1:2])
    assert 'id="chance"' not in str(search_view.page(store, study.id))


def test_a_search_for_the_least_error_compares_its_trials_on_the_same_pairs(
    store: RunStore,
) -> None:
    """All that the best trial answers, trial 1 misses by a little more, and trial 2 by about as
    much as the best."""
    draw = np.random.default_rng(0)
    truth = draw.uniform(0, 5, 200).astype(np.float32)
    missed = draw.normal(size=200)
    rows = []
    for number, error in enumerate((missed, 1.2 * missed, 1.01 * draw.permutation(missed))):
        run = store.create(RunConfig(metric_for_best_model="mae"))
        run.append(events.Started(device="CPU"))
        run.append(
            events.Prepared(
                train_examples=9, validation_examples=200, steps_per_epoch=1, total_steps=1,
                labels=[], task="regression", parameters=1, precision="no",
                data={"low": 0.0, "high": 5.0, "rows": {}, "source": "", "splits": {}},
            )
        )  # fmt: skip
        logits = (truth + error).astype(np.float32)[:, None]
        saved_predictions.save_logits(run, 1, logits, truth)
        score = float(np.abs(error).mean())
        scores = {"pearson": 0.9, "mae": score}
        run.append(events.Evaluated(step=1, epoch=1.0, metrics=scores, seconds=1.0, best=True))
        run.append(events.Saved(step=1))
        run.best.mkdir()
        rows.append(results.TrialRow(number, run.id, "finished", {}, score, {1: score}))
    space = {"learning_rate": Range(1e-6, 1e-3, log=True)}
    study = driver.begin_search(store, run.config(), dict(space), Budget(trials=3))
    study.learn_task(run.state())
    found = results.within_chance(store, study, rows, rows[0])
    assert found is not None
    assert found.trials == [2]
