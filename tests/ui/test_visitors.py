"""Visitors of a shared app: each sees and changes what is theirs, whatever is sent anywhere."""

import json
import os
import secrets
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gradio as gr
import psutil
import pytest
from starlette.requests import Request

from finetune import owners
from finetune.config import RunConfig
from finetune.data import hub_access
from finetune.errors import DataError, ModelError, NoSuchRun, StoreError, TooMany
from finetune.jobs import check, service, workers
from finetune.jobs.background import BackgroundJob
from finetune.owners import Identities, Visitor
from finetune.runs.job_folder import hold_lock
from finetune.runs.queue import Queue
from finetune.ui import auth, form, run_view
from finetune.ui.tabs import data, runs
from tests.support.tabs import LOG, NAME, NOBODY, asks, data_tab, draw_train, new_check
from tests.support.waiting import until

SENTENCE = "the private cat sees a private dog"
NOTHING = "There is no such run"
NO_RUN = ["../x", "/etc/passwd", "x" * 2**16, 7, {}]


def signed_in(name, **info):
    session = {"oauth_info": {"userinfo": {"preferred_username": name}, **info}}
    return gr.Request(Request({"type": "http", "headers": [], "session": session}))


@pytest.fixture
def upload(store, ada, tmp_path):
    """Ada's uploaded file, as a configuration names it."""
    path = tmp_path / "hers.csv"
    path.write_text(f"sentence1,sentence2,label\n{SENTENCE},b,1\nc,d,0\n")
    return auth.visitor_store(store, asks(ada)).uploads.add({"train": path})


def test_an_invented_identity_is_nobody(store, ada, tmp_path):
    assert auth.visitor_store(store, asks(ada)).visitor.may_start
    number, signature = ada.split(".")
    elsewhere = Identities(tmp_path / "another").issue("192.0.2.1")
    for wrong in (
        "", "x" * 43, number, f"{number}.{'A' * 43}", f"{ada}\n", f"{ada}A",
        f"{'A' * 22}.{signature}", elsewhere, f"{elsewhere.split('.')[0]}.{signature}",
    ):  # fmt: skip
        assert not auth.visitor_store(store, asks(wrong)).visitor.may_start, wrong


def test_identities_outlive_a_restart_and_serve_several_apps(store, shared):
    with ThreadPoolExecutor(8) as pool:  # all of them need the key at once
        apps = [Identities(store.root) for _ in range(8)]
        tokens = list(pool.map(lambda app: app.issue("192.0.2.1"), apps))
    assert len(set(tokens)) == 8
    assert all(Identities(store.root).owner(token) for token in tokens)
    key = store.root / owners.KEY
    assert key.stat().st_mode & 0o777 == 0o600
    assert [path for path in store.root.iterdir() if path.name.startswith(owners.KEY)] == [key]
    key.write_bytes(b"short")  # with a short key anybody could sign
    with pytest.raises(StoreError, match="is damaged"):
        Identities(store.root).owner(tokens[0])


def test_an_address_is_issued_so_many_identities(store):
    now = [0.0]
    issued = Identities(store.root, clock=lambda: now[0])
    for address, next_one in (("192.0.2.1", "192.0.2.1"), ("2001:db8:1:2::7", "2001:db8:1:2:f::1")):
        for _ in range(10):  # a household has all addresses of a /64
            issued.issue(address)
        with pytest.raises(TooMany, match="10 visitors were new"):
            issued.issue(next_one)
    issued.issue("2001:db8:1:3::1")
    for hour in range(1, 6):
        now[0] = 3601.0 * hour
        for _ in range(10):
            issued.issue("::ffff:192.0.2.1")
    now[0] = 3601.0 * 6
    with pytest.raises(TooMany, match="60 visitors were new"):
        issued.issue("192.0.2.1")
    now[0] = 24 * 3601.0
    issued.issue("192.0.2.1")


