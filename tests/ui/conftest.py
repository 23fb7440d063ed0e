"""Fixtures of the page's tests; the app, the browser and the server are shared between tests."""

import shutil
from types import SimpleNamespace

import pytest
from gradio.context import LocalContext

from finetune.runs.store import RunStore
from finetune.ui import app as ui_app
from finetune.ui import auth
from tests.support import toys
from tests.support.browser import App, View, Visit, launch_browser
from tests.support.server import serving
from tests.support.tabs import LOG, NAME, asks


@pytest.fixture(scope="session")
def browser(chromium):
    return launch_browser(chromium)


@pytest.fixture(scope="session")
def running(tmp_path_factory):
    """`python app.py` for all tests: it takes as long to start as many of them last."""
    process = App(tmp_path_factory.mktemp("app") / "runs")
    yield process
    process.end()


@pytest.fixture
def app(running, hub):
    """An app that has no runs and no files yet; its process is shared."""
    yield running
    running.empty()


@pytest.fixture
def visit(browser, app, request):
    """The app's page, in the view that is a parameter of the test or in a wide one."""
    visit = Visit(browser, app.url, getattr(request, "param", View()))
    yield visit
    visit.end()


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """The page served by this process, whose uploads are in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("uploads")))
        patch.setattr(ui_app, "MOST_SESSIONS", 60)
        with serving(RunStore(tmp_path_factory.mktemp("served") / "runs")) as served:
            yield served


@pytest.fixture
def server(served):
    """The page served by this process, without runs; to build it takes as long as many a test."""
    yield served
    auth._identities.clear()
    while served.store.root.exists():  # the server may just write there
        shutil.rmtree(served.store.root, ignore_errors=True)


@pytest.fixture
def store(request, tmp_path):
    """The store of the served page if the test asks for the page, and else one of its own."""
    if "server" in request.fixturenames:
        return request.getfixturevalue("server").store
    return RunStore(tmp_path / "runs")


@pytest.fixture
def finished(store, toy_checkpoint):
    """A run that ended; its model is the toy checkpoint."""
    return toys.finished_run(store, toy_checkpoint)


@pytest.fixture
def language(request):
    """Who asks speaks this language."""
    asker = SimpleNamespace(headers={"accept-language": request.param, "cookie": ""})
    former = LocalContext.request.set(asker)
    yield request.param
    LocalContext.request.reset(former)


@pytest.fixture
def shared(monkeypatch):
    monkeypatch.setenv("FINETUNE_VISITORS", "1")


@pytest.fixture
def ada(shared, store):
    return auth.identities(store).issue("192.0.2.1")


@pytest.fixture
def bob(shared, store):
    return auth.identities(store).issue("192.0.2.2")


@pytest.fixture
def hers(store, ada, toy_checkpoint):
    """Ada's finished run, with all a run can have."""
    run = toys.finished_run(auth.visitor_store(store, asks(ada)), toy_checkpoint, NAME)
    run.log_file.write_text(LOG)
    run.describe(tags=("private-tag",), note="private-note")
    return run
