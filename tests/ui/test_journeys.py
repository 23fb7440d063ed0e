"""Journeys in a real Chromium: on a wide page or a dark phone, one in German; a sign-in on a Space.

Parts are found by their ids, for their words differ; what a part says in full, the goldens hold.
"""

import contextlib
import csv
import re
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import expect

from finetune import disk
from finetune.config import RunConfig
from finetune.data.sources import LABELS
from finetune.engines.base import EngineSpec, write_spec
from finetune.inference import decision_rule
from finetune.jobs import workers
from finetune.jobs.evaluate import ComparisonJob
from finetune.owners import Visitor
from finetune.runs import events
from finetune.ui import charts
from tests.support import toys
from tests.support.browser import BUNDLED, App, View, choose, fill, new_page, own_file, pick
from tests.support.hub import TOKEN
from tests.support.made_runs import evaluated
from tests.support.running import let_jobs_train
from tests.support.uploads import write_csv

WIDE, PHONE, GERMAN = View(), View(375, "dark"), View(375, "dark", "de-DE")
on_a_phone = pytest.mark.parametrize("visit", [PHONE], ids=["phone"], indirect=True)
ALERT = "#train-message [role=alert]"


def phase(page, status):
    """Wait until the run that is shown has this status."""
    expect(page.locator("#run-phase")).to_have_class(re.compile(f"ft-{status}"))


def ask(visit, *texts):
    """Ask the chosen model about a text or a pair."""
    expect(visit.page.locator("#predict-run input")).to_have_value(re.compile(r"\d"))
    for number, text in enumerate(texts, 1):
        visit.page.locator(f"#sentence{number} textarea").fill(text)
    visit.page.locator(f"#sentence{len(texts)} textarea").press("Enter")


@pytest.mark.long
def test_a_first_run(app, visit, toy_checkpoint):
    """From an empty page over a wrong form to a model that answers."""
    page = visit.page
    for name in ("Runs", "Predict", "Publish"):  # each leads to where one begins
        visit.tab(name)
        page.locator("[data-tab=train]:visible").click()
        expect(page.locator("#train")).to_be_visible()
    visit.fill_toy(toy_checkpoint, 2)
    expect(page.locator("#costs")).to_contain_text("256")  # steps
    expect(page.locator("#pairs-card tbody tr")).to_have_count(3)
    visit.first_screen("#train", "#train-how")
    fill(page, "learning_rate", "-1")
    page.locator("#train").click()
    expect(page.locator(ALERT)).to_contain_text("-1")
    expect(page.locator("#knob-learning_rate input")).to_have_value("-1")
    fill(page, "max_steps", "1.000")  # a thousand where a point separates them, never 1
    expect(page.locator("#knob-max_steps")).to_have_attribute("data-problem", re.compile("1.000"))
    fill(page, "max_steps", "")
    fill(page, "learning_rate", "0,001")
    expect(page.locator("#knob-learning_rate[data-problem]")).to_have_count(0)
    assert app.store.runs() == []
    page.locator("#train").click()
    expect(page.locator("#lesson [aria-current=step]")).to_be_visible()
    phase(page, "finished")
    (run,) = app.store.runs()
    assert run.config().learning_rate == pytest.approx(0.001)
    page.reload()
    phase(page, "finished")
    visit.first_screen("#result")
    expect(page.locator("#loss-plot path.ft-loss:not(.ft-raw)")).to_have_count(1)
    summary = run.state()
    expect(page.locator("#score-plot .ft-dot")).to_have_count(2 * len(summary.curve))
    page.locator(".ft-more-charts > summary").click()
    for name in charts.SMALL:
        expect(page.locator(f"#{name} .ft-plot")).to_be_visible()
    page.locator("[data-view=across]").select_option("time")
    across = visit.word("seconds")
    expect(page.locator("#loss-plot .ft-plot")).to_have_attribute("data-across", across)
    page.locator("#tab-log").click()
    log = page.locator("#log textarea")
    expect(log).to_have_value(re.compile("finished"))
    assert log.evaluate("(log) => log.scrollHeight - log.scrollTop - log.clientHeight") < 9
    page.locator("#new-run").click()  # the next one's time is known from this one's
    expect(page.locator("#costs")).to_contain_text("256")
    expect(page.locator("#result")).to_be_hidden()
    page.locator("#show-run").click()
    page.locator("#result [data-tab=predict]").click()
    ask(visit, "the cat sees a dog .", "a cat sees the dog .")
    expect(page.locator("#label")).to_have_text(re.compile("equivalent"))
    expect(page.locator("#answer")).to_contain_text(re.compile(r"\d ms"))


