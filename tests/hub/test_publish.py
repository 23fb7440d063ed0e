"""Checks and pushes with the real client over HTTP: one commit, complete or not at all."""

import contextlib
import io
import json
import os
import random
import runpy
import shutil
import tempfile
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
import safetensors.numpy

from finetune.config import RunConfig
from finetune.errors import Cancelled, ModelError, PublishError
from finetune.hub import client, model_card, publish
from finetune.hub.publish import PushRequest, Verification
from finetune.inference import decision_rule
from finetune.inference.predictor import Predictor
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.tasks.base import SureRule
from tests.support import toys
from tests.support.hub import TOKEN, Space

ALWAYS = 99
WHO, PREUPLOAD = "/whoami", "/preupload/"
BATCH, PUT, COMMIT = "/lfs/objects/batch", "^/lfs/[0-9a-f]+$", "/commit/"
CREATE = "/api/repos/create$"
DEMO = PushRequest("pairs", demo=True)
PAIR = ("the cat sees a dog .", "a cat misses the dog .")
PAIRS, UPDATE = PushRequest("pairs"), PushRequest("pairs", update=True)


@pytest.fixture
def run(store, toy_checkpoint):
    return toys.finished_run(store, toy_checkpoint, "first try")


@pytest.fixture
def impatient(monkeypatch):
    """Let the client retry without waiting."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(client, "APPEARS", 0.1)


@pytest.fixture
def unverified(monkeypatch):
    """Let a pushed model not be compared."""
    monkeypatch.setattr(publish, "verify_push", lambda *_: Verification(0, 0.0))


def push(run, request=PAIRS, token=TOKEN, **hooks):
    return publish.push_run(run, request, token, **hooks)


def plan(run, request=PAIRS):
    return publish.plan_push(run, request, TOKEN)


def sent_objects(hub):
    return {path.split("/")[2] for method, path, _ in hub.requests if method == "PUT"}


def test_a_push_is_one_commit_and_its_cards_example_runs_as_printed(run, hub):
    pushed = push(run)
    repo = hub.repos["model", "ada/pairs"]
    rounding = pytest.approx(0.0, abs=publish.TOLERANCE)
    verified = Verification(3, rounding)
    assert pushed == publish.Pushed(f"{hub.url}/ada/pairs", repo.head, True, verified)
    assert len(repo.commits) == 1
    names = {"README.md", "model.safetensors", "config.json", "tokenizer.json"}
    assert names <= set(repo.files)
    assert RunConfig.from_json(repo.files["training_config.json"].decode()) == run.config()
    code = repo.files["README.md"].decode().split("```python\n")[1].split("```")[0]
    scope = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code.replace(model_card.EXAMPLES[0][0], "the cat " * 100), scope)
    assert scope["inputs"]["input_ids"].shape[1] == 32  # no more than in training
    shares = {line.split()[0]: float(line.split()[1]) for line in printed.getvalue().splitlines()}
    assert set(shares) == {"not_equivalent", "equivalent"}
    assert sum(shares.values()) == pytest.approx(1.0, abs=2e-3)


def test_an_update_is_asked_for_and_replaces_an_earlier_models_files(run, hub):
    own = ("notes/why.md", "LICENSE", "unet/diffusion.safetensors", "onnx/config.json")
    model = ("adapter_model.safetensors", "vocab.json")
    repo = hub.add_repo("ada/pairs", files=dict.fromkeys([*own, *model], b"mine"))
    planned = plan(run)
    assert (planned.exists, planned.held, planned.removed) == (True, len(repo.files), list(model))
    with pytest.raises(publish.RepositoryExists, match=r"ada/pairs exists already\. Press Check"):
        push(run)
    assert not [path for _, path, _ in hub.requests if PREUPLOAD in path]

    def report(progress):
        if progress.phase == Phase.COMMIT and len(repo.commits) == 1:
            repo.commit("from elsewhere", {"LICENSE": b"theirs"})

    with pytest.raises(PublishError, match=r"412.*Someone else committed in between"):
        push(run, UPDATE, report=report)
    assert repo.files["LICENSE"] == b"theirs"
    again = push(run, PushRequest("ada/pairs", update=True))
    assert (again.created, again.commit, len(repo.commits)) == (False, repo.head, 3)
    assert {*own, *model} & set(repo.files) == set(own)


def test_a_check_says_all_and_changes_nothing(run, hub):
    request = PushRequest("lovelace/pairs", private=True)
    planned = plan(run, request)
    assert hub.repos == {}
    changing = [path for method, path, _ in hub.requests if method not in ("GET", "HEAD")]
    assert changing == ["/api/validate-yaml"]
    assert (planned.full, planned.exists, planned.private) == ("lovelace/pairs", False, True)
    pushed = push(run, request)
    assert (pushed.verified.pairs, pushed.verified.problem) == (3, "")
    files = hub.repos["model", "lovelace/pairs"].files
    assert planned.files == {path: len(content) for path, content in files.items()}
    again = plan(run, PushRequest("lovelace/pairs"))
    assert (again.exists, again.private, again.head) == (True, True, pushed.commit)


def test_what_cannot_be_pushed_is_said_before_a_byte(store, run, hub, adopt):
    public = hub.add_repo("ada/pairs")
    for act in (plan, push):
        with pytest.raises(PublishError, match=r"ada/pairs exists and is public.*without Priv"):
            act(run, PushRequest("pairs", private=True))
    assert len(public.commits) == 1
    hub.repos.clear()
    hub.add_user("reader", "eve", role="read")
    hub.add_user("hf_oauth_x", "ada", orgs=("lovelace", "babbage:read"))  # a Space's sign-in
    for name, token, words in (
        ("pairs", "nobodys-token", "status 401"), ("pairs", "reader", "may only read"),
        (" ", TOKEN, "is not a repository name"),
        ("babbage/pairs", "hf_oauth_x", r"'babbage'.*ada, lovelace"),
    ):  # fmt: skip
        with pytest.raises(PublishError, match=words) as caught:
            push(run, PushRequest(name), token)
        assert token not in str(caught.value)
    with pytest.raises(PublishError, match="not a licence"):
        push(run, PushRequest("pairs", licence="<b>"))
    hub.fail("POST", "/api/validate-yaml", 400, body=b"no such licence")
    with pytest.raises(PublishError, match=r"card of ada/pairs was refused.*the licence"):
        push(run, PushRequest("pairs", licence="nobodys"))
    run.append(events.Resumed(step=0))
    adopt(run)
    with pytest.raises(PublishError, match="still training"):
        push(run)
    with pytest.raises(PublishError, match="no saved model"):
        push(store.create(RunConfig()))
    assert hub.repos == {}


@pytest.mark.usefixtures("impatient", "unverified")
@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("POST", BATCH, 429, "status 429.*after it"),
        ("PUT", PUT, 503, r"Sending .* to ada/pairs failed with status 503"),
        ("POST", COMMIT, 401, "status 401.*make a new one"),
        ("POST", COMMIT, 500, "status 500.*may carry it out.*Look there in a minute"),
    ],
)
def test_a_refusal_names_its_remedy_and_the_next_try_works(run, hub, method, path, status, words):
    hub.fail(method, path, status, ALWAYS, {"Retry-After": "90"} if status == 429 else {})
    with pytest.raises(PublishError, match=f"(?s){words}") as caught:
        push(run)
    assert TOKEN not in str(caught.value)
    left = hub.repos.get(("model", "ada/pairs"))
    assert left is None or not (left.commits or left.files)
    hub.faults.clear()
    assert push(run).created == (left is None)
    assert len(hub.repos["model", "ada/pairs"].commits) == 1


@pytest.mark.usefixtures("impatient", "unverified")
def test_what_was_done_though_its_answer_was_lost_is_done_once(run, hub):
    """Both answers are lost: that of the repository's creation and that of the commit. The other
    ways to lose one are those of jobs, in `test_hub_answers`."""
    hub.fail("POST", CREATE, 504, done=True)
    hub.fail("POST", COMMIT, 504, done=True)
    hub.fail("GET", "/commits/main$", 520)  # the first look
    pushed = push(run)
    repo = hub.repos["model", "ada/pairs"]
    assert (pushed.commit, pushed.created, len(repo.commits)) == (repo.head, True, 1)


@pytest.mark.usefixtures("impatient", "unverified")
def test_a_connection_that_stays_cut_or_a_cancel_loses_nothing_that_was_sent(run, hub):
    (run.best / "weights.bin").write_bytes(random.Random(0).randbytes(3 * 2**20))
    hub.fail("PUT", "^/lfs/", 0, 1)  # the first one arrives
    hub.fail("PUT", "^/lfs/", 0, ALWAYS, cut=True, after=200_000)
    with pytest.raises(PublishError, match=r"the files to ada/pairs failed: .* Check the network"):
        push(run)
    hub.faults.clear()
    before = set(hub.uploads)
    assert len(before) == 1
    with pytest.raises(Cancelled, match="nothing was committed"):
        push(run, stopped=lambda: len(hub.uploads) > 1)
    assert hub.repos["model", "ada/pairs"].commits == []
    before |= set(hub.uploads)
    hub.requests.clear()
    progress = []
    push(run, report=progress.append)
    assert not sent_objects(hub) & before
    assert progress[-1].sent == progress[-1].total
    assert [step.sent for step in progress] == sorted(step.sent for step in progress)
    (run.best / "vocab.json").write_text("{}")
    hub.fail("POST", COMMIT, 504)  # the commit that is there is not taken for this one
    with pytest.raises(PublishError, match="may carry it out"):
        push(run, UPDATE)
    assert len(hub.repos["model", "ada/pairs"].commits) == 1


def test_a_model_is_compared_when_it_was_pushed_and_a_damaged_one_is_not_sent(run, hub):
    def report(progress):
        if progress.phase == Phase.VERIFY:
            files = hub.repos["model", "ada/first"].files
            tensors = safetensors.numpy.load(files["model.safetensors"])
            tensors["classifier.bias"] += 1e-3 * np.array([1, -1], np.float32)
            files["model.safetensors"] = safetensors.numpy.save(tensors, {"format": "pt"})

    comparison = push(run, PushRequest("first", private=True), report=report).verified
    assert comparison.problem == "A logit differs by 0.001; 0.0001 is allowed."
    sent = sent_objects(hub)
    repo = hub.add_repo("ada/pairs", files={"README.md": b"mine"})
    for damage in (
        lambda: toys.overwrite(run.best, lambda parts: parts["classifier.bias"].fill_(np.nan)),
        lambda: os.truncate(run.best / "model.safetensors", 5000),
    ):
        damage()
        for request in (UPDATE, PushRequest("another")):
            with pytest.raises(ModelError):
                push(run, request)
    assert (repo.files, len(repo.commits)) == ({"README.md": b"mine"}, 1)
    assert ("model", "ada/another") not in hub.repos
    assert sent_objects(hub) == sent


@pytest.mark.usefixtures("impatient")
def test_the_token_is_nowhere_afterwards(run, hub, caplog, capfd, monkeypatch, tmp_path):
    """Neither after a push nor after failures at each of its stages."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    caplog.set_level("DEBUG")
    marked = "hf-marked-0123456789"
    hub.add_user(marked, "ada", pro=True)
    texts = []

    def report(progress):
        texts.extend([repr(progress), *map(repr, threading.enumerate())])

    for path in (WHO, PREUPLOAD, PUT, COMMIT):
        hub.faults.clear()
        hub.fail("", path, 403, ALWAYS)
        with pytest.raises(PublishError) as caught:
            push(run, token=marked, report=report)
        texts += [str(caught.value), "".join(traceback.format_exception(caught.value))]
    hub.faults.clear()
    pushed = push(run, PushRequest("pairs", demo=True), marked, report=report)
    assert pushed.demo
    assert marked in hub.tokens_seen
    printed = capfd.readouterr()
    texts += [repr(pushed), str(os.environ), caplog.text, *printed, *hub.targets]
    assert not [text for text in texts if marked in text]
    for folder in (tmp_path, Path(os.environ["HF_HOME"])):  # with the runs
        for file in folder.rglob("*"):
            assert not file.is_file() or marked.encode() not in file.read_bytes(), file
    for repo in hub.repos.values():
        assert not any(marked.encode() in content for content in repo.files.values())


