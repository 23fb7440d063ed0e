"""Plan the push of a finished run to the Hub; push it as one commit, load it back, and create its
demo Space.

A push that fails or is cancelled changes no repository, but may leave a new one that is empty.
Uploaded files are not sent again.
Source: https://huggingface.co/docs/huggingface_hub/guides/upload
"""

import contextlib
import fnmatch
import io
import json
import re
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    ModelCard,
    ModelInfo,
    SpaceCardData,
    snapshot_download,
)
from huggingface_hub.errors import RepositoryNotFoundError
from numpy.typing import NDArray

from finetune.config import is_upload
from finetune.data import catalog, checkpoints
from finetune.errors import FinetuneError, PublishError
from finetune.hub import model_card
from finetune.hub.client import Account, HubClient, default_sleep_time
from finetune.hub.downloads import pinned
from finetune.inference import quantized
from finetune.messages import Text
from finetune.messages import message as _
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.runs.summary import ENDED

# Models are equal if no logit differs by more. Equal weights give differences of some 1e-8 if other
# layers or threads add in another order; different weights give larger ones.
TOLERANCE = 1e-4
DEMO_APP = Path(__file__).parent / "templates" / "space_app.py"  # of every demo Space
# Files beside the card, not in folders, that `from_pretrained` may read. Those of an earlier model
# would be mixed with this one.
_OF_A_MODEL = (
    "*.safetensors", "*.safetensors.index.json", "pytorch_model*", "*.h5", "*.msgpack",
    "adapter_*", "config.json", "generation_config.json", "tokenizer*", "vocab.*", "merges.txt",
    "special_tokens_map.json", quantized.MODEL, "added_tokens.json", "*.model", "sentencepiece*",
)  # fmt: skip
DEMO_CONFIG = "finetune.json"  # marks a demo Space made here
Files = dict[str, bytes | Path]  # path in the repository -> content, or the file that has it


@dataclass(frozen=True)
class PushRequest:
    """A request to push a run to a repository."""

    name: str  # of the repository, with or without a namespace
    private: bool = False  # of a new repository; a public one takes nothing private
    licence: str | None = None  # as the Hub spells it, empty for none; None for the base model's
    demo: bool = False  # True to create a Space, too, `<name>-demo`, to try the model in
    hardware: str = "cpu-basic"  # of that Space, as the Hub names it; some is billed
    update: bool = False  # True to add a commit to a repository that has files


@dataclass(frozen=True)
class PushPlan:
    """The effects of a push, as far as they can be known before the first byte."""

    account: Account  # of the token
    full: str  # the repository, `namespace/name`
    exists: bool  # True if it exists; the push adds a commit to it
    head: str  # its latest commit; empty if there is none
    private: bool  # True if it is private or will be
    files: dict[str, int]  # path -> bytes of everything that is sent
    held: int = 0  # number of its files, except those that the Hub makes
    removed: list[str] = field(default_factory=list)  # files of an earlier model to remove
    licence: str = ""  # of the card; empty for none
    base_licence: str = ""  # of the base model; empty if it is unknown
    demo: str = ""  # the demo Space; empty for none
    demo_exists: bool = False
    hardware: str = ""  # of a new demo Space, with its price
    billed: bool = False  # True if the hardware is billed

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.files.values())

    @property
    def price(self) -> str:
        """The price of the demo Space; empty if it is not billed."""
        return f"{self.demo}: {self.hardware}" if self.billed else ""

    @property
    def to_approve(self) -> set[str]:
        """Changes that a person must see before the push: a repository with files, a price."""
        return {self.full if self.held else "", self.price} - {""}


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


def suggested_name(run: Run) -> str:
    """A repository name made from the run's checkpoint and dataset."""
    config = run.config()
    checkpoint = config.checkpoint.removesuffix("(bundled)").strip().rsplit("/")[-1]
    source = "own" if is_upload(config.dataset) else config.dataset.rsplit("/")[-1]
    noun = "pairs" if run.state().paired else "texts"
    text = f"{checkpoint}-{source}-{noun}".lower()
    return re.sub(r"[^a-z0-9._-]+", "-", text).strip("-.")[:96]


def plan_push(run: Run, request: PushRequest, token: str | None) -> PushPlan:
    """Plan a push without changing anything; PublishError if it is not possible."""
    return prepare_push(run, request, HubClient(token))[0]


def prepare_push(run: Run, request: PushRequest, hub: HubClient) -> tuple[PushPlan, Files]:
    """Plan a push as `plan_push` does; returns also the files to send."""
    summary = run.state()
    if not run.has_model():
        raise PublishError("This run has no saved model.", "Train it until the first evaluation.")
    if summary.status not in ENDED:
        raise PublishError(
            "This run is still training.", "Wait for its end or stop it; then push its best model."
        )
    account = hub.account()
    full = account.repo_id(request.name)

    def repository() -> ModelInfo | None:
        with contextlib.suppress(RepositoryNotFoundError):
            return hub.api.model_info(full)
        return None

    info = hub.call(_("Looking for {full}", full=full), repository)
    if request.private and info is not None and not info.private:
        raise PublishError(
            "{full} exists and is public: anybody can read what is pushed there.",
            "Push without Private, or choose another name.",
            full=full,
        )
    base, licence = _licences(run, request, hub)
    card = model_card.card_text(run, summary, full, licence)
    hub.call(_("The card of {full}", full=full), ModelCard(card).validate)
    # Not what begins with a dot: a killed process may leave it half-written.
    files: Files = {path.name: path for path in sorted(run.best.glob("[!.]*")) if path.is_file()}
    if quantized.is_enabled(run.best):
        files[quantized.MODEL] = run.best / quantized.MODEL
    files["README.md"] = card.encode()
    files["training_config.json"] = model_card.public_config(run.config()).to_json().encode()
    if (picture := model_card.curves_png(summary)) is not None:
        files[model_card.PICTURE] = picture
    held = {file.rfilename for file in info.siblings or []} if info else set()
    earlier = [path for path in held - set(files) if "/" not in path or path == quantized.MODEL]
    sizes = {
        path: len(content) if isinstance(content, bytes) else content.stat().st_size
        for path, content in files.items()
    }
    removed = {name for kind in _OF_A_MODEL for name in fnmatch.filter(earlier, kind)}
    head, private = ("", request.private) if info is None else (info.sha or "", bool(info.private))
    plan = PushPlan(
        account, full, info is not None, head, private, sizes, len(held - {".gitattributes"}),
        sorted(removed), licence, base,
    )  # fmt: skip
    return _with_demo(plan, request.hardware, hub) if request.demo else plan, files


