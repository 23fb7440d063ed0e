"""A small Gradio Space in which anybody can try a fine-tuned model.

Its app is always the same file, `templates/space_app.py`; its settings are in its `finetune.json`.
Source of the front matter: https://huggingface.co/docs/hub/spaces-config-reference
"""

from __future__ import annotations

import json
from pathlib import Path

from huggingface_hub import CommitOperationAdd, SpaceCardData

from finetune.hub.client import HubClient
from finetune.hub.model_card import EXAMPLES
from finetune.hub.push_plan import DEMO_CONFIG, PushPlan
from finetune.hub.script_bundle import pinned
from finetune.messages import message as _

APP = Path(__file__).parent / "templates" / "space_app.py"


def push_demo(plan: PushPlan, hardware: str, paired: bool, hub: HubClient) -> str:
    """Create or update the Space of a plan; returns its address."""
    if not plan.demo_exists:
        hub.create_space(plan.demo, hardware)
    files = demo_files(plan.full, paired, plan.licence)
    additions = [CommitOperationAdd(path, text.encode()) for path, text in files.items()]
    action = _("Sending the demo to {demo}", demo=plan.demo)
    hub.commit(action, plan.demo, additions, f"A demo of {plan.full}", "space")
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
        DEMO_CONFIG: json.dumps(config, indent=2) + "\n",
        "requirements.txt": "\n".join(map(pinned, ("torch", "transformers", "safetensors"))) + "\n",
        "README.md": readme,
    }