def test_a_sign_in_is_a_name_and_keeps_what_the_browser_had(shared, ada, store):
    assert auth.request_visitor(store, signed_in("ada", expires_at=9e12)).names == ("user:ada",)
    assert auth.request_visitor(store, signed_in("ada", expires_at=1)).names == ()
    before = auth.visitor_store(store, asks(ada)).create(RunConfig())
    browser = auth.identities(store).owner(ada)
    both = store.for_visitor(owners.policy().identify(user="ada", browser=browser))
    after = both.create(RunConfig())
    assert {run.id for run in both.runs()} == {before.id, after.id}
    elsewhere = store.for_visitor(owners.policy().identify(user="ada"))  # in another browser
    assert [run.id for run in elsewhere.runs()] == [after.id]
    assert ada not in (before.folder / "about.json").read_text()


def test_another_visitors_things_are_not_there(store, ada, bob, hers, upload, tmp_path):
    mine, his = (auth.visitor_store(store, asks(secret)) for secret in (ada, bob))
    job = new_check(mine, upload)
    # What she can do and he cannot, and what he is told.
    things = [
        (lambda who: who.get(hers.id), NoSuchRun),
        (lambda who: who.uploads.files(upload), DataError),
        (lambda who: who.uploads.file_names(upload), DataError),
        (lambda who: check.get_check(who, job.id), DataError),
    ]
    for act, error in things:
        assert act(mine)
        with pytest.raises(error, match="There is no"):
            act(his)
    for start in (service.start_run, check.start_check):
        with pytest.raises(DataError, match="There is no upload"):
            start(his, RunConfig(dataset=upload))
    assert his.runs() == []
    # The name of what another has cannot be found by having it too.
    assert his.uploads.add({"train": tmp_path / "hers.csv"}) != upload
    (hers.folder / "job.json").write_text("{}")  # damaged: nobody's, and not everybody's
    assert mine.runs() == his.runs() == []


def checked_fields(**values):
    config = RunConfig().changed(**values)
    return [getattr(config, name) for name in data.CHECKED_FIELDS]


def test_other_pairs_end_no_check_others_wait_for(store, ada, bob, upload, processes, monkeypatch):
    monkeypatch.setattr(BackgroundJob, "begin", lambda *values, **options: None)
    tab, started = data_tab(store), []
    for dataset in (RunConfig().dataset, upload):
        job = new_check(store, dataset)
        lock = hold_lock(job.lock_file)
        process = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))
        processes.append(psutil.Process(process.pid))
        os.close(lock)
        workers.record_worker(job, process.pid)
        started.append((job, process))
    (bundled, everybodys), (hers, own) = started

    def choose(secret, former, dataset):
        fields = checked_fields(dataset=dataset)
        return tab.on_examine(asks(secret), "chosen", former.id, *fields)

    assert choose(ada, bundled, upload)[tab.check_id] == hers.id
    choose(bob, bundled, "glue/mrpc")
    choose(bob, hers, "glue/mrpc")  # whose id he cannot know, and sends
    assert [everybodys.poll(), own.poll()] == [None, None]
    choose(ada, hers, "glue/mrpc")  # nobody else asks for hers
    own.wait(60)
    assert not hers.folder.exists()
    assert everybodys.poll() is None


def test_nobody_causes_no_fetch_from_the_hub(store, shared, hub, monkeypatch):
    """Neither pairs nor a checkpoint to look at."""
    monkeypatch.setattr(workers, "spawn_worker", lambda *values: pytest.fail("it was started"))
    monkeypatch.setenv(owners.ANY_CHECKPOINT, "1")
    nobody, refused, tab = asks("x" * 43), "keeps no cookies", data_tab(store)
    for values in ({"dataset": "ada/pairs"}, {"dataset": "paws"}, {"checkpoint": "ada/bert"}):
        for cause in ("chosen", "pressed"):
            shown = tab.on_examine(nobody, cause, "", *checked_fields(**values))
            assert refused in shown[tab.message]
    # Other pages and their checks may ask for the default pairs.
    asked = [path for how, path, _ in hub.requests if how != "POST"]
    assert [path for path in asked if "ada" in path or "paws" in path] == []


