"""Pushes a finished run to the Hub as one commit, loads it back, and makes its demo Space.

A push that fails or is cancelled has changed no repository, except that a new one may be there and
empty, and that a commit which the Hub did not confirm may arrive late; what was uploaded is not
sent again. Source: https://huggingface.co/docs/huggingface_hub/guides/upload
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, snapshot_download
from huggingface_hub.utils.tqdm import disable_progress_bars
from numpy.typing import NDArray

from finetune.data import checkpoints
from finetune.errors import Cancelled, FinetuneError, ModelError, PublishError
from finetune.evaluation import saved_predictions
from finetune.hub import demo, model_card
from finetune.hub.client import HubClient, HubRefused
from finetune.hub.push_plan import Files, PushPlan, PushRequest, prepare_push
from finetune.messages import message as _
from finetune.runs.events import Phase
from finetune.runs.run import Run, default_title
from finetune.runs.summary import RunSummary

PAIRS = 20  # validation pairs that the model here and the one from the Hub are asked
TOLERANCE = 1e-4  # of a logit, between the two


@dataclass(frozen=True)
class PushProgress:
    """How far a push is."""

    phase: Phase = Phase.CHECK_HUB
    sent: int = 0  # bytes sent, or there already
    total: int = 0  # bytes in all; 0 while unknown
    full: str = ""  # the repository


ProgressCallback = Callable[[PushProgress], None]


@dataclass(frozen=True)
class Verification:
    """The model from the Hub beside the one here."""

    pairs: int  # how many both were asked
    difference: float  # the largest of a logit
    problem: str = ""  # what differs, or why it could not be compared; empty where all is well


@dataclass(frozen=True)
class Pushed:
    """A push that the Hub confirmed."""

    url: str  # of the repository's page
    commit: str  # its sha
    created: bool  # whether the repository is new
    verified: Verification | None = None  # what loading it back has shown, where that was asked for
    demo: str = ""  # the address of the Space, where there is one
    demo_problem: str = ""  # why there is none although it was wanted


class RepositoryExists(PublishError):
    """The repository `full` holds something, and nobody has said that it shall be updated."""

    def __init__(self, full: str) -> None:
        super().__init__(
            f"{full} exists already.",
            "Press Check to see what a push changes in it, and push then; or choose another name.",
        )
        self.full = full


class Billed(PublishError):
    """The demo Space of a plan would be billed, and nobody has agreed to its price."""

    def __init__(self, plan: PushPlan) -> None:
        super().__init__(
            f"The demo Space would be billed: {plan.hardware}. Nothing was sent.",
            "Press Check to see the price, and push then; or choose cpu-basic, which is free.",
        )
        self.plan = plan


def push_run(
    run: Run,
    summary: RunSummary,
    request: PushRequest,
    token: str | None,
    report: ProgressCallback = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
    verified: bool = True,
) -> Pushed:
    """Send the best model, its tokenizer, the card and the configuration as one commit, and load
    them back.

    Everything is checked before the first byte. Blocks until it is done, so call it from a thread.

    Args:
        run: the run whose `best/` is sent.
        summary: the fold over its events, for the card.
        token: used for these calls only.
        report: called with every progress.
        stopped: whether the person wants the end; asked often until the commit is made.
        verified: whether to load the model back and compare.

    Raises:
        Cancelled: when the end was wanted, and nothing was committed.
        RepositoryExists: when the repository holds something and is not to be updated.
        Billed: when a demo Space would be, and that was not agreed to.
        PublishError: when something is wrong with the run, the token, the name or the Hub's
            answer. It says whether a repository was left behind empty.
    """
    disable_progress_bars()  # they would go to the app's log, and the page has its own
    hub = HubClient(token, stopped)
    plan, files = prepare_push(run, summary, request, hub)
    if plan.billed and not request.pays:
        raise Billed(plan)
    if plan.held and not request.update:
        raise RepositoryExists(plan.full)
    upload = Upload(hub, plan, report)
    logits = score_saved_model(run, summary)
    title = run.about().name or default_title(model_card.public_config(run.config()))
    commit = upload.send(files, f"Fine-tuned with Finetune: {title}"[:200])
    report(progress := replace(upload.progress, phase=Phase.VERIFY))
    pushed = Pushed(f"{hub.api.endpoint}/{plan.full}", commit, upload.created)
    if verified:
        comparison = verify_push(run, summary, plan.full, commit, logits, hub)
        pushed = replace(pushed, verified=comparison)
    if plan.demo and stopped():
        return replace(pushed, demo_problem="You cancelled before it was made.")
    if plan.demo:
        report(replace(progress, phase=Phase.CREATE_DEMO))
        length = checkpoints.length_of(run.folder)
        texts = demo.demo_files(plan.full, summary.paired, length, plan.licence)
        url, problem = demo.push_demo(plan, request.hardware, texts, hub)
        pushed = replace(pushed, demo=url, demo_problem=problem)
    return pushed


class _CountedFile(io.BufferedReader):
    """A file whose bytes are counted as they are sent, and which ends when the end is wanted.

    The client sends what it reads from an object, rather than from a path, as plain files over
    HTTP and not as Xet's chunks: only so is a push counted in bytes and soon cancelled.
    """

    def __init__(self, path: Path, check_stopped: Callable[[], None]) -> None:
        super().__init__(io.FileIO(path))
        self._check_stopped = check_stopped
        self.sent = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_stopped()
        piece = super().read(size)
        self.sent = self.tell()
        return piece


class Upload:
    """One push under way: how far it is, and whether it has made the repository."""

    def __init__(self, hub: HubClient, plan: PushPlan, report: ProgressCallback) -> None:
        self._hub, self._plan, self._report = hub, plan, report
        self._files: list[_CountedFile] = []
        self.created = False
        self.progress = PushProgress(Phase.READ_FILES, 0, plan.size, plan.full)
        report(self.progress)

    def send(self, files: Files, message: str) -> str:
        """Make the repository, send what the Hub does not have, then make one commit of all; its
        sha."""
        with contextlib.ExitStack() as open_files:
            additions = []
            for path, content in files.items():
                source: Any = content
                if isinstance(content, Path):
                    source = _CountedFile(content, self._hub.check_stopped)
                    self._files.append(open_files.enter_context(source))
                additions.append(CommitOperationAdd(path, source))  # reads it, for its hash
            for file in self._files:
                file.sent = 0
            self._hub.beat = self._bytes_sent
            try:
                return self._commit(additions, message)
            except PublishError as error:
                if not self.created:
                    raise
                fact = f"{error.fact} The repository {self._plan.full} was made, without a model."
                kind = Cancelled if isinstance(error, Cancelled) else PublishError
                raise kind(fact, error.remedy) from None

    def _commit(self, additions: list[CommitOperationAdd], message: str) -> str:
        hub, full = self._hub, self._plan.full
        parent = self._plan.head
        if not self._plan.exists:
            self._tell(Phase.CREATE_REPOSITORY)
            hub.call(
                _("Creating {full}", full=full),
                lambda: hub.api.create_repo(full, private=self._plan.private),
                stoppable=False,
            )
            self.created = True
            # What the new repository holds: of two commits on it, one of them late, one arrives.
            parent = (
                hub.call(_("Looking into {full}", full=full), lambda: hub.api.model_info(full)).sha
                or ""
            )
        self._tell(Phase.UPLOAD)
        hub.call(
            _("Sending the files to {full}", full=full),
            lambda: hub.api.preupload_lfs_files(full, additions, free_memory=False, num_threads=1),
        )
        self.progress = replace(self.progress, sent=self._plan.size)
        self._tell(Phase.COMMIT)
        hub.check_stopped()  # the last moment: a commit cannot be taken back
        operations: list[Any] = [*additions, *map(CommitOperationDelete, self._plan.removed)]
        try:
            commit = hub.call(
                _("The push to {full}", full=full),
                lambda: hub.api.create_commit(
                    full, operations, commit_message=message, parent_commit=parent or None
                ),
                stoppable=False,
            )
        except PublishError as error:
            if isinstance(error, HubRefused) and error.status < 500:
                raise
            raise PublishError(
                "{fact} The commit may still arrive.",
                "Look into the repository in a minute, and push again if it has not arrived.",
                fact=error.fact,
            ) from None
        self._tell(Phase.COMMITTED)
        return str(commit.oid)

    def _tell(self, phase: Phase) -> None:
        self.progress = replace(self.progress, phase=phase)
        self._report(self.progress)

    def _bytes_sent(self) -> int:
        """Bytes sent so far; reports them where they are more."""
        sent = sum(file.sent for file in self._files)
        if sent > self.progress.sent:
            self.progress = replace(self.progress, sent=sent)
            self._report(self.progress)
        return sent


def score_model(run: Run, summary: RunSummary, folder: Path) -> NDArray[np.float32]:
    """The logits, of shape (pairs, classes), that a saved model gives to the run's first
    validation pairs, or to sentences of the project's own where those were not kept."""
    from finetune.inference.scorer import Scorer

    sentences = [list(column) for column in zip(*model_card.EXAMPLES, strict=True)]
    table = saved_predictions.read_examples(run)
    if table is not None and table.num_rows:
        names = ["sentence1", "sentence2"][: 1 + summary.paired]
        sentences = [table.column(name).slice(0, PAIRS).to_pylist() for name in names]
    length = checkpoints.length_of(run.folder)
    scorer = Scorer(folder, length, "fp32", "cpu", threads=1, aside=True)
    try:
        return scorer.scores(sentences[0], sentences[1] if summary.paired else None)
    finally:
        scorer.free()


