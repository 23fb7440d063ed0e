"""The Data tab shows what is known of the pairs as it comes."""

import re

import gradio as gr
import pytest

from finetune.config import RunConfig
from finetune.data.check_report import CheckReport
from finetune.findings import Finding, Remedy
from finetune.jobs import check
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.job_folder import hold_lock
from finetune.ui.html import macro
from finetune.ui.tabs.data import Drawn
from tests.support.tabs import NOBODY, data_tab, new_check

POLL = gr.EventData(None, {"wait": "+this"})


class Watched:
    """The Data tab as a browser with one check sees it."""

    def __init__(self, store):
        self.tab, self.drawn = data_tab(store), Drawn()
        self.check = new_check(store)
        hold_lock(self.check.lock_file)  # as its worker, to the end of the tests

    def tick(self):
        """The parts of the page that change."""
        changes = self.tab.on_tick(NOBODY, self.check.id, self.drawn, POLL)
        self.drawn = changes.pop(self.tab.drawn, self.drawn)
        return changes

    def write(self, name, text):
        (self.check.folder / name).write_text(text)


@pytest.fixture
def watched(store):
    return Watched(store)


def test_the_page_shows_what_is_known_as_it_comes(watched):
    tab = watched.tab
    watched.check.append(events.PhaseStarted(phase=Phase.READ_ROWS, detail="train"))
    watched.check.append(events.Progressed(done=50_000))
    first = watched.tick()
    assert set(first) == {tab.progress}
    assert "reading train: 50,000 rows" in first[tab.progress]
    columns = {"sentence1": "p", "sentence2": "q", "label": "y"}
    report = CheckReport("x", corpus="c", labels=["a", "b"], columns=columns, read={"train": 9})
    watched.write("partial.json", report.to_json())
    watched.check.append(events.PhaseStarted(phase=Phase.MEASURE_LENGTHS))
    second = watched.tick()
    assert {tab.overview, tab.findings, tab.rows, tab.split, *tab.columns} <= set(second)
    assert ("q (guessed)", "") in second[tab.columns[1]]["choices"]
    assert (second[tab.progress].strip(), "ft-unknown" in second[tab.overview]) == ("", True)
    assert second[tab.poller][0] == "+"  # the wait goes on, and Train hears that pairs are counted
    assert set(watched.tick()) == {tab.progress}  # what is on the page is left alone
    watched.write("report.json", report.to_json())
    last = watched.tick()
    assert {tab.overview, tab.findings, tab.poller} <= set(last)
    assert not {tab.rows, tab.split, *tab.columns} & set(last)
    assert watched.tick() == {tab.poller: "-this"}


def test_answers_about_one_source_are_not_those_of_another(store, tmp_path):
    tab = data_tab(store)
    path = tmp_path / "other.csv"
    path.write_text("text,label\na,1\n")
    changes = tab.on_upload(NOBODY, str(path), None, None)
    for name in ("drop_leaked", "label_map", "positive_label"):
        assert changes[tab.remedies[name]] == getattr(RunConfig(), name)


def test_a_chooser_that_offers_the_same_as_before_is_left_alone(store, watched):
    """Somebody may be typing into it."""
    watched.write("report.json", CheckReport("x", labels=["a", "b"], read={"train": 9}).to_json())
    assert set(watched.tab.columns) <= set(watched.tick())
    other = check.check_folder(store, RunConfig(max_train_samples=7))
    watched.check.folder.rename(other.folder)
    watched.check = other
    watched.write("report.json", CheckReport("x", labels=["a", "c"], read={"train": 7}).to_json())
    changes = watched.tick()
    assert watched.tab.rows in changes
    assert set(watched.tab.columns) & set(changes) == {watched.tab.columns[3]}  # the classes


def test_a_failure_is_told_each_time_and_keeps_what_needs_no_tokenizer(watched):
    tab = watched.tab
    for _ in range(2):
        watched.check.append(events.Failed(error="It is over.", remedy="Press Examine."))
        assert "It is over." in watched.tick()[tab.progress]
        assert set(watched.tick()) == {tab.poller}
        watched.check.events_file.unlink()
        assert "Examining" in watched.tick()[tab.progress]
    watched.write("partial.json", CheckReport("x", read={"train": 9}).to_json())
    watched.check.append(events.Failed(error="It is over."))
    changes = watched.tick()
    assert changes[tab.overview]
    assert {tab.progress, tab.poller, *tab.columns} <= set(changes)


def test_a_button_on_a_finding_sets_the_forms_field(watched):
    remedy = Remedy("drop_leaked", True, "<i>Leave</i> them out")
    leakage = Finding("leakage", "warns", "Leakage", "Kept.", count=3, remedies=[remedy])
    report = CheckReport("x", findings=[leakage], sheets=["A", "B"])
    watched.write("report.json", report.to_json())
    tab, changes = watched.tab, watched.tick()
    assert 'data-field="drop_leaked" data-value="true">&lt;i&gt;' in changes[tab.findings]
    assert ("B", "B") in changes[tab.columns[4]]["choices"]
    for name, value in (("drop_leaked", True), ("task", "x"), ("label_column", "x")):
        pressed = gr.EventData(None, {"field": name, "value": value})
        assert tab.on_remedy(NOBODY, pressed) == {tab.remedies[name]: value}
    assert tab.on_remedy(NOBODY, gr.EventData(None, {"field": "name"})) == gr.skip()


def test_the_hub_is_searched_by_name(store, hub):
    for name, downloads in (("ada/some-pairs", 5), ("ada/PAIRS", 7000), ("ada/other", 9)):
        hub.add_repo(name, "dataset", downloads=downloads)
    tab = data_tab(store)
    shown = tab.search.on_search(NOBODY, " pairs ")[tab.search.results]
    assert re.findall(r">([\w/-]+)</button>", shown) == ["ada/PAIRS", "ada/some-pairs"]
    assert "7,000 downloads" in shown
    assert "Nothing on the Hub has" in tab.search.on_search(NOBODY, "zebra")[tab.search.results]
    chosen = tab.search.on_choose(NOBODY, gr.EventData(None, {"value": "ada/PAIRS"}))
    assert [chosen[box] for box in (*tab.datasets, tab.columns[0])] == [*["ada/PAIRS"] * 2, ""]
    hub.fail("GET", "/api/datasets", 500, times=9)
    assert "No connection" in tab.search.on_search(NOBODY, "pairs")[tab.search.results]


def test_a_label_is_renamed_merged_or_left_out_in_place(store):
    tab = data_tab(store)
    field = tab.remedies["label_map"]

    def mend(old, new, before=""):
        event = gr.EventData(None, {"mend": old, "label": new})
        return str(tab.on_remedy(NOBODY, event, before).get(field, ""))

    renamed = mend("yess", "very good")
    assert RunConfig(label_map=renamed).changed_labels == {"yess": "very good"}
    merged = mend("very good", "yes", renamed)  # its rows still say yess
    assert RunConfig(label_map=merged).changed_labels == {"yess": "yes"}
    both = RunConfig(label_map=mend("maybe", "", merged)).changed_labels
    assert both == {"yess": "yes", "maybe": ""}
    refused = tab.on_remedy(NOBODY, gr.EventData(None, {"mend": "a", "label": "b" * 400}), "")
    assert "cannot hold so many changes" in refused[tab.message]
    report = CheckReport("x", corpus="c", labels=["yes", "<i>"], read={"train": 9})
    drawn = macro("checks.html", "mend")(report.labels)
    assert "&lt;i&gt;" in drawn
    assert "<i>" not in drawn
