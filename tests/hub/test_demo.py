"""The demo Space: its files, Spaces that it must not overwrite, and its app, which runs
unchanged."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from finetune.errors import PublishError
from finetune.hub import publish, push_plan
from finetune.hub.push_plan import PushRequest
from finetune.inference import decision_rule
from finetune.inference.predictor import Predictor
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.base import SureRule
from finetune.ui.html import macro
from tests.support import toys
from tests.support.hub import LoopbackHub, Space

PRO = "hub-token-of-pro"


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path, hub: LoopbackHub) -> Run:
    hub.add_user(PRO, "ada", pro=True)
    return toys.finished_run(store, toy_checkpoint)


def push(
    run: Run, token: str = PRO, approved: Collection[str] = (), **options: Any
) -> publish.Pushed:
    request = PushRequest("pairs", demo=True, **options)
    return publish.push_run(run, run.state(), request, token, approved=approved)


def plan(run: Run, **options: Any) -> push_plan.PushPlan:
    request = PushRequest("pairs", demo=True, **options)
    return push_plan.plan_push(run, run.state(), request, PRO)


def test_it_is_pushed_beside_the_model_and_updated(run: Run, hub: LoopbackHub) -> None:
    pushed = push(run)
    assert (pushed.demo, pushed.demo_problem) == (f"{hub.url}/spaces/ada/pairs-demo", "")
    space = hub.repos["space", "ada/pairs-demo"]
    assert set(space.files) == {"app.py", "finetune.json", "requirements.txt", "README.md"}
    again = plan(run)
    assert (again.demo, again.demo_exists) == ("ada/pairs-demo", True)
    assert "gets a new commit, and keeps its hardware" in macro("push.html", "plan")(again)
    assert push(run, hardware="t4-small", update=True).demo == pushed.demo
    assert (space.space, len(space.commits)) == (Space("gradio"), 1)  # nothing differed


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("other", {}, "ada/other-demo exists and holds something else"),
        ("pairs", {"private": True}, "could not read it: the repository is private"),
        ("pairs", {"hardware": "t9"}, r"no hardware 't9'.*cpu-basic, t4-small"),
    ],
)
def test_an_impossible_demo_is_refused_before_the_push(
    run: Run, hub: LoopbackHub, name: str, options: dict[str, Any], words: str
) -> None:
    hub.add_repo("ada/other-demo", "space", {"app.py": b"print('mine')"})
    request = PushRequest(name, demo=True, **options)
    with pytest.raises(PublishError, match=words):
        publish.push_run(run, run.state(), request, PRO)
    assert list(hub.repos) == [("space", "ada/other-demo")]


def test_a_billed_one_has_its_price_told_before_and_sleeps(run: Run, hub: LoopbackHub) -> None:
    free = plan(run)
    assert free.hardware == "CPU Basic, 0.00 USD an hour while it is awake"
    assert not free.billed
    price = "0.40 USD an hour while it is awake; it sleeps after 60 minutes without a visitor"
    approved = plan(run, hardware="t4-small").to_approve
    assert approved == {f"ada/pairs-demo: Nvidia T4 - small, {price}"}
    with pytest.raises(PublishError, match=r"would be billed: Nvidia T4 - small"):
        push(run, hardware="t4-small")
    assert hub.repos == {}
    hub.add_user("free", "ada")
    pushed = push(run, "free")  # the Hub runs it for nobody without a subscription
    assert "status 402. It has to be paid for" in pushed.demo_problem
    assert hub.repos["model", "ada/pairs"].head == pushed.commit
    assert ("space", "ada/pairs-demo") not in hub.repos
    push(run, hardware="t4-small", approved=approved, update=True)
    space = hub.repos["space", "ada/pairs-demo"].space
    assert space == Space("gradio", "t4-small", sleep_time=3600)


def app_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the app, loaded with a model's folder; nothing is served."""
    texts = publish.demo_files(str(folder), True)
    (folder / "finetune.json").write_text(texts["finetune.json"])
    (folder / "app.py").write_text(texts["app.py"])
    monkeypatch.setattr(gr.Blocks, "launch", lambda self: None)
    return runpy.run_path(str(folder / "app.py"))


def test_it_answers_as_the_kept_rule_does(
    toy_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = Path(shutil.copytree(toy_checkpoint, tmp_path / "best"))
    pair = ("the cat sees a dog .", "a cat misses the dog .")
    plain = app_of(best, monkeypatch)["classify"](*pair)
    assert set(plain) == {"not_equivalent", "equivalent"}
    top, rest = sorted(plain, key=plain.get, reverse=True)
    turned = plain["equivalent"] + (0.1 if top == "equivalent" else -0.1)  # the other is the answer
    choice = {"threshold": turned, "positive": "equivalent"}
    rules: list[tuple[dict[str, Any], str, bool]] = [({}, top, True), (choice, rest, False)]
    for rule, answer, by_class in rules:
        decision_rule.write_rule(best, **rule)
        for above in (plain[answer] - 0.01, plain[answer] + 0.01):
            classes = ((answer, above),) if by_class else ()
            sure = SureRule(0.02, 0.95, 1.0 if by_class else above, classes)
            decision_rule.write_rule(best, sure=sure)
            shares, told = app_of(best, monkeypatch)["classify"](*pair)
            assert shares == plain
            unsure = above > plain[answer]
            assert told == (f"unsure (it would say {answer})" if unsure else answer)
            ours = Predictor(best, 64, precision="fp32")(*pair)
            assert (ours.label, ours.is_unsure) == (answer, unsure)
    best = Path(shutil.copytree(toy_checkpoint, tmp_path / "several labels"))
    settings = json.loads((best / "config.json").read_text())
    settings["problem_type"] = "multi_label_classification"
    (best / "config.json").write_text(json.dumps(settings))
    for above in (0.01, 0.99):
        decision_rule.write_rule(best, sure=SureRule(0.02, 0.95, above))
        _, told = app_of(best, monkeypatch)["classify"](*pair)
        ours = Predictor(best, 64, precision="fp32")(*pair)
        answer = ours.label or "none"
        assert told == (f"unsure (it would say {answer})" if ours.is_unsure else answer)
        assert ours.is_unsure == (above > 0.5)
