"""What is known of a run is the same wherever the run is shown: its threshold, the names of its
scores, and metrics that a person added."""

import re

import numpy as np
import pytest
import yaml
from sklearn import metrics

from finetune import owners
from finetune.config import RunConfig
from finetune.data import catalog as offered
from finetune.data import checks
from finetune.data.sources import LABELS
from finetune.errors import ConfigError
from finetune.evaluation import cross_validation, examples, report, saved_predictions
from finetune.hub import model_card
from finetune.hub.downloads import events_csv
from finetune.inference import decision_rule
from finetune.jobs import cost, evaluate, pipeline, run_table, scheduler, service
from finetune.jobs.check import check_folder
from finetune.metrics import catalog
from finetune.runs import events
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState
from finetune.tasks.base import DecisionRule, Target
from finetune.training import accelerator
from finetune.ui import charts, choosers, compare_view, evaluation_view, run_view, train_plan
from tests.support.made_runs import add_scores, evaluated, finish, folded, prepared
from tests.support.uploads import some, upload

ADDED = [metric.name for metric in catalog.OPTIONAL]
BASELINES = {"always the commonest answer": {"accuracy": 0.5, "f1": 0.9}}


def places(store, run, other):
    """What each place says of a run."""
    summary = run.state()
    study = report.evaluate_run(run, summary)
    rule = decision_rule.read_rule(run.best)
    return {
        "verdict": str(run_view.verdict(store, run, summary)),
        "tiles": str(run_view.cards(run, summary)),
        "chart": charts.score_chart(summary),
        "evaluation": str(evaluation_view.view(study, summary, rule, JobState("none"))),
        "table": str(run_view.table(store, [run_table.run_row(store, run)], run_view.blank())),
        "compare": str(compare_view.comparison(store, [run.id, other.id])),
        "chooser": str(choosers.choices(store, run.id)[0][0]["choices"]),
        "news": str(scheduler.news("example.org", run, summary)["text"]),
        "card": model_card.card_text(run, summary, "ada/texts"),
    }


@pytest.fixture
def shy(store, toy_checkpoint):
    """Its model calls too few pairs equivalent."""
    run = evaluated(store, toy_checkpoint, 1, 2.0)
    scored = saved_predictions.read_logits(run, 16, Target(tuple(LABELS)))
    logits = scored.logits - np.array([0, 2.2], np.float32)
    saved_predictions.save_logits(run, 16, logits, scored.labels)
    scores = scores_at(run, 0.5)
    run.append(events.Evaluated(step=16, epoch=2, metrics=scores, seconds=1, best=True))
    evaluated(store, toy_checkpoint, 2, 1.0)
    return run


def scores_at(run, threshold):
    """By independent code."""
    scored = saved_predictions.read_logits(run, 16, Target(tuple(LABELS)))
    called = 1 / (1 + np.exp(scored.logits[:, 0] - scored.logits[:, 1])) >= threshold
    return {
        "accuracy": float(metrics.accuracy_score(scored.labels, called)),
        "f1": float(metrics.f1_score(scored.labels, called)),
    }


def shown_at(store, run):
    """The places that show the F1 of the saved threshold, in three digits."""
    other = next(other for other in store.runs() if other.id != run.id)
    shown = places(store, run, other)
    del shown["chart"]  # it is of the course
    results = yaml.safe_load(shown["card"].split("---\n")[1])["model-index"][0]["results"]
    shown["metadata"] = f"{results[0]['metrics'][1]['value']:.3f}"
    rounded = re.sub(r"(0\.\d{4})", lambda found: f"{float(found[1]):.3f}", shown["card"])
    return shown | {"card": rounded}


def test_after_the_click_every_place_is_at_the_threshold(store, shy):
    summary = shy.state()
    better = report.run_verdict(shy, summary).better_threshold
    before, after = scores_at(shy, 0.5), scores_at(shy, better.threshold)
    assert after["f1"] > before["f1"] + 0.03
    shown = shown_at(store, shy)
    assert [name for name, text in shown.items() if f"{before['f1']:.3f}" not in text] == []
    evaluate.save_decision(shy, summary, threshold=better.threshold)
    shown = shown_at(store, shy)
    assert [name for name, text in shown.items() if f"{after['f1']:.3f}" not in text] == []
    # Each says at which threshold it is, or what the figures would be without it.
    named = {"verdict", "tiles", "evaluation", "table", "compare"}
    assert {name for name in named if f"{better.threshold:.3f}" not in shown[name]} == set()
    assert "Use the threshold" not in shown["verdict"]
    assert f"expect F1 {better.f1.value:.3f}" in shown["verdict"]
    assert f"gives F1 {better.f1.value:.3f}" in shown["card"]
    evaluate.save_decision(shy, summary, threshold=None)
    assert f"{before['f1']:.3f}" in shown_at(store, shy)["tiles"]


