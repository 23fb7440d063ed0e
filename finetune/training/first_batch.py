"""Describes the first training batch: a few of its examples as the model reads them.

Source: https://huggingface.co/learn/llm-course/chapter3/2 and, for the shapes, /chapter3/4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, count, groupby
from typing import Any

import numpy as np

from finetune.runs import events
from finetune.tasks.base import Target
from finetune.tasks.registry import task_of

EXAMPLES = 4
HEAD, TAIL = 48, 16  # tokens shown of a longer row: its beginning and its padded end
_LENGTHS = 64  # examples whose lengths are listed
_TOKEN_CHARACTERS = 40  # characters shown of a token


def describe_batch(batch: Mapping[str, Any], tokenizer: Any, target: Target) -> events.FirstBatch:
    """Describe a batch. Draws no random number and waits for the device once.

    Args:
        batch: tensors of shape (examples, tokens) by name, `labels` of shape (examples, ...).
    """
    rows = {name: tensor.tolist() for name, tensor in batch.items()}
    ids = rows["input_ids"]
    width = len(ids[0])
    mask = rows.get("attention_mask", [[1] * width] * len(ids))  # without a mask everything is read
    lengths = [sum(row) for row in mask]
    shown = list(range(width))
    if width > HEAD + TAIL:
        del shown[HEAD:-TAIL]

    def part(values: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[int(row[position]) for position in shown] for row in values[:EXAMPLES]]

    added = {id_ for id_ in tokenizer.all_special_ids if id_ != tokenizer.unk_token_id}
    first = [id_ for id_, real in zip(ids[0], mask[0], strict=True) if real]
    parts: list[str] = []  # the added tokens of the first row by name, and "" for a text
    for is_text, group in groupby(first, lambda id_: id_ not in added):
        parts += [""] if is_text else _names(tokenizer, list(group))
    sentences, several = count(1), parts.count("") > 1
    form = [part or f"sentence{next(sentences) if several else ''}" for part in parts]
    return events.FirstBatch(
        shapes={name: list(tensor.shape) for name, tensor in batch.items()},
        lengths=lengths[:_LENGTHS],
        padded=1 - sum(lengths) / (width * len(ids)),
        positions=shown,
        tokens=[readable_tokens(tokenizer, row) for row in part(ids)],
        ids=part(ids),
        token_type_ids=part(rows.get("token_type_ids", [])),
        attention_mask=part(mask),
        labels=task_of(target).spell(np.array(rows["labels"][:EXAMPLES]), target),
        special=_names(tokenizer, sorted(added.intersection(chain(*ids[:EXAMPLES])))),
        form=" ".join(form),
    )


def _names(tokenizer: Any, ids: list[int]) -> list[str]:
    return [str(name)[:_TOKEN_CHARACTERS] for name in tokenizer.convert_ids_to_tokens(ids)]


def readable_tokens(tokenizer: Any, ids: list[int]) -> list[str]:
    """Return tokens as a person reads them. A byte vocabulary (GPT-2's, RoBERTa's) writes non-ASCII
    tokens as other letters, which are decoded."""
    tokens = []
    for id_, name in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        if not name.isascii() and id_ not in tokenizer.all_special_ids:
            text = str(tokenizer.convert_tokens_to_string([name]))
            # Where a word begins, a vocabulary of bytes or of SentencePiece has a space before it.
            spaced = name.startswith(("\u0120", "\u2581")) and not text.startswith(" ")
            name = " " + text if spaced else text or name
        tokens.append(name[:_TOKEN_CHARACTERS])
    return tokens
