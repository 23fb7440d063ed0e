"""Plan the push of a run without changing anything."""

from __future__ import annotations

import contextlib
import fnmatch
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from huggingface_hub import ModelCard, ModelInfo
from huggingface_hub.errors import RepositoryNotFoundError

from finetune.config import is_upload
from finetune.data import catalog
from finetune.errors import PublishError
from finetune.hub import model_card
from finetune.hub.client import Account, HubClient, default_sleep_time
from finetune.inference import quantized
from finetune.messages import message as _
from finetune.runs.run import Run
from finetune.runs.summary import ENDED, RunSummary

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


def suggested_name(run: Run) -> str:
    """A repository name made from the run's checkpoint and dataset."""
    config = run.config()
    checkpoint = config.checkpoint.removesuffix("(bundled)").strip().rsplit("/")[-1]
    source = "own" if is_upload(config.dataset) else config.dataset.rsplit("/")[-1]
    text = f"{checkpoint}-{source}-pairs".lower()
    return re.sub(r"[^a-z0-9._-]+", "-", text).strip("-.")[:96]


def plan_push(run: Run, summary: RunSummary, request: PushRequest, token: str | None) -> PushPlan:
    """Plan a push without changing anything; PublishError if it is not possible."""
    return prepare_push(run, summary, request, HubClient(token))[0]


def prepare_push(
    run: Run, summary: RunSummary, request: PushRequest, hub: HubClient
) -> tuple[PushPlan, Files]:
    """Plan a push as `plan_push` does; returns also the files to send."""
    if not run.has_model():
        raise PublishError("This run has no saved model.", "Train it until the first evaluation.")
    if summary.status not in ENDED:
        raise PublishError(
            "This run is still training.", "Wait for its end or stop it; then push its best model."
        )
    account = hub.account()
    full = account.repo_id(request.name)
    info = hub.call(_("Looking for {full}", full=full), lambda: _repository(hub, full))
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
    plan = PushPlan(
        account,
        full,
        exists=info is not None,
        head=(info.sha if info else "") or "",
        private=bool(info.private) if info else request.private,
        files={
            path: len(content) if isinstance(content, bytes) else content.stat().st_size
            for path, content in files.items()
        },
        held=len(held - {".gitattributes"}),
        removed=sorted({name for kind in _OF_A_MODEL for name in fnmatch.filter(earlier, kind)}),
        licence=licence,
        base_licence=base,
    )
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


def _repository(hub: HubClient, full: str) -> ModelInfo | None:
    with contextlib.suppress(RepositoryNotFoundError):
        return hub.api.model_info(full)
    return None


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
