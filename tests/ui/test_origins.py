"""Requests that another page causes, or that name a foreign host, over raw HTTP and in Chromium."""

import contextlib
import functools
import http.client
import itertools
import json
import shutil
import socket
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from finetune.config import RunConfig
from finetune.errors import FinetuneError
from finetune.ui import auth, origins

NAME = "a-run-of-the-owner"
EVIL = "https://evil.example"


@pytest.fixture
def run(store):
    return store.create(RunConfig(name=NAME))


@pytest.fixture
def port(server):
    return int(server.blocks.server_port)


def ask(port, path="/config", method="GET", body=b"", /, **headers):
    """A request with exactly these headers (`Host` of the app's own unless given)."""
    sent = {"Host": f"127.0.0.1:{port}"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        return httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read())


def test_the_app_answers_to_its_own_names_only(server, port, monkeypatch):
    for host in ("localhost", f"localhost:{port}", "127.0.0.1", "[::1]:1", "LOCALHOST:80"):
        assert ask(port, Host=host).status_code == 200, host
    for host in (
        "foo.localhost", "localhost.", "evil.example", "127.0.0.2", "[::2]", "0.0.0.0", "",
        "192.0.2.1:7860", "localhost@evil.example", "localhost:x", "app.example",
    ):  # fmt: skip
        for path in ("/", "/config", "/finetune/watch/", "/gradio_api/mcp/"):
            answer = ask(port, path, Host=host)
            assert answer.status_code == 403, host
            assert "FINETUNE_ALLOWED_HOSTS" in answer.text
            assert answer.headers["content-type"].startswith("text/plain")
    monkeypatch.setenv("FINETUNE_ALLOWED_HOSTS", "App.example, other.example:8443")
    monkeypatch.setenv("SPACE_HOST", "ada-finetune.hf.space,finetune.example")
    monkeypatch.setattr(server.blocks, "share_url", "https://0123456789.gradio.live")
    for host in ("app.example", "app.example:9", "other.example:8443", "ada-finetune.hf.space",
                 "finetune.example", "0123456789.gradio.live"):  # fmt: skip
        assert ask(port, Host=host).status_code == 200, host
    for host in ("other.example", "bob-finetune.hf.space", "9876543210.gradio.live"):
        assert ask(port, Host=host).status_code == 403, host


def test_of_all_addresses_of_a_machine_any_address_is_its_own():
    machine = socket.gethostname().lower()
    every, single = origins.AllowedHosts("0.0.0.0"), origins.AllowedHosts("192.0.2.7")
    for name in ("192.0.2.7", "2001:db8::1", "0.0.0.0", machine, f"{machine.split('.')[0]}.local"):
        assert (name, "7860") in every, name
    for name in ("evil.example", "foo.localhost", f"{machine}.evil.example"):
        assert (name, "7860") not in every, name
    assert ("192.0.2.7", "") in single
    assert ("192.0.2.8", "") not in single
    assert ("lab.example", "80") in origins.AllowedHosts("Lab.example")


def requests(run):
    """One of each kind: Gradio's, the MCP server's, ours; by a form, too."""
    part = b'Content-Disposition: form-data; name="files"; filename="a"'
    form = b"--x\r\n" + part + b"\r\n\r\na\r\n--x--\r\n"
    json_type = {"Content_Type": "application/json"}
    mcp = json_type | {"Accept": "application/json, text/event-stream"}
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
    return [
        ("GET", "/config", b"", {}), ("GET", f"/finetune/watch/{run.id}", b"", {}),
        ("GET", f"/finetune/runs/{run.id}/config.json", b"", {}),
        ("POST", "/gradio_api/run/list_runs", b'{"data": []}', json_type),
        ("POST", "/gradio_api/upload", form, {"Content_Type": "multipart/form-data; boundary=x"}),
        ("POST", "/gradio_api/mcp/", call, mcp),
    ]  # fmt: skip


