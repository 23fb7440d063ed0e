"""A finished run on the Hub: what a push would do, the push as one commit, and the proof.

Free of torch until the model is scored, before the push and after it. A token is an argument of one
call and is kept nowhere; it must not reach a file, a log, an event or an error's text. A push that
fails or is cancelled has changed no repository, except that a new one may be there and empty, and
that a commit which the Hub did not confirm may arrive late; what was uploaded is not sent again.

Source: https://huggingface.co/docs/huggingface_hub/guides/upload
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    ModelCard,
    ModelInfo,
    snapshot_download,
)
from huggingface_hub.utils.tqdm import disable_progress_bars
from numpy.typing import NDArray

from finetune import text_hashes
from finetune.config import is_upload
from finetune.data import catalog, checkpoints
from finetune.environment import hub_connection
from finetune.errors import Cancelled, FinetuneError, ModelError, PublishError, StoreError, some
from finetune.evaluation import saved_predictions
from finetune.hub import curves_picture, demo, model_card
from finetune.hub.client import (  # fmt: skip
    Account,
    HubClient,
    HubRefused,
    default_sleep_time,
    full_repo_id,
    never_stop,
    stored_token,
    undecided,
    whoami,
)
from finetune.metrics.calibration import probabilities
from finetune.runs.store import Run, default_title
from finetune.runs.summary import ENDED, RunSummary

__all__ = [
    "Account",
    "Billed",
    "PushPlan",
    "PushProgress",
    "PushRequest",
    "Pushed",
    "RepositoryExists",
    "Verification",
    "full_repo_id",
    "plan_push",
    "push_run",
    "stored_token",
    "suggested_name",
    "verify_push",
    "whoami",
]  # fmt: skip

PAIRS = 20  # validation pairs that the model here is asked before a push, and the Hub's after it
TOLERANCE = 1e-4  # of a logit, between the two
_DRIFT = 0.1  # of probability, between the model here in fp32 and its evaluation, perhaps in bf16
_SMALL = 2**20  # bytes, up to which a file is read at once rather than streamed
# What `from_pretrained` may read beside the card, never in a folder: of an earlier model, it would
# be mixed with this one.
_OF_A_MODEL = (
    "*.safetensors", "*.safetensors.index.json", "pytorch_model*", "*.h5", "*.msgpack",
    "adapter_*", "config.json", "generation_config.json", "tokenizer*", "vocab.*", "merges.txt",
    "special_tokens_map.json", "added_tokens.json", "*.model", "sentencepiece*",
)  # fmt: skip


@dataclass(frozen=True)
class PushRequest:
    """What shall be pushed where.

    Args:
        name: of the repository, with or without a namespace.
        private: whether a new repository is private; one that exists stays as it is, so one that
            is public takes nothing private.
        licence: as the Hub spells it, empty for none; None for that of the base model.
        demo: whether to make a Space too, `<name>-demo`, in which anybody can try the model.
        hardware: of that Space, as the Hub names it; some is billed.
        update: whether a repository that holds something already gets a new commit.
        pays: whether a new Space may be on hardware that is billed.
    """

    name: str
    private: bool = False
    licence: str | None = None
    demo: bool = False
    hardware: str = "cpu-basic"
    update: bool = False
    pays: bool = False


@dataclass(frozen=True)
class PushPlan:
    """What a push will do, as far as it can be known before the first byte.

    Args:
        account: whose token it is.
        full: the repository, `namespace/name`.
        exists: whether it is there; then the push is a new commit in it.
        head: its latest commit; empty where there is none.
        held: how many files it holds, beside what the Hub itself makes.
        private: whether it is or will be private.
        files: path -> bytes of everything that is sent.
        replaced, removed: paths that are there and get new content, and those of an earlier model
            that go.
        licence: as the card says it; empty for none.
        base_licence: of the base model; empty where nobody knows.
        demo: the Space that is made too; empty for none.
        demo_exists: whether that is there.
        hardware: of a Space that is made, with its price as far as the Hub tells it and when it
            sleeps; empty for one that is there, which keeps its own.
        billed: whether that is.
    """

    account: Account
    full: str
    exists: bool
    head: str
    private: bool
    files: dict[str, int]
    held: int = 0
    replaced: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    licence: str = ""
    base_licence: str = ""
    demo: str = ""
    demo_exists: bool = False
    hardware: str = ""
    billed: bool = False

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.files.values())


@dataclass(frozen=True)
class PushProgress:
    """How far a push is.

    Args:
        doing: what it does now.
        sent: bytes sent, or there already.
        total: bytes in all; 0 while unknown.
        there: bytes that the Hub had from before.
        full: the repository; empty while unknown.
        created: whether the push made it.
    """

    doing: str = "checking"
    sent: int = 0
    total: int = 0
    there: int = 0
    full: str = ""
    created: bool = False


@dataclass(frozen=True)
class Verification:
    """The model from the Hub beside the one here.

    Args:
        pairs: how many both were asked.
        difference: the largest difference of a logit.
        problem: what differs, or why it could not be compared; empty where all is well.
    """

    pairs: int
    difference: float
    problem: str = ""


@dataclass(frozen=True)
class Pushed:
    """A push that the Hub confirmed.

    Args:
        url: the repository's page.
        commit: the commit's sha.
        created: whether the repository is new.
        verified: what loading it back has shown; None where that was not asked for.
        demo: the address of the Space; empty where there is none.
        demo_problem: why there is none although it was wanted.
    """

    url: str
    commit: str
    created: bool
    verified: Verification | None = None
    demo: str = ""
    demo_problem: str = ""


class RepositoryExists(PublishError):
    """A repository holds something already, and nobody has said that it shall be updated.

    Args:
        full: the repository, `namespace/name`.
    """

    def __init__(self, full: str) -> None:
        super().__init__(
            f"{full} exists already.",
            "Press Check to see what a push changes in it, and push then; or choose another name.",
        )
        self.full = full


class Billed(PublishError):
    """A demo Space would be billed, and nobody has agreed to its price.

    Args:
        plan: of the push.
    """

    def __init__(self, plan: PushPlan) -> None:
        super().__init__(
            f"The demo Space would be billed: {plan.hardware}. Nothing was sent.",
            "Press Check to see the price, and push then; or choose cpu-basic, which is free.",
        )
        self.plan = plan


ProgressCallback = Callable[[PushProgress], None]


def ignore_progress(progress: PushProgress) -> None:
    """Who is told, and does nothing."""


def suggested_name(run: Run) -> str:
    """A repository name made from the run's checkpoint and dataset."""
    chosen = run.config()
    checkpoint = chosen.checkpoint.removesuffix("(bundled)").strip().rsplit("/")[-1]
    source = "own" if is_upload(chosen.dataset) else chosen.dataset.rsplit("/")[-1]
    text = f"{checkpoint}-{source}-pairs".lower()
    return re.sub(r"[^a-z0-9._-]+", "-", text).strip("-.")[:96]


