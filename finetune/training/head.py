"""The output layer of a checkpoint that is already a classifier: kept if it knows the classes.

An NLI model, a reranker or a run's own model has an output layer with one row of weights per class.
Its rows have a meaning only under the names they were trained for. A single output is a score, or
the logit of a yes, as of rerankers and other cross-encoders (https://sbert.net).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from finetune.runs.events import Head
from finetune.tasks.base import REGRESSION, SINGLE_LABEL, Target

_INITIAL = 0.02  # standard deviation of new weights if a configuration names none
# Slope of the line nearest to a sigmoid, by least squares over logits from -4 to 4.
_SLOPE = 0.153


class OutputLayer(nn.Linear):
    """A model's last layer, which computes in fp32 whatever the others do: of a score, the 8 bits
    of bf16 would leave a few different values."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.float()
        with torch.autocast(states.device.type, enabled=False):
            return nn.functional.linear(states.float(), self.weight.float(), bias)


def find_output_layer(model: Any, outputs: int) -> str:
    """Return the path of the last linear layer outside the encoder with so many outputs; "" if
    there is none."""
    encoder, found = f"{model.base_model_prefix}.", ""
    for path, module in model.named_modules():
        of_head = isinstance(module, nn.Linear) and not path.startswith(encoder)
        if of_head and module.out_features == outputs:
            found = path
    return found


def answer_in_fp32(model: Any) -> None:
    """Make the last layer of a classifier an `OutputLayer`."""
    if name := find_output_layer(model, model.num_labels):
        model.get_submodule(name).__class__ = OutputLayer


def plan_head(config: Any, target: Target) -> Head:
    """Decide what a target keeps of a checkpoint's output layer, from its configuration.

    Rows of classes with the same names are kept, if each class of the target has one. A single
    logit becomes the log-odds of the positive of two classes. For a score it is mapped to the
    target's scale by the line nearest to a sigmoid, which keeps the order of all answers.
    """
    known = [str(name) for _, name in sorted(config.id2label.items())]
    is_score = getattr(config, "problem_type", None) == REGRESSION
    if len(known) == 1 and target.task == REGRESSION:
        span = target.high - target.low
        if is_score or span <= 0:
            return Head(rows=[0], known=known)
        return Head(
            rows=[0], known=known, scale=[_SLOPE * span], shift=[(target.low + target.high) / 2]
        )
    if len(known) == 1 and target.task == SINGLE_LABEL and target.size == 2 and not is_score:
        halves = [0.5 if index == target.positive else -0.5 for index in range(2)]
        return Head(rows=[0, 0], known=known, scale=halves)
    # Case and the characters between the words of a name do not count.
    names, wanted = (
        [re.sub(r"[\s_-]+", " ", name.casefold()) for name in x] for x in (known, target.names)
    )
    same = wanted and len(set(names)) == len(names) and set(wanted) <= set(names)
    return Head(rows=[names.index(name) for name in wanted] if same else [], known=known)


def fit_head(model: Any, plan: Head, target: Target, new: Collection[str]) -> Head:
    """Make the output layer of a loaded model one for a target, as planned; drawn anew if nothing
    can be kept.

    Args:
        model: with the outputs of the checkpoint if the plan keeps some, otherwise of the target.
        new: names of weights that the checkpoint lacked or had in another shape.
    """
    loaded = len(plan.known) if plan.rows else target.size
    name = find_output_layer(model, loaded)
    if not name or (f"{name}.weight" in new and loaded == target.size):
        return Head(layer=name)
    layer = model.get_submodule(name)
    kept = f"{name}.weight" not in new
    rows = plan.rows if kept and (layer.bias is not None or not any(plan.shift)) else []
    fitted = nn.utils.skip_init(nn.Linear, layer.in_features, target.size, layer.bias is not None)
    with torch.no_grad():
        if rows:
            scale = torch.tensor(plan.scale or [1.0] * len(rows))
            fitted.weight.copy_(scale[:, None] * layer.weight[rows])
            if layer.bias is not None:
                shift = torch.tensor(plan.shift or [0.0] * len(rows))
                fitted.bias.copy_(scale * layer.bias[rows] + shift)
        else:
            std = getattr(model.config, "initializer_range", _INITIAL)
            nn.init.normal_(fitted.weight, std=std)
            if layer.bias is not None:
                nn.init.zeros_(fitted.bias)
    model.set_submodule(name, fitted)
    model.num_labels = target.size
    return plan.model_copy(
        update={"layer": name, "rows": rows, "known": plan.known if kept else []}
    )
