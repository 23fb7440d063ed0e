"""A small Gradio Space in which anybody can try a fine-tuned model.

Its app is always the same file, `templates/space_app.py`; its settings are in its `finetune.json`.
Source of the front matter: https://huggingface.co/docs/hub/spaces-config-reference
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import CommitOperationAdd, SpaceCardData

from finetune.errors import PublishError
from finetune.hub.client import HubClient, default_sleep_time
from finetune.hub.model_card import EXAMPLES
from finetune.hub.script_bundle import pinned
from finetune.messages import message as _

if TYPE_CHECKING:
    from finetune.hub.push_plan import PushPlan

APP = Path(__file__).parent / "templates" / "space_app.py"
CONFIG = "finetune.json"  # marks a Space that was made here


def with_demo(plan: PushPlan, hardware: str, hub: HubClient) -> PushPlan:
    """Add a demo of the model to the plan of a push. An existing Space keeps its hardware."""
    if plan.private:
        raise PublishError(
            "A demo of {full} could not read it: the repository is private.",
            "Push it without the demo, or make the repository public.",
            full=plan.full,
        )
    space = f"{plan.full[:91]}-demo"
    if hub.space_files(space, CONFIG) is not None:
        return replace(plan, demo=space, demo_exists=True)
    billed = default_sleep_time(hardware) is not None
    return replace(plan, demo=space, hardware=hub.price(hardware), billed=billed)


def push_demo(plan: PushPlan, hardware: str, paired: bool, hub: HubClient) -> str:
    """Create or update the Space of a plan; returns its address."""
    if not plan.demo_exists:
        hub.create_space(plan.demo, hardware)
    files = demo_files(plan.full, paired, plan.licence)
    additions = [CommitOperationAdd(path, text.encode()) for path, text in files.items()]
    hub.call(
        _("Sending the demo to {demo}", demo=plan.demo),
        lambda: hub.api.create_commit(
            plan.demo, additions, commit_message=f"A demo of {plan.full}", repo_type="space"
        ),
        stoppable=False,
    )
    return f"{hub.api.endpoint}/spaces/{plan.demo}"


def demo_files(model: str, paired: bool, licence: str = "") -> dict[str, str]:
    """The files of the Space: path -> text. The model's repository must be public."""
    sentences = ["sentence1", "sentence2"][: 1 + paired]
    config = {
        "model": model,
        "sentences": sentences,
        "examples": [list(pair[: len(sentences)]) for pair in EXAMPLES],
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
        "app.py": APP.read_text(encoding="utf-8"),
        CONFIG: json.dumps(config, indent=2) + "\n",
        "requirements.txt": "\n".join(map(pinned, ("torch", "transformers", "safetensors"))) + "\n",
        "README.md": readme,
    }