ROWS = {
    "scores": [("first", "second", "similarity"), *toys.graded_rows(300)],
    "labels": [("text", "verbs"), *toys.labelled_rows(300)],
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("visit", "kind"),
    [(WIDE, "pairs"), (PHONE, "scores"), (GERMAN, "labels")],
    ids=["wide-pairs", "phone-scores", "german-labels"],
    indirect=["visit"],
)
def test_from_an_own_file_to_predictions(app, visit, kind, toy_checkpoint, tmp_path):
    """Drop it, answer what is asked, train, read the evaluation, predict another file."""
    page = visit.page
    page.on("dialog", lambda dialog: pytest.fail(f"markup ran: {dialog.message}"))
    if kind == "pairs":
        file = own_file(tmp_path)
    else:
        file = write_csv(tmp_path / f"{kind}.csv", ROWS[kind])
    place = "#own-file"  # on Train, which then shows Data
    if kind == "pairs":
        visit.tab("Data")
        place = "#train-file"
    page.locator(f"{place} input[type=file]").set_input_files(file)
    begin = page.locator("#overview [data-tab=train]")
    if kind == "pairs":
        expect(page.locator("#overview [data-kind=single-or-pair]")).to_contain_text("'theirs'")
        expect(begin).to_have_count(0)
        page.locator("#overview [data-kind=single-or-pair] button").first.click()
        expect(page.locator("#findings")).to_contain_text("train\u00a0153")  # a broken row
    expect(page.locator("#rows table tbody tr")).to_have_count(10)
    begin.click()
    expect(page.locator("#knob-dataset input")).to_have_value(re.compile(file.name))
    choose(page, "checkpoint", str(toy_checkpoint))
    for name, value in (("num_train_epochs", "1"), ("learning_rate", "1e-3"), ("max_length", "48")):
        fill(page, name, value)
    page.locator("#train").click()
    phase(page, "finished")
    (run,) = app.store.runs()
    prepared = run.state().prepared
    assert prepared.data["source"] == file.name
    assert prepared.labels == {"pairs": ["no", "yes"], "scores": [], "labels": toys.LISTED}[kind]
    visit.tab("Runs")
    page.locator("#runs-table .ft-open").first.click()
    expect(page.locator("#verdict")).to_be_visible()
    part = {"pairs": "#panel-thresholds", "scores": ".ft-density rect", "labels": "#panel-together"}
    expect(page.locator(part[kind]).first).to_be_attached()
    visit.tab("Predict")
    ask(visit, "the cat sees a fox .", *["the cat sees a fox ."] * (kind != "labels"))
    expect(page.locator("#answer")).to_contain_text(re.compile(r"\d ms"))
    visit.part("A file")
    lines = file.read_text().splitlines()[:41]
    another = tmp_path / "new.csv"
    another.write_text("\n".join([*lines, "broken"]))
    page.locator("#batch-file input[type=file]").set_input_files(another)
    expect(page.locator("#batch-file")).to_contain_text("new")
    page.locator("#batch-start").click()
    with page.expect_download() as download:
        page.locator("#batch-view a[href*=result]").first.click()
    assert download.value.suggested_filename == "new-predicted.csv"
    assert len(Path(download.value.path()).read_text().splitlines()) == 42
    if kind == "pairs":  # of each answer; one row is broken
        counts = page.locator("#batch-view .ft-answers .ft-prob b").all_inner_texts()
        assert sum(map(int, counts)) == 40
    expect(page.locator("#batch-rows tbody tr").first).to_be_visible()
    visit.tab("Publish")
    expect(page.locator("#card pre").first).to_contain_text("from_pretrained")


