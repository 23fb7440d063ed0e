"""A metric that a person adds stands wherever the others do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from finetune import owners
from finetune.__main__ import main
from finetune.arguments import command
from finetune.config import RunConfig
from finetune.data import catalog as offered
from finetune.data import splits
from finetune.errors import ConfigError
from finetune.evaluation import picking, report
from finetune.hub import model_card
from finetune.hub.downloads import events_csv
from finetune.jobs import cost, pipeline, run_table, service
from finetune.metrics import catalog
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState
from finetune.search.study import Study
from finetune.tasks.base import DecisionRule, Target
from finetune.tasks.registry import measured
from finetune.training import accelerator
from finetune.ui import charts, compare_view, evaluation_view, run_view, train_plan
from tests.support.training import evaluations, fit

ADDED = [metric.name for metric in catalog.OPTIONAL]


@pytest.fixture
def trained(store: RunStore, toy_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of the bundled pairs with all that may be added, picked by one of them."""
    monkeypatch.setattr(accelerator, "keep_freed_memory", lambda: None)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    config = toy_config.changed(
        metrics=" ".join(ADDED), metric_for_best_model="matthews_correlation", max_steps=4,
        eval_steps=2, max_train_samples=32, max_eval_samples=40, mixed_precision="no",
    )  # fmt: skip
    run = store.create(config)
    for event in pipeline.train_events(run, pipeline.StopSwitch(run)):
        run.append(event)
    return run


def test_it_stands_in_events_curves_tables_and_the_card(store: RunStore, trained: Run) -> None:
    summary = trained.state()
    names = ["accuracy", "f1", *ADDED]
    assert [metric.name for metric in summary.measured] == names
    answered = [name for name in names if name != "roc_auc"]  # which needs probabilities
    for evaluation in summary.validation:
        assert list(evaluation.metrics) == [*names, "loss"]
        assert list(evaluation.intervals) == answered
    assert list(summary.baselines["always the commonest answer"]) == answered
    assert set(summary.baselines["counting words (TF-IDF)"]) == {*answered, "examples"}
    best = max(summary.validation, key=lambda e: e.metrics["matthews_correlation"])
    assert summary.saved_step == best.step
    study = report.evaluate_run(trained, summary)
    rows = [run_table.run_row(store, trained)]
    assert rows[0].value("recall") == best.metrics["recall"]
    shown = {
        "chart": charts.score_chart(summary),
        "evaluation": evaluation_view.view(study, summary, DecisionRule(), JobState("none")),
        "tiles": run_view.cards(trained, summary),
        "table": run_view.table(rows, "roc_auc", True),
        "compare": compare_view.comparison(store, [trained.id, trained.id]),
        "card": model_card.card_text(trained, summary, "ada/texts"),
    }
    for place, text in shown.items():
        for metric in catalog.OPTIONAL:
            if (place, metric.name) != ("evaluation", "roc_auc"):  # it has the whole curve
                assert re.search(metric.phrase, text, re.IGNORECASE), (place, metric.name)
    assert "name: Balanced accuracy" in shown["card"]
    assert ",".join(ADDED) in next(events_csv(trained)).splitlines()[0]


def test_what_picking_by_it_adds_is_taken_off(store: RunStore, trained: Run) -> None:
    picked = picking.run_picking(trained, trained.state())
    assert picked is not None
    assert picked.candidates == 2
    assert "matthews_correlation" in picked.bias
    assert "roc_auc" not in picked.bias


def test_one_that_needs_probabilities_may_decide_too(
    toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    config = toy_config.changed(metric_for_best_model="roc_auc", eval_steps=4)
    scored = evaluations(fit(config, toy_pairs)[0])
    best = int(np.argmax([event.metrics["roc_auc"] for event in scored]))
    assert [event.step for event in scored if event.best][-1] == scored[best].step


def test_an_older_run_is_read(store: RunStore) -> None:
    """Its configuration names no metrics, its events have the two of then."""
    run = store.create(RunConfig())
    old = '{"dataset": "bundled", "metric_for_best_model": "f1"}'
    (run.folder / "config.json").write_text(old)
    assert [metric.name for metric in measured(run.config(), Target(("no", "yes")))] == [
        "accuracy",
        "f1",
    ]
    event = (
        '{"time":1.0,"event":"evaluated","step":8,"epoch":1.0,"metrics":{"accuracy":0.7,'
        '"f1":0.8,"loss":0.5},"seconds":0.1,"best":true,"intervals":{"f1":[0.7,0.9]}}'
    )
    found = events.from_json(event)
    assert isinstance(found, events.Evaluated)
    assert found.metrics == {"accuracy": 0.7, "f1": 0.8, "loss": 0.5}


def test_a_search_goes_by_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(tmp_path)
    for name, least in (("balanced_accuracy", False), ("loss", True)):
        config = RunConfig(metric_for_best_model=name)
        monkeypatch.setattr(Study, "config", config)
        assert (study.metric, study.minimize) == (name, least)


def test_flags_name_several_and_say_them_again(capsys: pytest.CaptureFixture[str]) -> None:
    config = RunConfig(metrics="recall roc_auc", seed=1)
    assert command(config).endswith("--seed 1 --metrics recall roc_auc")
    assert main(["train", "--metrics", "recall", "nonsense"]) == 2
    assert "metrics must be names out of" in capsys.readouterr().err


def test_a_module_is_code_and_refused_in_a_shared_app(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    visitor = store.for_visitor(owners.Visitor(names=("browser:ada",)))
    service.check_start(visitor, [RunConfig(metrics="recall")])
    with pytest.raises(ConfigError, match="metrics names somebody/theirs, which is code"):
        service.check_start(visitor, [RunConfig(metrics="recall somebody/theirs")])


def test_the_page_warns_of_somebody_elses_code(store: RunStore) -> None:
    for name, warned in (("recall", False), ("somebody/theirs", True)):
        config = RunConfig(metrics=name)
        text = train_plan.costs(cost.estimate_cost(store, config), config)
        assert ("is code, and runs on this machine" in text) == warned


def test_a_folder_is_named_by_its_whole_path_for_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "recall").mkdir()
    config = offered.with_absolute_paths(RunConfig(metrics="recall ./mine somebody/theirs"))
    assert config.added_metrics == ["recall", str(tmp_path / "mine"), "somebody/theirs"]
