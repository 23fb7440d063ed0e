"""Signing in on a Space, against the loopback Hub's own OpenID provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, expect
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.testclient import TestClient

from finetune.owners import Visitor
from finetune.ui import sign_in
from tests.support import toys
from tests.support.browser import App
from tests.support.hub import LoopbackHub

SCOPES = "openid profile contribute-repos write-repos"


@pytest.fixture
def space(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a Space with sign-in."""
    for name, value in {
        "SYSTEM": "spaces", "SPACE_ID": "ada/finetune", "OAUTH_CLIENT_ID": "client",
        "OAUTH_CLIENT_SECRET": "secret", "OAUTH_SCOPES": SCOPES, "OPENID_PROVIDER_URL": hub.url,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SPACE_HOST", raising=False)


def query(path: str) -> dict[str, list[str]]:
    """What the Hub would be asked by a sign-in."""
    sessions = Middleware(SessionMiddleware, secret_key="x", https_only=True)
    app = Starlette(routes=sign_in.routes(), middleware=[sessions])
    with TestClient(app, base_url="https://testserver", follow_redirects=False) as client:
        answer = client.get(path)
    assert answer.status_code == 302
    return parse_qs(urlsplit(answer.headers["location"]).query)


def test_the_least_is_asked_unless_more_is_requested(
    space: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    least = query("/login/huggingface?_target_url=/?view=1")
    assert least["scope"] == ["openid profile contribute-repos"]
    back = "https://testserver/login/callback?_target_url=%2F%3Fview%3D1"
    assert least["redirect_uri"] == [back]
    assert query("/login/more")["scope"] == [SCOPES]
    monkeypatch.setenv("OAUTH_SCOPES", "openid profile")  # a Space that may not ask for more
    assert query("/login/more")["scope"] == ["openid profile"]
    monkeypatch.setenv("SPACE_HOST", "ada-finetune.hf.space,finetune.example")
    assert query("/login/more")["redirect_uri"] == [
        "https://ada-finetune.hf.space/login/callback?_target_url=%2F"
    ]
    monkeypatch.delenv("SYSTEM")  # elsewhere there is no sign-in
    assert sign_in.routes() == []


@pytest.fixture
def app(space: None, tmp_path: Path) -> Iterator[App]:
    process = App(tmp_path / "runs")
    yield process
    process.end()


@pytest.mark.long
def test_a_visitor_signs_in_pushes_and_asks_for_more(
    app: App, hub: LoopbackHub, browser: Browser, toy_checkpoint: Path
) -> None:
    """The least makes a new repository; one made elsewhere takes a second sign-in."""
    hub.add_repo("ada/elsewhere")
    toys.finished_run(app.store.for_visitor(Visitor(("user:ada",))), toy_checkpoint)
    context = browser.new_context()
    page = context.new_page()
    page.goto(app.url)
    page.get_by_role("tab", name="Publish").click()
    expect(page.locator("#publish-empty")).to_be_visible()  # nobody is signed in yet
    with page.expect_navigation(wait_until="load"):
        page.get_by_role("button", name="Sign in with Hugging Face").click()
    page.get_by_role("tab", name="Publish").click()
    expect(page.get_by_role("button", name="Logout (ada)")).to_be_visible()
    expect(page.locator("#publish-empty")).to_be_hidden()
    assert hub.provider.asked == ["openid profile contribute-repos"]

    def push(name: str, words: str) -> None:
        page.locator("#repo textarea, #repo input").first.fill(name)
        page.locator("#push").click()
        expect(page.locator("#push-result")).to_contain_text(words, timeout=60_000)

    push("ada/mine", "Verified")
    push("ada/elsewhere", "403")
    page.locator("#check-push").click()
    link = page.get_by_role("link", name="Sign in for all my repositories")
    with context.expect_page() as opened:
        link.click()
    opened.value.wait_for_load_state()
    assert hub.provider.asked[-1] == SCOPES
    page.locator("#check-push").click()
    expect(link).to_be_hidden()
    push("ada/elsewhere", "Verified")
    for name in ("ada/mine", "ada/elsewhere"):
        assert "model.safetensors" in hub.repos["model", name].files

    files = [path.read_bytes() for path in app.store.root.rglob("*") if path.is_file()]
    for token in hub.provider.tokens:
        assert not [content for content in files if token.encode() in content]
        assert token not in page.content()
        assert not [target for target in hub.targets if token in target]
    context.close()
