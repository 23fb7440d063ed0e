"""F1 of more than two classes is called macro F1 wherever it is shown."""

from __future__ import annotations

import re

import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.evaluation import report, saved_predictions
from finetune.hub import model_card
from finetune.jobs import run_table, webhook
from finetune.jobs.terminal import EventLog
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import JobState
from finetune.tasks.base import DecisionRule
from finetune.ui import charts, choosers, compare_view, evaluation_view, run_view

BASELINES = {"always the commonest answer": {"accuracy": 0.5, "f1": 0.9}}


def recorded(store: RunStore, names: list[str]) -> Run:
    """A run that was evaluated once; of the last class there is no pair, and no answer."""
    run, truth = store.create(RunConfig()), np.arange(60) % (len(names) - 1)
    answers = np.where(np.arange(60) < 20, 0, truth)
    logits = 3 * np.eye(len(names), dtype=np.float32)[answers]
    saved_predictions.save_logits(run, 8, logits, truth)
    for event in (
        events.Started(device="CPU"),
        events.Prepared(
            train_examples=9, validation_examples=60, steps_per_epoch=8, total_steps=8,
            labels=names, parameters=1, precision="no",
        ),
        events.Evaluated(
            step=8, epoch=1, metrics={"accuracy": 0.83, "f1": 0.82}, seconds=1, best=True
        ),
        events.Saved(step=8),
        events.BaselinesMeasured(baselines=BASELINES),
        events.Stopped(step=8, seconds=1),
    ):  # fmt: skip
        run.append(event)
    run.best.mkdir()
    (run.best / "config.json").write_text("{}")
    return run


def places(store: RunStore, run: Run) -> dict[str, str]:
    """What each place says of the run, but the table of its classes."""
    summary = run.state()
    study = report.evaluate_run(run, summary)
    page = evaluation_view.view(study, summary, DecisionRule(), JobState("none"))
    row = run_table.run_row(store, run)
    card = model_card.card_text(run, summary, "ada/texts")
    return {
        "verdict": run_view.verdict(run, summary),
        "tiles": run_view.cards(run, summary),
        "evaluation": re.sub(r'(?s)<div [^>]*aria-label="Each class".*?</table>', "", page),
        "chart": charts.score_chart(summary),
        "table": run_view.table([row], "f1", True),
        "compare": compare_view.comparison(store, [run.id, recorded(store, row_names(run)).id]),
        "chooser": str(choosers.choices(store, None)[0]["choices"]),
        "title": run_view.brief(run, run.state()),
        "news": webhook.message("example.org", run, summary)["text"],
        "card": card.split("<details>")[0],
    }


def row_names(run: Run) -> list[str]:
    prepared = run.state().prepared
    return prepared.labels if prepared else []


@pytest.mark.parametrize("classes", [2, 4])
def test_f1_is_called_what_it_is(store: RunStore, classes: int) -> None:
    run = recorded(store, [*"abcd"[: classes - 1], "none"])
    for name, text in places(store, run).items():
        spoken = re.sub(r"<[^>]*>", " ", text)
        macro = len(re.findall(r"macro F1", spoken, re.IGNORECASE))
        if name != "title":  # it was stopped
            assert (macro > 0) == (classes > 2), name
        if classes > 2:
            assert macro == len(re.findall(r"\bF1\b", spoken)), name


def test_the_log_names_it_too(capsys: pytest.CaptureFixture[str], store: RunStore) -> None:
    show = EventLog()
    for event in recorded(store, [*"abcd"]).tail()[0]:
        show(event)
    printed = capsys.readouterr().out
    assert "validation accuracy 0.8300, macro F1 0.8200" in printed
    assert "baseline always the commonest answer: accuracy 0.5000, macro F1 0.9000" in printed


def test_a_score_of_no_example_is_a_dash(store: RunStore) -> None:
    run = recorded(store, [*"abcd"])
    summary = run.state()
    row = report.evaluate_run(run, summary).analysis.details.classes[3]
    assert (row.precision, row.recall, row.f1) == (None, None, None)
    assert "| `d` | 0 | 0 | 0 | 0 | – |" in model_card.card_text(run, summary, "ada/texts")


def test_a_stopped_run_is_green_only_if_it_is_surely_better(store: RunStore) -> None:
    run = recorded(store, [*"abcd"])
    drawn = run_view.verdict(run, run.state())
    assert "below the best simple method" in drawn
    assert "ft-warn" in drawn
    assert "ft-good" not in drawn
    run.append(events.BaselinesMeasured(baselines={"always the commonest answer": {"f1": 0.2}}))
    drawn = run_view.verdict(run, run.state())
    assert "ft-good" in drawn
    assert "ft-warn" not in drawn
