"""The Runs tab and what it opens: the handlers are called with what a browser sends."""

import csv
import io
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import gradio as gr
import pytest

from finetune.api.verb import VERBS
from finetune.config import RunConfig
from finetune.errors import NoSuchRun
from finetune.evaluation import corrections
from finetune.inference import decision_rule
from finetune.jobs import run_table
from finetune.runs import events, grids
from finetune.runs.queue import Queue
from finetune.runs.store import RunStore, named_run
from finetune.studies.space import Budget
from finetune.studies.study import create_study, studies
from finetune.ui import compare_view, run_view
from finetune.ui.api import Api, as_endpoint
from finetune.ui.compare_view import ReleaseCheck
from finetune.ui.run_view import blank
from finetune.ui.tabs.runs import RunsTab
from tests.support import toys
from tests.support.made_runs import FILTERS, evaluated
from tests.support.tabs import NOBODY, draw_train, drawn, predict_tab, publish_tab
from tests.support.toys import story

ALL = tuple(FILTERS.values())


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    return drawn(RunsTab(RunStore(tmp_path_factory.mktemp("tab") / "runs")))


@pytest.fixture
def store(tab):
    yield tab.store
    shutil.rmtree(tab.store.root, ignore_errors=True)


@pytest.fixture
def part(tab):
    """The parts of an opened run."""
    return tab.evaluation


@pytest.fixture
def add(store, toy_checkpoint):
    """Make a run that has ended, with an F1, its model the toy."""

    def finished(f1=0.8, group="", title="", study="", **values):
        config = RunConfig(max_length=32).changed(**values)
        run = store.create(config, group=group, title=title)
        about = run.about().model_copy(update={"study": study})
        (run.folder / "about.json").write_text(about.model_dump_json())
        for event in story():
            if isinstance(event, events.Evaluated):
                metrics = {"metrics": {"accuracy": f1 - 0.1, "f1": f1, "loss": 0.5}}
                event = event.model_copy(update=metrics)
            run.append(event)
        toys.copy_model(toy_checkpoint, run.best)
        return run

    return finished


@pytest.fixture
def scored(store, toy_checkpoint):
    """Make a run with saved answers: a seed, how right it is, how sure."""
    return lambda *values: evaluated(store, toy_checkpoint, *values)


def event(**values):
    return gr.EventData(None, values)


def opened_view(run):
    return {**blank(), "opened": run.id}


def test_a_bundle_is_one_line_that_opens_into_its_runs(tab, store, add, monkeypatch):
    for seed in range(4):
        run = add(0.80 + seed / 100, "seeds", seed=seed, title=f"tickets-1 \u00b7 seed {seed}")
    run.describe(tags=("last",))

    def draw(words, **view):
        return str(tab.on_tick(NOBODY, blank() | view, {}, words)[tab.table])

    click = event(do="unfold", what="tickets-1", at=1)
    opened = tab.on_table(NOBODY, click, None, blank(), "")[tab.view]
    for words, members in (("", 4), ("seed", 4), ("last", 1)):
        for view, shown in ((blank(), 0), (opened, members)):
            drawn = draw(words, **view)
            assert drawn.count('class="ft-member"') == shown
            assert "4 seeds" in drawn
            assert "0.815</span>" not in drawn
            assert "0.815 \u00b1 0.013" in drawn
    assert "No run has all of these words" in draw("zebra")
    monkeypatch.setattr(run_view, "PAGE", 3)
    newest = add()
    first, last = draw("", **opened), draw("", **opened | {"page": 9})
    assert first.count("<tr") == 1 + 3
    assert "page 1 of 2" in first
    assert all(run.id in first for run in store.runs())  # a box of another page stays ticked
    assert "page 2 of 2" in last
    assert f'data-do="open" data-what="{newest.id}"' not in last


def test_columns_are_the_same_for_any_runs_and_others_are_added_on_wish(tab, store, add):
    add(0.5, learning_rate=5e-4)
    add(0.6, learning_rate=5e-5, seed=7)
    one = add(0.9, learning_rate=1e-3, name="=one")
    rows = run_view.rows(store)
    drawn = str(run_view.table(store, rows, blank() | {"by": "score"}))
    heads = [text.strip() for text in re.findall(r'data-what="\w+">([^<]*)\n', drawn)]
    assert heads == ["Run", "What", "F1", "When", "Duration", "Size (MB)", "Status"]
    click = event(do="columns", what="weight_decay <b>", at=1)
    table = tab.on_table(NOBODY, click, None, blank(), "")[tab.table]
    chosen = re.findall(r'data-do="sort" data-what="(.*?)"', table)
    assert chosen == [*run_table.FIXED, "weight_decay"]
    lines = list(csv.DictReader(io.StringIO(run_table.runs_csv(rows))))
    assert [float(line["learning_rate"]) for line in lines] == [1e-3, 5e-5, 5e-4]
    assert (lines[0]["id"], lines[0]["name"]) == (one.id, "'=one")  # no formula of a spreadsheet


