"""A small Gradio Space in which anybody can try one tuned model: the text of its files.

Knows no network and no run; sending them is `publish`' business.

Source of the front matter: https://huggingface.co/docs/hub/spaces-config-reference
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

MARK = "# A demo made by Finetune of "  # begins the app's first line: such a Space is ours
_LIBRARIES = ("torch", "transformers", "safetensors")

_APP = '''{mark}{model}
try:
    import spaces  # a Space's own; where the hardware is ZeroGPU, before anything loads torch
except ImportError:
    pass
else:
    # ZeroGPU ends an app that has no function to lend its GPU to. This one answers on the CPU.
    @spaces.GPU
    def lent() -> None:
        """Nothing."""


import gradio as gr
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

MODEL = {code}
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForSequenceClassification.from_pretrained(MODEL).eval()


def classify({arguments}) -> dict[str, float]:
    """The probability of every class."""
    inputs = tokenizer(
        {names}, truncation=True, max_length={max_length}, return_tensors="pt"
    )
    with torch.no_grad():
        probabilities = model(**inputs).logits.softmax(dim=-1)[0]
    return {{name: probabilities[index].item() for index, name in model.config.id2label.items()}}


demo = gr.Interface(
    classify,
    [{boxes}],
    gr.Label(label="probability of each class"),
    examples=[
{examples}
    ],
    cache_examples=False,
    title={title},
    description="The model is [`{model}`](https://huggingface.co/{model}).",
    flagging_mode="never",
    api_name="classify",
)

if __name__ == "__main__":
    demo.launch()
'''

_README = """---
title: {title}
emoji: 🎛️
colorFrom: indigo
colorTo: gray
sdk: gradio
sdk_version: {gradio}
python_version: "3.12"
app_file: app.py
{licence}models:
  - {code}
---

# `{name}` demo

Try [`{model}`](https://huggingface.co/{model}), a text classifier tuned with Finetune: {what} in,
the probability of each class out.
"""


def demo_files(
    model: str,
    paired: bool,
    max_length: int,
    examples: Sequence[tuple[str, str]],
    licence: str = "",
) -> dict[str, str]:
    """Path in the Space -> text of the file.

    Args:
        model: the model's repository, `namespace/name`, which everybody may read.
        paired: whether it reads two sentences.
        max_length: where longer input is cut, in tokens.
        examples: pairs of sentences to begin with.
        licence: of the Space, as the Hub spells it; empty for none.
    """
    names = ["sentence1", "sentence2"] if paired else ["sentence1"]
    given = [list(pair[: len(names)]) for pair in examples]
    title = json.dumps(f"{model.split('/')[-1]} demo")
    app = _APP.format(
        mark=MARK,
        model=model,
        code=json.dumps(model),
        arguments=", ".join(f"{name}: str" for name in names),
        names=", ".join(names),
        max_length=max_length,
        boxes=", ".join(f'gr.Textbox(label="{name}", lines=2)' for name in names),
        examples="\n".join(f"        {json.dumps(one)}," for one in given),
        title=title,
    )
    readme = _README.format(
        title=title,
        gradio=_version("gradio") or "6.31.0",
        licence=f"license: {json.dumps(licence)}\n" if licence else "",
        model=model,
        code=json.dumps(model),
        name=model.split("/")[-1],
        what="two sentences" if paired else "a sentence",
    )
    return {"app.py": app, "requirements.txt": _requirements(), "README.md": readme}


def is_generated_app(app: str) -> bool:
    """Whether the text of a Space's `app.py` was made here."""
    return app.startswith(MARK)


def _requirements() -> str:
    """The libraries the app imports, as they are here; Gradio comes with the Space."""
    pins = ((name, _version(name)) for name in _LIBRARIES)
    return "".join(f"{name}=={number}\n" if number else f"{name}\n" for name, number in pins)


def _version(name: str) -> str:
    """An installed version as PyPI has it, without a local build's suffix; empty for none."""
    try:
        return version(name).split("+")[0]
    except PackageNotFoundError:
        return ""
