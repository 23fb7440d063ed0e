"""What new pairs will show is said wherever a score is that was picked as the best of several; in a
cross-validation nothing was picked."""

import shutil

import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.errors import DataError
from finetune.evaluation import cross_validation, picking, report
from finetune.hub import model_card
from finetune.hyperparameter import Range
from finetune.jobs import scheduler
from finetune.metrics import catalog
from finetune.metrics.catalog import F1
from finetune.runs import events, pair_index
from finetune.runs.queue import Queue
from finetune.studies import driver, results
from finetune.studies.space import Budget
from finetune.tasks.registry import deciding_metric
from finetune.ui import compare_view
from tests.support import stand_in
from tests.support.made_runs import ROWS, add_scores, finish, folded, prepared

EXAMPLES = 200


def picked_run(store, evaluations, seed=0, **values):
    """A finished run of so many evaluations on the same 200 pairs, each right on about 75%."""
    run = store.create(RunConfig(**values))
    data = {"positive_label": "yes", "rows": {}, "source": "", "revision": "", "splits": {}}
    run.append(prepared(EXAMPLES, data=data))
    labels = np.random.default_rng(99).integers(0, 2, EXAMPLES)
    draw, best = np.random.default_rng(seed), -np.inf
    metric = deciding_metric(run.config(), run.state().task)
    for step in range(1, evaluations + 1):
        margins = 0.7 + draw.normal(size=EXAMPLES)  # of the true class over the other
        logits = np.zeros((EXAMPLES, 2), np.float32)
        logits[np.arange(EXAMPLES), labels] = margins
        scores = catalog.scores(logits.argmax(axis=1), labels)
        scores["loss"] = float(np.log1p(np.exp(-margins)).mean())
        score = -scores[metric] if metric == "loss" else scores[metric]
        better = score > best
        add_scores(run, step, logits, labels, better, scores)
        if better:
            best = score
            run.append(events.Saved(step=step))
    run.best.mkdir()
    (run.best / "config.json").write_text("{}")
    run.append(events.Finished(step=evaluations, seconds=1.0))
    return run


def test_the_best_of_ten_equals_is_said_to_be_worse_on_new_pairs(store):
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


def test_runs_are_compared_without_what_picking_adds_to_each(store):
    many, one = picked_run(store, 20, seed=1), picked_run(store, 1, seed=4)
    studies = [report.evaluate_run(run, run.state()) for run in (many, one)]
    comparison = report.compare_runs(studies[0], studies[1], [F1])
    plain = studies[0].analysis.scores["f1"].value - studies[1].analysis.scores["f1"].value
    expected = studies[0].analysis.expected["f1"].value
    added = studies[0].analysis.scores["f1"].value - expected
    assert added > 0.02
    assert comparison.difference["f1"].value == pytest.approx(plain - added)
    assert expected < studies[1].analysis.scores["f1"].value < expected + added
    text = str(compare_view.comparison(store, [many.id, one.id]))
    assert "F1, expected on new rows" in text
    assert text.index(f"{expected:.3f}") > text.index("F1, expected on new rows")
    # First stands the one of which more is expected.
    one.describe(name="evaluated once")
    assert "A (evaluated once)" in str(compare_view.comparison(store, [many.id, one.id]))


@pytest.mark.parametrize("metric", ["f1", "loss"])
def test_the_best_of_a_search_was_picked_among_all_evaluations_of_all_trials(store, metric):
    runs = [picked_run(store, 5, seed, metric_for_best_model=metric) for seed in range(6)]
    rate = {"learning_rate": Range(1e-6, 1e-3, log=True)}
    study = driver.begin_search(store, runs[0].config(), dict(rate), Budget(trials=6))
    rows = []
    for number, run in enumerate(runs):
        run.describe(study=study.id)
        scored = run.state().best
        score = scored.metrics[metric]
        rows.append(results.TrialRow(number, run.id, "finished", {}, score, {1: score}))
    best = results.best_trial(rows, study.minimize)
    run = store.get(best.run_id)
    expectation = results.expected_score(store, study, rows, best)
    assert expectation.candidates == 30
    alone = report.evaluate_run(run, run.state()).analysis
    if metric == "loss":
        assert expectation.value > best.score
        assert expectation.interval is None
    else:
        assert expectation.value < alone.expected["f1"].value < best.score
        assert expectation.interval.value == expectation.value
    assert "picked among 30 evaluations" in model_card.card_text(run, run.state(), "ada/best")
    # A trial that was not the best was picked among its own evaluations only.
    worst = store.get(next(row for row in rows if row is not best).run_id)
    text = model_card.card_text(worst, worst.state(), "ada/other")
    assert "picked among 30 evaluations" not in text