def test_a_fold_or_a_losing_trial_is_nowhere_offered(store, add):
    folds = [add(0.9, "cv", folds=2, fold=n, title=f"cv-1 \u00b7 fold {n}") for n in (1, 2)]
    predict, publish = predict_tab(store), publish_tab(store)

    def offered(tab, address=""):
        choices = tab.on_open(NOBODY, None, address)[tab.run]["choices"]
        return [name.partition(" \u00b7 F1")[0] for name, _ in choices]

    assert offered(publish) == []
    whole = add(0.7, "cv", folds=2, title="cv-1 \u00b7 all rows")
    trials = [add(f1, study="s", title=f"search 1 \u00b7 trial {f1}") for f1 in (0.6, 0.8, 0.5)]
    for tab in (predict, publish):
        assert offered(tab) == ["search 1", "cv-1"]
    assert offered(publish, f"run={folds[0].id}") == ["search 1", "cv-1"]
    assert offered(predict, f"run={folds[0].id}") == ["search 1", "cv-1", "cv-1 \u00b7 fold 1"]
    for name, run in (("search 1", trials[1]), ("cv-1", whole), ("cv-1 \u00b7 fold 2", folds[1])):
        assert named_run(Path(name), store.root).id == run.id
    for run, shown in ((whole, True), (folds[0], False), (trials[1], True), (trials[0], False)):
        assert store.is_model(run) == shown
    check = drawn(ReleaseCheck(store))
    old = check.shown(store, [run.id for run in (*folds, whole, *trials)])[check.old]
    assert [run_id for _, run_id in old["choices"]] == [trials[1].id, whole.id]
    for seed in (1, 2):
        add(0.5 + seed / 10, "seeds", seed=seed, title=f"tickets-1 \u00b7 seed {seed}")
    assert offered(publish)[0] == "tickets-1, its best run"
    waiting = store.create(RunConfig(seed=3), group="seeds", title="tickets-1 \u00b7 seed 3")
    Queue(store.root).add(waiting.id)
    assert publish.on_open(NOBODY, None, "")[publish.run]["value"] == trials[1].id  # it goes on
    with pytest.raises(NoSuchRun, match=r"no run named cv-2\. Did you mean cv-1"):
        named_run(Path("cv-2"), store.root)


def test_a_run_is_opened_by_its_id_and_has_one_name_wherever_it_is_shown(tab, store, add):
    first, second = (add(seed=seed) for seed in (1, 2))
    name = "bundled-2"
    given = (blank(), {}, "")
    train, predict, publish = draw_train(store), predict_tab(store), publish_tab(store)
    assert train.on_arrival(NOBODY, f"?run={second.id}")[train.title].striptags() == name
    compared = tab.on_open(NOBODY, *given, f"compare={first.id},{second.id}")
    assert compared[tab.view]["compared"] == [first.id, second.id]
    assert f"<td>{name}</td>" in str(compared[tab.comparison]["value"])
    back = tab.on_back(NOBODY, compared[tab.view], "")
    assert (back[tab.head]["visible"], back[tab.comparison]["visible"]) == (False, False)
    for other in (predict, publish):
        choices = other.on_open(NOBODY, None, "")[other.run]["choices"]
        assert choices[0][0] == f"{name} \u00b7 F1 0.800"
    opened = tab.on_open(NOBODY, *given, f"run={second.id}")
    assert opened[tab.view]["opened"] == second.id
    assert f">{name}</h2>" in opened[tab.title]
    assert f"Delete <b>{name}</b>" in tab.on_delete(NOBODY, opened[tab.view])[tab.question]
    assert named_run(Path(name), store.root).id == second.id  # on the command line
    assert "no such run" in tab.on_open(NOBODY, *given, "run=../x")[tab.message]


