"""Errors of the Hub name the remedy and never the token."""

from __future__ import annotations

import errno

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError

from finetune import hub_errors
from finetune.environment import hub_connection
from finetune.errors import PublishError
from finetune.hub.client import HubClient, NoAnswer
from tests.support.hub import TOKEN, LoopbackHub


def refusal(status: int) -> HfHubHTTPError:
    request = httpx2.Request("POST", "https://hub/api/models/ada/x")
    return HfHubHTTPError("no", response=httpx2.Response(status, request=request))


def asked(error: Exception) -> PublishError:
    """Return the error of a failed call of the Hub's client."""

    def fail() -> None:
        raise error

    with pytest.raises(PublishError) as caught:
        HubClient(TOKEN).call("Sending", fail)
    return caught.value


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (refusal(401), "token", "wrong or has expired"),
        (refusal(409), "behind", "committed in between"),
        (refusal(404), "missing", "no such repository"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk", "Free some space"),
        (PermissionError(errno.EACCES, "no", "/kept"), "disk", "a folder that can be written"),
        (httpx2.ConnectError("refused"), "silent", "Check the network"),
        (httpx2.RemoteProtocolError("cut"), "silent", "Check the network"),
    ],
)
def test_why_the_hub_gave_nothing(error: Exception, cause: str, words: str) -> None:
    outer = RuntimeError("of another library")
    outer.__cause__ = error
    assert hub_errors.cause(outer).name == cause
    assert words in asked(outer).remedy
    explanation = hub_errors.explained("dataset", "ada/x", outer)
    assert explanation is not None
    assert "ada/x" in explanation.fact
    assert explanation.remedy


@pytest.mark.parametrize(
    ("status", "believed"),
    [(400, True), (402, True), (404, True), (412, True), (422, True)]
    + [(status, False) for status in (408, 425, 429, 500, 502, 503, 504, 520)],
)
def test_only_a_refusal_says_that_nothing_was_done(status: int, believed: bool) -> None:
    error = asked(refusal(status))
    assert isinstance(error, NoAnswer) != believed
    assert f"Sending {'was refused' if believed else 'failed'} with status {status}" in error.fact


def test_a_client_error_is_told_without_the_token() -> None:
    error = asked(RuntimeError(f"Xet said no to {TOKEN} at http://x/y?sig=abc&t=1\nretry later."))
    assert "Xet said no to \u2026 at http://x/y?\u2026 retry later (RuntimeError)" in str(error)
    assert TOKEN not in str(error)


def test_whether_the_hub_answers(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.fail("HEAD", "^/$", 503)
    assert hub_connection.hub_is_reachable()  # a refusal is an answer
    hub.fail("HEAD", "^/$", 0, cut=True)
    assert not hub_connection.hub_is_reachable()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not hub_connection.hub_is_reachable()