def plan_push(run: Run, summary: RunSummary, wanted: PushRequest, token: str | None) -> PushPlan:
    """What a push would do; changes nothing.

    Args:
        run: the run whose `best/` is sent.
        summary: the fold over its events.
        wanted: what shall be pushed where.
        token: used for these calls only.

    Raises:
        PublishError: when the run has no model or has not ended, or something is wrong with the
            token, the name, the licence or the Hub's answer.
    """
    return _plan(run, summary, wanted, HubClient(token), _contents(run, summary))


def push_run(
    run: Run,
    summary: RunSummary,
    wanted: PushRequest,
    token: str | None,
    told: ProgressCallback = ignore_progress,
    stopped: Callable[[], bool] = never_stop,
    verified: bool = True,
) -> Pushed:
    """Send the best model, its tokenizer, the card and the configuration as one commit, and load
    them back.

    Everything is checked before the first byte. Blocks until it is done, so call it from a thread.

    Args:
        run: the run whose `best/` is sent.
        summary: the fold over its events, for the card.
        wanted: what shall be pushed where.
        token: used for these calls only.
        told: called with every progress.
        stopped: whether the person wants the end; asked often until the commit is made.
        verified: whether to load the model back and compare.

    Raises:
        Cancelled: when the end was wanted, and nothing was committed.
        Exists: when the repository holds something and is not to be updated.
        Billed: when a demo Space would be, and that was not agreed to.
        PublishError: when something is wrong with the run, the token, the name or the Hub's
            answer. It says whether a repository was left behind empty.
    """
    disable_progress_bars()  # they would go to the app's log, and the page has its own
    hub = HubClient(token, stopped)
    with contextlib.ExitStack() as opened:
        contents = _contents(run, summary)
        plan = _plan(run, summary, wanted, hub, contents)
        if plan.billed and not wanted.pays:
            raise Billed(plan)
        sending = _Sending(hub, plan, told)
        contents["README.md"] = _card(run, summary, plan)
        sending.open(contents, opened)
        commit = sending.arrived()
        if plan.held and not wanted.update and not commit:
            raise RepositoryExists(plan.full)
        here = _answers_here(run, summary)
        commit = commit or sending.carry_out(f"Fine-tuned with Finetune: {_title(run)}"[:200])
    progress = replace(sending.progress, doing="loading it back to compare")
    told(progress)
    pushed = Pushed(f"{hub_connection.hub_endpoint()}/{plan.full}", commit, sending.created)
    if verified:
        verified_now = verify_push(run, summary, plan.full, commit, token, stopped, here)
        pushed = replace(pushed, verified=verified_now)
    if plan.demo and stopped():
        return replace(pushed, demo_problem="You cancelled before it was made.")
    if plan.demo:
        told(replace(progress, doing="making the demo Space"))
        pushed = _with_demo(run, summary, plan, hub, wanted, pushed)
    return pushed


