"""Checks and pushes with the real client over HTTP: one commit, whole or not at all."""

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
from huggingface_hub import constants
from huggingface_hub.utils._runtime import is_xet_available
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finetune.config import RunConfig
from finetune.data import catalog
from finetune.errors import Cancelled, PublishError
from finetune.evaluation import saved_predictions
from finetune.hub import client, model_card, publish, push_plan, verify
from finetune.hub.push_plan import PushRequest
from finetune.hub.upload import PushProgress
from finetune.inference.scorer import Scorer
from finetune.jobs import push as push_job
from finetune.phases import Phase
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui.html import macro
from tests.conftest import TOKEN
from tests.support import toys
from tests.support.hub import LoopbackHub
from tests.support.toys import story


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    run = store.create(RunConfig(name="first try", learning_rate=1e-4, max_length=32))
    for event in story():
        run.append(event)
    toys.copy_model(toy_checkpoint, run.best)
    return run


@pytest.fixture
def large(run: Run) -> Run:
    """A run with a file that is streamed."""
    (run.best / "weights.bin").write_bytes(random.Random(0).randbytes(3 * 2**20))
    return run


REQUESTED = {"private", "licence", "demo", "hardware", "update"}


def push(
    store: RunStore, run: Run, name: str = "pairs", token: str | None = TOKEN, **more: Any
) -> publish.Pushed:
    """A push that is not loaded back: that takes torch a second."""
    more.setdefault("verified", False)
    request = PushRequest(name, **{key: more.pop(key) for key in list(more) if key in REQUESTED})
    return publish.push_run(run, store.summary(run), request, token, **more)


def plan(store: RunStore, run: Run, name: str = "pairs", private: bool = False) -> Any:
    return push_plan.plan_push(run, store.summary(run), PushRequest(name, private), TOKEN)


def until(ended: Callable[[], bool]) -> None:
    """Wait for what a test has left behind, whose requests the next test's Hub would count."""
    deadline = time.monotonic() + 10
    while not ended():
        assert time.monotonic() < deadline
        time.sleep(0.02)


ALWAYS = 99
CREATE, WHO, PREUPLOAD = "/api/repos/create", "/whoami", "/preupload/"
BATCH, PUT, COMMIT, LOOK = "/lfs/objects/batch", "^/lfs/[0-9a-f]+$", "/commit/", "/api/models/"


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