@pytest.mark.long
@on_a_phone
def test_two_runs_are_compared_gated_corrected_and_deleted(app, visit, toy_checkpoint, tmp_path):
    page = visit.page
    poor, good = (evaluated(app.store, toy_checkpoint, *each) for each in ((1, 0.8), (2, 3.0)))
    visit.tab("Runs")
    page.locator("[data-do=sort][data-what=score]").click()
    expect(page.locator("#runs-table th[aria-sort$='cending']")).to_be_visible()
    expect(page.locator("#compare-runs")).to_be_disabled()
    tick_all(page)
    page.locator("#compare-runs").click()
    expect(page.locator("#versus")).to_contain_text(re.compile(r"F1 \+0[.,]"))
    expect(page).to_have_url(re.compile("compare="))
    page.reload()  # the address opens it again
    page.locator("#measure-speeds").click()
    expect(page.locator("#ranked")).to_contain_text(re.compile(r"\d ms"))
    with page.expect_download() as told:
        page.locator("#comparison a[href*='ranking.csv']").click()
    speeds = {row["id"]: row["milliseconds"] for row in csv.DictReader(told.value.path().open())}
    assert set(speeds) == {poor.id, good.id}
    assert float(speeds[good.id]) > 0  # the other one may still be measured
    head = ("sentence1", "sentence2", "label")
    file = write_csv(tmp_path / "golden.csv", [head, *toys.rows(40, seed=11)])
    page.locator("#check-golden input").set_input_files(file)
    expect(page.locator("#check-golden")).to_contain_text("golden")
    page.locator("#check-start").click()
    expect(page.locator("#judgement")).to_contain_text("golden.csv")
    judged = ComparisonJob.of(good, "release").judgement
    assert judged.examples == 40
    back_to_all(page)
    for _ in range(5):  # again, if Gradio drops the click while it answers another
        page.locator(f"#runs-table .ft-open[data-what='{good.id}']").click()
        with contextlib.suppress(AssertionError):
            expect(page.locator("#verdict")).to_be_visible(timeout=20_000)
            break
    keep_a_threshold(page, good)
    correct_a_label(visit, good)
    back_to_all(page)
    tick_all(page)
    page.locator("#delete-runs").click()
    expect(page.locator("#delete-asked")).to_contain_text("2")
    page.locator("#delete-sure").click()
    expect(page.locator("#runs-table .ft-open")).to_have_count(0)
    assert app.store.runs() == []


def back_to_all(page):
    page.locator("#all-runs-again").click()
    for part in ("#comparison", "#one-run"):
        expect(page.locator(part)).to_be_hidden()


def tick_all(page):
    boxes = page.locator("#runs-table input[data-do=choose]")
    expect(boxes).to_have_count(2)
    for box in boxes.all():
        if not box.is_checked():
            box.click()
        expect(box).to_be_checked()


def keep_a_threshold(page, run):
    """At once the figures follow the slider, and answers once it is saved."""
    expect(page.locator("#verdict")).to_be_visible()
    recall = page.locator('[data-score="recall"]')
    before = recall.inner_text()
    page.locator("#threshold-slider").focus()
    for _ in range(45):
        page.keyboard.press("ArrowRight")
    expect(recall).not_to_have_text(before)
    page.locator("#save-threshold").click()
    expect(page.locator("#forget-threshold")).to_be_visible()
    rule = decision_rule.read_rule(run.best)
    assert (rule.threshold, rule.positive) == (0.95, "equivalent")
    page.locator("#tab-test").click()
    expect(page.locator("#open-sure")).to_be_hidden()
    page.locator("#open-test summary").click()
    expect(page.locator("#open-sure")).to_be_visible()
    assert run.state().opened == ()


def correct_a_label(visit, run):
    page = visit.page
    visit.part("Errors")
    pick(page, page.locator("#errors-which input"), visit.word("suspected labels"))
    chooser = page.locator("#errors-table select[data-row='5']")
    former = chooser.input_value()
    chooser.select_option(next(name for name in LABELS if name != former))
    with page.expect_download() as download:
        page.locator("a[href*='corrected.csv']").click()
    text = Path(download.value.path()).read_text()
    assert [n for n, line in enumerate(text.splitlines()[1:]) if line.endswith(former)] == [5]
    assert disk.read_json(run.folder / "corrections.json") != {}