# What is sent, and what is there.


def _contents(run: Run, summary: RunSummary) -> dict[str, bytes | Path]:
    """Path in the repository -> its content or file; the card comes later."""
    if not run.has_model():
        raise PublishError("This run has no saved model.", "Train it until the first evaluation.")
    if summary.status not in ENDED:
        raise PublishError(
            "This run is still training.", "Wait for its end or stop it; then push its best model."
        )
    files: dict[str, bytes | Path] = {
        path.name: path for path in sorted(run.best.iterdir()) if path.is_file()
    }
    files["README.md"] = b""
    files["training_config.json"] = model_card.public_config(run.config()).to_json().encode()
    files["metrics.json"] = (json.dumps(_metrics(summary), indent=2) + "\n").encode()
    if (drawn := curves_picture.curves_png(summary)) is not None:
        files[model_card.PICTURE] = drawn
    return files


def _title(run: Run) -> str:
    """What a run is called, without the names of a person's files."""
    return run.about().name or default_title(model_card.public_config(run.config()))


def _metrics(summary: RunSummary) -> dict[str, Any]:
    best = summary.best
    return {
        "step": best.step if best else summary.saved_step,
        "validation": best.metrics if best else {},
        "intervals_95": best.intervals if best else {},
        "majority_baseline": summary.prepared.majority if summary.prepared else {},
        "baselines": summary.baselines,
        "test": [
            {"step": one.step, "scores": one.metrics, "threshold": one.threshold,
             "at_threshold": one.at_threshold}
            for one in summary.opened
        ],
    }  # fmt: skip


def _plan(
    run: Run,
    summary: RunSummary,
    wanted: PushRequest,
    hub: HubClient,
    contents: dict[str, bytes | Path],
) -> PushPlan:
    who = hub.account()
    full = full_repo_id(wanted.name, who.name)
    if not who.may_write(full):
        raise PublishError(
            f"{who.name} may not write to {full.split('/')[0]!r}.",
            f"Choose one of: {', '.join([*who.namespaces, *who.repos])}.",
        )
    base = model_card.base_licence(run.config()) or _hub_licence(run, hub)
    licence = base if wanted.licence is None else wanted.licence.strip().lower()
    if not re.fullmatch(r"[a-z0-9.+-]{0,60}", licence):
        raise PublishError(
            f"{licence!r} is not a licence as the Hub spells it.", "Write it as in apache-2.0."
        )
    plan = PushPlan(
        account=who, full=full, exists=False, head="", private=wanted.private,
        files={path: len(one) if isinstance(one, bytes) else one.stat().st_size
               for path, one in contents.items()},
        licence=licence, base_licence=base,
    )  # fmt: skip
    plan = _beside(plan, hub)
    written = _card(run, summary, plan)
    hub.call(f"The card of {full}", lambda: _valid(written))
    plan = replace(plan, files=plan.files | {"README.md": len(written)})
    return _demo_plan(plan, wanted, hub) if wanted.demo else plan