def test_a_link_opens_what_it_says_whatever_was_open_before(tab, store, add):
    first, second = (add(seed=seed) for seed in (1, 2))
    study = create_study(store, RunConfig(), {"seed": (1, 2)}, Budget(2))
    places = {
        f"run={first.id}": (tab.title, "bundled-1"),
        f"compare={first.id},{second.id}": (tab.comparison, "No comparison yet"),
        f"search={study.id}": (tab.comparison, "of at most 2 trials"),
    }
    for before in places:
        view = tab.on_open(NOBODY, blank(), {}, "", before)[tab.view]
        for address, (place, text) in places.items():
            opened = tab.on_open(NOBODY, view, {}, "", address)
            assert text in str(opened[place]), (before, address)
            assert opened[tab.run_column]["visible"] == address.startswith("run=")


def test_a_search_goes_with_its_runs_if_all_are_ticked(tab, store, add):
    study = create_study(store, RunConfig(), {"seed": (1, 2)}, Budget(2))
    runs = [add(seed=seed, study=study.id) for seed in (1, 2)]
    (study.folder / "study.json").write_text("{")  # a damaged one, which hides no run
    assert runs[0].title() in run_view.table(store, run_view.rows(store), blank())
    asked = tab.on_delete_ticked(NOBODY, blank(), runs[0].id)[tab.asked]
    tab.on_confirm(NOBODY, None, blank(), "", asked)
    assert (len(store.runs()), len(studies(store))) == (1, 1)
    asked = tab.on_delete_ticked(NOBODY, blank(), f"{runs[1].id} {add(seed=3).id}")[tab.asked]
    tab.on_confirm(NOBODY, None, blank(), "", asked)
    assert (store.runs(), studies(store)) == ([], [])


def test_runs_of_different_data_are_told_apart_by_contents_and_sorted_apart(store, add, tmp_path):
    """Two files of one name are two; a file under two names is one, once a run has read it."""

    def run_on(folder, name, contents, fingerprint, **values):
        (tmp_path / folder).mkdir(exist_ok=True)
        file = tmp_path / folder / name
        file.write_text(contents)
        run = add(dataset=store.uploads.add({"train": file}), **values)
        prepared = run.state().prepared
        run.append(prepared.model_copy(update={"fingerprint": fingerprint}))
        return run

    first = run_on("a", "pairs.csv", "a,b", "1", f1=0.6)
    other = run_on("b", "pairs.csv", "c,d", "2", f1=0.9)
    renamed = run_on("b", "again.csv", "a,b", "1", f1=0.8)
    fewer = run_on("a", "pairs.csv", "a,b", "3", f1=0.5, max_train_samples=5)
    cut = run_on("a", "pairs.csv", "a,b", "4", f1=0.7, validation_share=0.3)
    both = "pairs.csv, again.csv"
    rows = run_table.run_rows(store)
    assert {row.id: row.dataset for row in rows} == {
        first.id: both, other.id: "pairs.csv", renamed.id: both, fewer.id: both,
        cut.id: "pairs.csv (2)",  # its scores are of other pairs
    }  # fmt: skip
    drawn = str(run_view.table(store, rows, blank() | {"by": "f1"}))
    order = re.findall(r'colspan="\d+">(.*?)<|<td class="ft-num">\s*(0\.\d00)', drawn)
    shown = [heading or score for heading, score in order if heading or score >= "0.8"]
    assert shown == ["pairs.csv (2)", both, "0.800", "pairs.csv", "0.900"]
    assert "pairs.csv (2)" in str(compare_view.comparison(store, [other.id, cut.id]))


def test_the_runs_that_were_asked_about_are_deleted(tab, store, add):
    first, second, third = (add(name=name) for name in ("first", "second", "third"))
    asked = tab.on_delete_ticked(NOBODY, blank(), f"{first.id} {third.id}")
    assert "Delete 2 runs" in asked[tab.question]
    now = opened_view(second)  # by the time of the click another one was opened
    updates = tab.on_confirm(NOBODY, None, now, "", asked[tab.asked])
    assert [run.id for run in store.runs()] == [second.id]
    assert updates[tab.view]["opened"] == second.id
    for gone in (asked[tab.asked], ""):
        assert "no such run" in tab.on_confirm(NOBODY, None, now, "", gone)[tab.message]


