"""The card as a whole, the checks, and the push with the real client over HTTP."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finetune import catalog, events, publish
from finetune.config import RunConfig
from finetune.errors import PublishError
from finetune.store import Run, RunStore
from tests import toys
from tests.conftest import TOKEN
from tests.hub import LoopbackHub
from tests.test_page import story


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    made = store.create(RunConfig(name="first try", learning_rate=1e-4, max_length=32))
    for event in story():
        made.append(event)
    toys.copy_model(toy_checkpoint, made.best)
    return made


def push(
    store: RunStore, run: Run, name: str = "pairs", token: str | None = TOKEN
) -> publish.Pushed:
    return publish.push(run, store.summary(run), name, token)


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
    again = push(store, run, "ada/pairs")
    assert not again.created
    assert hub.repos["model", "ada/pairs"].head == again.commit


def test_an_organisation_can_be_named(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    push(store, run, "lovelace/pairs")
    assert ("model", "lovelace/pairs") in hub.repos


def test_the_card_is_derived_from_the_run(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    text = publish.card(run, store.summary(run), "ada/pairs")
    card = ModelCard(text)
    card.validate()  # the Hub's own check, over HTTP
    data: Any = card.data
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


def test_a_run_stopped_before_its_evaluation_claims_no_scores(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    run.events_file.unlink()
    run.append(events.Saved(step=3))
    run.append(events.Stopped(step=3, seconds=1.0))
    text = publish.card(run, store.summary(run), "ada/pairs")
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


def test_a_refused_commit_says_what_it_left_and_can_be_tried_again(
    store: RunStore, run: Run, hub: LoopbackHub
) -> None:
    hub.fail("POST", "/commit/", 403)
    with pytest.raises(PublishError, match="made but holds no model yet"):
        push(store, run)
    assert hub.repos["model", "ada/pairs"].commits == []
    assert not push(store, run).created
    assert len(hub.repos["model", "ada/pairs"].commits) == 1


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


def test_the_token_is_nowhere_afterwards(store: RunStore, run: Run, hub: LoopbackHub) -> None:
    push(store, run)
    assert TOKEN in hub.tokens_seen
    for path in store.root.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
    pushed = hub.repos["model", "ada/pairs"].files
    assert not any(TOKEN.encode() in content for content in pushed.values())


@pytest.mark.parametrize("checkpoint", [one.name for one in catalog.CHECKPOINTS])
def test_a_name_is_suggested_that_the_hub_takes(store: RunStore, checkpoint: str) -> None:
    run = store.create(RunConfig(checkpoint=checkpoint, dataset="glue/mrpc"))
    assert publish.repo_id(publish.suggested_name(run), "ada").startswith("ada/")
