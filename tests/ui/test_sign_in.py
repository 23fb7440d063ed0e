"""Signing in on a Space, against the loopback Hub's own OpenID provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect
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


def asked(path: str) -> dict[str, list[str]]:
    """What the Hub would be asked by a sign-in."""
    keeping = Middleware(SessionMiddleware, secret_key="x", https_only=True)
    app = Starlette(routes=sign_in.routes(), middleware=[keeping])
    with TestClient(app, base_url="https://testserver", follow_redirects=False) as client:
        answer = client.get(path)
    assert answer.status_code == 302
    return parse_qs(urlsplit(answer.headers["location"]).query)


def test_the_least_is_asked_unless_more_is_wanted(
    space: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asked("/login/huggingface?_target_url=/?view=1")
    assert found["scope"] == ["openid profile contribute-repos"]
    back = "https://testserver/login/callback?_target_url=%2F%3Fview%3D1"
    assert found["redirect_uri"] == [back]
    assert asked("/login/more")["scope"] == [SCOPES]
    monkeypatch.setenv("OAUTH_SCOPES", "openid profile")  # a Space that may not ask for more
    assert asked("/login/more")["scope"] == ["openid profile"]
    monkeypatch.setenv("SPACE_HOST", "ada-finetune.hf.space,finetune.example")
    assert asked("/login/more")["redirect_uri"] == [
        "https://ada-finetune.hf.space/login/callback?_target_url=%2F"
    ]


def test_elsewhere_there_is_no_sign_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYSTEM", raising=False)
    assert sign_in.routes() == []


@pytest.fixture
def app(space: None, tmp_path: Path) -> Iterator[App]:
    made = App(tmp_path / "runs")
    yield made
    made.end()


def open_publish(page: Page, url: str) -> None:
    page.goto(url)
    page.get_by_role("tab", name="Publish").click()


@pytest.mark.long
def test_a_visitor_signs_in_pushes_and_asks_for_more(
    app: App, hub: LoopbackHub, browser: Browser, toy_checkpoint: Path
) -> None:
    """The least makes a new repository; one made elsewhere takes a second sign-in."""
    hub.add_repo("ada/elsewhere")
    ada = app.store.for_visitor(Visitor(("user:ada",)))
    toys.finished_run(ada, toy_checkpoint)
    context = browser.new_context()
    page = context.new_page()
    open_publish(page, app.url)
    expect(page.locator("#publish-empty")).to_be_visible()  # nobody is signed in yet
    with page.expect_navigation(wait_until="load"):
        page.get_by_role("button", name="Sign in with Hugging Face").click()
    page.get_by_role("tab", name="Publish").click()
    expect(page.get_by_role("button", name="Logout (ada)")).to_be_visible()
    expect(page.locator("#publish-empty")).to_be_hidden()
    assert hub.provider.asked == ["openid profile contribute-repos"]

    page.locator("#repo textarea, #repo input").first.fill("ada/mine")
    page.locator("#push").click()
    expect(page.locator("#push-result")).to_contain_text("Verified", timeout=60_000)
    assert "model.safetensors" in hub.repos["model", "ada/mine"].files

    page.locator("#repo textarea, #repo input").first.fill("ada/elsewhere")
    page.locator("#push").click()
    expect(page.locator("#push-result")).to_contain_text("403", timeout=60_000)
    page.locator("#check-push").click()
    link = page.get_by_role("link", name="Sign in for all my repositories")
    with context.expect_page() as opened:
        link.click()
    opened.value.wait_for_load_state()
    assert hub.provider.asked[-1] == SCOPES
    page.locator("#check-push").click()
    expect(link).to_be_hidden()
    page.locator("#push").click()
    expect(page.locator("#push-result")).to_contain_text("Verified", timeout=60_000)
    assert "model.safetensors" in hub.repos["model", "ada/elsewhere"].files

    for token in hub.provider.tokens:
        kept = (path for path in app.store.root.rglob("*") if path.is_file())
        assert not [path for path in kept if token.encode() in path.read_bytes()]
        assert token not in page.content()
        assert not [one for one in hub.targets if token in one]
    context.close()
