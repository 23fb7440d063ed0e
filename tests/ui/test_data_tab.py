"""The first rows of a file, before anything else is known of it, and what the page shows then."""

from __future__ import annotations

import gzip
import json
import signal
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from finetune.config import RunConfig
from finetune.data import first_rows, preview
from finetune.data.check_report import CheckReport, Example
from finetune.jobs import check
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui.tabs.data import Drawn
from tests.support.tabs import data_tab
from tests.support.translations import CHECK_PHASES
from tests.ui.test_app import NOBODY


def upload(store: RunStore, folder: Path, name: str, contents: bytes) -> RunConfig:
    path = folder / name
    path.write_bytes(contents)
    return RunConfig(dataset=store.uploads.add({"train": path}))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.csv.gz"])
def test_the_first_rows_are_those_of_the_file(store: RunStore, tmp_path: Path, name: str) -> None:
    cells = [("one", "two", "1"), ("<b>", "", "0"), *((f"s{n}", "t", "1") for n in range(20))]
    mark = "\t" if "tsv" in name else ","
    text = "\n".join(mark.join(row) for row in [("p", "q", "r"), *cells])
    if "json" in name:
        records = [dict(zip("pqr", row, strict=True)) for row in cells]
        text = "\n".join(map(json.dumps, records)) if "jsonl" in name else json.dumps(records)
    contents = text.encode()
    contents = gzip.compress(contents) if name.endswith(".gz") else contents
    found = first_rows.read_first_rows(upload(store, tmp_path, name, contents), store.root)
    assert found is not None
    assert (found.source, found.columns, found.more) == (name, ["p", "q", "r"], 0)
    assert [row for _, row in found.rows] == [list(row) for row in cells[: first_rows.ROWS]]
    assert first_rows.FirstRows.from_dict(json.loads(found.to_json())) == found


def test_a_wide_file_with_long_cells_is_cut(store: RunStore, tmp_path: Path) -> None:
    head = ",".join(f"c{n}" for n in range(40))
    row = ",".join(["x" * 1000] * 40)
    found = first_rows.read_first_rows(
        upload(store, tmp_path, "a.csv", f"{head}\n{row}\n".encode()), store.root
    )
    assert found is not None
    assert (len(found.columns), found.more) == (first_rows.COLUMNS, 40 - first_rows.COLUMNS)
    assert {len(cell) for _, cells in found.rows for cell in cells} == {
        first_rows.MAX_CELL_CHARACTERS
    }


def test_what_is_no_file_here_or_cannot_be_read_has_none(store: RunStore, tmp_path: Path) -> None:
    bundled = first_rows.read_first_rows(RunConfig(), store.root)
    assert bundled is not None
    assert bundled.columns[:2] == ["sentence1", "sentence2"]
    for chosen in (
        RunConfig(dataset="glue/mrpc"),
        RunConfig(dataset="upload/" + "0" * 24),
        upload(store, tmp_path, "a.parquet", b"nonsense"),
    ):
        assert first_rows.read_first_rows(chosen, store.root) is None


ASKED = gr.EventData(None, {"wait": "+this"})


class Watched:
    """The Data tab as a browser with one check sees it."""

    def __init__(self, store: RunStore) -> None:
        self.tab, self.drawn = data_tab(store), Drawn()
        self.order, self.words = "first", ""
        self.check = check.check_folder(store, RunConfig())
        self.check.folder.mkdir(parents=True)
        self.write("config.json", RunConfig().to_json())

    def tick(self) -> dict[Any, Any]:
        """The parts of the page that change."""
        changes = self.tab.on_tick(
            NOBODY, self.check.id, self.drawn, self.order, self.words, ASKED
        )  # fmt: skip
        self.drawn = changes.pop(self.tab.drawn, self.drawn)
        return changes

    def write(self, name: str, text: str) -> None:
        (self.check.folder / name).write_text(text)


@pytest.fixture
def watched(store: RunStore) -> Watched:
    return Watched(store)


def test_the_page_shows_what_is_known_as_it_comes(watched: Watched) -> None:
    tab = watched.tab
    watched.check.append(events.PhaseStarted(phase="examine", detail="reading train"))
    watched.check.append(events.Progressed(done=50_000))
    rows = first_rows.FirstRows("<i>.csv", ["p"], [(2, ["<script>"])])
    watched.write(check.GLANCE, rows.to_json())
    first = watched.tick()
    assert set(first) == {tab.progress}
    assert "reading train: 50,000 rows" in first[tab.progress]
    assert "&lt;script&gt;" in first[tab.progress]
    assert "<i>.csv" not in first[tab.progress]
    known = CheckReport(
        "x", corpus="c", labels=["a", "b"], columns={"sentence2": "q"}, read={"train": 9}
    )
    watched.write(check.PARTIAL, known.to_json())
    watched.check.append(events.PhaseStarted(phase="examine", detail="loading the tokenizer"))
    second = watched.tick()
    assert {tab.overview, tab.findings, tab.rows, tab.split, *tab.columns} <= set(second)
    assert ("guessed: q", "") in second[tab.columns[1]]["choices"]
    assert "Almost done" in second[tab.progress]
    assert "loading the tokenizer" in second[tab.progress]
    assert second[tab.poller][0] == "+"  # the wait goes on, and Train hears that pairs are counted
    assert set(watched.tick()) == {tab.progress}  # what is on the page is left alone
    watched.write("report.json", known.to_json())
    last = watched.tick()
    assert {tab.overview, tab.findings, tab.poller} <= set(last)
    assert not {tab.rows, tab.split, tab.label, *tab.columns} & set(last)
    assert watched.tick() == {tab.poller: "-this"}


