"""The card as a whole, the checks, and the push with the real client over HTTP."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
import safetensors.numpy
import torch
from huggingface_hub import HfApi, ModelCard, constants, get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils._runtime import is_xet_available
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finetune.config import RunConfig
from finetune.data import catalog
from finetune.errors import Cancelled, PublishError
from finetune.evaluation import saved_predictions
from finetune.hub import client, model_card, publish
from finetune.hub.publish import PushRequest
from finetune.inference.scorer import Scorer
from finetune.jobs import push_jobs
from finetune.runs import events
from finetune.runs.store import Run, RunStore
from finetune.ui import push_view
from tests.conftest import TOKEN
from tests.support import toys
from tests.support.hub import LoopbackHub
from tests.ui.test_app import story


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    made = store.create(RunConfig(name="first try", learning_rate=1e-4, max_length=32))
    for event in story():
        made.append(event)
    toys.copy_model(toy_checkpoint, made.best)
    return made


def push(
    store: RunStore, run: Run, name: str = "pairs", token: str | None = TOKEN, **more: Any
) -> publish.Pushed:
    """A push that is not loaded back: that takes torch a second."""
    more.setdefault("verified", False)
    wanted = PushRequest(name, **{key: more.pop(key) for key in list(more) if key in WANTED})
    return publish.push_run(run, store.summary(run), wanted, token, **more)


WANTED = {"private", "licence", "demo", "hardware", "update"}


def test_a_push_is_one_commit_and_comes_back_with_the_same_logits(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    pushed = push(store, run)
    repo = hub.repos["model", "ada/pairs"]
    assert pushed == publish.Pushed(f"{hub.url}/ada/pairs", repo.head, True)
    assert len(repo.commits) == 1
    assert {"README.md", "model.safetensors", "config.json", "tokenizer.json",
            "training_config.json", "metrics.json"} <= set(repo.files)  # fmt: skip
    assert RunConfig.from_json(repo.files["training_config.json"].decode()) == run.config()
    assert json.loads(repo.files["metrics.json"])["validation"]["f1"] == 0.8
    tokenizer = AutoTokenizer.from_pretrained("ada/pairs")
    loaded = AutoModelForSequenceClassification.from_pretrained("ada/pairs").eval()
    local = AutoModelForSequenceClassification.from_pretrained(run.best).eval()
    inputs = tokenizer("the cat sees a dog .", "a cat sees the dog .", return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, local(**inputs).logits)
    assert loaded.config.id2label == {0: "not_equivalent", 1: "equivalent"}


def test_pushing_again_is_a_new_commit(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    push(store, run)
    run.append(events.Finished(step=8, seconds=9.0))
    again = push(store, run, "ada/pairs", update=True)
    assert not again.created
    assert hub.repos["model", "ada/pairs"].head == again.commit


def test_what_is_there_is_replaced_only_where_that_is_wanted(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    repo = hub.add_repo("ada/pairs", files={".gitattributes": b"*.bin lfs"})
    plan = publish.plan_push(run, store.summary(run), PushRequest("pairs"), TOKEN)
    assert (plan.exists, plan.held) == (True, 0)
    push(store, run)  # it was made and holds nothing
    before = dict(repo.files)
    plan = publish.plan_push(run, store.summary(run), PushRequest("pairs"), TOKEN)
    assert plan.held == len(before) - 1
    run.append(events.Finished(step=8, seconds=9.0))
    hub.requests.clear()
    with pytest.raises(
        publish.RepositoryExists, match=r"ada/pairs exists already\. Press Check"
    ) as caught:
        push(store, run)
    assert caught.value.full == "ada/pairs"
    assert (repo.files, len(repo.commits)) == (before, 2)
    assert not [one for one in hub.requests if PREUPLOAD in one[1]]


def test_an_organisation_can_be_named(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    push(store, run, "lovelace/pairs")
    assert ("model", "lovelace/pairs") in hub.repos


def test_the_card_is_derived_from_the_run(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    text = model_card.card_text(run, store.summary(run), "ada/pairs")
    made = ModelCard(text)
    made.validate()  # the Hub's own check, over HTTP
    data: Any = made.data
    assert data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert data.license == "apache-2.0"
    assert data.pipeline_tag == "text-classification"
    results = {one.metric_type: one.metric_value for one in data.eval_results or []}
    assert results == {"accuracy": 0.7, "f1": 0.8}
    for fact in ("0.8000", "0.7500", "64 training pairs", "| learning_rate | 0.0001 |",
                 "torch 2.13.0", "step 8 of 8"):  # fmt: skip
        assert fact in text, fact
    names = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert {name for name, value in run.config().to_dict().items() if value != ""} <= set(names)


def test_the_cards_example_runs_as_printed(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    push(store, run)
    text = hub.repos["model", "ada/pairs"].files["README.md"].decode()
    code = text.split("```python\n")[1].split("```")[0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    shares = {line.split()[0]: float(line.split()[1]) for line in printed.getvalue().splitlines()}
    assert set(shares) == {"not_equivalent", "equivalent"}
    assert sum(shares.values()) == pytest.approx(1.0, abs=2e-3)
    assert len(code.splitlines()) <= 10
    scope: dict[str, Any] = {}
    with contextlib.redirect_stdout(printed):
        exec(code.replace(model_card.EXAMPLES[0][0], "the cat " * 100), scope)
    read = int(scope["inputs"]["input_ids"].shape[1])
    assert read == run.config().max_length  # no more than in training


def test_a_run_stopped_before_its_evaluation_claims_no_scores(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    run.events_file.unlink()
    run.append(events.Saved(step=3))
    run.append(events.Stopped(step=3, seconds=1.0))
    text = model_card.card_text(run, store.summary(run), "ada/pairs")
    assert "stopped before it was evaluated" in text
    assert not getattr(ModelCard(text).data, "eval_results", None)


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (None, "not signed in"),
        ("", "not signed in"),
        ("two words", "no token has"),
        ("na\u00efve", "no token has"),
        ("nobodys-token", "status 401"),
        ("reader", "may only read"),
    ],
)
def test_a_token_that_cannot_push_is_said_first(
    store: RunStore, run: Run, hub: LoopbackHub, token: str | None, words: str
) -> None:
    hub.add_user("reader", "eve", role="read")
    with pytest.raises(PublishError, match=words) as caught:
        push(store, run, token=token)
    assert not token or token not in str(caught.value)
    assert hub.repos == {}


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "x" * 97, "a/b/c", "-x-", "a..b", "\u00e9t\u00e9"]
)
def test_a_name_the_hub_would_not_take_is_said_first(
    store: RunStore, run: Run, hub: LoopbackHub, name: str
) -> None:
    with pytest.raises(PublishError, match="is not a repository name"):
        push(store, run, name)
    assert hub.repos == {}


def test_anothers_namespace_is_refused_with_ones_own(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    with pytest.raises(PublishError, match=r"'eve'.*ada, lovelace"):
        push(store, run, "eve/pairs")


class NoNaps:
    """`time` for the client's own tries: it waits for none."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Nothing."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time", NoNaps())