@pytest.mark.long
def test_a_model_is_published(app, visit, hub, toy_checkpoint):
    page, plan, result = visit.page, visit.page.locator("#push-plan"), "#push-result"
    for title in ("one", "two"):
        toys.finished_run(app.store, toy_checkpoint, title)
    visit.tab("Publish")
    card, name = page.locator("#card"), page.locator("#repo input")
    expect(page.locator("#publish-run input")).to_have_value(re.compile("two"))
    expect(card.locator("img")).to_have_js_property("complete", True)
    name.fill("my-pairs")
    page.locator("#token input").fill(TOKEN)
    expect(card).to_contain_text("your-name/my-pairs")
    page.locator("#publish-run input").focus()
    page.locator("#token input").focus()  # the chooser was left as it is
    private = page.locator("#private input")
    for ready in (False, True):
        private.check()
        page.locator("#check-push").click()
        expect(plan).to_contain_text("ada/my-pairs")
        if not ready:
            private.uncheck()
            expect(plan).to_be_hidden()  # Push would do something else
    assert hub.repos == {}
    expect(name).to_have_value("my-pairs")
    hub.fail(path="/lfs/objects/batch", seconds=3)
    page.locator("#push").click()
    expect(page.locator(result)).to_contain_text("ada/my-pairs")
    page.reload()  # the push is the app's, not the page's
    visit.tab("Publish")
    link = page.locator(f"{result} a")
    expect(link).to_have_attribute("href", f"{hub.url}/ada/my-pairs")
    repo = hub.repos["model", "ada/my-pairs"]
    assert (repo.private, len(repo.commits)) == (True, 1)
    assert {"model.safetensors", "training.png"} <= set(repo.files)
    assert TOKEN not in page.content()


def tab_to(page, selector, back=False):
    """See that the element is there, then press Tab until it has the focus, which must show."""
    expect(page.locator(selector).filter(visible=True)).not_to_have_count(0)
    for _ in range(80):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            style, width, shadow = page.evaluate(
                "() => { const c = getComputedStyle(document.activeElement);"
                " return [c.outlineStyle, parseFloat(c.outlineWidth), c.boxShadow]; }"
            )
            assert (style != "none" and width >= 2) or shadow != "none", selector
            return
    raise AssertionError(f"{selector} cannot be reached with Tab")


def type_into(page, selector, text):
    tab_to(page, selector)
    page.keyboard.press("Control+A")
    page.keyboard.type(text)


def next_tab(visit, name):
    tab_to(visit.page, "[role=tab][aria-selected=true]", back=True)
    visit.page.keyboard.press("ArrowRight")
    tab = visit.page.get_by_role("tab", name=visit.word(name), exact=True)
    expect(tab).to_have_attribute("aria-selected", "true")


@pytest.mark.long
@on_a_phone
def test_by_keyboard_alone(visit, toy_checkpoint):
    """Choose, train, stop, look at the run, ask its model: no mouse."""
    page, keys = visit.page, visit.page.keyboard
    expect(page.locator("#knob-dataset input")).to_have_value(re.compile("MRPC"))
    type_into(page, "#knob-dataset input", visit.word(BUNDLED)[:7])
    expect(page.get_by_role("option")).to_have_count(1)  # not earlier: another would be chosen
    keys.press("ArrowDown")
    keys.press("Enter")
    expect(page.locator("#knob-dataset input")).to_have_value(visit.word(BUNDLED))
    type_into(page, "#knob-checkpoint input", str(toy_checkpoint))
    keys.press("Enter")
    type_into(page, "#knob-num_train_epochs input", "60")
    tab_to(page, "#advanced > button")
    keys.press("Enter")
    type_into(page, "#find-knob :is(input, textarea)", "max_length")
    expect(page.locator("#advanced > button")).to_have_attribute("aria-expanded", "true")
    type_into(page, "#knob-max_length input", "48")
    tab_to(page, "#train")
    keys.press("Enter")
    expect(page.locator("#new-run")).to_be_focused()  # what had the focus is folded away
    phase(page, "running")
    live = page.locator("#live")
    expect(live).to_have_attribute("aria-live", "polite")
    expect(page.locator("#score-plot .ft-dot").nth(2)).to_be_visible()  # beyond those of step 0
    page.evaluate("scrollTo(0, 0)")
    visit.first_screen("#status", "#stop", "#loss-plot .ft-plot", wide="#score-plot .ft-plot")
    told = live.inner_text()
    tab_to(page, "#stop")
    keys.press("Space")
    phase(page, "stopped")
    expect(live).not_to_have_text(told)
    next_tab(visit, "Runs")
    tab_to(page, "#runs-table .ft-open")
    keys.press("Enter")
    expect(page.locator("#verdict")).to_be_visible()
    tab_to(page, "#evaluation-body [role=tab]")
    keys.press("ArrowRight")
    expect(page.locator("#panel-thresholds")).to_be_visible()
    next_tab(visit, "Predict")
    expect(page.locator("#predict-run input")).to_have_value(re.compile("F1"))
    type_into(page, "#sentence1 textarea", "the cat sees a dog .")
    type_into(page, "#sentence2 textarea", "a cat sees the dog .")
    tab_to(page, "#compare")
    keys.press("Enter")
    expect(page.locator("#answer [role=status]")).to_have_count(1)
    expect(page.locator("#label")).to_have_text(re.compile("equivalent"))