@pytest.mark.long
def test_a_demo_is_pushed_beside_the_model_and_a_billed_one_has_its_price_told_before(run, hub):
    """An impossible one is refused before the push."""
    other = {("space", "ada/other-demo"): hub.add_repo("ada/other-demo", "space", {"app.py": b""})}
    for request, words in (
        (replace(DEMO, name="other"), "ada/other-demo exists and holds something else"),
        (replace(DEMO, private=True), "could not read it: the repository is private"),
        (replace(DEMO, hardware="t9"), r"no hardware 't9'.*cpu-basic, t4-small"),
    ):
        with pytest.raises(PublishError, match=words):
            push(run, request)
    billed = replace(DEMO, hardware="t4-small")
    assert not plan(run, DEMO).billed
    price = "0.40 USD an hour while it is awake; it sleeps after 60 minutes without a visitor"
    approved = plan(run, billed).to_approve
    assert approved == {f"ada/pairs-demo: Nvidia T4 - small, {price}"}
    with pytest.raises(PublishError, match=r"would be billed: Nvidia T4 - small"):
        push(run, billed)
    assert hub.repos == other
    pushed = push(run, DEMO)  # the Hub runs it for nobody without a subscription
    assert "status 402. It has to be paid for" in pushed.demo_problem
    assert hub.repos["model", "ada/pairs"].head == pushed.commit
    assert ("space", "ada/pairs-demo") not in hub.repos
    update = replace(billed, update=True)
    assert push(run, update, approved=approved).demo == f"{hub.url}/spaces/ada/pairs-demo"
    space = hub.repos["space", "ada/pairs-demo"]
    assert set(space.files) == {"app.py", "finetune.json", "requirements.txt", "README.md"}
    assert space.space == Space("gradio", "t4-small", sleep_time=3600)
    again = plan(run, DEMO)
    assert (again.demo, again.demo_exists) == ("ada/pairs-demo", True)
    assert push(run, replace(update, hardware="cpu-basic")).demo_problem == ""
    assert (space.space.hardware, len(space.commits)) == ("t4-small", 1)  # nothing differed


