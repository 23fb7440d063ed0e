"""A small Gradio Space in which anybody can try one tuned model.

Its app is always the same file, `templates/space_app.py`; what differs is in its `config.json`.
Source of the front matter: https://huggingface.co/docs/hub/spaces-config-reference
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, SpaceCardData

from finetune.environment import hub_connection
from finetune.errors import PublishError
from finetune.hub.client import HubClient, HubRefused, default_sleep_time, may_still_arrive
from finetune.hub.model_card import EXAMPLES
from finetune.hub.script_bundle import pinned

APP = Path(__file__).parent / "templates" / "space_app.py"
_LIBRARIES = ("torch", "transformers", "safetensors")  # Gradio comes with the Space
_MARK = "# A demo made by Finetune"  # begins the app's first line: such a Space is ours


@dataclass(frozen=True)
class DemoPlan:
    """The demo Space of a push.

    Args:
        space: `namespace/name`.
        exists: whether it is there.
        hardware: of a new one, with its price as far as the Hub tells it and when it sleeps; empty
            for one that is there, which keeps its own.
        billed: whether that is.
    """

    space: str
    exists: bool
    hardware: str = ""
    billed: bool = False


def plan_demo(model: str, hardware: str, hub: HubClient) -> DemoPlan:
    """What making the demo of a model would do; changes nothing.

    Args:
        model: its repository, `namespace/name`.
        hardware: of a new Space, as the Hub names it.

    Raises:
        PublishError: when a Space of that name is something else, or there is no such hardware.
    """
    space = f"{model[:91]}-demo"
    exists = hub.call(
        f"Looking for the Space {space}", lambda: hub.api.repo_exists(space, repo_type="space")
    )
    if not exists:
        price, sleep_time = hub.hardware(hardware), default_sleep_time(hardware)
        if sleep_time is not None:
            price += f"; it sleeps after {sleep_time // 60} minutes without a visitor"
        return DemoPlan(space, False, price, sleep_time is not None)
    if not hub.call(f"Looking into the Space {space}", lambda: _is_ours(hub, space)):
        raise PublishError(
            f"The Space {space} exists and is something else.", "Choose another repository name."
        )
    return DemoPlan(space, True)


def _is_ours(hub: HubClient, space: str) -> bool:
    """Whether a Space was made here, or holds nothing yet."""
    paths = set(hub.api.list_repo_files(space, repo_type="space"))
    if "app.py" not in paths:
        return not paths - {"README.md", ".gitattributes"}
    with tempfile.TemporaryDirectory(prefix="finetune-demo-") as folder:
        path = hub.api.hf_hub_download(space, "app.py", repo_type="space", local_dir=folder)
        return Path(path).read_text(encoding="utf-8", errors="replace").startswith(_MARK)


def push_demo(
    plan: DemoPlan, hardware: str, model: str, files: dict[str, str], hub: HubClient
) -> tuple[str, str]:
    """Make or update the Space.

    Returns:
        Its address, and why there is none: one of them is empty.
    """
    space_hardware: Any = hardware
    try:
        if not plan.exists:
            hub.call(
                f"Creating the Space {plan.space}",
                lambda: hub.api.create_repo(
                    plan.space, repo_type="space", space_sdk="gradio",
                    space_hardware=space_hardware, space_sleep_time=default_sleep_time(hardware),
                ),
                stoppable=False,
            )  # fmt: skip
        additions = [CommitOperationAdd(path, text.encode()) for path, text in files.items()]
        hub.call(
            f"Sending the demo to {plan.space}",
            lambda: hub.api.create_commit(
                plan.space, additions, commit_message=f"A demo of {model}", repo_type="space"
            ),
            "" if plan.exists else f" The Space {plan.space} was made but is empty.",
            stoppable=False,
        )
    except PublishError as error:
        remedy = error.remedy
        if isinstance(error, HubRefused) and error.status == 402:
            remedy = (
                f"{hardware} takes an account that pays; choose other hardware or leave it out."
            )
        late = " It may still arrive." if may_still_arrive(error) else ""
        return "", f"{error.fact}{late} {remedy}"
    return f"{hub_connection.hub_endpoint()}/spaces/{plan.space}", ""


def demo_files(model: str, paired: bool, max_length: int, licence: str = "") -> dict[str, str]:
    """Path in the Space -> text of the file.

    Args:
        model: the model's repository, `namespace/name`, which everybody may read.
        paired: whether it reads two sentences.
        max_length: where longer input is cut, in tokens.
        licence: of the Space, as the Hub spells it; empty for none.
    """
    sentences = ["sentence1", "sentence2"][: 1 + paired]
    config = {
        "model": model,
        "max_length": max_length,
        "sentences": sentences,
        "examples": [list(pair[: len(sentences)]) for pair in EXAMPLES],
    }
    name = model.split("/")[-1]
    card = SpaceCardData(
        title=f"{name} demo", emoji="🎛️", colorFrom="indigo", colorTo="gray", sdk="gradio",
        sdk_version=pinned("gradio").partition("==")[2] or None, python_version="3.12",
        app_file="app.py", license=licence or None, models=[model],
    )  # fmt: skip
    readme = (
        f"---\n{card.to_yaml()}\n---\n\n# `{name}` demo\n\n"
        f"Try [`{model}`](https://huggingface.co/{model}), a text classifier tuned with Finetune: "
        f"{'two sentences' if paired else 'a sentence'} in,\nthe probability of each class out.\n"
    )
    return {
        "app.py": APP.read_text(encoding="utf-8"),
        "config.json": json.dumps(config, indent=2) + "\n",
        "requirements.txt": "\n".join(map(pinned, _LIBRARIES)) + "\n",
        "README.md": readme,
    }  # fmt: skip
