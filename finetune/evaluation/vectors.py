"""Vectors of texts: the mean or the first of an encoder's last states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
_BATCH = 64


def encode(
    encoder: Any,
    tokenizer: Any,
    columns: Sequence[Sequence[str]],
    max_length: int,
    half: bool = False,
    first_token: bool = False,
    goes_on: Callable[[int], bool] = lambda done: True,
) -> Vectors | None:
    """Return the vectors of texts, or of pairs read together, of shape (rows, hidden).

    Args:
        encoder: a transformers model without a head, in evaluation mode.
        columns: the texts, or the first and the second sentences of pairs.
        max_length: texts are cut to so many tokens.
        half: True to compute in bf16.
        first_token: True to take the first token's state instead of the mean over all tokens.
        goes_on: called before each batch with the number of rows done; None is returned if it
            says False.
    """
    import torch

    tokens = tokenizer(*map(list, columns), truncation=True, max_length=max_length)
    order = np.argsort([len(ids) for ids in tokens["input_ids"]], kind="stable")  # hardly padded
    batches: list[Any] = []
    for rows in np.array_split(order, range(_BATCH, len(order), _BATCH)):
        if not goes_on(len(batches) * _BATCH):
            return None
        batch = {name: [values[row] for row in rows] for name, values in tokens.items()}
        inputs = tokenizer.pad(batch, return_tensors="pt").to(encoder.device)
        autocast = torch.autocast(encoder.device.type, torch.bfloat16, enabled=half)
        with torch.inference_mode(), autocast:
            states = encoder(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"].unsqueeze(-1)
        mean = (states * mask).sum(1) / mask.sum(1)
        batches.append((states[:, 0] if first_token else mean).cpu())
    return np.asarray(torch.cat(batches)[np.argsort(order)])