@pytest.fixture
def large(run: Run) -> Run:
    """A run with a file that is streamed."""
    (run.best / "weights.bin").write_bytes(random.Random(0).randbytes(3 * 2**20))
    return run


def until(ended: Callable[[], bool]) -> None:
    """Wait for what a test has left behind, whose requests the next test's Hub would count."""
    deadline = time.monotonic() + 10
    while not ended():
        assert time.monotonic() < deadline
        time.sleep(0.05)


ALWAYS = 99
CREATE, WHO, PREUPLOAD = "/api/repos/create", "/whoami", "/preupload/"
BATCH, PUT, COMMIT, LOOK = "/lfs/objects/batch", "^/lfs/[0-9a-f]+$", "/commit/", "/api/models/"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("method", "path", "status", "headers", "words"),
    [
        ("GET", WHO, 401, {}, "The sign-in was refused with status 401.*make a new one"),
        ("GET", WHO, 500, {}, "The sign-in was refused with status 500.*model is safe"),
        ("GET", LOOK, 403, {}, "ada/pairs was refused with status 403.*write access"),
        ("POST", CREATE, 402, {}, "Creating ada/pairs was refused with status 402"),
        ("POST", CREATE, 403, {}, "Creating ada/pairs was refused with status 403.*write access"),
        ("POST", CREATE, 409, {}, "Creating ada/pairs was refused with status 409.*another name"),
        ("POST", CREATE, 503, {}, "Creating ada/pairs was refused with status 503"),
        ("POST", PREUPLOAD, 404, {}, "status 404.*made but holds no model.*no such repository"),
        ("POST", BATCH, 429, {"Retry-After": "90"}, "status 429.*pause of 90 seconds"),
        ("POST", BATCH, 429, {}, "status 429.*wait a few minutes"),
        ("PUT", PUT, 500, {}, r"Sending .* to ada/pairs was refused with status 500"),
        ("PUT", PUT, 503, {}, r"Sending .* to ada/pairs was refused with status 503"),
        ("POST", COMMIT, 401, {}, "status 401.*made but holds no model.*make a new one"),
        ("POST", COMMIT, 403, {}, "status 403.*made but holds no model.*write access"),
        ("POST", COMMIT, 412, {}, "status 412.*Someone else committed"),
        ("POST", COMMIT, 413, {}, "status 413.*files of that size"),
        ("POST", COMMIT, 429, {"Retry-After": "600"}, "status 429.*pause of 10 minutes"),
        ("POST", COMMIT, 500, {}, "status 500.*made but holds no model"),
    ],
)
def test_a_refusal_says_what_and_the_next_try_works(
    store: RunStore,
    run: Run,
    hub: LoopbackHub,
    method: str,
    path: str,
    status: int,
    headers: dict[str, str],
    words: str,
) -> None:
    hub.fail(method, path, status, ALWAYS, headers)
    with pytest.raises(PublishError, match=f"(?s){words}") as caught:
        push(store, run)
    assert TOKEN not in str(caught.value)
    left = hub.repos.get(("model", "ada/pairs"))
    assert left is None or not (left.commits or left.files)
    hub.faults.clear()
    done = push(store, run)
    assert done.created == (left is None)
    assert len(hub.repos["model", "ada/pairs"].commits) == 1