def test_rows_of_new_pairs_come_in_the_way_that_is_chosen(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    class Owls:
        def __init__(self, folder: Path) -> None:
            asked.append(folder.name)

        def rows(self, *values: object, seed: int) -> list[Example]:
            asked.extend(values)
            return [Example("train", 7, "an owl")]

    monkeypatch.setattr(preview, "Preview", Owls)
    watched.order, watched.words = "search", "owl"
    known = CheckReport("x", corpus="c", labels=["a", "b"], read={"train": 9, "test": 2})
    watched.write("report.json", known.to_json())
    assert "an owl" in watched.tick()[watched.tab.rows]
    assert asked == ["c", "train", "search", "owl"]


def test_unclear_columns_are_shown_with_the_first_rows(watched: Watched) -> None:
    glance = first_rows.FirstRows("a.csv", ["p"], [(2, ["<script>"])])
    watched.write(check.GLANCE, glance.to_json())
    watched.write("report.json", CheckReport("a.csv", choices={"p": "", "q": ""}).to_json())
    shown = watched.tick()[watched.tab.overview]
    assert "First rows of a.csv" in shown
    assert "&lt;script&gt;" in shown
    assert "No row was measured" not in shown  # nothing is known of lengths
    watched.write("report.json", CheckReport("a.csv", corpus="c").to_json())
    assert "First rows" not in watched.tick()[watched.tab.overview]


def test_what_needs_no_tokenizer_stays_when_the_rest_fails(watched: Watched) -> None:
    tab = watched.tab
    watched.write(check.PARTIAL, CheckReport("x", read={"train": 9}).to_json())
    watched.check.append(events.Failed(error="It is over.", remedy="Press Examine."))
    shown = watched.tick()
    assert "It is over." in shown[tab.progress]
    assert shown[tab.overview]
    assert tab.poller in shown
    assert set(watched.tick()) == {tab.poller}


def test_choosers_offer_the_columns_after_a_failure_before_they_were_known(
    watched: Watched,
) -> None:
    watched.check.append(events.Failed(error="It is over.", remedy="Press Examine."))
    assert "It is over." in watched.tick()[watched.tab.progress]
    watched.write(
        "report.json", CheckReport("x", read={"train": 9}).to_json()
    )  # Examine was pressed
    assert set(watched.tab.columns) <= set(watched.tick())


def test_a_chooser_that_offers_the_same_as_before_is_left_alone(
    store: RunStore, watched: Watched
) -> None:
    """Somebody may be typing into it."""
    watched.write("report.json", CheckReport("x", labels=["a", "b"], read={"train": 9}).to_json())
    assert set(watched.tab.columns) <= set(watched.tick())
    other = check.check_folder(store, RunConfig(max_train_samples=7))
    watched.check.folder.rename(other.folder)
    watched.check = other
    watched.write("config.json", RunConfig(max_train_samples=7).to_json())
    watched.write("report.json", CheckReport("x", labels=["a", "c"], read={"train": 7}).to_json())
    changes = watched.tick()
    assert watched.tab.rows in changes
    assert set(watched.tab.columns) & set(changes) == {watched.tab.columns[3]}  # the classes


def test_the_same_failure_is_told_again_when_pairs_are_checked_again(watched: Watched) -> None:
    failed = events.Failed(error="It is over.", remedy="Press Examine.")
    watched.check.append(failed)
    assert "It is over." in watched.tick()[watched.tab.progress]
    assert set(watched.tick()) == {watched.tab.poller}
    watched.check.events_file.unlink()
    assert "Examining" in watched.tick()[watched.tab.progress]
    watched.check.append(failed)
    assert "It is over." in watched.tick()[watched.tab.progress]


def test_an_examination_tells_what_it_does_with_the_pairs(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alarm", "signal"):
        monkeypatch.setattr(signal, name, lambda *given: None)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):  # as the examination sets them
        monkeypatch.setenv(name, "1")
    place = check.check_folder(store, RunConfig())
    place.folder.mkdir(parents=True)
    assert check.carry_out(place, RunConfig(), store.root) == 0
    told = [one.detail for one in place.tail()[0] if isinstance(one, events.PhaseStarted)]
    assert told == [one for one in CHECK_PHASES if one != "starting"]
    found = check.check_state(Run(place.folder))
    assert found.report is not None
    partial = CheckReport.from_dict(json.loads((place.folder / check.PARTIAL).read_text()))
    assert partial.splits == found.report.splits
    assert partial.lengths.bins == []
    assert "once the tokenizer is loaded" in partial.lengths.note
    assert found.report.lengths.rows == 1746