def test_anothers_uploads_are_not_offered(store, ada, bob, upload, tmp_path):
    train, tab = draw_train(store), data_tab(store)

    def offered(visitor, kept=None):
        return str(train.on_restore(visitor, kept)[train.filled[-1]]["choices"])

    assert upload in offered(asks(ada))
    for other in (asks(bob), NOBODY):
        for kept in (None, RunConfig(dataset=upload).to_dict()):
            assert "hers.csv" not in offered(other, kept)
    path = tmp_path / "hers.csv"  # which he did not bring
    updates = tab.on_upload(asks(bob), str(path), None, None)
    assert set(updates) == {tab.message}
    assert "no longer available" in updates[tab.message]
    path.write_text("sentence1,sentence2,label\na,b,1\n")
    his = auth.visitor_store(store, asks(bob)).uploads.add({"train": path})
    assert his in offered(asks(bob))
    browser = auth.visitor_store(store, asks(ada)).visitor.names
    assert upload in str(form.datasets(store.for_visitor(Visitor(("user:ada", *browser)))))


def test_a_visitor_uploads_so_much(store, ada, tmp_path, monkeypatch):
    monkeypatch.setenv("FINETUNE_MAX_UPLOAD_MB", "1")
    mine = auth.visitor_store(store, asks(ada))

    def add(name, kilobytes):
        path = tmp_path / f"{name}.csv"
        path.write_text("sentence1,sentence2,label\n" + name * 1024 * kilobytes)
        return mine.uploads.add({"train": path})

    first = add("a", 600)
    mine.create(RunConfig(dataset=first))
    with pytest.raises(DataError, match=r"a visitor may have 1 MB. .*delete a run"):
        add("b", 600)
    second, third = add("c", 300), add("d", 400)  # no run is of the second: it makes room
    assert mine.uploads.files(first)
    assert mine.uploads.files(third)
    with pytest.raises(DataError, match="There is no upload"):
        mine.uploads.files(second)


def test_the_page_gives_each_browser_an_identity_of_its_own(server, store, shared):
    with server.client() as first, server.client() as second:
        page = first.get("/")
        second.get("/")
        assert {"HttpOnly", "SameSite=Lax"} <= set(page.headers["set-cookie"].split("; "))
        identity = first.cookies[auth.COOKIE]
        assert identity != second.cookies[auth.COOKIE]
        assert auth.identities(store).owner(identity)
        assert "set-cookie" not in first.get("/").headers  # once
        assert identity not in page.text


def test_downloads_are_the_owners(server, ada, bob, hers):
    run = f"/finetune/runs/{hers.id}"
    paths = [f"{run}/{kind}" for kind in ("model.zip", "config.json", "events.csv")]
    with server.client(ada) as mine, server.client(bob) as other, server.client() as nobody:
        for path in (*paths, f"/finetune/watch/{hers.id}"):
            assert mine.get(path).status_code == 200
            for stranger in (other, nobody):
                refused = stranger.get(path)
                assert (refused.status_code, NOTHING in refused.text) == (404, True)
                assert leaks(refused.text) == []
        header = nobody.get(f"{run}/config.json", headers={auth.HEADER: ada})
        assert json.loads(header.text)["name"] == NAME
        for wrong in ("..%2F..%2Fetc", "x" * 2000, "%00", hers.id + "%0a"):
            assert mine.get(f"/finetune/runs/{wrong}/config.json").status_code == 404
        assert mine.get(f"{run}/job.json").status_code == 404


