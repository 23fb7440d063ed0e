"""Who brought single texts reads of no pairs, whatever is learned of them, in any language."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from finetune.evaluation import saved_predictions
from finetune.runs.job_folder import forget_state
from finetune.runs.run import Run
from finetune.ui import i18n, live_updates
from finetune.ui.run_view import blank
from finetune.ui.tabs.evaluate import ERRORS, EVALUATION
from finetune.ui.tabs.runs import RunsTab
from tests.support import toy_runs, translations
from tests.support.evaluated_runs import FILTERS
from tests.support.tabs import NOBODY, draw_train, drawn, predict_tab, publish_tab
from tests.support.toy_runs import ToyRuns

PAIR = re.compile(
    r"\bpair(s|ed)?\b|(?<!\w)paar|textpaar|satzpaar|쌍|句对|文本对|成对|配对(?!自助)", re.IGNORECASE
)
# Of these alone a person reads the values.
UNREAD = re.compile(r'\s(?!aria-label|title|placeholder|alt)[\w-]+="[^"]*"')


def single(run: Run) -> None:
    """Make a run's rows single texts."""
    lines = [json.loads(line) for line in run.events_file.read_text().splitlines()]
    for line in lines:
        if line["event"] == "prepared":
            line["data"]["columns"]["sentence2"] = ""
    run.events_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    forget_state(run)
    (run.predictions / "swapped.npz").unlink()
    table = saved_predictions.read_examples(run)
    assert table is not None
    none = pa.array([""] * table.num_rows)
    place = table.column_names.index("sentence2")
    table = table.set_column(place, "sentence2", none)
    saved_predictions.save_examples(run, "validation", table)


def texts(value: Any) -> str:
    """What a person reads of updates."""
    if isinstance(value, dict):
        return "\n".join(map(texts, value.values()))
    if isinstance(value, list | tuple):
        return "\n".join(map(texts, value))
    return UNREAD.sub("", value) if isinstance(value, str) else ""


@pytest.mark.parametrize("language", i18n.LANGUAGES)
def test_a_translation_speaks_of_pairs_only_where_the_english_does(language: str) -> None:
    for text, translated in translations.catalogue(language).items():
        assert PAIR.search(text) or not PAIR.search(translated), text


def test_no_view_of_single_texts_speaks_of_pairs(trained: ToyRuns, tmp_path: Path) -> None:
    store, found = trained.store(tmp_path / "runs"), []
    runs = toy_runs.runs_by_name(store)
    for kind in (toy_runs.CLASSES, toy_runs.SCORE):
        single(runs[kind])
    predict, publish, train = predict_tab(store), publish_tab(store), draw_train(store)
    tab = drawn(RunsTab(store))
    for kind in toy_runs.KINDS:
        run = runs[kind]
        asked, view = f"run={run.id}", blank() | {"opened": run.id}
        views = {
            "live": live_updates.changes(store, run, {})[0],
            "run": tab.on_open(NOBODY, blank(), {}, "", asked),
            "train": train.on_turn(NOBODY, run.id),
            "predict": predict.on_open(NOBODY, run.id, asked),
            "model": predict.on_run(NOBODY, run.id, ()),
            "answer": predict.on_ask(NOBODY, run.id, "the cat sees a dog .", ""),
            "publish": publish.on_open(NOBODY, None, asked),
            **{
                part: tab.evaluation.on_part(NOBODY, view, part, *FILTERS.values())
                for part in (EVALUATION, ERRORS)
            },
        }
        for name, updates in views.items():
            lines = texts(updates).splitlines()
            found += [(kind, name, line) for line in lines if PAIR.search(line)]
    assert not found, "\n".join(map(str, found))