def test_slices_errors_both_orders_and_samples_are_of_the_answers_at_the_threshold(shy):
    summary, scored = shy.state(), saved_predictions.read_logits(shy, 16, Target(tuple(LABELS)))
    given = scored.logits
    swapped = saved_predictions.SwappedLogits(16, np.arange(60), given, given[:, ::-1])
    saved_predictions.save_swapped_logits(shy, swapped)
    evaluate.save_decision(shy, summary, threshold=1e-5)  # all are equivalent, in either order
    study = report.evaluate_run(shy, summary)
    negatives = int((scored.labels == 0).sum())
    assert study.answers.tolist() == [1] * 60
    assert study.analysis.details.confusion.tolist() == [[0, negatives], [0, 60 - negatives]]
    classes = {part.value: part for part in study.analysis.slices if part.trait == "class"}
    assert classes["not_equivalent"].result.value == 0
    assert len(examples.select_examples(study, "wrong")) == negatives
    assert study.analysis.order.flips == 0
    sampled = examples.sample_pairs(shy, 60)
    assert {(pair.label, pair.right) for pair in sampled} == {
        ("not_equivalent", False), ("equivalent", True),
    }  # fmt: skip


def recorded(store, names):
    """A run that was evaluated once; of the last class there is no pair, and no answer."""
    run, truth = store.create(RunConfig()), np.arange(60) % (len(names) - 1)
    answers = np.where(np.arange(60) < 20, 0, truth)
    run.append(events.Started(device="CPU"))
    run.append(prepared(60, (*names,), data={}))
    logits = 3 * np.eye(len(names))[answers]
    add_scores(run, 8, logits, truth, scores={"accuracy": 0.83, "f1": 0.82})
    run.append(events.Saved(step=8))
    run.append(events.BaselinesMeasured(baselines=BASELINES))
    run.append(events.Stopped(step=8, seconds=1))
    run.best.mkdir()
    (run.best / "config.json").write_text("{}")
    return run


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_f1_of_more_than_two_classes_is_macro_f1_everywhere(store, names):
    run = recorded(store, names)
    shown = places(store, run, recorded(store, names))
    each_class = '(?s)<div [^>]*aria-label="Each class".*?</table>'
    shown["evaluation"] = re.sub(each_class, "", shown["evaluation"])
    shown["card"] = shown["card"].split("<details>")[0]
    for name, text in shown.items():
        spoken = re.sub(r"<[^>]*>", " ", text)
        macro = len(re.findall(r"macro F1", spoken, re.IGNORECASE))
        assert (macro > 0) == (len(names) > 2), name
        if len(names) > 2:
            assert macro == len(re.findall(r"\bF1\b", spoken)), name


def test_a_stopped_run_is_green_only_if_it_is_surely_better(store):
    run = recorded(store, "abcd")
    row = report.evaluate_run(run, run.state()).analysis.details.classes[3]
    assert (row.precision, row.recall, row.f1) == (None, None, None)  # of no example
    drawn = run_view.verdict(store, run, run.state())
    assert "on new rows expect" in drawn
    assert ("ft-warn" in drawn, "ft-good" in drawn) == (True, False)
    run.append(events.BaselinesMeasured(baselines={"always the commonest answer": {"f1": 0.2}}))
    drawn = run_view.verdict(store, run, run.state())
    assert ("ft-warn" in drawn, "ft-good" in drawn) == (False, True)


def test_added_metrics_stand_in_events_curves_tables_and_the_card(store, toy_config, monkeypatch):
    monkeypatch.setattr(accelerator, "keep_freed_memory", lambda: None)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    run = store.create(toy_config.changed(  # the one that needs probabilities decides
        metrics=" ".join(ADDED), metric_for_best_model="roc_auc", max_steps=4, eval_steps=2,
        max_train_samples=32, max_eval_samples=40, mixed_precision="no",
    ))  # fmt: skip
    for event in pipeline.train_events(run, pipeline.StopSwitch(run)):
        run.append(event)
    summary, names = run.state(), ["accuracy", "f1", *ADDED]
    assert [metric.name for metric in summary.measured] == names
    answered = [name for name in names if name != "roc_auc"]  # which needs probabilities
    for evaluation in summary.validation:
        assert list(evaluation.metrics) == [*names, "loss"]
        assert list(evaluation.intervals) == answered
    assert list(summary.baselines["always the commonest answer"]) == answered
    best = max(summary.validation, key=lambda e: e.metrics["roc_auc"])
    assert summary.saved_step == best.step
    assert run_table.run_row(store, run).value("recall") == best.metrics["recall"]
    shown = places(store, run, run)
    for place in ("chart", "evaluation", "tiles", "table", "compare", "card"):
        for metric in catalog.OPTIONAL:
            if (place, metric.name) != ("evaluation", "roc_auc"):  # it has the whole curve
                assert re.search(metric.phrase, shown[place], re.IGNORECASE), (place, metric.name)
    assert "name: Balanced accuracy" in shown["card"]
    assert ",".join(ADDED) in next(events_csv(run)).splitlines()[0]


