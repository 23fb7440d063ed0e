"""The output layer of a checkpoint that is already a classifier: kept if it knows the classes.

An NLI model, a reranker or a run's own model has an output layer with one row of weights per class.
Its rows have a meaning only under the names they were trained for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from finetune.runs.events import Head
from finetune.tasks.base import Target

_INITIAL = 0.02  # standard deviation of new weights if a configuration names none


def fit_head(model: Any, known: Sequence[str], target: Target, new: Collection[str]) -> Head:
    """Make the output layer of a loaded model one for a target.

    If the checkpoint's classes have the same names, its rows are reordered to match; that of a
    score is kept. Otherwise the output layer is drawn anew.

    Args:
        model: with the outputs that the target needs.
        known: the checkpoint's classes, in its order.
        new: names of weights that the checkpoint lacked or had in another shape.
    """
    # The last linear layer outside the encoder with as many outputs.
    encoder, name, layer = f"{model.base_model_prefix}.", "", None
    for path, module in model.named_modules():
        of_head = isinstance(module, nn.Linear) and not path.startswith(encoder)
        if of_head and module.out_features == target.size:
            name, layer = path, module
    if layer is None:
        return Head()
    if f"{name}.weight" in new:
        return Head(layer=name)
    # Case and the characters between the words of a name do not count.
    names, wanted = (
        [re.sub(r"[\s_-]+", " ", name.casefold()) for name in x] for x in (known, target.names)
    )
    same = len(set(names)) == len(names) and sorted(names) == sorted(wanted)
    rows = [names.index(name) for name in wanted] if same else []
    if not wanted:  # a checkpoint with a single output, such as a reranker, has a score too
        rows = [0]
    with torch.no_grad():
        for weights in layer.parameters():
            if rows:
                weights.copy_(weights[rows].clone())
            elif weights.ndim > 1:
                nn.init.normal_(weights, std=getattr(model.config, "initializer_range", _INITIAL))
            else:
                nn.init.zeros_(weights)
    return Head(layer=name, rows=rows, known=list(known))