def test_a_foreign_page_gets_nothing_and_does_nothing(port, run, monkeypatch):
    """By a script, which says its origin, or as an image or a link: browsers send none then."""
    monkeypatch.setenv("FINETUNE_ALLOWED_HOSTS", "app.example")
    own = {f"127.0.0.1:{port}": f"http://127.0.0.1:{port}", "app.example": "https://app.example"}
    foreign = ["null", EVIL, "http://foo.localhost", f"http://localhost:{port}",
               "http://127.0.0.1", f"http://127.0.0.1:{port + 1}", "file://", "",
               f"http://127.0.0.1:{port}@evil.example", f"http://127.0.0.1:{port}.evil.example",
               "https://app.example.evil.example", "https://app.example:8443"]  # fmt: skip
    refused = [{"Origin": origin} for origin in foreign]
    for site, mode in itertools.product(("cross-site", "same-site"), ("no-cors", "navigate")):
        refused.append({"Sec_Fetch_Site": site, "Sec_Fetch_Mode": mode})
    sites = [{"Sec_Fetch_Site": site} for site in ("same-origin", "none")]
    for host, origin in own.items():
        allowed = [{}, {"Origin": origin}, *sites]
        for method, path, body, headers in requests(run):
            for extra in allowed:
                answer = ask(port, path, method, body, Host=host, **headers, **extra)
                assert answer.status_code == 200, (path, extra, answer.text)
                assert answer.headers["cross-origin-resource-policy"] == "same-origin"
                assert "access-control" not in str(answer.headers)
            for extra in refused:
                answer = ask(port, path, method, body, Host=host, **headers, **extra)
                assert (answer.status_code, NAME in answer.text) == (403, False), (path, extra)
                assert "access-control" not in str(answer.headers)
            preflight = {"Access_Control_Request_Method": method, "Origin": EVIL}
            assert ask(port, path, "OPTIONS", **preflight).status_code == 403
    opened = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13",
               "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
    for path, method, headers, status in (
        ("/", "GET", {"Origin": EVIL}, 200),
        ("/", "POST", {"Origin": EVIL}, 403),
        ("/queue/join", "GET", {"Origin": EVIL, **upgrade}, 403),
        ("/?view=1", "GET", opened, 200),
        ("/login/callback", "GET", opened, 404),  # where there is no sign-in
        ("/logout", "GET", opened, 403),
    ):
        answer = ask(port, path, method, **headers)
        assert answer.status_code == status, path
        assert "access-control" not in str(answer.headers)


