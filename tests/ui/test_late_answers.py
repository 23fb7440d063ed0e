"""Answers that come late, and clicks on what they have not yet replaced: a click on a drawing is
about the run that was drawn, whichever is opened by then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
import pyarrow as pa
import pytest

from finetune.config import RunConfig
from finetune.evaluation import corrections, saved_predictions
from finetune.inference import decision_rule
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui.tabs.runs import RunsTab, blank
from tests.support import toys
from tests.support.scored_runs import evaluated, sure
from tests.support.tabs import NOBODY

FILTERS = ("all", "", "", 0)


@pytest.fixture
def tab(store: RunStore) -> RunsTab:
    tab = RunsTab(store)
    with gr.Blocks():
        tab.draw()
    return tab


def event(**values: Any) -> gr.EventData:
    return gr.EventData(None, values)


def opened_view(run: Run) -> dict[str, Any]:
    return {**blank(), "opened": run.id}


def test_the_run_that_was_asked_about_is_deleted(tab: RunsTab, store: RunStore) -> None:
    first, second = (store.create(RunConfig(name=name)) for name in ("first", "second"))
    for run in (first, second):
        run.append(toys.story()[-1])
    question = tab.on_delete(NOBODY, opened_view(first))
    assert "first" in question[tab.question]
    now = opened_view(second)  # by the time of the click another one was opened
    updates = tab.on_confirm(NOBODY, None, now, "", question[tab.asked])
    assert [run.id for run in store.runs()] == [second.id]
    assert updates[tab.view]["opened"] == second.id
    assert "no such run" in tab.on_confirm(NOBODY, None, now, "", "")[tab.message]


def test_of_two_clicks_the_later_counts_and_a_name_is_the_runs_it_was_written_for(
    tab: RunsTab, store: RunStore
) -> None:
    first, second = (store.create(RunConfig()) for _ in range(2))

    def open_run(run: Run, at: Any, view: Any) -> Any:
        return tab.on_table(NOBODY, event(do="open", what=run.id, at=at), None, view, "")

    opened = open_run(second, 7.0, blank())
    assert opened[tab.described] == opened[tab.view]["opened"] == second.id
    for at in (6.0, None, "8"):  # it was clicked before, and is answered after
        assert open_run(first, at, opened[tab.view]) == gr.skip()
    assert open_run(first, 8.0, opened[tab.view])[tab.view]["opened"] == first.id
    tab.on_save(NOBODY, opened[tab.view], "", "a name", "a, b", "a note", first.id)
    assert (first.about().name, first.about().note, second.about().note) == ("a name", "a note", "")


def test_a_correction_and_a_threshold_go_to_the_run_that_is_drawn(
    tab: RunsTab, store: RunStore, toy_checkpoint: Path
) -> None:
    labels = [0, 1] * 20
    runs = []
    for _ in range(2):
        run, _ = evaluated(store, {4: sure(labels), 9: sure(labels)}, labels, 9)
        run.append(toys.story()[-1])
        texts = [f"text {n}" for n in range(len(labels))]
        columns = {"sentence1": texts, "sentence2": texts, "label": labels}
        saved_predictions.save_examples(run, "validation", pa.table(columns))
        toys.copy_model(toy_checkpoint, run.best)
        runs.append(run)
    drawn, opened = runs
    view, part = opened_view(opened), tab.evaluation
    drawing = part.on_part(NOBODY, opened_view(drawn), "Evaluation", *FILTERS)
    assert f'data-run="{drawn.id}"' in drawing[part.body]
    click = event(do="label", what="3", label="no", run=drawn.id)
    updates = part.on_table(NOBODY, click, view, *FILTERS)
    assert updates[part.message] == ""
    assert corrections.read_corrections(drawn) == {3: "no"}
    assert corrections.read_corrections(opened) == {}
    assert f'data-run="{opened.id}"' in updates[part.table]
    part.on_choice(NOBODY, event(do="save", what="0.7", run=drawn.id), view)
    assert decision_rule.read_rule(drawn.best).threshold == 0.7
    assert decision_rule.read_rule(opened.best).threshold is None