def _with_demo(plan: PushPlan, hardware: str, hub: HubClient) -> PushPlan:
    """Add a demo of the model to the plan of a push. An existing Space keeps its hardware."""
    if plan.private:
        raise PublishError(
            "A demo of {full} could not read it: the repository is private.",
            "Push it without the demo, or make the repository public.",
            full=plan.full,
        )
    space = f"{plan.full[:91]}-demo"
    if hub.space_files(space, DEMO_CONFIG) is not None:
        return replace(plan, demo=space, demo_exists=True)
    billed = default_sleep_time(hardware) is not None
    return replace(plan, demo=space, hardware=hub.price(hardware), billed=billed)


def _licences(run: Run, request: PushRequest, hub: HubClient) -> tuple[str, str]:
    """The licence of the base model, if it is known, and that of the card."""
    checkpoint = run.config().checkpoint
    base = model_card.base_licence(run.config())
    if not base and not catalog.is_local_path(checkpoint):
        with contextlib.suppress(PublishError):
            info = hub.call(_("Looking for the base model"), lambda: hub.api.model_info(checkpoint))
            named = getattr(info.card_data, "license", None)
            base = named if isinstance(named, str) else ""
    licence = base if request.licence is None else request.licence.strip().lower()
    if not re.fullmatch(r"[a-z0-9.+-]{0,60}", licence):
        raise PublishError(
            "{licence!r} is not a licence as the Hub spells it.",
            "Write it as in apache-2.0.",
            licence=licence,
        )
    return base, licence


def push_run(
    run: Run,
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
    plan, model_files = prepare_push(run, request, hub)
    if plan.billed and plan.price not in approved:
        raise PublishError(
            "The demo Space would be billed: {hardware}. Nothing was sent.",
            "Press Check to see the price, and push then; or choose cpu-basic, which is free.",
            hardware=plan.hardware,
        )
    if plan.held and not request.update and plan.full not in approved:
        raise RepositoryExists(
            "{full} exists already.",
            "Press Check to see what a push changes in it, and push then; or choose another name.",
            full=plan.full,
        )
    paired, length = run.state().paired, checkpoints.length_of(run.folder)
    score = partial(score_model, paired=paired, max_length=length)
    logits = score(run.best)  # a damaged model is not sent
    commit = _upload(hub, plan, model_files, report)
    progress = PushProgress(Phase.VERIFY, plan.size, plan.size, plan.full)
    report(progress)
    verification = verify_push(plan, commit, hub, score, logits)
    pushed = Pushed(f"{hub.api.endpoint}/{plan.full}", commit, not plan.exists, verification)
    if not plan.demo:
        return pushed
    if stopped():
        return replace(pushed, demo_problem=_("You cancelled before it was made."))
    report(replace(progress, phase=Phase.CREATE_DEMO))
    files = demo_files(plan.full, paired, plan.licence)
    additions = [CommitOperationAdd(path, content.encode()) for path, content in files.items()]
    action = _("Sending the demo to {demo}", demo=plan.demo)
    try:
        if not plan.demo_exists:
            hub.create_space(plan.demo, request.hardware)
        hub.commit(action, plan.demo, additions, f"A demo of {plan.full}", "space")
    except PublishError as error:
        return replace(pushed, demo_problem=error.text)
    return replace(pushed, demo=f"{hub.api.endpoint}/spaces/{plan.demo}")


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
            create = partial(hub.api.create_repo, plan.full, private=plan.private)
            exists = partial(hub.exists, plan.full)
            hub.change(_("Creating {full}", full=plan.full), create, exists)
        tell(Phase.UPLOAD, 0)
        upload = partial(hub.api.preupload_lfs_files, plan.full, operations)
        action = _("Sending the files to {full}", full=plan.full)
        hub.call(action, partial(upload, free_memory=False, num_threads=1))
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
        return scorer.scores(*([first, second] if paired else [first]))
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
            fetch = partial(
                snapshot_download, plan.full, revision=commit, local_dir=folder, max_workers=2,
                cache_dir=f"{folder}/.cache", token=hub.api.token, endpoint=hub.api.endpoint,
            )  # fmt: skip
            hub.call(_("Loading {full} back", full=plan.full), fetch, stoppable=False)
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


def demo_files(model: str, paired: bool, licence: str = "") -> dict[str, str]:
    """The files of the Space: path -> text. The model's repository must be public.

    Source of the front matter: https://huggingface.co/docs/hub/spaces-config-reference
    """
    examples = [list(pair[: 1 + paired]) for pair in model_card.EXAMPLES]
    sentences = ["sentence1", "sentence2"][: 1 + paired]
    config = {"model": model, "sentences": sentences, "examples": examples}
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
