"""The loopback Hub answers the real clients as the Hub does."""

from __future__ import annotations

import errno
import hashlib
import urllib.request
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from finetune import hub_errors
from finetune.environment import hub_connection
from finetune.hub.client import HubClient
from tests.conftest import TOKEN
from tests.support.hub import LoopbackHub


def api(hub: LoopbackHub, token: str | None = TOKEN) -> HfApi:
    return HfApi(endpoint=hub.url, token=token)


def test_a_folder_goes_up_as_one_commit_and_comes_down_the_same(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    weights = bytes(range(256)) * 1000
    (tmp_path / "model.safetensors").write_bytes(weights)
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\nA card.\n")
    client = api(hub)
    client.create_repo("ada/first", private=True)
    client.upload_folder(repo_id="ada/first", folder_path=tmp_path)
    repo = hub.repos["model", "ada/first"]
    assert repo.private
    assert [commit.changed for commit in repo.commits] == [["README.md", "model.safetensors"]]
    assert hashlib.sha256(weights).hexdigest() in hub.uploads
    down = hf_hub_download(
        "ada/first", "model.safetensors", endpoint=hub.url, token=TOKEN, local_dir=tmp_path / "d"
    )
    assert Path(down).read_bytes() == weights
    assert {one.path for one in client.list_repo_tree("ada/first")} == set(repo.files)


ADDRESS = (
    "https://hub/ada/x.git/info/lfs/objects/verify",
    "https://hub/api/models/ada/x/commit/main",
)


def _answered(status: int, url: str, headers: dict[str, str]) -> HfHubHTTPError:
    request = httpx2.Request("POST", url)
    return HfHubHTTPError("no", response=httpx2.Response(status, headers=headers, request=request))


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (_answered(404, ADDRESS[0], {}), "not arrived", "which sends it anew"),
        (_answered(409, ADDRESS[1], {}), "raced", "changed by another commit"),
        (_answered(409, "https://hub/api/repos/create", {}), "taken", "choose another name"),
        (_answered(404, "https://hub/api/models/ada/x", {}), "missing", "no such repository"),
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
    assert words in hub_errors.TABLE[cause].sending
    told = HubClient(TOKEN)._refused(outer, "Sending", "")
    assert words in told.remedy
    assert ("Free some space" in told.remedy) == (cause == "full")
    for kind in ("dataset", "checkpoint", "model"):
        read = hub_errors.explained(kind, "ada/x", outer)  # type: ignore[arg-type]
        assert read is not None
        assert "ada/x" in read.fact
        assert read.remedy


def test_a_push_waits_for_a_short_pause_that_the_hub_asks_for(hub: LoopbackHub) -> None:
    hub.fail("GET", "/api/whoami", 429, headers={"Retry-After": "1"})
    hub.fail("GET", "/api/whoami", 503, headers={"Retry-After": "1"})
    assert HubClient(TOKEN).account().name == "ada"
    assert [status for _, path, status in hub.requests if "whoami" in path] == [429, 503, 200]


def test_a_name_that_is_taken_is_said_and_may_be_accepted(hub: LoopbackHub) -> None:
    client = api(hub)
    client.create_repo("ada/first")
    with pytest.raises(HfHubHTTPError, match="409"):
        client.create_repo("ada/first")
    assert client.create_repo("ada/first", exist_ok=True).repo_id == "ada/first"


def test_who_is_asking(hub: LoopbackHub) -> None:
    assert api(hub).whoami()["name"] == "ada"
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        api(hub, "hub-token-of-nobody").whoami()


def test_a_token_that_may_only_read_writes_nothing(hub: LoopbackHub) -> None:
    hub.add_user("reader", "eve", role="read")
    with pytest.raises(HfHubHTTPError, match="403"):
        api(hub, "reader").create_repo("eve/x")
    with pytest.raises(HfHubHTTPError, match="403"):
        api(hub).create_repo("eve/x")
    assert hub.repos == {}


def test_what_is_missing_private_or_gated_has_its_own_error(hub: LoopbackHub) -> None:
    hub.add_repo("eve/hidden", private=True, files={"a": b"1"})
    hub.add_repo("eve/gated", gated=True, files={"a": b"1"})
    hub.add_repo("eve/open", files={"a": b"1"})
    with pytest.raises(RepositoryNotFoundError):
        api(hub).model_info("eve/nothing")
    with pytest.raises(RepositoryNotFoundError):
        api(hub).model_info("eve/hidden")
    with pytest.raises(GatedRepoError):
        hf_hub_download("eve/gated", "a", endpoint=hub.url, token=TOKEN)
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("eve/open", "b", endpoint=hub.url)
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download("eve/open", "a", revision="v9", endpoint=hub.url)


def test_a_commit_in_between_is_refused(hub: LoopbackHub) -> None:
    client = api(hub)
    repo = hub.add_repo("ada/first")
    before = repo.head
    repo.commit("someone else", {"x": b"1"})
    change = [CommitOperationAdd("y", b"2")]
    with pytest.raises(HfHubHTTPError, match="412"):
        client.create_commit("ada/first", change, commit_message="late", parent_commit=before)
    assert "y" not in repo.files


def test_faults_come_as_ordered_and_no_more(hub: LoopbackHub) -> None:
    hub.fail("GET", "whoami", 500, times=1, headers={"Retry-After": "0"})
    with pytest.raises(HfHubHTTPError, match="500"):
        api(hub).whoami()
    assert api(hub).whoami()["name"] == "ada"


def test_a_renamed_repository_redirects(hub: LoopbackHub) -> None:
    hub.add_repo("google-bert/bert-base-uncased", files={"config.json": b"{}"})
    hub.alias("bert-base-uncased", "google-bert/bert-base-uncased")
    down = hf_hub_download("bert-base-uncased", "config.json", endpoint=hub.url)
    assert Path(down).read_bytes() == b"{}"


def test_a_part_of_a_file_can_be_asked_for(hub: LoopbackHub) -> None:
    hub.add_repo("eve/open", files={"a.txt": b"0123456789"})
    url = f"{hub.url}/eve/open/resolve/main/a.txt"
    request = urllib.request.Request(url, headers={"Range": "bytes=3-5"})
    with urllib.request.urlopen(request) as answer:
        assert (answer.status, answer.read()) == (206, b"345")


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