@pytest.mark.usefixtures("impatient")
def test_a_connection_cut_within_a_large_file_is_taken_up_again(
    store: RunStore, large: Run, hub: LoopbackHub
) -> None:
    hub.part_size = 2**20
    hub.fail("PUT", "/part/2$", 0, cut=True, after=100_000)
    push(store, large)
    found = hub.repos["model", "ada/pairs"].files["weights.bin"]
    assert found == (large.best / "weights.bin").read_bytes()
    parts = [path[-1] for method, path, _ in hub.requests if method == "PUT" and "/part/" in path]
    assert parts == ["1", "2", "3"]  # the cut one was not answered, and sent again


@pytest.mark.usefixtures("impatient")
def test_a_connection_that_stays_cut_loses_nothing(
    store: RunStore, large: Run, hub: LoopbackHub
) -> None:
    oid = hashlib.sha256((large.best / "weights.bin").read_bytes()).hexdigest()
    hub.fail("PUT", oid, 0, ALWAYS, cut=True, after=200_000)
    with pytest.raises(PublishError, match=r"Sending weights.bin to ada/pairs failed.*no model"):
        push(store, large)
    sent = set(hub.uploads)
    assert sent
    hub.faults.clear()
    hub.requests.clear()
    seen: list[publish.PushProgress] = []
    push(store, large, told=seen.append)
    again = [path for method, path, _ in hub.requests if method == "PUT"]
    assert again == [f"/lfs/{oid}"]
    assert seen[-1].sent == seen[-1].total