def test_a_metric_that_is_code_is_warned_of_and_refused_if_shared(store, monkeypatch, tmp_path):
    own, theirs = RunConfig(metrics="recall"), RunConfig(metrics="recall somebody/theirs")
    for config, warned in ((own, False), (theirs, True)):
        text = train_plan.costs(store, cost.estimate_cost(store, config), config, 1, None)
        assert ("is code, and runs on this machine" in text) == warned
    # A folder is named by its whole path for workers.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "recall").mkdir()
    config = offered.with_absolute_paths(RunConfig(metrics="recall ./mine somebody/theirs"))
    assert config.added_metrics == ["recall", str(tmp_path / "mine"), "somebody/theirs"]
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    visitor = store.for_visitor(owners.Visitor(names=("browser:ada",)))
    service.check_start(visitor, [own])
    with pytest.raises(ConfigError, match="metrics names somebody/theirs, which is code"):
        service.check_start(visitor, [theirs])


HEAD = "sentence1,sentence2,label"


@pytest.fixture
def whole(store):
    """The finished run on all rows."""
    *_, run = folded(store, RunConfig(folds=4))
    cross_validation.gather(run, store.runs())
    finish(run)
    return run


def test_every_place_says_that_others_answered_the_pairs(store, whole):
    summary = whole.state()
    study = report.evaluate_run(whole, summary)
    html = evaluation_view.view(study, summary, DecisionRule(), JobState("none"))
    assert "one of 4 models that had not seen it" in html
    assert "this model" not in html.split('id="cross-validated"')[0]
    assert "<small>cross-validated</small>" in run_view.cards(whole, summary)
    fold = next(run for run in store.runs() if run.config().fold == 2)
    card = model_card.card_text(whole, summary, "ada/pairs")
    score = summary.best.metrics["accuracy"]
    assert f"value: {round(score, 4)}" in card.split("---")[1]
    assert f"| cross-validated | {score:.4f}" in card
    assert "this model |" not in card
    assert "the best by" not in model_card.card_text(fold, fold.state(), "ada/fold")
    rows = run_table.run_rows(store)
    (bundle,) = run_table.sort_rows(rows, "created", True, rows)
    assert isinstance(bundle, run_table.BundleRow)
    assert (len(bundle.rows), bundle.finished, bundle.folds, bundle.kind) == (5, 5, 4, "folds")
    assert bundle.model.id == bundle.whole == whole.id
    assert (bundle.spread.count, bundle.spread.interval) == (4, None)


def test_few_rows_are_offered_as_many_folds_as_find_places(tmp_path, monkeypatch):
    def offered(rows, validation=0):
        held = some(validation) if validation else ()
        name = upload(tmp_path, HEAD, some(rows), held, ())
        config = RunConfig(dataset=name, checkpoint=str(tmp_path))
        few = checks.check_pairs(config, tmp_path).few_held_out
        return few and few.remedies[0].value

    assert [offered(300), offered(600), offered(300, 20)] == ["5", None, None]
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    for waiting, value in (("4", "3"), ("9", "5"), ("2", None)):
        monkeypatch.setenv("FINETUNE_MAX_WAITING", waiting)
        assert offered(200) == value


def test_costs_count_the_rows_that_are_trained_on(tmp_path, toy_checkpoint):
    (tmp_path / "runs").mkdir()
    store = RunStore(tmp_path / "runs")
    name = upload(store.root, HEAD, some(300), (), ())
    config = RunConfig(dataset=name, folds=5, max_length=32, checkpoint=str(toy_checkpoint))
    job = check_folder(store, config)  # the pairs are examined, as Data does
    job.folder.mkdir(parents=True)
    job.describe_job("check", "", config.to_dict())
    (job.folder / "report.json").write_text(checks.check_pairs(config, store.root).to_json())
    steps = [cost.estimate_cost(store, config.changed(fold=fold)).steps for fold in (1, 0)]
    assert [each and each.pairs for each in steps] == [240, 300]
