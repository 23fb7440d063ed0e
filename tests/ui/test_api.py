"""The page for programs: `gradio_client` and the official MCP client, over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError

from finetune.jobs import scheduler
from finetune.runs.store import Run, RunStore
from finetune.ui import app
from tests.support import toys
from tests.support.hub import LoopbackHub
from tests.ui.test_app import finished

__all__ = ["finished"]  # a fixture
# What each must be told; every other parameter of it is optional. The longer of two ends first.
REQUIRED = {
    "predict_batch": {"run_id", "file"},
    "cancel_batch": {"batch_id"},
    "batch_status": {"batch_id"},
    "run_status": {"run_id"},
    "resume_run": {"run_id"},
    "list_runs": set[str](),
    "start_run": {"config"},
    "stop_run": {"run_id"},
    "predict": {"run_id", "sentence1"},
    "explain": {"run_id", "sentence1"},
    "publish": {"run_id", "repository"},
}
ENDPOINTS = {f"/{name}" for name in REQUIRED}


@pytest.fixture
def url(store: RunStore, finished: Run) -> Iterator[str]:
    made = app.build(store)
    _, where, _ = app.launch(made, store, prevent_thread_lock=True, quiet=True)
    yield where
    made.close()


def test_every_action_has_a_name_types_and_a_description(url: str) -> None:
    client = Client(url, verbose=False)
    found = client.view_api(return_format="dict", print_info=False)
    named: dict[str, Any] = found["named_endpoints"]
    assert set(named) == ENDPOINTS
    for name, known in named.items():
        assert known["description"], name
        for one in known["parameters"]:
            assert one["parameter_name"], name
            assert one["python_type"]["type"] not in ("", "Any"), (name, one)
        required = [one for one in known["parameters"] if not one["parameter_has_default"]]
        assert {one["parameter_name"] for one in required} == REQUIRED[name.strip("/")], name
    assert [one["parameter_name"] for one in named["/predict"]["parameters"]][:3] == [
        "run_id", "sentence1", "sentence2",
    ]  # fmt: skip


def test_a_pair_is_answered(url: str, finished: Run) -> None:
    client = Client(url, verbose=False)
    pair = ("the cat sees a dog .", "a cat sees the dog .")
    answer = client.predict(finished.id, *pair, api_name="/predict")
    assert answer["label"] in answer["probabilities"]
    assert sum(answer["probabilities"].values()) == pytest.approx(1.0, abs=1e-4)
    both = client.predict(finished.id, *pair, True, api_name="/predict")
    mean = (answer["probabilities"]["equivalent"] + answer["other"]["equivalent"]) / 2
    assert both["probabilities"]["equivalent"] == pytest.approx(mean, abs=0.02)
    for wrong in ("../x", "/etc/passwd", "x" * 1000, ""):
        with pytest.raises(AppError, match="no such run"):
            client.predict(wrong, *pair, api_name="/predict")
    with pytest.raises(AppError, match="sentence2 is empty"):
        client.predict(finished.id, "the cat", "", api_name="/predict")


def test_an_answer_is_explained(url: str, finished: Run) -> None:
    client = Client(url, verbose=False)
    pair = ("the cat sees a dog .", "a cat sees the dog .")
    label = client.predict(finished.id, *pair, api_name="/predict")["label"]
    told = client.predict(finished.id, *pair, api_name="/explain")
    assert told["label"] == label
    assert [one["text"] for one in told["words"]] == " ".join(pair).split()
    brought = sum(one["weight"] for one in told["words"]) + told["special"]
    assert brought == pytest.approx(told["target"] - told["baseline_target"], rel=0.06, abs=0.02)
    assert told["tried"] >= len(told["flips"])
    with pytest.raises(AppError, match="no such run"):
        client.predict("../x", *pair, api_name="/explain")


@pytest.mark.slow
def test_a_run_is_started_stopped_and_resumed_by_a_program(
    url: str, store: RunStore, toy_checkpoint: Path
) -> None:
    client = Client(url, verbose=False)
    asked = {"checkpoint": str(toy_checkpoint), "num_train_epochs": 1000, "max_length": 32,
             "max_train_samples": 64}  # fmt: skip
    run = client.predict(asked, api_name="/start_run")["id"]

    def wait(*wanted: str) -> None:
        deadline = time.monotonic() + 90
        while (now := client.predict(run, api_name="/run_status"))["status"] not in wanted:
            assert time.monotonic() < deadline, now
            time.sleep(0.3)

    with contextlib.closing(scheduler.Scheduler(store, every=0.1)) as going:
        going.start()
        wait("running")
        deadline = time.monotonic() + 90
        while not store.get(run).has_model():
            assert time.monotonic() < deadline
            time.sleep(0.3)
        client.predict(run, False, api_name="/stop_run")
        wait("stopped")
        client.predict(run, api_name="/resume_run")
        wait("running")
        client.predict(run, True, api_name="/stop_run")
        wait("stopped")
    assert not store.get(run).has_model()


@pytest.mark.slow
def test_a_file_is_judged(url: str, finished: Run, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    lines = "".join(f"{one},{two},{label}\n" for one, two, label in toys.rows(50))
    path.write_text("sentence1,sentence2,label\n" + lines)
    client = Client(url, verbose=False)
    batch = client.predict(finished.id, handle_file(str(path)), api_name="/predict_batch")
    deadline = time.monotonic() + 60
    while batch["status"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.3)
        batch = client.predict(batch["id"], api_name="/batch_status")
    assert (batch["status"], batch["error"], batch["report"]["rows"]) == ("finished", "", 50)
    with urllib.request.urlopen(f"{url}{batch['result']}") as answer:
        text = answer.read().decode()
    assert len(text.splitlines()) == 51
    assert text.startswith("sentence1,sentence2,label,prediction,probability_not_equivalent")
    with pytest.raises(AppError, match="no such batch"):
        client.predict("../" + batch["id"], api_name="/batch_status")


def test_a_model_is_published_by_a_program(url: str, finished: Run, hub: LoopbackHub) -> None:
    client = Client(url, verbose=False)
    pushed = client.predict(
        finished.id, "from-a-program", "hub-token-of-ada", True, api_name="/publish"
    )
    assert pushed["created"]
    assert pushed["url"].endswith("/ada/from-a-program")
    again = (finished.id, "from-a-program", "hub-token-of-ada")
    assert client.predict(*again, api_name="/publish")["commit"] == pushed["commit"]
    hub.repos["model", "ada/from-a-program"].commit("by hand", {"LICENSE": b"mine"})
    with pytest.raises(AppError, match=r"ada/from-a-program exists already\. Send update as True"):
        client.predict(*again, api_name="/publish")
    assert not client.predict(*again, update=True, api_name="/publish")["created"]
    with pytest.raises(AppError, match="not signed in"):
        client.predict(finished.id, "again", "", api_name="/publish")


def test_agents_have_the_same_as_tools(url: str, finished: Run) -> None:
    """Through the official client, as an assistant would ask."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async def asked() -> tuple[list[Any], Any, Any]:
        async with (
            streamablehttp_client(f"{url}gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            tools = (await session.list_tools()).tools
            named = {tool.name: tool for tool in tools}
            name = next(name for name in named if name.endswith("predict"))
            given = {"run_id": finished.id, "sentence1": "a cat .", "sentence2": "a dog ."}
            answer = await session.call_tool(name, given)
            wrong = await session.call_tool(name, {**given, "run_id": "../x"})
            return tools, answer, wrong

    tools, answer, wrong = asyncio.run(asked())
    assert len(tools) == len(ENDPOINTS)
    for tool in tools:
        assert tool.description, tool.name
    predict = next(tool for tool in tools if tool.name.endswith("predict"))
    assert {"run_id", "sentence1", "sentence2"} <= set(predict.inputSchema["properties"])
    assert "a run of yours" in json.dumps(predict.inputSchema)
    for tool in tools:
        name = next(name for name in REQUIRED if tool.name.endswith(name))
        assert set(tool.inputSchema.get("required", [])) == REQUIRED[name], tool.name
    assert "equivalent" in answer.content[0].text
    assert "no such run" in wrong.content[0].text