def test_xet_is_not_asked_where_it_is_installed(
    store: RunStore, large: Run, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    assert is_xet_available()
    push(store, large)
    sent = {path for method, path, _ in hub.requests if method == "PUT"}
    assert len(sent) == 3  # weights.bin, model.safetensors, training.png


def test_a_hub_that_falls_silent_is_given_up(
    store: RunStore, run: Run, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.3)
    hub.delay(BATCH, 1.5)
    with pytest.raises(
        PublishError, match=r"for 0.3 seconds the Hub has not answered.*no model yet"
    ):
        push(store, run)


@pytest.mark.parametrize("headers", [{"Retry-After": "600"}, {"RateLimit": '"api";r=0;t=600'}])
def test_a_pause_too_long_to_wait_for_is_said_at_once(
    store: RunStore, run: Run, hub: LoopbackHub, headers: dict[str, str]
) -> None:
    """The client itself would sleep ten minutes, five times, and say nothing."""
    hub.fail("POST", BATCH, 429, ALWAYS, headers)
    words = r"status 429.*no model yet.*asks for a pause of 10 minutes; press Push again after it"
    began = time.monotonic()
    with pytest.raises(client.HubRefused, match=words) as caught:
        push(store, run)
    assert caught.value.status == 429
    assert time.monotonic() - began < 30
    assert not get_session().event_hooks["response"]


def test_a_pause_that_is_waited_for_in_vain_is_named(
    store: RunStore, run: Run, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE", 1.5)
    hub.fail("POST", BATCH, 429, 1, {"Retry-After": "1"})  # which the client makes two
    hub.fail("POST", BATCH, 403)
    words = r"asked for a pause of 1 second, and for 1\.5 seconds nothing.*no model yet.*as long"
    with pytest.raises(PublishError, match=words):
        push(store, run)
    until(lambda: hub.requests[-1][2] == 403)


def test_a_pause_that_another_is_asked_for_is_not_ones_own(hub: LoopbackHub) -> None:
    hub.add_user("another", "eve")
    hub.fail("GET", WHO, 429, ALWAYS, {"Retry-After": "600"})
    mine = client.HubClient(TOKEN)
    asked = []
    for token in ("another", TOKEN):

        def act(token: str = token) -> None:
            with contextlib.suppress(HfHubHTTPError):
                HfApi(endpoint=hub.url, token=token).whoami()
            asked.append(mine._pause)

        with contextlib.suppress(client.HubRefused):
            mine.call("The sign-in", act)
    assert asked == [0, 600]


def test_a_slow_hub_is_waited_for(
    store: RunStore, run: Run, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE", 5.0)
    for path in (WHO, PREUPLOAD, COMMIT):
        hub.delay(path, 0.3)
    assert push(store, run).created


def test_another_commit_in_between_is_not_written_over(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    push(store, run)
    repo = hub.repos["model", "ada/pairs"]
    run.append(events.Finished(step=8, seconds=9.0))

    def told(progress: publish.PushProgress) -> None:
        if progress.doing == "committing" and len(repo.commits) == 1:
            repo.commit("from elsewhere", {"README.md": b"theirs"})

    with pytest.raises(PublishError, match=r"412.*Someone else committed in between"):
        push(store, run, told=told, update=True)
    assert repo.files["README.md"] == b"theirs"
    push(store, run, update=True)
    assert len(repo.commits) == 3


def test_a_commit_whose_answer_is_lost_is_found(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    hub.fail("POST", COMMIT, 0, lost=True)
    done = push(store, run)
    assert [one.sha for one in hub.repos["model", "ada/pairs"].commits] == [done.commit]


def held_back(
    store: RunStore, run: Run, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> threading.Event:
    """Push until the Hub has not answered the commit for too long; what lets it go on."""
    gate = hub.hold(COMMIT)

    def told(progress: publish.PushProgress) -> None:
        if progress.doing == "committing":
            monkeypatch.setattr(client, "PATIENCE", 0.2)

    with pytest.raises(PublishError, match=r"The commit may still arrive\. Wait a minute and push"):
        push(store, run, told=told)
    monkeypatch.undo()
    return gate


def test_a_commit_that_arrives_late_is_not_made_again(
    store: RunStore, run: Run, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = held_back(store, run, hub, monkeypatch)
    repo = hub.repos["model", "ada/pairs"]
    assert not repo.commits
    gate.set()
    until(lambda: bool(repo.commits))
    done = push(store, run)
    assert [one.sha for one in repo.commits] == [done.commit]
    assert push(store, run, update=True).commit == done.commit  # nor is the same pushed again
    run.append(events.Finished(step=8, seconds=9.0))
    with pytest.raises(publish.RepositoryExists):
        push(store, run)


def test_of_a_late_commit_and_a_new_one_only_one_is_made(
    store: RunStore, run: Run, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.first_commit = True
    gate = held_back(store, run, hub, monkeypatch)
    repo = hub.repos["model", "ada/pairs"]
    done = push(store, run)
    gate.set()
    until(lambda: any(status == 412 for _, _, status in hub.requests))
    assert [one.sha for one in repo.commits[1:]] == [done.commit]


def test_a_commit_that_arrives_while_one_pushes_anew_is_taken(
    store: RunStore, run: Run, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.first_commit = True
    gate = held_back(store, run, hub, monkeypatch)
    repo = hub.repos["model", "ada/pairs"]

    def told(progress: publish.PushProgress) -> None:
        if progress.doing == "committing":
            gate.set()
            until(lambda: len(repo.commits) == 2)

    assert push(store, run, told=told).commit == repo.head
    assert len(repo.commits) == 2


def test_what_was_pushed_before_is_not_taken_for_what_is(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    """The same files, then others, then the same again, whose commit fails."""
    push(store, run)
    repo = hub.repos["model", "ada/pairs"]
    repo.commit("from elsewhere", {"README.md": b"theirs"})
    hub.fail("POST", COMMIT, 500, ALWAYS)
    with pytest.raises(PublishError, match=r"status 500\..*may still arrive"):
        push(store, run, update=True)
    hub.faults.clear()
    push(store, run, update=True)
    assert len(repo.commits) == 3


def test_a_cancel_ends_it_before_the_commit_and_what_was_sent_stays(
    store: RunStore, large: Run, hub: LoopbackHub
) -> None:
    seen: list[publish.PushProgress] = []
    with pytest.raises(Cancelled, match=r"nothing was committed.*ada/pairs was made"):
        push(store, large, told=seen.append,
             stopped=lambda: bool(seen) and seen[-1].doing.endswith("weights.bin"))  # fmt: skip
    assert hub.repos["model", "ada/pairs"].commits == []
    kept = set(hub.uploads)
    assert kept
    hub.requests.clear()
    seen.clear()
    push(store, large, told=seen.append)
    sent = {path.split("/")[2] for method, path, _ in hub.requests if method == "PUT"}
    assert not sent & kept
    assert [one.sent for one in seen] == sorted(one.sent for one in seen)


def test_a_cancel_need_not_wait_for_the_hub(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    hub.delay(PREUPLOAD, 2.0)
    hub.fail("POST", BATCH, 403)
    with pytest.raises(Cancelled):
        push(store, run, stopped=lambda: any(PREUPLOAD in one for one in hub.targets))
    assert not [one for one in hub.requests if PREUPLOAD in one[1]]  # not answered yet
    until(lambda: hub.requests[-1][2] == 403)


def test_a_check_says_all_and_changes_nothing(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    plan = publish.plan_push(run, store.summary(run), PushRequest("lovelace/pairs", True), TOKEN)
    assert hub.repos == {}
    assert not [one for one in hub.requests if one[0] != "GET" and "validate" not in one[1]
                and one[1] != "/"]  # fmt: skip
    assert plan.account.namespaces == ["ada", "lovelace"]
    assert (plan.full, plan.exists, plan.private) == ("lovelace/pairs", False, True)
    assert plan.licence == plan.base_licence == "apache-2.0"
    made = push(store, run, "lovelace/pairs", private=True)
    files = hub.repos["model", "lovelace/pairs"].files
    assert plan.files == {path: len(content) for path, content in files.items()}
    again = publish.plan_push(run, store.summary(run), PushRequest("lovelace/pairs"), TOKEN)
    assert (again.exists, again.private, again.head) == (True, True, made.commit)
    assert set(again.replaced) == set(files)


def test_an_earlier_models_files_go_and_others_stay(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    other = {"notes/why.md": b"mine", "LICENSE": b"mit", "unet/diffusion.safetensors": b"x",
             "lora/adapter_model.safetensors": b"x", "onnx/config.json": b"{}"}  # fmt: skip
    old = {"adapter_model.safetensors": b"x", "vocab.json": b"{}", **other}
    hub.add_repo("ada/pairs", files=dict(old))
    plan = publish.plan_push(run, store.summary(run), PushRequest("pairs"), TOKEN)
    assert plan.removed == ["adapter_model.safetensors", "vocab.json"]
    push(store, run, update=True)
    repo = hub.repos["model", "ada/pairs"]
    assert len(repo.commits) == 2
    assert set(old) & set(repo.files) == set(other)


def test_nothing_private_goes_to_a_public_repository(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    for files in ({}, {"README.md": b"# Mine"}):
        repo = hub.add_repo("ada/pairs", files=files)
        for act in (
            lambda: publish.plan_push(run, store.summary(run), PushRequest("pairs", True), TOKEN),
            lambda: push(store, run, private=True),
        ):
            with pytest.raises(PublishError, match=r"ada/pairs exists and is public.*without Priv"):
                act()
        assert len(repo.commits) == 1


def test_a_fine_grained_token_says_where_it_may_write(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    orgs = ("lovelace", "babbage:read")
    hub.add_user("all", "ada", orgs=orgs)
    assert publish.whoami("all").namespaces == ["ada", "lovelace"]
    hub.add_user("fine", "ada", "fineGrained", orgs, scopes=("lovelace", "ada/pairs"))
    assert publish.whoami("fine") == publish.Account("ada", ["lovelace"], ("ada/pairs",))
    with pytest.raises(PublishError, match=r"ada may not write to 'ada'.*lovelace, ada/pairs"):
        push(store, run, "other", "fine")
    with pytest.raises(PublishError, match="ada/pairs, but there is no such repository"):
        push(store, run, "pairs", "fine")
    hub.add_repo("ada/pairs")
    assert not push(store, run, "pairs", "fine").created
    hub.add_user("none", "ada", "fineGrained")
    with pytest.raises(PublishError, match="may write to no repository"):
        push(store, run, token="none")


def test_a_sign_in_of_a_space_is_told_what_it_may(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    hub.add_user("hf_oauth_x", "ada")
    hub.fail("POST", PREUPLOAD, 403)
    with pytest.raises(PublishError, match=r"Choose a new name.*sign in for all"):
        push(store, run, token="hf_oauth_x")


@pytest.mark.parametrize("licence", ["a b", "<b>", "x" * 61])
def test_a_licence_the_hub_cannot_spell_is_said_first(
    store: RunStore, run: Run, hub: LoopbackHub, licence: str
) -> None:
    with pytest.raises(PublishError, match="not a licence"):
        push(store, run, licence=licence)
    assert hub.repos == {}


def test_a_card_the_hub_does_not_take_is_said_before_a_byte(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    hub.fail("POST", "/api/validate-yaml", 400, body=b"no such licence")
    with pytest.raises(PublishError, match="does not take the card: no such licence"):
        push(store, run, licence="nobodys")
    assert hub.repos == {}


def test_a_run_that_still_trains_is_refused(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    run.append(events.Resumed(step=0))
    with pytest.raises(PublishError, match="still training"):
        push(store, run)


def test_a_file_that_is_renamed_while_it_is_counted_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").write_bytes(b"x" * 7)
    (tmp_path / "part.incomplete").write_bytes(b"y")
    real = Path.stat

    def renamed(self: Path, **values: Any) -> os.stat_result:
        if self.name.endswith(".incomplete"):
            raise FileNotFoundError
        return real(self, **values)

    monkeypatch.setattr(Path, "stat", renamed)
    assert publish._bytes_in(tmp_path) == 7


def test_what_was_pushed_is_loaded_back_and_compared(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    rows = toys.rows(30)
    columns = zip(*rows, strict=True)
    names = ("sentence1", "sentence2", "label")
    saved_predictions.save_examples(
        run, "validation", pa.table(dict(zip(names, map(list, columns), strict=True)))
    )
    assert push(store, run, verified=True, private=True).verified == publish.Verification(20, 0.0)

    def told(progress: publish.PushProgress) -> None:
        if progress.doing.startswith("loading it back"):
            files = hub.repos["model", "ada/pairs"].files
            tensors = safetensors.numpy.load(files["model.safetensors"])
            tensors["classifier.bias"] += 1e-3 * np.array([1, -1], np.float32)
            files["model.safetensors"] = safetensors.numpy.save(tensors, {"format": "pt"})

    found = push(store, run, verified=True, told=told, update=True).verified
    assert found is not None
    assert found.problem == "A logit differs by 0.001; 0.0001 is allowed."


def scored(run: Run) -> Run:
    """With a model that is sure, and the predictions of its evaluation as training keeps them."""
    toys.overwrite(run.best, lambda tensors: tensors["classifier.weight"].mul_(200))
    rows = toys.rows(30)
    texts = {"sentence1": [one[0] for one in rows], "sentence2": [one[1] for one in rows]}
    labels = np.array([one[2] for one in rows])
    saved_predictions.save_examples(run, "validation", pa.table({**texts, "label": labels}))
    scorer = Scorer(run.best, 32, True, "fp32", "cpu", threads=1)
    saved_predictions.save_logits(run, 8, scorer.scores(*texts.values()) + 0.05, labels)
    scorer.free()
    return run


def shuffled(tensors: dict[str, torch.Tensor]) -> None:
    tensors["classifier.weight"] *= -1


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (
        lambda best: os.truncate(best / "model.safetensors", 5000), "cannot be loaded"
    ),
    "empty": (lambda best: os.truncate(best / "model.safetensors", 0), "cannot be loaded"),
    "no config": (
        lambda best: (best / "config.json").write_bytes(b"\0" * 300), "cannot be loaded"
    ),
    "another shape": (
        lambda best: rewrite(best, vocab_size=3, hidden_size=30), "cannot be"
    ),
    "other classes": (
        lambda best: rewrite(best, id2label={"0": "x", "1": "y"}), "classes are x, y, and it has"
    ),
    "not numbers": (
        lambda best: toys.overwrite(best, lambda all: all["classifier.bias"].fill_(np.nan)),
        "cannot be loaded|numbers that are none",
    ),
    "other weights": (lambda best: toys.overwrite(best, shuffled), "is damaged.*evaluation by 0"),
}  # fmt: skip


def rewrite(best: Path, **values: Any) -> None:
    known = json.loads((best / "config.json").read_text())
    (best / "config.json").write_text(json.dumps({**known, **values}))


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_model_is_not_sent(
    store: RunStore, run: Run, hub: LoopbackHub, damage: str
) -> None:
    scored(run)
    push(store, run)
    good = hub.repos["model", "ada/pairs"]
    before = dict(good.files)
    harm, words = DAMAGE[damage]
    harm(run.best)
    hub.requests.clear()
    for name in ("pairs", "another"):
        with pytest.raises(PublishError, match=f"{words}.*Nothing was sent"):
            push(store, run, name, update=True)
    assert (good.files, len(good.commits)) == (before, 1)
    assert ("model", "ada/another") not in hub.repos
    assert not [one for one in hub.requests if one[0] == "PUT" or PREUPLOAD in one[1]]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(OSError(28, "No space left on device"), "No space left on device"),
     (ConnectionError("x"), "ConnectionError")],
)  # fmt: skip
def test_what_cannot_be_loaded_back_is_pushed_but_not_called_verified(
    store: RunStore, run: Run, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, wrong: Exception,
    words: str,
) -> None:  # fmt: skip
    def fails(*_: object, **__: object) -> None:
        raise wrong

    monkeypatch.setattr(publish, "snapshot_download", fails)
    done = push(store, run, verified=True)
    assert done.commit == hub.repos["model", "ada/pairs"].head
    assert done.verified is not None
    assert words in done.verified.problem


def test_a_hub_that_does_not_answer_is_said_at_once(
    store: RunStore, run: Run, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PublishError, match="does not answer"):
        push(store, run)


def test_a_run_without_a_model_is_refused(store: RunStore, hub: LoopbackHub) -> None:
    run = store.create(RunConfig())
    with pytest.raises(PublishError, match="no saved model"):
        push(store, run)


def test_the_token_is_nowhere_afterwards(
    store: RunStore,
    run: Run,
    hub: LoopbackHub,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Neither after a push, nor after one that failed at each of its stages."""
    monkeypatch.setattr("huggingface_hub.utils._http.time", NoNaps())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    caplog.set_level("DEBUG")
    marked = "hf-marked-0123456789"
    hub.add_user(marked, "ada", pro=True)
    pushing, said, arguments = push_jobs.PushRegistry(), [], []
    for path in (WHO, CREATE, PREUPLOAD, BATCH, PUT, COMMIT, "nothing"):
        hub.faults.clear()
        hub.fail("", path, 403, ALWAYS)
        pushing.start(store, run, store.summary(run), PushRequest("pairs", demo=True), marked)
        while (state := pushing.state(store, run)) is not None and state.status == "running":
            for one in psutil.Process().children(True):
                with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                    arguments.append(" ".join(one.cmdline()))
            arguments += map(repr, threading.enumerate())
            time.sleep(0.02)
        said += [repr(state), repr(vars(pushing)), push_view.state(state)]
    assert state is not None
    assert state.status == "done"
    assert marked in hub.tokens_seen
    printed = capfd.readouterr()
    said += [caplog.text, printed.out, printed.err, *hub.targets, *arguments, str(os.environ)]
    assert not [text for text in said if marked in text]
    for folder in (tmp_path, Path(os.environ["HF_HOME"])):
        for file in folder.rglob("*"):
            assert not file.is_file() or marked.encode() not in file.read_bytes(), file
    for repo in hub.repos.values():
        assert not any(marked.encode() in content for content in repo.files.values())


@pytest.mark.parametrize("checkpoint", [one.name for one in catalog.CHECKPOINTS])
def test_a_name_is_suggested_that_the_hub_takes(store: RunStore, checkpoint: str) -> None:
    run = store.create(RunConfig(checkpoint=checkpoint, dataset="glue/mrpc"))
    assert publish.full_repo_id(publish.suggested_name(run), "ada").startswith("ada/")