def _beside(plan: PushPlan, hub: HubClient) -> PushPlan:
    """The plan with what the repository holds already, if there is one."""
    if not hub.call(f"Looking for {plan.full}", lambda: hub.api.repo_exists(plan.full)):
        if plan.full.split("/")[0] not in plan.account.namespaces:
            raise PublishError(
                f"The token may write to {plan.full}, but there is no such repository.",
                "Make it first, or take a token that may make repositories.",
            )
        return plan
    info = hub.call(f"Looking into {plan.full}", lambda: hub.api.model_info(plan.full))
    if plan.private and not info.private:
        raise PublishError(
            f"{plan.full} exists and is public: anybody can read what is pushed there.",
            "Push without Private, or choose another name.",
        )
    held = [one.rfilename for one in info.siblings or []]
    return replace(
        plan,
        exists=True,
        head=_head(info),
        private=bool(info.private),
        held=len(set(held) - {".gitattributes"}),
        replaced=sorted(set(held) & set(plan.files)),
        removed=sorted(
            path for path in held if path not in plan.files and "/" not in path
            and any(fnmatch.fnmatch(path, kind) for kind in _OF_A_MODEL)
        ),
    )  # fmt: skip


def _head(info: ModelInfo) -> str:
    """The latest commit; empty where there is none."""
    return info.sha if info.sha and set(info.sha) != {"0"} else ""


def _hub_licence(run: Run, hub: HubClient) -> str:
    """What the Hub knows of the base model's licence; empty where that is nothing."""
    checkpoint = run.config().checkpoint
    if catalog.is_local_path(checkpoint):
        return ""
    with contextlib.suppress(PublishError, AttributeError):
        info = hub.call("Looking for the base model", lambda: hub.api.model_info(checkpoint))
        found = info.card_data.get("license") if info.card_data else ""
        return found if isinstance(found, str) else ""
    return ""


def _card(run: Run, summary: RunSummary, plan: PushPlan) -> bytes:
    found = model_card.check_findings(run, summary)
    return model_card.card_text(run, summary, plan.full, plan.licence, found).encode()


def _valid(written: bytes) -> None:
    try:
        ModelCard(written.decode()).validate()
    except ValueError as error:
        reason = " ".join(str(error).split())[:300]
        raise PublishError(
            f"The Hub does not take the card: {reason}", "Change the licence or the name."
        ) from None


# The push itself.