def test_the_rows_to_be_deleted_are_named_and_no_tick_outlives_a_comparison_or_a_deletion(
    tab, store, add
):
    single, other = add(name="single"), add(name="other")
    trials = [add(study="s", title=f"search 1 \u00b7 trial {n}") for n in range(3)]
    ids = " ".join(trial.id for trial in trials)

    def question(*ticked):
        return tab.on_delete_ticked(NOBODY, blank(), " ".join(ticked))[tab.question].striptags()

    def ticks(updates):
        return re.findall(r'data-runs="([^"]*)" data-ticks="(.*?)"', str(updates[tab.table]))

    assert "Delete single with its model" in question(single.id)
    assert "Delete 4 runs with their models, curves and logs: search 1 (3 runs), other?" in (
        question(ids, other.id)
    )
    assert "logs: search 1 \u00b7 trial 1, search 1 \u00b7 trial 0?" in (
        question(trials[0].id, trials[1].id)
    )
    more = [add(name=f"more {n}") for n in range(6)]
    named = "more 5, more 4, more 3, more 2, more 1 and 3 more?"
    assert named in question(single.id, ids, *(run.id for run in more))
    compared = tab.on_compare(NOBODY, blank(), "", f"{single.id} {other.id}")
    ((lines, first),) = ticks(compared)
    assert sorted(line.count(" ") for line in lines.split("|")) == [0] * 8 + [2]
    asked = f"{single.id} {other.id}"
    ((_, second),) = ticks(tab.on_confirm(NOBODY, None, compared[tab.view], "", asked))
    ((_, before),) = ticks(tab.on_tick(NOBODY, blank(), {}, ""))
    assert len({before, first, second}) == 3


def test_of_two_clicks_the_later_counts_and_a_name_is_the_runs_it_was_written_for(tab, store):
    first, second = (store.create(RunConfig(name="as created")) for _ in range(2))

    def open_run(run, at, view):
        return tab.on_table(NOBODY, event(do="open", what=run.id, at=at), None, view, "")

    opened = open_run(second, 7.0, blank())
    assert opened[tab.described] == opened[tab.view]["opened"] == second.id
    for at in (6.0, None, "8"):  # it was clicked before, and is answered after
        assert open_run(first, at, opened[tab.view]) == gr.skip()
    assert open_run(first, 8.0, opened[tab.view])[tab.view]["opened"] == first.id
    tab.on_save(NOBODY, opened[tab.view], "", "<b>", "a, b", "a note", first.id)
    assert (first.about().name, first.about().note, second.about().note) == ("<b>", "a note", "")
    assert first.config().name == "as created"  # the configuration never changes
    assert "&lt;b&gt;</h2>" in tab.on_open(NOBODY, blank(), {}, "", f"run={first.id}")[tab.title]


def test_a_correction_and_a_threshold_go_to_the_run_that_is_drawn(part, scored):
    drawn, opened = scored(1, 3.0), scored(2, 3.0)
    view = opened_view(opened)
    drawing = part.on_part(NOBODY, opened_view(drawn), "Evaluation", *ALL)
    assert f'data-run="{drawn.id}"' in drawing[part.body]
    click = event(do="label", what="3", label="not_equivalent", run=drawn.id)
    updates = part.on_table(NOBODY, click, view, *ALL)
    assert updates[part.message] == ""
    assert corrections.read_corrections(drawn) == {3: "not_equivalent"}
    assert corrections.read_corrections(opened) == {}
    assert f'data-run="{opened.id}"' in updates[part.table]
    part.on_choice(NOBODY, event(do="save", what="0.7", run=drawn.id), view)
    assert decision_rule.read_rule(drawn.best).threshold == 0.7
    assert decision_rule.read_rule(opened.best).threshold is None


def test_examples_are_filtered_and_an_unusable_number_is_refused(part, scored):
    run = scored(1, 9.0)  # all right but the sixth
    view = {"opened": run.id}
    for filters, text in (
        ({"which": "suspected labels"}, "1 to 1 of 1"),
        ({"label": "equivalent"}, "1 to 20 of 36"),
        ({"search": "ZEBRA"}, "No example is like that."),
        ({"page": 40}, "41 to 60 of 60"),
        ({"page": 900}, "1 to 20 of 60"),
    ):
        updates = part.on_filter(NOBODY, view, *(FILTERS | filters).values())
        assert text in updates[part.table], filters
        assert "suspected label mistakes: <b>1</b>" in updates[part.counts]
    for value in ("0", "1.5"):
        click = event(do="save", what=value, run=run.id)
        message = part.on_choice(NOBODY, click, view)[part.message]
        assert "Choose one between 0 and 1." in message
    for odd in ("1.5.0", [], {"a": 1}, True, "nan", "1e999", 10**400, "9" * 5000):
        for do in ("save", "temper", "page"):
            click = event(do=do, what=odd or "x", run=run.id)
            answer = part.on_table if do == "page" else part.on_choice
            message = answer(NOBODY, click, view, *(ALL if do == "page" else ()))[part.message]
            assert "is no number" in message
            assert len(message) < 500
    assert decision_rule.read_rule(run.best).threshold is None