@pytest.mark.long
def test_a_run_outlives_its_page_and_the_app(app, visit, browser, toy_checkpoint):
    page = visit.page
    visit.fill_toy(toy_checkpoint, 500)
    page.locator("#train").click()
    phase(page, "running")
    page.reload()
    expect(page.locator("#knob-num_train_epochs input")).to_have_value("500")  # the form is kept
    other = new_page(browser)
    other.goto(app.url)
    phase(other, "running")
    page.goto("about:blank")
    app.kill()
    worker = workers.worker_process(app.store.runs()[0])
    other.goto("about:blank")
    app.start()
    other.goto(app.url)
    for button, status in (("Stop", "stopped"), ("Resume", "running"), ("Stop", "stopped")):
        other.get_by_role("button", name=button, exact=True).click()
        phase(other, status)
    other.close()
    assert len(app.store.runs()) == 1
    psutil.wait_procs([worker])
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
def test_every_default_trains(app, visit, hub):
    """Bundled pairs and checkpoint: the real weights for all steps would take minutes here, so the
    run is stopped once it has streamed."""
    hub.fail("HEAD", "^/$", 0, cut=True, times=2)  # no network while the page opens
    page = visit.page
    page.reload()
    expect(page.locator("#hub-status")).to_contain_text("No connection")
    page.locator("#train").click()
    expect(page.locator("#status")).to_contain_text("samples/s", timeout=240_000)
    (run,) = app.store.runs()
    assert run.config() == RunConfig()
    page.locator("#stop").click()
    phase(page, "stopped")
    assert run.has_model()


@pytest.mark.long
def test_a_chooser_that_is_merely_left_takes_nothing_back(visit):
    """Gradio tells of a choice when a chooser is left, too."""
    page = visit.page
    expect(page.locator("#hub-status")).to_contain_text("Hub")
    preset = page.locator("#preset input")
    fill(page, "dropout", "0.3")
    fill(page, "learning_rate", "0.003")
    preset.focus()
    page.wait_for_timeout(300)
    page.keyboard.press("Tab")
    page.wait_for_timeout(700)
    expect(page.locator("#knob-learning_rate input")).to_have_value("0.003")
    pick(page, preset, re.compile(f"^.? ?{preset.input_value()}"))  # the same again: its values
    expect(page.locator("#knob-learning_rate input")).to_have_value("")


