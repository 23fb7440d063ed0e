"""The demo Space: what it holds, what it must not write over, and that its app runs as printed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from gradio_client import Client
from markdown_it import MarkdownIt

from finetune.config import RunConfig
from finetune.errors import PublishError
from finetune.hub import demo, model_card, publish
from finetune.hub.client import default_sleep_time
from finetune.hub.publish import PushRequest
from finetune.runs.store import Run, RunStore
from finetune.ui import push_view
from tests.environment.test_space import with_spaces
from tests.support import toys
from tests.support.hub import LoopbackHub, Space
from tests.support.toys import story

PRO = "hub-token-of-pro"


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path, hub: LoopbackHub) -> Run:
    hub.add_user(PRO, "ada", pro=True)
    made = store.create(RunConfig(max_length=32))
    for event in story():
        made.append(event)
    toys.copy_model(toy_checkpoint, made.best)
    return made


def push(
    store: RunStore, run: Run, token: str = PRO, hardware: str = "cpu-basic", update: bool = False,
    pays: bool = False,
) -> publish.Pushed:  # fmt: skip
    wanted = PushRequest("pairs", demo=True, hardware=hardware, update=update, pays=pays)
    return publish.push_run(run, store.summary(run), wanted, token, verified=False)


def test_nothing_that_is_given_is_code_or_markup() -> None:
    for model in ("ada/__init__", "ada/a_b_c", "ada/null", "ada/1e5"):
        files = demo.demo_files(model, True, 64, model_card.EXAMPLES, "no")
        front = yaml.safe_load(files["README.md"].split("---\n")[1])
        assert (front["models"], front["license"]) == ([model], "no")
        body = MarkdownIt("commonmark").render(files["README.md"].split("---\n")[2])
        assert f"<h1><code>{model[4:]}</code> demo</h1>" in body
        assert f">{model}</code></a>" in body.replace("<code>", "")
        assert "<strong>" not in body
        compile(files["app.py"], "app.py", "exec")


@pytest.mark.parametrize("paired", [True, False])
def test_its_files_are_a_space(paired: bool) -> None:
    files = demo.demo_files("ada/pairs", paired, 64, model_card.EXAMPLES, "mit")
    front = yaml.safe_load(files["README.md"].split("---\n")[1])
    assert (front["sdk"], front["app_file"], front["license"]) == ("gradio", "app.py", "mit")
    assert front["models"] == ["ada/pairs"]
    assert front["python_version"] == "3.12"  # a Space's own would not run these transformers
    tree = ast.parse(files["app.py"])
    made = next(one for one in tree.body if isinstance(one, ast.FunctionDef))
    assert len(made.args.args) == (2 if paired else 1)
    assert demo.is_generated_app(files["app.py"])
    assert not demo.is_generated_app("import gradio")
    assert re.search(r"^torch==\d+\.\d+\.\d+$", files["requirements.txt"], re.MULTILINE)


def test_it_is_pushed_beside_the_model_and_updated(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    done = push(store, run)
    assert done.demo == f"{hub.url}/spaces/ada/pairs-demo"
    space = hub.repos["space", "ada/pairs-demo"]
    assert set(space.files) == {"app.py", "requirements.txt", "README.md"}
    plan = publish.plan_push(run, store.summary(run), PushRequest("pairs", demo=True), PRO)
    assert (plan.demo, plan.demo_exists) == ("ada/pairs-demo", True)
    assert plan.hardware == ""  # only a new one gets the chosen
    assert "gets a new commit, and keeps its hardware" in push_view.plan(plan)
    assert push(store, run, hardware="t4-small").demo == done.demo
    assert (space.space, len(space.commits)) == (Space("gradio"), 2)


def test_a_billed_one_sleeps_when_nobody_is_there(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    with pytest.raises(publish.Billed, match=r"would be billed: Nvidia T4 - small, 0\.40 USD"):
        push(store, run, hardware="t4-small")
    assert hub.repos == {}
    push(store, run, hardware="t4-small", pays=True)
    made = hub.repos["space", "ada/pairs-demo"].space
    assert made == Space("gradio", "t4-small", sleep_time=3600)
    kinds = ("cpu-basic", "zero-a10g", "cpu-upgrade")
    assert [default_sleep_time(one) for one in kinds] == [None, None, 3600]


def test_a_cancel_after_the_push_makes_none(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    seen: list[publish.PushProgress] = []
    done = publish.push_run(
        run, store.summary(run), PushRequest("pairs", demo=True), PRO, seen.append,
        lambda: bool(seen) and seen[-1].doing.startswith("loading it back"),
    )  # fmt: skip
    assert done.commit == hub.repos["model", "ada/pairs"].head
    assert done.demo_problem == "You cancelled before it was made."
    assert ("space", "ada/pairs-demo") not in hub.repos


def test_something_else_of_that_name_is_left_alone(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    hub.add_repo("ada/pairs-demo", "space", {"app.py": b"print('mine')"})
    with pytest.raises(PublishError, match="ada/pairs-demo exists and is something else"):
        push(store, run)
    assert ("model", "ada/pairs") not in hub.repos


def test_a_private_model_has_no_demo(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    with pytest.raises(PublishError, match="could not read it: the repository is private"):
        publish.plan_push(run, store.summary(run), PushRequest("pairs", True, demo=True), PRO)


def test_the_price_is_told_before(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    wanted = PushRequest("pairs", demo=True, hardware="t4-small")
    plan = publish.plan_push(run, store.summary(run), wanted, PRO)
    assert plan.hardware == (
        "Nvidia T4 - small, 0.40 USD an hour while it is awake; it sleeps after 60 minutes without "
        "a visitor"
    )
    plan = publish.plan_push(run, store.summary(run), PushRequest("pairs", demo=True), PRO)
    assert plan.hardware.startswith("CPU Basic, no price an hour; for a Gradio Space the Hub asks")
    assert "sleeps" not in plan.hardware
    with pytest.raises(PublishError, match=r"no hardware 't9'.*cpu-basic, t4-small"):
        push(store, run, hardware="t9")


def test_a_demo_that_must_be_paid_for_does_not_undo_the_push(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    hub.add_user("free", "ada")
    done = push(store, run, "free")
    assert done.demo == ""
    assert "status 402. cpu-basic takes an account that pays" in done.demo_problem
    assert hub.repos["model", "ada/pairs"].head == done.commit
    assert ("space", "ada/pairs-demo") not in hub.repos


def test_zerogpu_finds_a_function_in_it(tmp_path: Path) -> None:
    """Such a Space ends an app that has none; nothing else of the app is run here."""
    app = demo.demo_files("ada/pairs", True, 64, model_card.EXAMPLES)["app.py"]
    first = app.split("\n\n\nimport gradio")[0]
    found = subprocess.run(
        [sys.executable, "-c", first], env=with_spaces(tmp_path), capture_output=True, text=True
    )
    assert (found.returncode, found.stdout) == (0, "lends to lent\n")
    exec(first, {})  # elsewhere there is no such package


@pytest.mark.long
def test_its_app_runs_as_printed(
    store: RunStore, run: Run, hub: LoopbackHub, tmp_path: Path
) -> None:
    push(store, run)
    for path, content in hub.repos["space", "ada/pairs-demo"].files.items():
        (tmp_path / path).write_bytes(content)
    environment = {**os.environ, "GRADIO_SERVER_PORT": "", "PYTHONUNBUFFERED": "1"}
    environment.pop("GRADIO_SERVER_PORT")
    process = subprocess.Popen(
        [sys.executable, "app.py"], cwd=tmp_path, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = next((found[0] for line in process.stdout
                    if (found := re.search(r"http://\S+", line))), "")  # fmt: skip
        assert url
        client = Client(url, verbose=False, analytics_enabled=False)
        answer = client.predict("the cat sees a dog .", "a cat sees the dog .",
                                api_name="/classify")  # fmt: skip
    finally:
        process.kill()
        process.wait(10)
    shares = {one["label"]: one["confidence"] for one in answer["confidences"]}
    assert set(shares) == {"not_equivalent", "equivalent"}
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-3)