class _Stream(io.BufferedIOBase):
    """A file whose bytes are counted as they are sent, and which ends when the end is wanted.

    The client sends what it reads from an object, rather than from a path or from bytes, as plain
    files over HTTP and not as Xet's chunks: only so is a push counted in bytes and soon cancelled.
    """

    def __init__(self, file: Any, check: Callable[[], None]) -> None:
        self._file, self._check = file, check
        self.sent = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._check()
        piece: bytes = self._file.read(size)
        self.sent = self._file.tell()
        return piece

    def seek(self, offset: int, whence: int = 0, /) -> int:
        place: int = self._file.seek(offset, whence)
        return place

    def tell(self) -> int:
        return int(self._file.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class _Sending:
    """One push under way."""

    def __init__(self, hub: HubClient, plan: PushPlan, told: ProgressCallback) -> None:
        self.hub, self.plan, self.told = hub, plan, told
        self.created = False
        self.progress = PushProgress("reading the files", 0, plan.size, full=plan.full)
        self._operations: list[CommitOperationAdd] = []
        self._streams: dict[str, _Stream] = {}
        self._done = 0  # bytes of files that are there whole
        self._now: _Stream | None = None
        self._mark = ""
        self._parent = plan.head
        hub.beat = self._beat

    def open(self, contents: dict[str, bytes | Path], opened: contextlib.ExitStack) -> None:
        """Open and read everything: a model saved meanwhile does not mix in."""
        self.told(self.progress)
        for path, content in contents.items():
            try:
                given = self._opened(path, content, opened)
                self._operations.append(CommitOperationAdd(path, given))  # reads it, for its hash
            except OSError as error:
                raise PublishError(
                    f"{path} cannot be read: {error.strerror or error}.", "Try again."
                ) from error
        for stream in self._streams.values():
            stream.sent = 0
        total = sum(one.upload_info.size for one in self._operations)
        self.progress = replace(self.progress, total=total)
        digest = hashlib.sha256()
        for one in sorted(self._operations, key=lambda one: one.path_in_repo):
            digest.update(f"{one.path_in_repo} {one.upload_info.sha256.hex()}\n".encode())
        self._mark = digest.hexdigest()[:32]

    def _opened(self, path: str, content: bytes | Path, opened: contextlib.ExitStack) -> Any:
        """Something to read a file's content from; the large ones are counted."""
        if isinstance(content, bytes):
            return io.BytesIO(content)
        if content.stat().st_size <= _SMALL:
            return io.BytesIO(content.read_bytes())
        file = opened.enter_context(content.open("rb"))
        stream = self._streams[path] = _Stream(file, self.hub.check)
        return stream

    def carry_out(self, message: str) -> str:
        """Make the repository, upload, commit; the commit's sha."""
        try:
            self._create()
            return self._commit(message)
        except Cancelled as error:
            raise Cancelled(f"{error.fact}{self._left}", error.remedy) from None

    def _create(self) -> None:
        """Make the repository where there is none."""
        if self.plan.exists:
            return
        full, private = self.plan.full, self.plan.private
        self._tell(f"making {full}")
        self.hub.call(
            f"Creating {full}", lambda: self.hub.api.create_repo(full, private=private),
            stoppable=False,
        )  # fmt: skip
        self.created = True
        # What the new repository holds: of two commits on it, one of them late, one arrives.
        info = self.hub.call(
            f"Looking into {full}", lambda: self.hub.api.model_info(full), self._left
        )
        self._parent = _head(info)

    @property
    def _left(self) -> str:
        made = f" The repository {self.plan.full} was made but holds no model yet."
        return made if self.created else ""

    def _commit(self, message: str) -> str:
        """Upload what the Hub does not have, then make one commit of all; its sha.

        The commit's description is a mark of its content: a commit that was given up too early is
        known by it when it has arrived after all.
        """
        self._upload()
        self._tell("committing")
        hub, plan = self.hub, self.plan
        operations: list[Any] = [*self._operations, *map(CommitOperationDelete, plan.removed)]
        hub.check()  # the last moment: a commit cannot be taken back
        try:
            made = hub.call(
                f"The push to {plan.full}",
                lambda: hub.api.create_commit(
                    plan.full, operations=operations, commit_message=message,
                    commit_description=f"Push {self._mark}", parent_commit=self._parent or None,
                ),
                self._left,
                stoppable=False,
            )  # fmt: skip
        except PublishError as error:
            overtaken = isinstance(error, HubRefused) and error.status == 412
            if not overtaken and not undecided(error):
                raise
            with contextlib.suppress(PublishError):
                if commit := self._landed():
                    return commit
            if overtaken:
                raise
            raise PublishError(
                f"{error.fact} The commit may still arrive.",
                "Wait a minute and push again: what has arrived by then is not sent twice.",
            ) from None
        self._tell("committed", self.progress.total)
        return str(made.oid)

    def _upload(self) -> None:
        api, full = self.hub.api, self.plan.full
        small = [one for one in self._operations if one.path_in_repo not in self._streams]
        batches = [small, *([one] for one in self._operations if one not in small)]
        for batch in batches:
            names = (
                ", ".join(one.path_in_repo for one in batch) if len(batch) == 1 else "small files"
            )
            self._now = self._streams.get(batch[0].path_in_repo)
            self._tell(f"sending {names}")
            self.hub.call(
                f"Sending {names} to {full}",
                lambda batch=batch: api.preupload_lfs_files(  # type: ignore[misc]
                    full, batch, free_memory=False, num_threads=1
                ),
                self._left,
            )  # fmt: skip
            size = sum(one.upload_info.size for one in batch)
            if self._now is not None and not self._now.sent:
                self.progress = replace(self.progress, there=self.progress.there + size)
            self._done, self._now = self._done + size, None
            self._tell(self.progress.doing)

    def arrived(self) -> str:
        """The head of the repository, where that is a push of the very same files; else empty."""
        head = self.plan.head
        return self._landed(head) if head else ""

    def _landed(self, head: str = "") -> str:
        """The commit of these files since what was there before, or as `head`; empty for none."""
        found = self.hub.call(
            "Looking for the commit", lambda: self.hub.api.list_repo_commits(self.plan.full)
        )
        for one in found[: 1 if head else 10]:
            if not head and one.commit_id == self._parent:
                break
            if self._mark in one.message:
                return str(one.commit_id)
        return ""

    def _tell(self, doing: str, sent: int | None = None) -> None:
        now = self._done + (self._now.sent if self._now else 0) if sent is None else sent
        self.progress = replace(self.progress, doing=doing, sent=now, created=self.created)
        self.told(self.progress)

    def _beat(self) -> int:
        """Bytes sent so far; telling them is cheap."""
        sent = self._done + (self._now.sent if self._now else 0)
        if sent != self.progress.sent:
            self._tell(self.progress.doing)
        return sent


# The proof.


@dataclass(frozen=True)
class Answers:
    """What a model says of the pairs it is asked here.

    Args:
        labels: the names of its classes.
        logits: of shape (pairs, classes).
    """

    labels: list[str]
    logits: NDArray[np.float32]


def verify_push(
    run: Run,
    summary: RunSummary,
    full: str,
    commit: str,
    token: str | None,
    stopped: Callable[[], bool],
    here: Answers,
) -> Verification:
    """Load a pushed model from the Hub and ask it what the one here is asked.

    It comes into a temporary folder rather than into the Hub's cache, which visitors share.

    Args:
        full: the repository, `namespace/name`.
        commit: its sha.
        token: used for these calls only.
        stopped: whether nobody waits for it any more.
        here: of the model here.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="finetune-verify-") as folder:
            _fetch(Path(folder), full, commit, token, stopped)
            return _compare(here, _answers(run, summary, Path(folder)))
    except Cancelled:
        return Verification(0, 0.0, "It was not loaded back: you cancelled that.")
    except FinetuneError as error:
        return Verification(0, 0.0, f"It could not be loaded back. {error}")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return Verification(0, 0.0, f"It could not be loaded back: {reason}.")


def _fetch(
    folder: Path, full: str, commit: str, token: str | None, stopped: Callable[[], bool]
) -> None:
    hub = HubClient(token, stopped)
    hub.beat = lambda: _bytes_in(folder)
    hub.call(
        f"Loading {full} back",
        lambda: snapshot_download(
            full, revision=commit, local_dir=folder, token=token,
            endpoint=hub_connection.hub_endpoint(),
            max_workers=2,
        ),
    )  # fmt: skip


def _bytes_in(folder: Path) -> int:
    """How much is there by now; a file may get its final name while it is looked at."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(root, name).stat().st_size
    return total


def _answers(run: Run, summary: RunSummary, folder: Path) -> Answers:
    """Load a model and score the pairs.

    Raises:
        ModelError: when it cannot be loaded, or answers with what is no number.
    """
    from finetune.inference.scorer import Scorer

    scorer = Scorer(
        folder,
        checkpoints.length_of(run.folder),
        summary.paired,
        "fp32",
        "cpu",
        threads=1,
        aside=True,
    )
    try:
        return Answers(scorer.labels, scorer.scores(*_asked(run, summary.paired)))
    finally:
        scorer.free()


def _answers_here(run: Run, summary: RunSummary) -> Answers:
    """What the model in `best/` says, after which it may be pushed.

    Raises:
        PublishError: when it is damaged: it cannot be scored, or says something else than it did
            in its evaluation.
    """
    try:
        here = _answers(run, summary, run.best)
    except ModelError as error:
        raise PublishError(f"{error.fact} Nothing was sent.", error.remedy) from None
    except Exception as error:  # damage raises whatever its bytes lead to
        reason = " ".join(str(error).split())[:300].rstrip(". ") or type(error).__name__
        raise PublishError(
            f"The saved model cannot be scored: {reason}. Nothing was sent.", "Train it again."
        ) from None
    learned = (
        [text_hashes.replace_surrogates(name) for name in summary.prepared.labels]
        if summary.prepared
        else []
    )
    problem = ""
    if learned and here.labels != learned:
        problem = f"its classes are {some(here.labels)}, and it has learned {some(learned)}"
    elif (drift := _drift(run, summary, here)) > _DRIFT:
        problem = f"its probabilities differ from those of its evaluation by {drift:.2f} on average"
    if problem:
        raise PublishError(
            f"The saved model is damaged: {problem}. Nothing was sent.", "Train it again."
        )
    return here


def _drift(run: Run, summary: RunSummary, here: Answers) -> float:
    """The mean total variation between a model's answers and those of its evaluation; 0 where the
    latter were not kept."""
    if summary.best is None or saved_predictions.read_examples(run) is None:
        return 0.0
    try:
        known = saved_predictions.read_logits(run, summary.best.step).logits[: len(here.logits)]
    except StoreError:
        return 0.0
    apart = np.abs(probabilities(known) - probabilities(here.logits))
    return float(apart.sum(axis=1).mean() / 2)


def _compare(here: Answers, there: Answers) -> Verification:
    pairs = len(here.logits)
    if here.labels != there.labels:
        return Verification(
            pairs, 0.0, f"Its classes are {there.labels}, those of the model here {here.labels}."
        )
    apart = float(np.abs(here.logits - there.logits).max()) if pairs else 0.0
    if not apart <= TOLERANCE:
        problem = f"A logit differs by {apart:.3g}; {TOLERANCE:g} is allowed."
        return Verification(pairs, apart, problem)
    return Verification(pairs, apart)


def _asked(run: Run, paired: bool) -> tuple[list[str], list[str] | None]:
    """The first validation pairs; sentences of our own where those were not kept."""
    table = saved_predictions.read_examples(run)
    if table is None or not table.num_rows:
        first, second = (list(one) for one in zip(*model_card.EXAMPLES, strict=True))
        return first, second if paired else None
    part = table.slice(0, PAIRS)
    names = ("sentence1", "sentence2") if paired else ("sentence1",)
    columns = [cast(list[str], part.column(name).to_pylist()) for name in names]
    return columns[0], columns[1] if paired else None


# The demo.


def _demo_plan(plan: PushPlan, wanted: PushRequest, hub: HubClient) -> PushPlan:
    if plan.private:
        raise PublishError(
            f"A demo of {plan.full} could not read it: the repository is private.",
            "Push it without the demo, or make the repository public.",
        )
    space = f"{plan.full[:91]}-demo"
    exists = hub.call(
        f"Looking for the Space {space}", lambda: hub.api.repo_exists(space, repo_type="space")
    )
    if exists and not hub.call(f"Looking into the Space {space}", lambda: _is_ours(hub, space)):
        raise PublishError(
            f"The Space {space} exists and is something else.", "Choose another repository name."
        )
    plan = replace(plan, demo=space, demo_exists=exists)
    if exists:
        return plan
    billed = default_sleep_time(wanted.hardware) is not None
    return replace(plan, hardware=_hardware(wanted.hardware, hub), billed=billed)


def _hardware(name: str, hub: HubClient) -> str:
    price, asleep = hub.hardware(name), default_sleep_time(name)
    if asleep is None:
        return price
    return f"{price}; it sleeps after {asleep // 60} minutes without a visitor"


def _is_ours(hub: HubClient, space: str) -> bool:
    """Whether a Space was made here, or holds nothing yet."""
    held = set(hub.api.list_repo_files(space, repo_type="space"))
    if "app.py" not in held:
        return not held - {"README.md", ".gitattributes"}
    with tempfile.TemporaryDirectory(prefix="finetune-demo-") as folder:
        path = hub.api.hf_hub_download(space, "app.py", repo_type="space", local_dir=folder)
        return demo.is_generated_app(Path(path).read_text(encoding="utf-8", errors="replace"))


def _with_demo(
    run: Run,
    summary: RunSummary,
    plan: PushPlan,
    hub: HubClient,
    wanted: PushRequest,
    pushed: Pushed,
) -> Pushed:
    """What was pushed, with the demo or why there is none: the model is there either way."""
    files = demo.demo_files(
        plan.full,
        summary.paired,
        checkpoints.length_of(run.folder),
        model_card.EXAMPLES,
        plan.licence,
    )
    space: Any = wanted.hardware
    try:
        if not plan.demo_exists:
            hub.call(
                f"Creating the Space {plan.demo}",
                lambda: hub.api.create_repo(
                    plan.demo,
                    repo_type="space",
                    space_sdk="gradio",
                    space_hardware=space,
                    space_sleep_time=default_sleep_time(wanted.hardware),
                ),
                stoppable=False,
            )
        left = "" if plan.demo_exists else f" The Space {plan.demo} was made but is empty."
        hub.call(
            f"Sending the demo to {plan.demo}",
            lambda: hub.api.create_commit(
                plan.demo, repo_type="space", commit_message=f"A demo of {plan.full}",
                operations=[CommitOperationAdd(path, text.encode())
                            for path, text in files.items()],
            ),
            left,
            stoppable=False,
        )  # fmt: skip
    except PublishError as error:
        free = isinstance(error, HubRefused) and error.status == 402
        remedy = (
            f"{wanted.hardware} takes an account that pays; choose other hardware or leave it out."
            if free
            else error.remedy
        )
        late = " It may still arrive." if undecided(error) else ""
        return replace(pushed, demo_problem=f"{error.fact}{late} {remedy}")
    return replace(pushed, demo=f"{hub_connection.hub_endpoint()}/spaces/{plan.demo}")