@pytest.mark.long
def test_a_job_is_priced_agreed_to_stopped_resumed(app, visit, hub, toy_checkpoint, monkeypatch):
    let_jobs_train(hub, monkeypatch, TOKEN)
    page = visit.page
    visit.fill_toy(toy_checkpoint, 15)
    page.locator("#elsewhere > button").click()
    pick(page, page.locator("#engine input"), "Hugging Face Job")
    expect(page.locator("#job-price")).to_contain_text("not signed in")
    page.locator("#job-token input").fill(TOKEN)
    expect(page.locator("#flavor input")).to_have_value(re.compile(r"t4-small · \$0\.40/h"))
    page.locator("#job-minutes input").fill("20")
    page.locator("#job-minutes input").press("Tab")
    expect(page.locator("#job-price")).to_contain_text("after 20 minutes, at most $0.14")
    page.locator("#train").click()
    expect(page.locator("#train-message")).to_contain_text("tick that you agree to its price")
    assert not hub.jobs.all
    page.get_by_label(re.compile(r"I agree that Train may cost up to \$0\.14")).check()
    page.locator("#train").click()
    expect(page.locator("#run-phase")).to_have_text("Training", timeout=120_000)
    expect(page.locator("#status")).to_contain_text("at most $0.14")
    (run,) = app.store.runs()
    page.locator("#stop").click()
    expect(page.locator("#run-phase")).to_have_text("Stopped")
    assert run.has_model()
    assert hub.jobs.last.stage == "COMPLETED"
    page.get_by_role("button", name="Continue on this machine").click()
    expect(page.locator("#run-phase")).to_have_text("Finished", timeout=240_000)
    expect(page.locator("#status")).not_to_contain_text("Hugging Face Job")
    # A new job of another run has a price that is asked for before it goes on.
    billed = app.store.create(RunConfig(name="billed"))
    billed.append(events.Stopped(step=1, seconds=1.0))
    options = {"flavor": "t4-small", "minutes": 30, "price": 0.4}
    write_spec(billed, EngineSpec(engine="hub-job", options=options, attempt=1, submitted=1.0))
    page.goto(f"{app.url}?tab=runs&run={billed.id}")
    page.locator("#run-resume").click()
    asked = page.locator("#resume-asked")
    expect(asked).to_contain_text(
        re.compile(r"t4-small, \$0\.40 an hour.*at most \$0\.20", re.DOTALL)
    )
    page.locator("#resume-leave").click()
    expect(asked).to_be_hidden()
    assert billed.state().status == "stopped"


@pytest.fixture
def space(hub, tmp_path, monkeypatch):
    """The app as a Space with sign-in."""
    for name, value in {
        "SYSTEM": "spaces", "SPACE_ID": "ada/finetune", "OAUTH_CLIENT_ID": "client",
        "OAUTH_CLIENT_SECRET": "secret", "OAUTH_SCOPES": "openid profile contribute-repos",
        "OPENID_PROVIDER_URL": hub.url,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SPACE_HOST", raising=False)
    process = App(tmp_path / "runs")
    yield process
    process.end()


@pytest.mark.long
def test_a_visitor_signs_in_and_pushes(space, hub, browser, toy_checkpoint):
    """The scopes of a Space make a new repository; one made elsewhere is out of reach."""
    hub.add_repo("ada/elsewhere")
    toys.finished_run(space.store.for_visitor(Visitor(("user:ada",))), toy_checkpoint)
    page = new_page(browser)
    page.goto(space.url)
    sign_in = page.get_by_role("button", name="Sign in", exact=True)
    expect(sign_in).to_be_visible()  # on every tab
    page.get_by_role("tab", name="Publish").click()
    expect(page.locator("#publish-empty")).to_be_visible()  # nobody is signed in yet
    expect(page.locator("#token")).to_have_count(0)
    with page.expect_navigation(wait_until="load"):
        sign_in.click()
    expect(page.get_by_role("button", name="Sign out (ada)")).to_be_visible()
    page.get_by_role("tab", name="Publish").click()
    expect(page.locator("#publish-run input")).to_have_value(re.compile("F1"))
    assert hub.provider.asked == ["openid profile contribute-repos"]
    for name, words in (("ada/mine", "Verified"), ("ada/elsewhere", "403")):
        page.locator("#repo textarea, #repo input").first.fill(name)
        page.locator("#push").click()
        expect(page.locator("#push-result")).to_contain_text(words)
    assert "model.safetensors" in hub.repos["model", "ada/mine"].files
    files = [path.read_bytes() for path in space.store.root.rglob("*") if path.is_file()]
    for token in hub.provider.tokens:
        assert not [content for content in files if token.encode() in content]
        assert token not in page.content()
        assert not [target for target in hub.targets if token in target]
    page.close()