@pytest.mark.parametrize("language", ["de"], indirect=True)
def test_a_temperature_is_saved_from_a_page_with_decimal_commas(part, scored, language):
    run = scored(1, 1.0, 4.0)
    view = {"opened": run.id}
    body = part.on_part(NOBODY, view, "Evaluation", *ALL)[part.body]
    (button,) = re.findall(r'<button[^>]*data-do="temper"[^>]*>', body)
    (value,) = re.findall(r'data-what="([^"]+)"', button)
    part.on_choice(NOBODY, event(do="temper", what=value, run=run.id), view)
    assert decision_rule.read_rule(run.best).temperature == pytest.approx(float(value))


def test_a_bound_is_kept_shown_and_forgotten(part, scored):
    run = scored(1, 9.0)  # all right but the sixth
    view = {"opened": run.id}

    def click(**sent):
        updates = part.on_choice(NOBODY, event(run=run.id, **sent), view)
        return str(updates.get(part.body, "")), str(updates[part.message])

    body = part.on_part(NOBODY, view, "Evaluation", *ALL)[part.body]
    assert "that at most 2% of its surest answers are wrong" in body
    assert 'id="forget-sure"' not in body
    body, message = click(do="sure", error=0.01, confidence=0.95, per_class=False)
    assert re.search(r"do not show, with 95% confidence, that at most 1% .* is possible here", body)
    assert (message, decision_rule.read_rule(run.best).sure) == ("", None)
    body, message = click(do="sure", error=0.2, confidence=0.9, per_class=False)
    assert "At most 20% of its answers are wrong, with 90% confidence" in body
    rule = decision_rule.read_rule(run.best).sure
    assert (rule.error, rule.confidence) == (0.2, 0.9)
    _, message = click(do="save", what=0.3)  # other answers, of which nothing is known
    assert "is forgotten: ask for it again" in message
    assert decision_rule.read_rule(run.best).sure is None
    for odd in (None, "0.02", [], 7, True, {"a": 1}, "9" * 5000):
        _, message = click(do="sure", error=odd, confidence=0.95)
        assert "Choose one between 0 and 0.5." in message
        assert len(message) < 600


def test_two_runs_are_judged_by_their_validation_pairs(store, scored):
    poor, good = scored(1, 0.8), scored(2, 3.0)
    check = drawn(ReleaseCheck(store))
    shown = check.shown(store, [poor.id, good.id])
    assert (shown[check.new]["value"], shown[check.old]["value"]) == (good.id, poor.id)
    assert not check.shown(store, [poor.id])[check.box]["visible"]
    passed = str(check.on_start(NOBODY, good.id, poor.id, "0", "-0,01", None)[check.result])
    assert "Gained (" in passed
    assert "### Release check passed" in unquote(passed)
    failed = str(check.on_start(NOBODY, poor.id, good.id, "0", "-0.01", None)[check.result])
    assert "Failed" in failed
    assert "Lost (" in failed
    for lost, gain in (("none", "0"), ("-1", "0"), ("0", "much")):
        said = str(check.on_start(NOBODY, poor.id, good.id, lost, gain, None)[check.message])
        assert "Give a " in said
    api = Api(store, SimpleNamespace())
    ranked = api.rank_runs(store, poor.id)
    assert [run["id"] for run in ranked["runs"]] == [good.id, poor.id]
    scored(3, 3.0)  # their sizes are equal, their speeds unknown: none is called cheapest
    ranked = str(compare_view.comparison(store, [poor.id, good.id]))
    assert "2 may be the best, and none of these is cheaper than another (0.1 MB)" in ranked
    assert "<small>cheapest" not in ranked
    for seed, run in enumerate((poor, good)):
        run.describe(group="seeds", name=f"pairs-9{grids.SEED}{seed}")
    seeds = str(compare_view.comparison(store, [poor.id, good.id]))
    assert "<b>pairs-9</b> · 2 seeds, on new rows F1 " in seeds
    assert grids.seed_spread([0.4, 0.9], "f1").interval.high == 1  # where the scale ends
    gate = as_endpoint(VERBS["gate"])
    judged = gate(store, poor.id, good.id)
    assert (judged["verdict"], judged["gained"]) == ("failed", 0)
    with pytest.raises(gr.Error, match="max_lost is -1"):
        api.answering(gate)(NOBODY, poor.id, good.id, -1)