def behind(proxy, monkeypatch, **environment):
    """A client of an app that answers with what it knows of a request, asked by a proxy."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    async def describe(request):
        return JSONResponse([str(request.base_url), auth.client_address(request.scope)])

    app = Starlette(routes=[Route("/described", describe)])
    guarded = origins.OwnOrigin(app, origins.AllowedHosts("127.0.0.1"))
    return TestClient(guarded, base_url="http://127.0.0.1:7860", client=(proxy, 1))


@pytest.mark.parametrize(
    ("proxy", "forwarded", "described"),
    [
        ("203.0.113.5", {}, ["http://127.0.0.1:7860/", "203.0.113.5"]),  # not a known one
        ("127.0.0.9", {}, ["https://app.example/", "203.0.113.9"]),
        ("10.1.1.1", {"host": "evil.example"}, ["https://127.0.0.1:7860/", "203.0.113.9"]),
        ("10.1.1.1", {"host": "app.example, 10.1.1.1", "proto": "https, http"},
         ["https://app.example/", "203.0.113.9"]),
        # What stands before the last unknown address, anybody can have written.
        ("10.1.1.1", {"for": "198.51.100.1, 203.0.113.1, 10.2.2.2"},
         ["https://app.example/", "203.0.113.1"]),
    ],
)  # fmt: skip
def test_forwarded_headers_of_known_proxies_count(proxy, forwarded, described, monkeypatch):
    headers = {"host": "app.example", "proto": "https", "for": "203.0.113.9"} | forwarded
    sent = {f"x-forwarded-{name}": value for name, value in headers.items()}
    client = behind(
        proxy, monkeypatch, FINETUNE_ALLOWED_HOSTS="app.example",
        FINETUNE_TRUSTED_PROXIES="10.0.0.0/8, 127.0.0.9",
    )  # fmt: skip
    assert client.get("/described", headers=sent | {"x-gradio-server": EVIL}).json() == described
    if described[0] == "https://app.example/":
        for origin, status in (("https://app.example", 200), ("http://app.example", 403)):
            assert client.get("/described", headers=sent | {"origin": origin}).status_code == status


def test_on_a_space_the_address_is_what_its_proxy_says_and_a_wrong_proxy_is_named(monkeypatch):
    client = behind("192.0.2.1", monkeypatch, SPACE_ID="ada/finetune")
    for hops in ("1.1.1.1", "1.1.1.1, 10.16.3.4", "9.9.9.9, 1.1.1.1"):
        assert client.get("/described", headers={"x-forwarded-for": hops}).json()[1] == "1.1.1.1"
    monkeypatch.setenv("FINETUNE_TRUSTED_PROXIES", "the proxy")
    with pytest.raises(FinetuneError, match="FINETUNE_TRUSTED_PROXIES is wrong"):
        origins.trusted_proxies()


def test_an_identity_behind_https_is_the_hosts_alone(store, monkeypatch):
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    app = auth.VisitorCookie(Starlette(), store)
    assert "Secure" not in TestClient(app).get("/").headers["set-cookie"]
    secure = TestClient(app, base_url="https://testserver")
    answer = secure.get("/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-finetune-visitor=")
    assert {"Path=/", "HttpOnly", "SameSite=Lax", "Secure"} <= set(cookie.split("; "))
    assert answer.headers["cache-control"] == "private, no-store"
    assert "set-cookie" not in secure.get("/").headers  # it has one
    token = cookie.split("=", 1)[1].split(";")[0]
    planted = TestClient(app, base_url="https://testserver", cookies={auth.COOKIE: token})
    # A neighbouring host could have set the other name.
    assert planted.get("/").headers["set-cookie"].startswith("__Host-")
    program = {auth.HEADER: token}
    assert "set-cookie" not in TestClient(app).get("/", headers=program).headers  # it is somebody
    monkeypatch.setenv("SPACE_ID", "ada/x")
    framed = TestClient(app).get("/").headers["set-cookie"]
    assert framed.startswith("__Host-finetune-visitor=")
    assert {"Path=/", "SameSite=None", "Secure", "Partitioned"} <= set(framed.split("; "))


def test_a_program_is_issued_an_identity_by_its_address(store, port, monkeypatch):
    assert ask(port, auth.ISSUE, "POST").status_code == 404  # one's own machine
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("FINETUNE_MAX_NEW_VISITORS", "3")
    for invented in ("198.51.100.1", "198.51.100.2", "198.51.100.3"):
        issued = ask(port, auth.ISSUE, "POST", X_Forwarded_For=invented)
        assert issued.status_code == 200
        assert auth.identities(store).owner(issued.text)
    assert ask(port, auth.ISSUE, "POST", X_Forwarded_For="198.51.100.4").status_code == 429
    assert "set-cookie" not in ask(port, "/").headers  # the page can be read all the same
    assert ask(port, auth.ISSUE, "GET").status_code == 405


@pytest.fixture
def evil(tmp_path):
    """A page of somebody else; its port, on every name that ends with localhost."""
    shutil.copy(Path(__file__).with_name("foreign.html"), tmp_path / "index.html")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as foreign:
        threading.Thread(target=foreign.serve_forever, daemon=True).start()
        yield str(foreign.server_port)
        foreign.shutdown()


@pytest.mark.long
def test_in_a_browser_a_foreign_page_reads_and_does_nothing(server, port, run, browser, evil):
    """Of another name or another port; in a tab of its own and in a frame of a third page."""
    tries = Path(__file__).with_name("foreign.js").read_text(encoding="utf-8")
    app, uploads = f"http://127.0.0.1:{port}", set(server.blocks.upload_file_set)
    context = browser.new_context()
    page = context.new_page()
    for site in ("evil.localhost", "127.0.0.1"):
        for framed in (False, True):
            page.goto(f"http://{'top.localhost' if framed else site}:{evil}/")
            frame = page.main_frame
            if framed:
                page.evaluate(f"frames[0].location = 'http://{site}:{evil}/'")
                page.wait_for_function("() => frames.length === 1")
                frame = page.frames[1]
                frame.wait_for_url(f"http://{site}:{evil}/")
            answers = frame.evaluate(tries, [app, run.id])
            assert answers.pop("upload") in ("opaque ", "refused")
            assert set(answers.values()) == {"refused"}, answers
            with page.expect_response(f"{app}/gradio_api/upload") as answered:
                frame.evaluate(
                    "(url) => { const form = document.getElementById('form'); form.action = url;"
                    " form.submit(); }", f"{app}/gradio_api/upload",
                )  # fmt: skip
            assert answered.value.status == 403
    assert server.blocks.upload_file_set == uploads
    assert [other.id for other in server.store.runs()] == [run.id]
    # In a frame, as a Space's, the page itself works: its requests are of its own origin. Of
    # another port, not another name: to a frame of another site Chromium gives no storage.
    page.goto(f"http://127.0.0.1:{evil}/")
    page.evaluate(f"frames[0].location = '{app}/'")
    inside = page.frame_locator("iframe")
    inside.get_by_role("tab", name="Runs").click(timeout=60_000)
    expect(inside.locator("#runs-table")).to_contain_text(NAME)
    context.close()
