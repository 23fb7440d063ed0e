"""Signing in on a Space, against the loopback Hub's own OpenID provider."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from finetune.owners import Visitor
from tests.support import toys
from tests.support.browser import App, new_page
from tests.support.hub import LoopbackHub


@pytest.fixture
def app(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
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
def test_a_visitor_signs_in_and_pushes(
    app: App, hub: LoopbackHub, browser: Browser, toy_checkpoint: Path
) -> None:
    """The scopes of a Space make a new repository; one made elsewhere is out of reach."""
    hub.add_repo("ada/elsewhere")
    toys.finished_run(app.store.for_visitor(Visitor(("user:ada",))), toy_checkpoint)
    page = new_page(browser)
    page.goto(app.url)
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
    files = [path.read_bytes() for path in app.store.root.rglob("*") if path.is_file()]
    for token in hub.provider.tokens:
        assert not [content for content in files if token.encode() in content]
        assert token not in page.content()
        assert not [target for target in hub.targets if token in target]
    page.close()