CONFIG = RunConfig(folds=4)


def test_the_answers_of_the_folds_are_the_evaluation_of_the_run_on_all_rows(store):
    *others, run = folded(store, CONFIG)
    cross_validation.gather(run, store.runs())
    # Of models that were not picked nothing is taken off.
    assert picking.run_picking(others[0]) is None
    assert report.evaluate_run(others[0], others[0].state()).analysis.expected == {}
    for other in others:
        store.delete(other)
    evaluation = report.evaluate_run(run, finish(run))
    analysis = evaluation.analysis
    assert analysis.examples == ROWS
    assert analysis.folds == 4
    assert evaluation.table.column("sentence1").to_pylist() == [f"left {n}" for n in range(ROWS)]
    # The models' last answers, not their best ones, which were all right.
    wrong = int((~evaluation.right).sum())
    assert 4 <= wrong <= 22
    assert analysis.scores["accuracy"].value == pytest.approx(1 - wrong / ROWS)
    assert set(evaluation.suspected_labels) <= set(np.flatnonzero(~evaluation.right))
    assert analysis.order.flips == analysis.order.pairs >= 20
    assert max(analysis.order.worst) > 45
    assert run.state().baselines["words"] == pytest.approx({"f1": 0.525, "examples": ROWS})
    assert analysis.slices


def test_answers_are_refused_if_rows_have_changed_or_folds_are_missing(store):
    first, *_, run = folded(store, CONFIG)
    target = prepared(ROWS).target
    texts = ([f"{side} {n}" for n in range(ROWS)] for side in ("left", "right"))
    hashes = pair_index.pair_hashes(*texts)
    with pytest.raises(DataError, match="have not finished"):
        cross_validation.out_of_fold(run, target, hashes)
    first.append(events.Resumed(step=4))
    with pytest.raises(DataError, match="4 folds; these have not finished: 1"):
        cross_validation.gather(run, store.runs())
    first.append(events.Saved(step=8))
    first.append(events.Evaluated(step=8, epoch=1, metrics={"f1": 0.5}, seconds=1, best=True))
    first.append(events.Finished(step=8, seconds=2.0))
    cross_validation.gather(run, store.runs())
    answers = cross_validation.out_of_fold(run, target, hashes)
    assert answers.labels.tolist() == [n % 2 for n in range(ROWS)]
    with pytest.raises(DataError, match="data has changed"):
        cross_validation.out_of_fold(run, target, hashes[::-1])


def test_the_run_on_all_rows_waits_for_its_folds_and_for_no_others(store, monkeypatch):
    stand_in.use(monkeypatch)
    started = []
    monkeypatch.setattr(scheduler, "_start", lambda _, run, __: started.append(run.title()))
    first, *_, run = folded(store, CONFIG)
    queue = Queue(store.root)
    queue.add(run.id)
    queue.add(first.id)
    scheduler.dispatch_queue(store)
    assert started == ["tickets \u00b7 fold 1"]
    queue.remove(first.id)
    scheduler.dispatch_queue(store)
    assert started[1:] == ["tickets \u00b7 all rows"]
    assert len(cross_validation.read_folds(run)) == 4
    # One whose fold has ended too early says which.
    *others, late = folded(store, CONFIG)
    shutil.rmtree(others[2].folder)
    queue.remove(run.id)
    queue.add(late.id)
    scheduler.dispatch_queue(store)
    state = late.state()
    assert (state.status, "finished: 3" in state.error) == ("failed", True)
    assert "Resume" in state.remedy
    assert late.id not in queue.waiting()
