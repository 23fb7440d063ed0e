"""What an app lets people do, on one's own machine and where several share it."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest

from finetune import owners
from finetune.owners import LOCAL_USER, Policy, SharedApp, Visitor


@pytest.mark.parametrize(
    ("variables", "kind"),
    [
        ({}, Policy),
        ({"FINETUNE_VISITORS": "0"}, Policy),
        ({"FINETUNE_VISITORS": "1"}, SharedApp),
        ({"SPACE_ID": "ada/app"}, SharedApp),
    ],
)
def test_the_environment_says_whose_machine_it_is(
    variables: dict[str, str], kind: type[Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPACE_ID", "FINETUNE_VISITORS"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert type(owners.policy()) is kind


def test_nothing_is_limited_on_ones_own_machine() -> None:
    assert set(astuple(LOCAL_USER.policy.limits)) == {math.inf}
    assert LOCAL_USER.policy.worker_environment() == {}
    assert Policy().identify("ada", "browser:a") == LOCAL_USER


def test_a_visitor_is_limited_whatever_the_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(owners.ANY_CHECKPOINT, raising=False)
    monkeypatch.setenv("FINETUNE_MAX_RUNS", "3")
    monkeypatch.setenv("HF_TOKEN", "a secret")
    policy = Visitor(("user:ada",)).policy
    assert policy.limits.runs == 3
    assert [policy.owner_asks, policy.any_checkpoint, policy.stored_token] == [False] * 3
    assert policy.worker_environment() == {
        "FINETUNE_MAX_RUNS": "3", "FINETUNE_VISITORS": "1", "HF_TOKEN": "",
        "HUGGING_FACE_HUB_TOKEN": "", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    }  # fmt: skip
    monkeypatch.setenv(owners.ANY_CHECKPOINT, "1")
    assert Visitor().policy.any_checkpoint  # and so in the workers
    assert SharedApp().worker_environment()[owners.ANY_CHECKPOINT] == "1"