def test_what_is_there_is_replaced_only_where_that_is_wanted(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    repo = hub.add_repo("ada/pairs", files={".gitattributes": b"*.bin lfs"})
    assert (plan(store, run).exists, plan(store, run).held) == (True, 0)
    push(store, run)  # it was made and holds nothing
    before = dict(repo.files)
    assert plan(store, run).held == len(before) - 1
    run.append(events.Finished(step=8, seconds=9.0))
    hub.requests.clear()
    with pytest.raises(
        publish.RepositoryExists, match=r"ada/pairs exists already\. Press Check"
    ) as caught:
        push(store, run)
    assert caught.value.full == "ada/pairs"
    assert (repo.files, len(repo.commits)) == (before, 2)
    assert not [one for one in hub.requests if PREUPLOAD in one[1]]
    again = push(store, run, "ada/pairs", update=True)
    assert (again.created, again.commit) == (False, repo.head)


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
    scope: dict[str, Any] = {}
    with contextlib.redirect_stdout(printed):
        exec(code.replace(model_card.EXAMPLES[0][0], "the cat " * 100), scope)
    assert scope["inputs"]["input_ids"].shape[1] == 32  # no more than in training


@pytest.mark.parametrize(
    ("name", "token", "words"),
    [
        ("pairs", "", "not signed in"),
        ("pairs", "two words", "no token has"),
        ("pairs", "na\u00efve", "no token has"),
        ("pairs", "nobodys-token", "status 401"),
        ("pairs", "reader", "may only read"),
        (" ", TOKEN, "is not a repository name"),
        ("a b", TOKEN, "is not a repository name"),
        ("x" * 97, TOKEN, "is not a repository name"),
        ("a/b/c", TOKEN, "is not a repository name"),
        ("eve/pairs", TOKEN, r"'eve'.*ada, lovelace"),
    ],
)
def test_a_token_or_name_that_cannot_be_used_is_said_first(
    store: RunStore, run: Run, hub: LoopbackHub, name: str, token: str, words: str
) -> None:
    hub.add_user("reader", "eve", role="read")
    with pytest.raises(PublishError, match=words) as caught:
        push(store, run, name, token=token)
    assert not token or token not in str(caught.value)
    assert hub.repos == {}


class NoSleep:
    """`time` for the client's own tries: it waits for none."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Nothing."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time", NoSleep())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("method", "path", "status", "headers", "words"),
    [
        ("GET", WHO, 500, {}, "The sign-in was refused with status 500.*model is safe"),
        ("GET", LOOK, 403, {}, "ada/pairs was refused with status 403.*write access"),
        ("POST", CREATE, 409, {}, "Creating ada/pairs was refused with status 409.*another name"),
        ("POST", PREUPLOAD, 404, {}, "status 404.*made but holds no model.*no such repository"),
        ("POST", BATCH, 429, {"Retry-After": "90"}, "status 429.*pause of 90 seconds"),
        ("PUT", PUT, 503, {}, r"Sending .* to ada/pairs was refused with status 503"),
        ("POST", COMMIT, 401, {}, "status 401.*made but holds no model.*make a new one"),
        ("POST", COMMIT, 413, {}, "status 413.*files of that size"),
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
    assert push(store, run).created == (left is None)
    assert len(hub.repos["model", "ada/pairs"].commits) == 1


@pytest.mark.usefixtures("impatient")
def test_a_connection_that_stays_cut_loses_nothing(
    store: RunStore, large: Run, hub: LoopbackHub
) -> None:
    oid = hashlib.sha256((large.best / "weights.bin").read_bytes()).hexdigest()
    hub.fail("PUT", oid, 0, ALWAYS, cut=True, after=200_000)
    with pytest.raises(PublishError, match=r"Sending the files to ada/pairs failed.*no model"):
        push(store, large)
    kept = {f"/lfs/{sha}" for sha in hub.uploads}
    assert kept
    hub.faults.clear()
    hub.requests.clear()
    progress: list[PushProgress] = []
    push(store, large, report=progress.append)
    sent = {path for method, path, _ in hub.requests if method == "PUT"}
    assert f"/lfs/{oid}" in sent
    assert not sent & kept
    assert progress[-1].sent == progress[-1].total


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
    gate = hub.hold(BATCH)
    with pytest.raises(
        PublishError, match=r"for 0.3 seconds the Hub has not answered.*no model yet"
    ):
        push(store, run)
    gate.set()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PublishError, match="does not answer"):
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


def test_another_commit_in_between_is_not_written_over(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    push(store, run)
    repo = hub.repos["model", "ada/pairs"]
    run.append(events.Finished(step=8, seconds=9.0))

    def report(progress: PushProgress) -> None:
        if progress.phase == Phase.COMMIT and len(repo.commits) == 1:
            repo.commit("from elsewhere", {"README.md": b"theirs"})

    with pytest.raises(PublishError, match=r"412.*Someone else committed in between"):
        push(store, run, report=report, update=True)
    assert repo.files["README.md"] == b"theirs"
    push(store, run, update=True)
    assert len(repo.commits) == 3


def test_of_a_late_commit_and_a_new_one_only_one_is_made(
    store: RunStore, run: Run, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.first_commit = True
    gate = hub.hold(COMMIT)

    def report(progress: PushProgress) -> None:
        if progress.phase == Phase.COMMIT:
            monkeypatch.setattr(client, "PATIENCE", 0.2)

    with pytest.raises(PublishError, match=r"The commit may still arrive\. Look into the repo"):
        push(store, run, report=report)
    monkeypatch.undo()
    done = push(store, run)
    gate.set()
    until(lambda: any(status == 412 for _, _, status in hub.requests))
    assert [one.sha for one in hub.repos["model", "ada/pairs"].commits[1:]] == [done.commit]


def test_a_cancel_ends_it_before_the_commit_and_what_was_sent_stays(
    store: RunStore, large: Run, hub: LoopbackHub
) -> None:
    progress: list[PushProgress] = []
    with pytest.raises(Cancelled, match=r"nothing was committed.*ada/pairs was made"):
        push(store, large, report=progress.append, stopped=lambda: bool(hub.uploads))
    assert hub.repos["model", "ada/pairs"].commits == []
    kept = set(hub.uploads)
    assert kept
    hub.requests.clear()
    progress.clear()
    push(store, large, report=progress.append)
    sent = {path.split("/")[2] for method, path, _ in hub.requests if method == "PUT"}
    assert not sent & kept
    assert [one.sent for one in progress] == sorted(one.sent for one in progress)


def test_a_cancel_need_not_wait_for_the_hub(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    gate = hub.hold(PREUPLOAD)
    hub.fail("POST", BATCH, 403)
    with pytest.raises(Cancelled):
        push(store, run, stopped=lambda: any(PREUPLOAD in one for one in hub.targets))
    assert not [one for one in hub.requests if PREUPLOAD in one[1]]  # not answered yet
    gate.set()
    until(lambda: hub.requests[-1][2] == 403)


def test_a_check_says_all_and_changes_nothing(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    found = plan(store, run, "lovelace/pairs", private=True)
    assert hub.repos == {}
    changing = [one for one in hub.requests if one[0] not in ("GET", "HEAD")]
    assert [path for _, path, _ in changing] == ["/api/validate-yaml"]
    assert found.account.namespaces == ["ada", "lovelace"]
    assert (found.full, found.exists, found.private) == ("lovelace/pairs", False, True)
    assert found.licence == found.base_licence == "apache-2.0"
    pushed = push(store, run, "lovelace/pairs", private=True)
    files = hub.repos["model", "lovelace/pairs"].files
    assert found.files == {path: len(content) for path, content in files.items()}
    again = plan(store, run, "lovelace/pairs")
    assert (again.exists, again.private, again.head) == (True, True, pushed.commit)
    assert set(again.replaced) == set(files)


def test_an_earlier_models_files_go_and_others_stay(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    other = {"notes/why.md": b"mine", "LICENSE": b"mit", "unet/diffusion.safetensors": b"x",
             "lora/adapter_model.safetensors": b"x", "onnx/config.json": b"{}"}  # fmt: skip
    old = {"adapter_model.safetensors": b"x", "vocab.json": b"{}", **other}
    repo = hub.add_repo("ada/pairs", files=dict(old))
    assert plan(store, run).removed == ["adapter_model.safetensors", "vocab.json"]
    push(store, run, update=True)
    assert len(repo.commits) == 2
    assert set(old) & set(repo.files) == set(other)


def test_nothing_private_goes_to_a_public_repository(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    for files in ({}, {"README.md": b"# Mine"}):
        repo = hub.add_repo("ada/pairs", files=files)
        for act in (plan, push):
            with pytest.raises(PublishError, match=r"ada/pairs exists and is public.*without Priv"):
                act(store, run, private=True)
        assert len(repo.commits) == 1


def test_a_fine_grained_token_says_where_it_may_write(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    orgs = ("lovelace", "babbage:read")
    hub.add_user("all", "ada", orgs=orgs)
    assert client.HubClient("all").account().namespaces == ["ada", "lovelace"]
    hub.add_user("fine", "ada", "fineGrained", orgs, scopes=("lovelace", "ada/pairs"))
    account = client.HubClient("fine").account()
    assert account == client.Account("ada", ["lovelace"], ("ada/pairs",))
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


def test_a_licence_or_card_the_hub_does_not_take_is_said_before_a_byte(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    for licence in ("a b", "<b>", "x" * 61):
        with pytest.raises(PublishError, match="not a licence"):
            push(store, run, licence=licence)
    hub.fail("POST", "/api/validate-yaml", 400, body=b"no such licence")
    with pytest.raises(PublishError, match="does not take the card: no such licence"):
        push(store, run, licence="nobodys")
    assert hub.repos == {}


def test_a_run_without_a_model_or_that_still_trains_is_refused(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    run.append(events.Resumed(step=0))
    with pytest.raises(PublishError, match="still training"):
        push(store, run)
    with pytest.raises(PublishError, match="no saved model"):
        push(store, store.create(RunConfig()))


def test_what_was_pushed_is_loaded_back_and_compared(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    columns = zip(*toys.rows(30), strict=True)
    names = ("sentence1", "sentence2", "label")
    saved_predictions.save_examples(
        run, "validation", pa.table(dict(zip(names, map(list, columns), strict=True)))
    )
    assert push(store, run, verified=True, private=True).verified == verify.Verification(20, 0.0)

    def report(progress: PushProgress) -> None:
        if progress.phase == Phase.VERIFY:
            files = hub.repos["model", "ada/pairs"].files
            tensors = safetensors.numpy.load(files["model.safetensors"])
            tensors["classifier.bias"] += 1e-3 * np.array([1, -1], np.float32)
            files["model.safetensors"] = safetensors.numpy.save(tensors, {"format": "pt"})

    comparison = push(store, run, verified=True, report=report, update=True).verified
    assert comparison is not None
    assert comparison.problem == "A logit differs by 0.001; 0.0001 is allowed."


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


def rewrite(best: Path, **values: Any) -> None:
    config = json.loads((best / "config.json").read_text())
    (best / "config.json").write_text(json.dumps({**config, **values}))


def flip(tensors: dict[str, torch.Tensor]) -> None:
    tensors["classifier.weight"] *= -1


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (
        lambda best: os.truncate(best / "model.safetensors", 5000), "cannot be loaded"
    ),
    "other classes": (
        lambda best: rewrite(best, id2label={"0": "x", "1": "y"}), "classes are x, y, and it has"
    ),
    "not numbers": (
        lambda best: toys.overwrite(best, lambda all: all["classifier.bias"].fill_(np.nan)),
        "cannot be loaded|numbers that are none",
    ),
    "other weights": (lambda best: toys.overwrite(best, flip), "is damaged.*evaluation by 0"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_model_is_not_sent(
    store: RunStore, run: Run, hub: LoopbackHub, damage: str
) -> None:
    scored(run)
    harm, words = DAMAGE[damage]
    harm(run.best)
    repo = hub.add_repo("ada/pairs", files={"README.md": b"mine"})
    for name in ("pairs", "another"):
        with pytest.raises(PublishError, match=f"{words}.*Nothing was sent"):
            push(store, run, name, update=True)
    assert (repo.files, len(repo.commits)) == ({"README.md": b"mine"}, 1)
    assert ("model", "ada/another") not in hub.repos
    assert not [one for one in hub.requests if one[0] == "PUT" or PREUPLOAD in one[1]]


def test_what_cannot_be_loaded_back_is_pushed_but_not_called_verified(
    store: RunStore, run: Run, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(verify, "snapshot_download", fails)
    done = push(store, run, verified=True)
    assert done.commit == hub.repos["model", "ada/pairs"].head
    assert done.verified is not None
    assert "No space left on device" in done.verified.problem


@pytest.mark.usefixtures("impatient")
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
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    caplog.set_level("DEBUG")
    marked = "hf-marked-0123456789"
    hub.add_user(marked, "ada", pro=True)
    said: list[str] = []
    arguments: list[str] = []
    for path in (WHO, CREATE, PREUPLOAD, BATCH, PUT, COMMIT, "nothing"):
        hub.faults.clear()
        hub.fail("", path, 403, ALWAYS)
        request = PushRequest("pairs", demo=True)
        push_job.start_push(store, run, request, marked, push_job.Approvals())
        while push_job.push_state(run).running:
            for one in psutil.Process().children(True):
                with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                    arguments.append(" ".join(one.cmdline()))
            arguments += map(repr, threading.enumerate())
            time.sleep(0.02)
        state = push_job.push_state(run)
        said += [repr(state), macro("push.html", "state")(state)]
    assert state.status == "finished", state.error
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
    assert client.full_repo_id(push_plan.suggested_name(run), "ada").startswith("ada/")
