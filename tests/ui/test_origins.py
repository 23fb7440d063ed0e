"""Requests that another page causes, or that name a foreign host, over raw HTTP and in Chromium."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import gradio as gr
import pytest
from gradio_client import Client
from playwright.sync_api import Browser

from finetune.config import RunConfig
from finetune.errors import FinetuneError
from finetune.runs.store import Run, RunStore
from finetune.ui import app as page
from finetune.ui import auth, origins
from tests.ui.test_browser import browser

__all__ = ["browser"]
NAME = "a-run-of-the-owner"


@pytest.fixture
def run(store: RunStore) -> Run:
    return store.create(RunConfig(name=NAME))


@pytest.fixture
def app(store: RunStore) -> Iterator[gr.Blocks]:
    made = page.build(store)
    page.launch(made, store, prevent_thread_lock=True, quiet=True)
    yield made
    made.close()


class Answer:
    """What came back: status, headers in lower case, text."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        self.text = answer.read().decode("utf-8", "replace")


def ask(app: gr.Blocks, path: str = "/config", method: str = "GET", **headers: str) -> Answer:
    """A request with exactly these headers (`Host` of the app's own unless given)."""
    return send(app, path, method, b"", **headers)


def send(app: gr.Blocks, path: str, method: str, body: bytes, **headers: str) -> Answer:
    known = {name.replace("_", "-"): value for name, value in headers.items()}
    known.setdefault("Host", f"127.0.0.1:{app.server_port}")
    connection = http.client.HTTPConnection("127.0.0.1", app.server_port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in (known | {"Content-Length": str(len(body))}).items():
            connection.putheader(name, value)
        connection.endheaders(body)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def test_the_app_answers_to_its_own_names_only(
    app: gr.Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ["localhost", f"localhost:{app.server_port}", "127.0.0.1", "[::1]:1", "LOCALHOST:80"]
    foreign = ["foo.localhost", "localhost.", "evil.example", "127.0.0.2", "[::2]", "0.0.0.0",
               "", "192.0.2.1:7860", "localhost@evil.example", "localhost:x",
               "app.example"]  # fmt: skip
    for host in own:
        assert ask(app, Host=host).status == 200, host
    for host in foreign:
        for path in ("/", "/config", "/gradio_api/info", "/finetune/watch/", "/gradio_api/mcp/"):
            answer = ask(app, path, Host=host)
            assert (answer.status, "FINETUNE_ALLOWED_HOSTS" in answer.text) == (403, True), host
            assert answer.headers["content-type"].startswith("text/plain")
    monkeypatch.setenv("FINETUNE_ALLOWED_HOSTS", "App.example, other.example:8443")
    for host in ("app.example", "app.example:9", "other.example:8443"):
        assert ask(app, Host=host).status == 200, host
    assert ask(app, Host="other.example").status == 403
    monkeypatch.setenv("SPACE_HOST", "ada-finetune.hf.space,finetune.example")
    for host in ("ada-finetune.hf.space", "finetune.example"):
        assert ask(app, Host=host).status == 200, host
    assert ask(app, Host="bob-finetune.hf.space").status == 403
    monkeypatch.setattr(app, "share_url", "https://0123456789.gradio.live")
    assert ask(app, Host="0123456789.gradio.live").status == 200
    assert ask(app, Host="9876543210.gradio.live").status == 403


def test_of_all_addresses_of_a_machine_any_address_is_its_own() -> None:
    machine = socket.gethostname().lower()
    bound, elsewhere = origins.Names("0.0.0.0"), origins.Names("192.0.2.7")
    for name in ("192.0.2.7", "2001:db8::1", "0.0.0.0", machine, f"{machine.split('.')[0]}.local"):
        assert bound.accepts((name, "7860")), name
    for name in ("evil.example", "foo.localhost", f"{machine}.evil.example"):
        assert not bound.accepts((name, "7860")), name
    assert elsewhere.accepts(("192.0.2.7", ""))
    assert not elsewhere.accepts(("192.0.2.8", ""))
    assert origins.Names("[::1]").accepts(("::1", ""))
    assert origins.Names("Lab.example").accepts(("lab.example", "80"))


JSON = {"Content_Type": "application/json"}
CALL = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()


def requests(run: Run) -> list[tuple[str, str, bytes, dict[str, str]]]:
    """One of each kind: Gradio's, the MCP server's, ours; by a form, too."""
    part = b'Content-Disposition: form-data; name="files"; filename="a"'
    form = b"--x\r\n" + part + b"\r\n\r\na\r\n--x--\r\n"
    sends = {"Content_Type": "multipart/form-data; boundary=x"}
    accepts = JSON | {"Accept": "application/json, text/event-stream"}
    return [
        ("GET", "/config", b"", {}),
        ("GET", "/gradio_api/info", b"", {}),
        ("GET", f"/finetune/watch/{run.id}", b"", {}),
        ("GET", f"/finetune/runs/{run.id}/config.json", b"", {}),
        ("POST", "/gradio_api/run/list_runs", b'{"data": []}', JSON),
        ("POST", "/gradio_api/call/list_runs", b'{"data": []}', JSON),
        ("POST", "/gradio_api/upload", form, sends),
        ("POST", "/gradio_api/mcp/", CALL, accepts),
    ]


def test_a_foreign_page_gets_nothing_and_does_nothing(
    app: gr.Blocks, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = app.server_port
    monkeypatch.setenv("FINETUNE_ALLOWED_HOSTS", "app.example")
    own = {"127.0.0.1": f"http://127.0.0.1:{port}", "app.example": "https://app.example"}
    foreign = ["null", "https://evil.example", "http://foo.localhost", f"http://localhost:{port}",
               "http://127.0.0.1", f"http://127.0.0.1:{port + 1}", "file://", "",
               f"http://127.0.0.1:{port}@evil.example", f"http://127.0.0.1:{port}.evil.example",
               "https://app.example.evil.example", "https://app.example:8443"]  # fmt: skip
    for method, path, body, headers in requests(run):
        for name, origin in own.items():
            host = f"{name}:{port}" if name == "127.0.0.1" else name
            for known in ({}, {"Origin": origin}):
                answer = send(app, path, method, body, Host=host, **headers, **known)
                assert answer.status == 200, (path, known, answer.text)
                assert not [name for name in answer.headers if "access-control" in name]
            for wrong in foreign:
                answer = send(app, path, method, body, Host=host, Origin=wrong, **headers)
                assert (answer.status, NAME in answer.text) == (403, False), (path, wrong)
                assert not [name for name in answer.headers if "access-control" in name]
                asked = {"Access_Control_Request_Method": method, "Origin": wrong, "Host": host}
                assert ask(app, path, "OPTIONS", **asked).status == 403
    page_itself = ask(app, "/", Origin="https://evil.example")
    assert page_itself.status == 200
    assert not [name for name in page_itself.headers if "access-control" in name]
    assert ask(app, "/", "POST", Origin="https://evil.example").status == 403


def test_what_a_foreign_page_merely_gets_is_refused(app: gr.Blocks, run: Run) -> None:
    """As an image, a script or a link: browsers send no Origin then."""
    for method, path, body, headers in requests(run):
        for site in ("cross-site", "same-site"):
            for mode in ("no-cors", "navigate"):
                known = headers | {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": mode}
                answer = send(app, path, method, body, **known)
                assert (answer.status, NAME in answer.text) == (403, False), (path, site)
        for site in ("same-origin", "none"):
            answer = send(app, path, method, body, **headers, Sec_Fetch_Site=site)
            assert answer.status == 200
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    opened = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert ask(app, "/?view=1", **opened).status == 200
    assert ask(app, "/login/callback", **opened).status == 404  # where there is no sign-in
    assert ask(app, "/logout", **opened).status == 403


def test_a_websocket_of_a_foreign_page_is_refused(app: gr.Blocks) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13",
               "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
    assert ask(app, "/", Origin="https://evil.example", **upgrade).status != 101
    assert ask(app, "/queue/join", Host="evil.example", **upgrade).status == 403


def test_programs_go_on_working(app: gr.Blocks, run: Run) -> None:
    client = Client(f"http://127.0.0.1:{app.server_port}", verbose=False, analytics_enabled=False)
    assert [one["name"] for one in client.predict(api_name="/list_runs")] == [NAME]
    client.close()


def test_forwarded_headers_are_believed_from_known_proxies_only(
    app: gr.Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"X_Forwarded_Host": "evil.example", "X_Gradio_Server": "https://evil.example",
            "X_Forwarded_Proto": "https", "X_Forwarded_For": "203.0.113.9"}  # fmt: skip
    root = json.loads(ask(app, **told).text)["root"]
    assert root == f"http://127.0.0.1:{app.server_port}"
    monkeypatch.setenv("FINETUNE_TRUSTED_PROXIES", "192.0.2.1, 127.0.0.0/8")
    assert json.loads(ask(app, **told).text)["root"] == f"https://127.0.0.1:{app.server_port}"
    monkeypatch.setenv("FINETUNE_ALLOWED_HOSTS", "app.example")
    own = told | {"X_Forwarded_Host": "app.example", "Origin": "https://app.example"}
    assert json.loads(ask(app, **own).text)["root"] == "https://app.example"
    assert ask(app, **own | {"Origin": "http://app.example"}).status == 403  # it is https
    monkeypatch.setenv("FINETUNE_TRUSTED_PROXIES", "the proxy")
    with pytest.raises(FinetuneError, match="FINETUNE_TRUSTED_PROXIES is wrong"):
        origins.proxies()


def test_an_identity_behind_https_is_the_hosts_alone(
    app: gr.Blocks, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_TRUSTED_PROXIES", "127.0.0.1")
    plain = ask(app, "/").headers["set-cookie"]
    assert plain.startswith("finetune-visitor=")
    assert "Secure" not in plain
    secure = ask(app, "/", X_Forwarded_Proto="https")
    cookie = secure.headers["set-cookie"]
    assert cookie.startswith("__Host-finetune-visitor=")
    assert {"Path=/", "HttpOnly", "SameSite=Lax", "Secure"} <= set(cookie.split("; "))
    assert secure.headers["cache-control"] == "private, no-store"
    token = cookie.split("=", 1)[1].split(";")[0]
    again = ask(app, "/", X_Forwarded_Proto="https", Cookie=f"__Host-finetune-visitor={token}")
    assert "set-cookie" not in again.headers
    planted = ask(app, "/", X_Forwarded_Proto="https", Cookie=f"finetune-visitor={token}")
    assert planted.headers["set-cookie"].startswith("__Host-")  # a neighbour could have set it


def test_a_program_is_issued_an_identity_by_its_address(
    app: gr.Blocks, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(app, auth.ISSUE, "POST").status == 404  # one's own machine
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_MAX_NEW_VISITORS", "3")
    for invented in ("198.51.100.1", "198.51.100.2", "198.51.100.3"):
        issued = ask(app, auth.ISSUE, "POST", X_Forwarded_For=invented)
        assert issued.status == 200
        assert auth.identities(store).owner(issued.text)
    refused = ask(app, auth.ISSUE, "POST", X_Forwarded_For="198.51.100.4")
    assert refused.status == 429
    assert "set-cookie" not in ask(app, "/").headers  # the page can be read all the same
    assert ask(app, auth.ISSUE, "GET").status == 405
    monkeypatch.setenv("FINETUNE_TRUSTED_PROXIES", "127.0.0.1,10.0.0.0/8")
    for hops, status in (
        ("198.51.100.1, 203.0.113.1, 10.1.1.1", [200, 200, 200, 429]),
        ("198.51.100.2, 203.0.113.1", [429]),  # what stands before the last is anybody's word
        ("198.51.100.3, 203.0.113.2, 127.0.0.1", [200]),
        ("nonsense", [429]),
    ):
        for expected in status:
            answer = ask(app, auth.ISSUE, "POST", X_Forwarded_For=hops)
            assert answer.status == expected, hops


def test_on_a_space_the_address_is_what_its_proxy_says(
    app: gr.Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPACE_ID", "ada/finetune")
    monkeypatch.setenv("FINETUNE_MAX_NEW_VISITORS", "1")
    for hops, status in (
        ("1.1.1.1, 10.16.3.4", 200), ("9.9.9.9, 1.1.1.1", 429), ("8.8.8.8", 200),
    ):  # fmt: skip
        assert ask(app, auth.ISSUE, "POST", X_Forwarded_For=hops).status == status, hops


EVIL = """<!doctype html><title>evil</title><form id="form" method="post" target="frame"
 enctype="multipart/form-data"><input name="x" value="y"></form>
<iframe name="frame" width="1200" height="800"></iframe>"""
TRIES = """async ([app, run]) => {
  const said = {};
  const read = async (name, path, options) => {
    try {
      const answer = await fetch(app + path, {credentials: 'include', ...options});
      said[name] = answer.type + ' ' + await answer.text();
    } catch (error) { said[name] = 'refused'; }
  };
  const json = {method: 'POST', headers: {'content-type': 'application/json'}};
  await read('config', '/config');
  await read('watch', '/finetune/watch/' + run);
  await read('list', '/gradio_api/run/list_runs', {...json, body: '{"data": []}'});
  await read('start', '/gradio_api/run/start_run', {...json, body: '{"data": [{}]}'});
  const form = new FormData();
  form.append('files', new File(['foreign'], 'foreign.csv'));
  await read('upload', '/gradio_api/upload', {method: 'POST', mode: 'no-cors', body: form});
  return said;
}"""


@pytest.fixture
def evil() -> Iterator[str]:
    """A page of somebody else; its port, on every name that ends with localhost."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(EVIL.encode())

        def log_message(self, *values: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield str(server.server_port)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("host", ["localhost", "foo.localhost", "127.0.0.1"])
def test_in_a_browser_a_foreign_page_reads_and_does_nothing(
    app: gr.Blocks, run: Run, store: RunStore, browser: Browser, evil: str, host: str
) -> None:
    """Of another name or another port; in a tab of its own and in a frame of a third page."""
    where, uploads = f"http://{host}:{app.server_port}", app.upload_file_set
    context = browser.new_context()
    shown = context.new_page()
    for site in ("evil.localhost", "127.0.0.1"):
        for framed in (False, True):
            shown.goto(f"http://{'top.localhost' if framed else site}:{evil}/")
            frame = shown.main_frame
            if framed:
                shown.evaluate(f"frames[0].location = 'http://{site}:{evil}/'")
                shown.wait_for_function("() => frames.length === 1")
                frame = shown.frames[1]
                frame.wait_for_url(f"http://{site}:{evil}/")
            said = frame.evaluate(TRIES, [where, run.id])
            assert NAME not in str(said)
            assert {said[name] for name in said if name != "upload"} == {"refused"}, said
            assert said["upload"] in ("opaque ", "refused")
            with shown.expect_response(f"{where}/gradio_api/upload") as answered:
                frame.evaluate(
                    "(url) => { const form = document.getElementById('form'); form.action = url;"
                    " form.submit(); }", f"{where}/gradio_api/upload",
                )  # fmt: skip
            assert answered.value.status == 403
    assert uploads == set()
    assert [one.id for one in store.runs()] == [run.id]
    context.close()


def test_the_page_works_in_a_frame_of_another_page(
    app: gr.Blocks, run: Run, browser: Browser, evil: str
) -> None:
    """As a Space's does; its own requests are of its own origin. Of another port, not another
    name: to a frame of another site Chromium gives no storage without a profile."""
    context = browser.new_context()
    shown = context.new_page()
    shown.goto(f"http://127.0.0.1:{evil}/")
    shown.evaluate(f"frames[0].location = 'http://127.0.0.1:{app.server_port}/'")
    inside = shown.frame_locator("iframe")
    inside.get_by_role("tab", name="Runs").click(timeout=30_000)
    inside.locator("#runs-table").get_by_text(NAME).first.wait_for(timeout=30_000)
    context.close()