def test_gradio_serves_neither_files_nor_what_the_page_does_not_need(server, ada, bob, hers):
    """Not even what a browser has uploaded itself: there are no secrets in knowing a path."""
    with server.client(ada) as mine, server.client(bob) as other:
        sent = mine.post("gradio_api/upload", files={"files": ("hers.csv", SENTENCE.encode())})
        uploaded = sent.json()[0]
        assert Path(uploaded).read_text() == SENTENCE
        for path in (
            uploaded, str(hers.folder / "config.json"), str(hers.best / "model.safetensors"),
            str(Path("app.py").resolve()), "app.py", "../../etc/passwd", "..%2f..%2fetc%2fpasswd",
        ):  # fmt: skip
            for start in ("gradio_api/file=", "file=", "gradio_api/file/", "gradio_api/proxy="):
                for who in (mine, other):
                    answer = who.get(start + path)
                    assert answer.status_code in (400, 403, 404), (start, path)
                    assert SENTENCE not in answer.text
                    assert who.head(start + path).status_code in (400, 403, 404, 405)
        for path in (
            "monitoring", "monitoring/summary", "openapi.json", "gradio_api/openapi.json",
            "gradio_api/dev/reload", "gradio_api/profiling/summary", "gradio_api/deep_link",
        ):  # fmt: skip
            assert mine.get(path).status_code in (403, 404), path
        for path in ("process_recording", "vibe-edit", "vibe-code/"):
            assert mine.post(f"gradio_api/{path}", json={}).status_code in (403, 404, 422), path
        for path in ("", "config", "gradio_api/info", "theme.css"):
            assert mine.get(path).status_code == 200, path


def test_refused_input_costs_the_log_a_line(server, ada, capfd, caplog):
    fns = server.blocks.fns
    texts = (gr.State, gr.Textbox, gr.HTML)
    choosing = [n for n, fn in fns.items() if fn.inputs and not isinstance(fn.inputs[0], texts)]
    file = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
    with server.client(ada) as mine:
        for index in choosing:
            for value in (file, 7):
                data = [value] * len(fns[index].inputs)
                assert leaks(server.run(mine, index, data).text) == []
        senseless = [{"data": [], "fn_index": 10**6}, {"data": [], "fn_index": "x"}, 7]
        for body in senseless:
            assert mine.post("gradio_api/run/predict", json=body).status_code >= 400
    assert any("refused input to" in line for line in caplog.messages)
    assert max(len(line) for line in caplog.messages) < 400
    assert "Traceback" not in capfd.readouterr().err


def leaks(text):
    """What of Ada's stands in an answer."""
    private = (NAME, LOG, "private-tag", "private-note", SENTENCE)
    return [secret for secret in private if secret in text]


def distinct(blocks):
    """Every function of the page once with each list of inputs, by an index of it."""
    functions = {
        (getattr(fn.fn, "__qualname__", fn.name), tuple(block._id for block in fn.inputs)): index
        for index, fn in blocks.fns.items()
    }
    return {index: blocks.fns[index] for index in functions.values()}


@pytest.mark.usefixtures("nothing_begins")
@pytest.mark.parametrize("strange", [False, pytest.param(True, marks=pytest.mark.long)])
def test_no_endpoint_gives_anothers_run(server, store, bob, hers, upload, strange):
    """Every function of the page, every input of it, with Ada's run; where `strange`, with her file
    and with what no run is."""
    before = {p: p.stat().st_mtime_ns for p in hers.folder.rglob("*")}
    path = f"../{store.root.name}/{hers.id}"
    values = [hers.id, *([upload, path, str(hers.folder), *NO_RUN, None] if strange else [])]
    with server.client(bob) as his:
        his.get("/")
        for index, fn in distinct(server.blocks).items():
            for value in values:
                body = {
                    "data": [value] * len(fn.inputs), "fn_index": index,
                    "session_hash": secrets.token_hex(5),
                    "event_data": {"do": "open", "what": value},
                }  # fmt: skip
                answer = his.post("gradio_api/run/predict", json=body)
                assert leaks(answer.text) == [], (fn.name, str(value)[:60])
    assert {p: p.stat().st_mtime_ns for p in hers.folder.rglob("*")} == before
    others = [run for run in store.runs() if run.id != hers.id]
    his_name = auth.visitor_store(store, asks(bob)).visitor.name
    assert {run.owner for run in others} <= {his_name}  # an empty config is a whole one
    assert workers.worker_process(hers) is None


