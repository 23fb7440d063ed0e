"""Why the Hub gave nothing, in words that name the remedy and never the token."""

from __future__ import annotations

import errno

import httpx2
import pytest
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError

from finetune import hub_errors
from finetune.environment import hub_connection
from finetune.errors import PublishError
from finetune.hub.client import HubClient
from tests.conftest import TOKEN
from tests.support.hub import LoopbackHub


def _answered(status: int, path: str) -> HfHubHTTPError:
    request = httpx2.Request("POST", f"https://hub/{path}")
    return HfHubHTTPError("no", response=httpx2.Response(status, request=request))


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (_answered(404, "ada/x.git/info/lfs/objects/verify"), "not arrived", "sends it anew"),
        (_answered(409, "api/models/ada/x/commit/main"), "behind", "committed in between"),
        (_answered(409, "api/repos/create"), "taken", "choose another name"),
        (_answered(404, "api/models/ada/x"), "missing", "no such repository"),
        (OSError(errno.ENOSPC, "No space left on device"), "full", "Free some space"),
        (OSError(errno.EROFS, "Read-only file system"), "read-only", "that can be written"),
        (PermissionError(errno.EACCES, "no", "/kept"), "not allowed", "Give the right"),
        (httpx2.ConnectError("refused"), "silent", "Check the network"),
        (httpx2.RemoteProtocolError("cut"), "cut", "Check the network"),
    ],
)
def test_why_the_hub_gave_nothing(error: Exception, cause: str, words: str) -> None:
    outer = RuntimeError("of another library")
    outer.__cause__ = error
    assert hub_errors.cause(outer).name == cause

    def ask() -> None:
        raise outer

    with pytest.raises(PublishError) as caught:
        HubClient(TOKEN).call("Sending", ask)
    assert words in caught.value.remedy
    for kind in ("dataset", "checkpoint", "model"):
        read = hub_errors.explained(kind, "ada/x", outer)  # type: ignore[arg-type]
        assert read is not None
        assert "ada/x" in read.fact
        assert read.remedy


def test_a_client_error_is_told_without_the_token() -> None:
    def ask() -> None:
        raise RuntimeError(f"Xet said no to {TOKEN} at http://x/y?sig=abc&t=1\nretry later.")

    with pytest.raises(PublishError) as caught:
        HubClient(TOKEN).call("Sending", ask)
    assert "Xet said no to \u2026 at http://x/y?\u2026 retry later (RuntimeError)" in str(
        caught.value
    )
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("repo", "file", "revision", "cause"),
    [
        ("eve/nothing", "a", None, "missing"),
        ("eve/hidden", "a", None, "missing"),
        ("eve/gated", "a", None, "gated"),
        ("eve/open", "b", None, "no file"),
        ("eve/open", "a", "v9", "revision"),
    ],
)
def test_what_the_hub_does_not_give_has_its_cause(
    hub: LoopbackHub, repo: str, file: str, revision: str | None, cause: str
) -> None:
    hub.add_repo("eve/hidden", private=True, files={"a": b"1"})
    hub.add_repo("eve/gated", gated=True, files={"a": b"1"})
    hub.add_repo("eve/open", files={"a": b"1"})
    with pytest.raises(Exception) as caught:
        hf_hub_download(repo, file, revision=revision, endpoint=hub.url, token=TOKEN)
    assert hub_errors.cause(caught.value).name == cause


def test_whether_the_hub_answers(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_connection.hub_is_reachable()
    hub.fail("HEAD", "^/$", 0, cut=True)
    assert not hub_connection.hub_is_reachable()
    hub.fail("HEAD", "^/$", 503)
    assert hub_connection.hub_is_reachable()  # a refusal is an answer
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not hub_connection.hub_is_reachable()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert not hub_connection.hub_is_reachable()
