"""Push a finished run to the Hub as one commit, load it back, and create its demo Space.

A push that fails or is cancelled changes no repository, but may leave a new one that is empty.
Uploaded files are not sent again.
Source: https://huggingface.co/docs/huggingface_hub/guides/upload
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    SpaceCardData,
    snapshot_download,
)
from numpy.typing import NDArray

from finetune.data import checkpoints
from finetune.errors import FinetuneError, PublishError
from finetune.hub import model_card
from finetune.hub.client import HubClient
from finetune.hub.downloads import pinned
from finetune.hub.push_plan import DEMO_CONFIG, Files, PushPlan, PushRequest, prepare_push
from finetune.messages import Text
from finetune.messages import message as _
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.runs.summary import RunSummary

# Models are equal if no logit differs by more. Equal weights give differences of some 1e-8 if other
# layers or threads add in another order; different weights give larger ones.
TOLERANCE = 1e-4
DEMO_APP = Path(__file__).parent / "templates" / "space_app.py"  # of every demo Space


@dataclass(frozen=True)
class PushProgress:
    """The progress of a push."""

    phase: Phase = Phase.CHECK_HUB
    sent: int = 0  # bytes sent, or already on the Hub
    total: int = 0  # bytes in all; 0 while unknown
    full: str = ""  # the repository


@dataclass(frozen=True)
class Verification:
    """A comparison of the model on the Hub with the local one."""

    pairs: int  # examples that both models were given
    difference: float  # the largest of a logit
    problem: Text = ""  # what differs, or why they could not be compared; empty if they are equal
    tolerance: float = TOLERANCE  # largest difference of equal models


@dataclass(frozen=True)
class Pushed:
    """A push that the Hub confirmed."""

    url: str  # of the repository's page
    commit: str  # its sha
    created: bool  # True if the repository is new
    verified: Verification | None = None  # the result of loading it back
    demo: str = ""  # the address of the Space, if there is one
    demo_problem: Text = ""  # why it could not be created


class RepositoryExists(PublishError):
    """The repository has files, and nobody has agreed to update it."""


def push_run(
    run: Run,
    summary: RunSummary,
    request: PushRequest,
    token: str | None,
    report: Callable[[PushProgress], None] = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
    approved: Collection[str] = (),
) -> Pushed:
    """Check everything, push the best model, its tokenizer, the card and the configuration as one
    commit, and load them back. Blocks until it is done, so call it from a thread.

    Args:
        stopped: returns True if the person has cancelled; called often until the commit.
        approved: what the person has seen and agreed to, as in `PushPlan.to_approve`.

    Raises:
        Cancelled: if the person cancelled, and nothing was committed.
        RepositoryExists: if the repository has files and must not be updated.
        ModelError: if the saved model is damaged.
        PublishError: for any other reason.
    """
    hub = HubClient(token, stopped)
    plan, files = prepare_push(run, summary, request, hub)
    if plan.billed and plan.price not in approved:
        raise PublishError(
            "The demo Space would be billed: {hardware}. Nothing was sent.",
            "Press Check to see the price, and push then; or choose cpu-basic, which is free.",
            hardware=plan.hardware,
        )
    if plan.held and not request.update and plan.full not in approved:
        raise RepositoryExists(
            _("{full} exists already.", full=plan.full),
            _(
                "Press Check to see what a push changes in it, and push then; or choose another "
                "name."
            ),
        )
    length = checkpoints.length_of(run.folder)
    score = partial(score_model, paired=summary.paired, max_length=length)
    logits = score(run.best)  # a damaged model is not sent
    commit = _upload(hub, plan, files, report)
    progress = PushProgress(Phase.VERIFY, plan.size, plan.size, plan.full)
    report(progress)
    verification = verify_push(plan, commit, hub, score, logits)
    pushed = Pushed(f"{hub.api.endpoint}/{plan.full}", commit, not plan.exists, verification)
    if not plan.demo:
        return pushed
    if stopped():
        return replace(pushed, demo_problem=_("You cancelled before it was made."))
    report(replace(progress, phase=Phase.CREATE_DEMO))
    try:
        return replace(pushed, demo=_push_demo(plan, request.hardware, summary.paired, hub))
    except PublishError as error:
        return replace(pushed, demo_problem=error.text)


class _CountedFile(io.BufferedReader):
    """A file that counts the bytes read from it. Given an object instead of a path, the client
    sends plain files over HTTP, not chunks of Xet."""

    sent = 0

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(size)
        self.sent = self.tell()
        return piece


def _upload(
    hub: HubClient, plan: PushPlan, files: Files, report: Callable[[PushProgress], None]
) -> str:
    """Create the repository if needed, send files that the Hub lacks, and commit all; the sha."""
    progress = PushProgress(total=plan.size, full=plan.full)
    opened: list[_CountedFile] = []

    def tell(phase: Phase, sent: int) -> None:
        nonlocal progress
        progress = replace(progress, phase=phase, sent=sent)
        report(progress)

    def bytes_sent() -> int:
        sent = sum(file.sent for file in opened)
        if sent > progress.sent:
            tell(progress.phase, sent)
        return sent

    tell(Phase.READ_FILES, 0)
    with contextlib.ExitStack() as stack:
        operations: list[Any] = []
        for path, content in files.items():
            source: Any = content
            if isinstance(content, Path):
                source = stack.enter_context(_CountedFile(io.FileIO(content)))
                opened.append(source)
            operations.append(CommitOperationAdd(path, source))  # reads it, for its hash
        for file in opened:
            file.sent = 0
        hub.beat = bytes_sent
        if not plan.exists:
            tell(Phase.CREATE_REPOSITORY, 0)
            hub.change(
                _("Creating {full}", full=plan.full),
                lambda: hub.api.create_repo(plan.full, private=plan.private),
                lambda: hub.exists(plan.full),
            )
        tell(Phase.UPLOAD, 0)
        hub.call(
            _("Sending the files to {full}", full=plan.full),
            lambda: hub.api.preupload_lfs_files(
                plan.full, operations, free_memory=False, num_threads=1
            ),
        )
        tell(Phase.COMMIT, plan.size)
        hub.check_stopped()  # the last moment: a commit cannot be taken back
        operations += map(CommitOperationDelete, plan.removed)  # the files of an earlier model
        action, parent = _("The push to {full}", full=plan.full), plan.head or None
        sha = hub.commit(action, plan.full, operations, "Fine-tuned with Finetune", parent=parent)
    tell(Phase.COMMITTED, plan.size)
    return sha


def score_model(folder: Path, paired: bool, max_length: int) -> NDArray[np.float32]:
    """Logits of a saved model for our own sentences, of shape (examples, classes)."""
    from finetune.inference.scorer import Scorer

    first, second = ([pair[at] for pair in model_card.EXAMPLES] for at in (0, 1))
    scorer = Scorer(folder, max_length, "fp32", "cpu", threads=1, low_priority=True)
    try:
        return scorer.scores(first, second if paired else None)
    finally:
        scorer.free()


def verify_push(
    plan: PushPlan, commit: str, hub: HubClient, score: Callable[[Path], NDArray[np.float32]],
    expected: NDArray[np.float32],
) -> Verification:  # fmt: skip
    """Load a pushed model from the Hub and compare its logits with the expected, see `TOLERANCE`.

    It is loaded into a temporary folder, never from the Hub's cache, which visitors share.
    """
    hub.beat = time.monotonic  # a download has the client's own time limits
    try:
        with tempfile.TemporaryDirectory(prefix="finetune-verify-") as folder:
            hub.call(
                _("Loading {full} back", full=plan.full),
                lambda: snapshot_download(
                    plan.full, revision=commit, local_dir=folder, cache_dir=f"{folder}/.cache",
                    token=hub.api.token, max_workers=2, endpoint=hub.api.endpoint,
                ),
                stoppable=False,
            )  # fmt: skip
            logits = score(Path(folder))
    except FinetuneError as error:
        return Verification(0, 0.0, _("It could not be loaded back. {error}", error=error.text))
    difference = float(np.abs(logits - expected).max(initial=0.0))
    problem = ""
    if difference > TOLERANCE:
        problem = _(
            "A logit differs by {difference:.3g}; {tolerance:g} is allowed.",
            difference=difference,
            tolerance=TOLERANCE,
        )
    return Verification(len(logits), difference, problem)


def _push_demo(plan: PushPlan, hardware: str, paired: bool, hub: HubClient) -> str:
    """Create or update the Space of a plan; returns its address."""
    if not plan.demo_exists:
        hub.create_space(plan.demo, hardware)
    files = demo_files(plan.full, paired, plan.licence)
    additions = [CommitOperationAdd(path, text.encode()) for path, text in files.items()]
    action = _("Sending the demo to {demo}", demo=plan.demo)
    hub.commit(action, plan.demo, additions, f"A demo of {plan.full}", "space")
    return f"{hub.api.endpoint}/spaces/{plan.demo}"


def demo_files(model: str, paired: bool, licence: str = "") -> dict[str, str]:
    """The files of the Space: path -> text. The model's repository must be public.

    Source of the front matter: https://huggingface.co/docs/hub/spaces-config-reference
    """
    sentences = ["sentence1", "sentence2"][: 1 + paired]
    config = {
        "model": model,
        "sentences": sentences,
        "examples": [list(pair[: len(sentences)]) for pair in model_card.EXAMPLES],
    }
    name = model.split("/")[-1]
    card = SpaceCardData(
        title=f"{name} demo", emoji="🎛️", colorFrom="indigo", colorTo="gray", sdk="gradio",
        sdk_version=pinned("gradio").partition("==")[2], python_version="3.12",
        app_file="app.py", license=licence or None, models=[model],
    )  # fmt: skip
    readme = (
        f"---\n{card.to_yaml()}\n---\n\n# `{name}` demo\n\n"
        f"Try [`{model}`](https://huggingface.co/{model}), a text classifier tuned with Finetune.\n"
    )
    return {
        "app.py": DEMO_APP.read_text(encoding="utf-8"),
        DEMO_CONFIG: json.dumps(config, indent=2) + "\n",
        "requirements.txt": "\n".join(map(pinned, ("torch", "transformers", "safetensors"))) + "\n",
        "README.md": readme,
    }