def test_the_answer_is_always_that_there_is_no_such_run(server, bob, hers):
    functions = {str(fn.name): index for index, fn in server.blocks.fns.items()}
    with server.client(bob) as his:
        for name in ("on_press", "on_ask", "on_push"):
            index = functions[name]
            rest = ["sentence"] * (len(server.blocks.fns[index].inputs) - 1)
            answers = set()
            for value in (hers.id, "20200101-000000-abcdefghijkl", *NO_RUN):
                updates = server.run(his, index, [value, *rest]).json()["data"]
                answers |= {str(text) for text in updates if "ft-said" in str(text)}
            assert len(answers) == 1, (name, answers)
            assert NOTHING in answers.pop(), name


def call(who, name, *values):
    """What an endpoint answers, or its error."""
    answer = who.post(f"gradio_api/run/{name}", json={"data": values}).json()
    return answer["data"][0] if "data" in answer else answer["error"]


def test_a_program_is_a_visitor_too(server, store, ada, bob, hers):
    """It keeps no cookies: it asks for an identity, and sends it as a header."""
    with server.client() as program:
        program.headers[auth.HEADER] = program.post(auth.ISSUE).text
        assert call(program, "list_runs") == []
        # It may start what may be started.
        refused = call(program, "start_run", {"checkpoint": str(hers.best)})
        assert "is on this machine's disk" in refused
    # The header counts, not a cookie that the page has set before it was sent.
    with server.client(bob) as mine, server.client() as his, server.client() as nobody:
        for who, identity in ((mine, ada), (his, bob), (nobody, secrets.token_urlsafe(32))):
            who.headers[auth.HEADER] = identity
        (row,), status = call(mine, "list_runs"), call(mine, "run_status", hers.id)
        assert (row["name"], status["status"]) == (NAME, "finished")
        assert row == {name: status[name] for name in row}
        assert "frozenset" not in str(row)  # only what a program can read
        for who in (his, nobody):
            assert call(who, "list_runs") == []
            for value in (hers.id, *NO_RUN, None):
                for name in ("run_status", "resume_run"):
                    assert NOTHING in call(who, name, value)
                assert NOTHING in call(who, "stop_run", value, False)
        assert "keeps no cookies" in call(nobody, "start_run", {})
    assert [run.id for run in store.runs()] == [hers.id]


@pytest.mark.parametrize(
    ("settings", "admins"),
    [
        ("", ""),  # on one's own machine nobody needs to: everything is one's own
        ("SPACE_ID=ada/x", "ada"),
        ("SPACE_ID=org/x SPACE_AUTHOR_NAME=bob", "bob"),
        ("SPACE_ID=ada/x FINETUNE_ADMINS=bob,cy", "ada bob cy"),
        ("FINETUNE_VISITORS=1", ""),
        ("FINETUNE_VISITORS=1 FINETUNE_ADMINS=,bob", "bob"),
    ],
)
def test_who_looks_after_a_shared_app(monkeypatch, settings, admins):
    for setting in settings.split():
        monkeypatch.setenv(*setting.split("="))
    visitors = {name: owners.policy().identify(user=name) for name in ("", "ada", "bob", "cy")}
    assert [name for name, visitor in visitors.items() if visitor.admin] == admins.split()
    assert visitors[""].may_start == visitors[""].owns("user:cy") == (not settings)
    assert not Visitor(("browser:ada", "ada")).admin  # only a sign-in proves a name


