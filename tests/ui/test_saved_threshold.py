"""A threshold saved with a model decides wherever that model is shown."""

from __future__ import annotations

import re
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
import yaml
from sklearn import metrics

from finetune.evaluation import examples, report, saved_predictions
from finetune.hub import model_card
from finetune.inference import decision_rule
from finetune.inference.predictor import Predictor
from finetune.jobs import evaluate, run_table, webhook
from finetune.jobs.evaluate import EvaluationJob
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.base import PredictOptions, Target
from finetune.ui import choosers, compare_view, evaluation_view, run_view
from finetune.ui.tabs.evaluate import Evaluation
from tests.support import toys
from tests.support.evaluated_runs import FILTERS, LABELS, evaluated
from tests.support.tabs import NOBODY


@pytest.fixture
def part(store: RunStore) -> Evaluation:
    evaluation = Evaluation(store)
    with gr.Blocks():
        evaluation.draw_choice()
        evaluation.draw(lambda: None)
    return evaluation


@pytest.fixture
def run(part: Evaluation, toy_checkpoint: Path) -> Run:
    """Its model calls too few pairs equivalent."""
    run = evaluated(part, toy_checkpoint, 1, 2.0)
    scored = saved_predictions.read_logits(run, 16, Target(tuple(LABELS)))
    logits = scored.logits - np.array([0, 2.2], np.float32)
    saved_predictions.save_logits(run, 16, logits, scored.labels)
    scores = scores_at(run, 0.5)
    run.append(events.Evaluated(step=16, epoch=2, metrics=scores, seconds=1, best=True))
    return run


def scores_at(run: Run, threshold: float) -> dict[str, float]:
    """By independent code."""
    scored = saved_predictions.read_logits(run, 16, Target(tuple(LABELS)))
    called = 1 / (1 + np.exp(scored.logits[:, 0] - scored.logits[:, 1])) >= threshold
    return {
        "accuracy": float(metrics.accuracy_score(scored.labels, called)),
        "f1": float(metrics.f1_score(scored.labels, called)),
    }


def shown(part: Evaluation, run: Run) -> dict[str, str]:
    """What each place shows of the run."""
    store, summary = part.store, run.state()
    other = next(other for other in store.runs() if other.id != run.id)
    row = run_table.run_row(store, run)
    card = model_card.card_text(run, summary, "ada/pairs")
    results = yaml.safe_load(card.split("---\n")[1])["model-index"][0]["results"]
    body = part.on_part(NOBODY, {"opened": run.id}, "Evaluation", *FILTERS.values())[part.body]
    return {
        "verdict": str(run_view.verdict(run, summary)),
        "tiles": str(run_view.cards(run, summary)),
        "evaluation": str(body),
        "table": str(run_view.table([row], "f1", True)),
        "compare": str(compare_view.comparison(store, [run.id, other.id])),
        "chooser": str(choosers.choices(store, run.id)[0]["choices"]),
        "news": str(webhook.message("example.org", run, summary)["text"]),
        "card": re.sub(r"(0\.\d{4})", lambda found: f"{float(found[1]):.3f}", card),
        "metadata": f"{results[0]['metrics'][1]['value']:.3f}",
    }


def test_after_the_click_every_place_is_at_the_threshold(
    part: Evaluation, run: Run, toy_checkpoint: Path
) -> None:
    evaluated(part, toy_checkpoint, 2, 1.0)
    summary = run.state()
    offered = report.run_verdict(run, summary).better_threshold
    assert offered is not None
    before, after = scores_at(run, 0.5), scores_at(run, offered.threshold)
    assert after["f1"] > before["f1"] + 0.03
    places = shown(part, run)
    assert [name for name, text in places.items() if f"{before['f1']:.3f}" not in text] == []
    evaluate.save_decision(run, summary, threshold=offered.threshold)
    places = shown(part, run)
    assert [name for name, text in places.items() if f"{after['f1']:.3f}" not in text] == []
    # Each says at which threshold it is, or what the figures would be without it.
    named = {"verdict", "tiles", "evaluation", "table", "compare"}
    assert {name for name in named if f"{offered.threshold:.3f}" not in places[name]} == set()
    assert "Use the threshold" not in places["verdict"]
    assert f"expect {offered.f1.value:.3f}" in places["verdict"]
    assert f"gives F1 {offered.f1.value:.3f}" in places["card"]
    evaluate.save_decision(run, summary, threshold=None)
    assert f"{before['f1']:.3f}" in shown(part, run)["tiles"]


def test_slices_errors_both_orders_and_samples_are_of_the_answers_at_the_threshold(
    part: Evaluation, run: Run
) -> None:
    summary, scored = run.state(), saved_predictions.read_logits(run, 16, Target(tuple(LABELS)))
    given = scored.logits
    swapped = saved_predictions.SwappedLogits(16, np.arange(60), given, given[:, ::-1])
    saved_predictions.save_swapped_logits(run, swapped)
    evaluate.save_decision(run, summary, threshold=1e-5)  # all are equivalent, in either order
    study = report.evaluate_run(run, summary)
    negatives = int((scored.labels == 0).sum())
    assert study.answers.tolist() == [1] * 60
    assert study.analysis.details.confusion.tolist() == [[0, negatives], [0, 60 - negatives]]
    classes = {part.value: part for part in study.analysis.slices if part.trait == "class"}
    assert classes["not_equivalent"].result.value == 0
    assert len(examples.select_examples(study, "wrong")) == negatives
    assert study.analysis.order is not None
    assert study.analysis.order.flips == 0
    sampled = examples.sample_pairs(run, summary, 60)
    assert {(pair.label, pair.right) for pair in sampled} == {
        ("not_equivalent", False), ("equivalent", True),
    }  # fmt: skip
    assert "at the threshold 0.000" in evaluation_view.view(
        study, summary, decision_rule.read_rule(run.best), EvaluationJob.of(run, "orders").state()
    )


def test_predict_uses_the_saved_threshold_unless_told_otherwise(run: Run) -> None:
    predictor = Predictor.from_run(run)
    pair = toys.rows(1)[0][:2]
    plain = predictor(*pair)
    other = "equivalent" if plain.label == "not_equivalent" else "not_equivalent"
    decision_rule.write_rule(run.best, threshold=1e-9, positive=other)
    assert predictor(*pair).label == other
    options = PredictOptions(threshold=False)
    assert predictor(*pair, options).label == plain.label
