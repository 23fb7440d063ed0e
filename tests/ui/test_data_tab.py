"""What the Data tab shows while a check goes on."""

from __future__ import annotations

import json
import signal
from typing import Any

import gradio as gr
import pytest

from finetune.config import RunConfig
from finetune.data import preview
from finetune.data.check_report import CheckReport
from finetune.jobs import check, check_jobs
from finetune.runs import events
from finetune.runs.store import Run, RunStore
from finetune.ui import checks_view
from finetune.ui.tabs import data
from tests.ui.test_app import NOBODY

ASKED = gr.EventData(None, {"wait": "+this"})


class Watched:
    """The Data tab as a browser with one examination sees it."""

    def __init__(self, store: RunStore) -> None:
        self.tab, self.seen = data.DataTab(store), ""
        self.asks = ("first", "")
        self.place = check_jobs.check_folder(store, RunConfig())
        self.place.folder.mkdir(parents=True)
        (self.place.folder / "config.json").write_text(RunConfig().to_json())

    def tick(self) -> dict[str, Any]:
        """The outputs that change, by name."""
        names = ["seen", "progress", "overview", "more", "findings", "sheet", "split", "klass"]
        names += [*data._CHOSEN, "rows", "pulse"]
        found = self.tab.on_tick(NOBODY, self.place.id, self.seen, *self.asks, ASKED)
        shown = dict(zip(names, found, strict=True))
        changed = {name: one for name, one in shown.items() if not _skipped(one)}
        self.seen = changed.get("seen", self.seen)
        return changed

    def write(self, name: str, text: str) -> None:
        (self.place.folder / name).write_text(text)


def _skipped(one: Any) -> bool:
    return isinstance(one, dict) and one == gr.skip()


def test_the_page_shows_what_is_known_as_it_comes(store: RunStore) -> None:
    watched = Watched(store)
    watched.place.append(events.PhaseStarted(phase="examine", detail="reading train"))
    watched.place.append(events.Progressed(done=50_000))
    rows = preview.FirstRows("<i>.csv", ["p"], [(2, ["<script>"])])
    watched.write(check_jobs.GLANCE, rows.to_json())
    first = watched.tick()
    assert set(first) == {"progress"}
    assert "reading train: 50,000 rows" in first["progress"]
    assert "&lt;script&gt;" in first["progress"]
    assert "<i>.csv" not in first["progress"]
    known = CheckReport(
        "x", corpus="c", labels=["a", "b"], columns={"sentence2": "q"}, read={"train": 9}
    )
    watched.write(check_jobs.PARTIAL, known.to_json())
    watched.place.append(events.PhaseStarted(phase="examine", detail="loading the tokenizer"))
    second = watched.tick()
    assert {"overview", "findings", "rows", "split", *data._CHOSEN} <= set(second)
    assert ("guessed: q", "") in second["sentence2_column"]["choices"]
    assert "Almost done" in second["progress"]
    assert "loading the tokenizer" in second["progress"]
    assert second["pulse"][0] == "+"  # the wait goes on, and Train hears that pairs are counted
    assert set(watched.tick()) == {"progress"}  # what is on the page is left alone
    watched.write("report.json", known.to_json())
    last = watched.tick()
    assert {"overview", "findings", "pulse"} <= set(last)
    assert not {"rows", "split", "klass"} & set(last)
    assert watched.tick() == {"pulse": "-this"}


def test_rows_of_new_pairs_come_in_the_way_that_is_chosen(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(store)
    monkeypatch.setattr(watched.tab, "on_rows", lambda *asked: str(asked[1:]))
    watched.asks = ("search", "owl")
    known = CheckReport("x", corpus="c", labels=["a", "b"], read={"train": 9, "test": 2})
    watched.write("report.json", known.to_json())
    assert watched.tick()["rows"] == str((watched.place.id, "train", "search", "a", "owl"))


def test_unclear_columns_are_shown_with_the_first_rows(store: RunStore) -> None:
    watched = Watched(store)
    watched.write(
        check_jobs.GLANCE, preview.FirstRows("a.csv", ["p"], [(2, ["<script>"])]).to_json()
    )
    watched.write("report.json", CheckReport("a.csv", choices={"p": "", "q": ""}).to_json())
    shown = watched.tick()["overview"]
    assert "First rows of a.csv" in shown
    assert "&lt;script&gt;" in shown
    assert "No row was measured" not in shown  # nothing is known of lengths
    watched.write("report.json", CheckReport("a.csv", corpus="c").to_json())
    assert "First rows" not in watched.tick()["overview"]


def test_what_needs_no_tokenizer_stays_when_the_rest_fails(store: RunStore) -> None:
    watched = Watched(store)
    watched.write(check_jobs.PARTIAL, CheckReport("x", read={"train": 9}).to_json())
    watched.place.append(events.Failed(error="It is over.", remedy="Press Examine."))
    shown = watched.tick()
    assert "It is over." in shown["progress"]
    assert shown["overview"]
    assert "pulse" in shown
    assert set(watched.tick()) == {"pulse"}


def test_choosers_offer_the_columns_after_a_failure_before_they_were_known(
    store: RunStore,
) -> None:
    watched = Watched(store)
    watched.place.append(events.Failed(error="It is over.", remedy="Press Examine."))
    assert "It is over." in watched.tick()["progress"]
    watched.write("report.json", CheckReport("x", read={"train": 9}).to_json())
    assert set(data._CHOSEN) <= set(watched.tick())


def test_an_examination_tells_what_it_does_with_the_pairs(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alarm", "signal"):
        monkeypatch.setattr(signal, name, lambda *given: None)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):  # as the examination sets them
        monkeypatch.setenv(name, "1")
    place = check_jobs.check_folder(store, RunConfig())
    place.folder.mkdir(parents=True)
    assert check.carry_out(place, RunConfig(), store.root) == 0
    told = [one.detail for one in place.tail()[0] if isinstance(one, events.PhaseStarted)]
    assert told == [one for one in checks_view.DOINGS if one != "starting"]
    found = check_jobs.check_state(Run(place.folder))
    assert found.report is not None
    partial = CheckReport.from_dict(json.loads((place.folder / check_jobs.PARTIAL).read_text()))
    assert partial.splits == found.report.splits
    assert partial.lengths.bins == []
    assert "once the tokenizer is loaded" in partial.lengths.note
    assert found.report.lengths.rows == 1746