@pytest.mark.usefixtures("nothing_begins")
def test_who_looks_after_the_app_sees_stops_and_deletes_every_run(store, ada, hers, monkeypatch):
    monkeypatch.setenv("FINETUNE_ADMINS", "root")
    tab, root, bob = runs.RunsTab(store), signed_in("root"), signed_in("bob")
    with gr.Blocks():
        tab.draw()
    waiting = auth.visitor_store(store, asks(ada)).create(RunConfig(name="in the queue"))
    Queue(store.root).add(waiting.id)

    def act(who, view, action):
        return str(tab.on_action(who, None, view, "", action)[tab.message])

    shown = tab.on_everybody(root, run_view.blank(), "", True)
    assert NAME in shown[tab.table]
    assert hers.owner[8:16] in shown[tab.table]  # whose it is
    theirs = shown[tab.view] | {"opened": hers.id}
    for who, everybody in ((bob, True), (root, False)):
        hidden = tab.on_everybody(who, run_view.blank(), "", everybody)
        assert NAME not in str(hidden)
        view = theirs | {"everybody": everybody}
        assert NOTHING in act(who, view, "stop")
        assert NOTHING in tab.on_confirm(who, None, view, "", hers.id)[tab.message]
    assert NOTHING in act(root, theirs, "resume")  # its owner's to do
    assert act(root, theirs | {"opened": waiting.id}, "stop") == ""
    assert waiting.state().status == "stopped"
    assert tab.on_confirm(root, None, theirs, "", hers.id)[tab.message] == ""
    assert [run.id for run in store.runs()] == [waiting.id]
    boxes = [tab.on_tick(who, run_view.blank(), {}, "")[tab.everybody] for who in (root, bob)]
    assert [box["visible"] for box in boxes] == [True, False]


def test_what_is_fetched_of_the_hub_counts(store, ada, hub, monkeypatch):
    """Datasets and checkpoints, each once a day, and of them what is fetched."""
    monkeypatch.setenv("FINETUNE_MAX_HUB_MB", "3")
    mega = b"x" * 2**20
    hub.add_repo("ada/pairs", "dataset", {"small/train.csv": mega, "large/train.csv": mega * 4})
    weights = {"model.safetensors": mega * 2, "vocab.txt": mega[:1000], "tf_model.h5": mega * 9}
    hub.add_repo("ada/model", files=weights)
    hub.add_repo("ada/more", files={"model.safetensors": mega})
    owner = auth.request_visitor(store, asks(ada)).name

    def dataset(part, visitor=owner):
        config = RunConfig(dataset="ada/pairs", dataset_config_name=part)
        hub_access.count_dataset(store.root, visitor, config)

    def checkpoint(name, visitor=owner, weights=True):
        hub_access.count_checkpoint(store.root, visitor, name, weights)

    with pytest.raises(DataError, match=r"ada/pairs large has 4 MB\. A visitor may fetch 3 MB"):
        dataset("large")
    with pytest.raises(DataError, match="ada/pairs has 5 MB"):
        dataset("")
    dataset("small")
    checkpoint("ada/model", weights=False)
    with pytest.raises(ModelError, match=r"ada/model has 2 MB.* you have fetched 1 MB"):
        checkpoint("ada/model")
    for _ in range(3):  # it lies here now
        dataset("small")
        checkpoint("ada/more")
    checkpoint("ada/model", "user:bob")  # another's share is another's
    dataset("large", "")  # nobody's, on the machine itself
    checkpoint(RunConfig().checkpoint)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 25 * 3600)
    checkpoint("ada/model")


@pytest.mark.long
def test_runs_and_examinations_are_counted_before_they_fetch(store, ada, hub, monkeypatch):
    monkeypatch.setenv("FINETUNE_MAX_HUB_MB", "0")
    hub.add_repo("ada/pairs", "dataset", {"train.csv": b"sentence1,sentence2,label\na,b,1\n"})
    mine = auth.visitor_store(store, asks(ada))
    run = mine.create(RunConfig(dataset="ada/pairs"))
    command = [sys.executable, "-m", "finetune", "train", "--run", str(run.folder)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
    assert "ada/pairs has 0 MB. A visitor may fetch 0 MB" in run.state().error
    look = check.start_check(mine, run.config())
    until(lambda: not look.state().running)
    assert "A visitor may fetch 0 MB" in look.state().error
    assert "train.csv" not in str(hub.requests)
