from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune import owners
from finetune.config import BUNDLED_CHECKPOINT
from finetune.data import checkpoints
from finetune.data.sources import LABELS
from finetune.environment import hub_connection
from finetune.errors import ConfigError, FinetuneError, ModelError
from finetune.runs.run import Run
from finetune.tasks.base import Target
from finetune.training import model
from tests.support import toys
from tests.support.hub import TOKEN, LoopbackHub

TARGET = Target(tuple(LABELS))

INVALID = {"X-Error-Message": "Invalid credentials in Authorization header"}


def test_the_bundled_checkpoint_is_the_official_one() -> None:
    tokenizer, classifier, _ = model.load_classifier(BUNDLED_CHECKPOINT, TARGET, 128)
    assert classifier.config.id2label == dict(enumerate(LABELS))
    assert classifier.num_parameters() > 22_000_000
    assert classifier.dtype == torch.float32
    assert len(tokenizer("a", "b")["input_ids"]) == 5
    with pytest.raises(ModelError, match="not the official 000000000000"):
        checkpoints.bundled_folder(expected_sha256="0" * 64)


@pytest.mark.parametrize(
    ("fault", "fact", "remedy"),
    [
        ((403, {"X-Error-Code": "GatedRepo"}), "is gated", "Accept its terms at http"),
        ((401, INVALID), "does not accept this machine's token", "Sign in an"),
        (
            (401, {"X-Error-Code": "RepoNotFound"}),
            "The checkpoint {} is not on the Hub",
            "Check its name",
        ),
        ((429, {"Retry-After": "600"}), "the Hub asks for a pause of 600 seconds", "after it"),
        ((503, {}), "the Hub refused with status 503", "Try again later"),
        ("cut", "The checkpoint {} could not be read", "Check the network"),
        ("pickle", "no safetensors weights", "save it as safetensors where you trust it"),
    ],
)
def test_why_a_checkpoint_is_not_to_be_had(
    hub: LoopbackHub, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch,
    fault: Any, fact: str, remedy: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    name = f"ada/why-{hashlib.sha256(remedy.encode()).hexdigest()[:8]}"  # is in no cache
    repo = hub.add_repo(name, files=toy_checkpoint)
    if fault == "pickle":
        repo.files["pytorch_model.bin"] = repo.files.pop("model.safetensors")
    elif fault == "cut":
        hub.fail("GET", "/lfs/", 0, times=99, cut=True, after=1000)
    else:
        hub.fail("", "/resolve/", fault[0], times=99, headers=fault[1])
    with pytest.raises(ModelError, match=fact.format(name)) as caught:
        model.load_classifier(name, TARGET, 32)
    assert remedy in caught.value.remedy


def test_visitors_get_no_checkpoint_that_the_hub_would_not_give_them(
    hub: LoopbackHub, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The libraries answer from their cache where the Hub refuses."""
    names = ("ada/hidden", "ada/locked-up", "ada/public")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name in names:
        private, gated = name == "ada/hidden", name == "ada/locked-up"
        hub.add_repo(name, files=toy_checkpoint, private=private, gated=gated)
        model.load_classifier(name, TARGET, 32)
        assert checkpoints.local_folder(name) is not None
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    for name in names:
        assert checkpoints.local_folder(name) is None
        with pytest.raises(ConfigError, match="is not offered in this shared app; choose one of"):
            model.load_classifier(name, TARGET, 32)
    monkeypatch.setenv(owners.ANY_CHECKPOINT, "1")
    assert [checkpoints.local_folder(name) is not None for name in names] == [False, False, True]
    for name, fact in (
        ("ada/hidden", "The checkpoint ada/hidden is not on the Hub, or it is private"),
        ("ada/locked-up", "ada/locked-up is gated"),
        (str(toy_checkpoint), "is on this machine's disk"),
        ("ada/of/three", "is not a name on the Hub"),
    ):
        with pytest.raises(FinetuneError, match=fact):
            model.load_classifier(name, TARGET, 32)
    model.load_classifier("ada/public", TARGET, 32)
    monkeypatch.setattr(hub_connection, "hub_is_reachable", lambda: False)
    with pytest.raises(ModelError, match="does not answer"):
        model.load_classifier("ada/public", TARGET, 32)


class Crash(BaseException):
    """The process ends here."""


def test_a_crash_at_any_moment_of_a_save_leaves_a_whole_model(
    toy_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off before each call that changes what is on the disk, and after the last."""
    tokenizer, classifier, _ = model.load_classifier(str(toy_checkpoint), TARGET, 32)
    calls, limit = 0, 10**9

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > limit:
                raise Crash
            return real(*args, **options)

        return call

    for owner, name in ((Path, "mkdir"), (Path, "rename"), (os, "fsync"), (shutil, "rmtree")):
        monkeypatch.setattr(owner, name, counting(getattr(owner, name)))
    run = Run(tmp_path / "run")
    os.mkdir(run.folder)
    best = run.folder / "best"
    model.save_model(classifier, tokenizer, best, step=1)
    calls = 0
    model.save_model(classifier, tokenizer, best, step=2)
    total = calls
    steps: list[int] = []
    assert total > 8
    for limit in range(total + 1):
        calls = 0
        with contextlib.suppress(Crash):
            model.save_model(classifier, tokenizer, best, step=2 + limit)
        calls = -(10**9)
        assert run.has_model()
        model.load_saved_model(run.best)
        steps.append(run.best_step() or 0)
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (2, 2 + total)  # the former, the new one
    assert [path.name for path in run.folder.iterdir()] == ["best"]
    with pytest.raises(FileNotFoundError):  # a deleted run's folder is not made again
        model.save_model(classifier, tokenizer, tmp_path / "gone" / "best")


def test_a_damaged_model_is_said(toy_checkpoint: Path, tmp_path: Path) -> None:
    best = tmp_path / "best"
    with pytest.raises(ModelError, match="no saved model"):
        model.load_saved_model(best)
    toys.copy_model(toy_checkpoint, best)
    toys.overwrite(best, lambda weights: weights.pop("classifier.weight"))
    with pytest.raises(ModelError, match=r"no weights for classifier\.weight"):
        model.load_saved_model(best)
    toys.overwrite(best, lambda weights: weights.update({"classifier.weight": torch.ones(7, 32)}))
    with pytest.raises(ModelError, match="cannot be loaded"):
        model.load_saved_model(best)
    # One that is to be tuned gets a new head in any case.
    assert model.load_classifier(str(best), Target(("a", "b", "c")), 32)[1].num_labels == 3