def score_saved_model(run: Run, summary: RunSummary) -> NDArray[np.float32]:
    """As `score_model`, of the model in `best/`, after which it may be pushed."""
    try:
        return score_model(run, summary, run.best)
    except ModelError as error:
        raise PublishError("{fact} Nothing was sent.", error.remedy, fact=error.fact) from None
    except Exception as error:  # damage raises whatever its bytes lead to
        reason = " ".join(str(error).split())[:300].rstrip(". ") or type(error).__name__
        raise PublishError(
            "The saved model cannot be scored: {reason}. Nothing was sent.",
            "Train it again.",
            reason=reason,
        ) from None


def verify_push(
    run: Run, summary: RunSummary, full: str, commit: str, local: NDArray[np.float32],
    hub: HubClient,
) -> Verification:  # fmt: skip
    """Load a pushed model from the Hub and ask it what the one here was asked.

    It comes into a temporary folder rather than into the Hub's cache, which visitors share.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="finetune-verify-") as folder:
            hub.beat = time.monotonic  # a download has the client's own time limits
            hub.call(
                _("Loading {full} back", full=full),
                lambda: snapshot_download(
                    full, revision=commit, local_dir=folder, token=hub.api.token, max_workers=2,
                    endpoint=hub.api.endpoint,
                ),
            )  # fmt: skip
            pushed = score_model(run, summary, Path(folder))
    except Cancelled:
        return Verification(0, 0.0, "It was not loaded back: you cancelled that.")
    except FinetuneError as error:
        return Verification(0, 0.0, _("It could not be loaded back. {error}", error=error))
    difference = float(np.abs(local - pushed).max(initial=0.0))
    problem = ""
    if not difference <= TOLERANCE:
        problem = _(
            "A logit differs by {difference:.3g}; {tolerance:g} is allowed.",
            difference=difference,
            tolerance=TOLERANCE,
        )
    return Verification(len(local), difference, problem)