def demo_answer(folder):
    """What the demo of a model answers to a pair."""
    texts = publish.demo_files(str(folder), True)
    for name in ("finetune.json", "app.py"):
        (folder / name).write_text(texts[name])
    return runpy.run_path(str(folder / "app.py"))["classify"](*PAIR)


@pytest.mark.long
def test_a_demo_answers_as_the_kept_rule_does(toy_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(gr.Blocks, "launch", lambda self: None)
    best = Path(shutil.copytree(toy_checkpoint, tmp_path / "best"))
    plain = demo_answer(best)
    assert set(plain) == {"not_equivalent", "equivalent"}
    top, rest = sorted(plain, key=plain.get, reverse=True)
    turned = plain["equivalent"] + (0.1 if top == "equivalent" else -0.1)  # the other is the answer
    choice = {"threshold": turned, "positive": "equivalent"}
    rules = [({}, top, True), (choice, rest, False)]
    for rule, answer, by_class in rules:
        decision_rule.write_rule(best, **rule)
        for above in (plain[answer] - 0.01, plain[answer] + 0.01):
            classes = ((answer, above),) if by_class else ()
            sure = SureRule(0.02, 0.95, 1.0 if by_class else above, classes)
            decision_rule.write_rule(best, sure=sure)
            shares, told = demo_answer(best)
            assert shares == plain
            unsure = above > plain[answer]
            assert told == (f"unsure (it would say {answer})" if unsure else answer)
            ours = Predictor(best, 64, precision="fp32")(*PAIR)
            assert (ours.label, ours.is_unsure) == (answer, unsure)
    best = Path(shutil.copytree(toy_checkpoint, tmp_path / "several labels"))
    settings = json.loads((best / "config.json").read_text())
    settings["problem_type"] = "multi_label_classification"
    (best / "config.json").write_text(json.dumps(settings))
    for above in (0.01, 0.99):
        decision_rule.write_rule(best, sure=SureRule(0.02, 0.95, above))
        _, told = demo_answer(best)
        ours = Predictor(best, 64, precision="fp32")(*PAIR)
        answer = ours.label or "none"
        assert told == (f"unsure (it would say {answer})" if ours.is_unsure else answer)
        assert ours.is_unsure == (above > 0.5)
