"""The first training batch, as plain values that a page can show: what the model really reads.

A few examples, cut short; the tensors are only looked at. Knows no page and no loop. Source of the
view: https://huggingface.co/learn/llm-course/chapter3/2 and, for the shapes, /chapter3/4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, groupby
from typing import Any

from finetune.runs import events

EXAMPLES = 4
HEAD, TAIL = 48, 16  # tokens shown of a longer row: its beginning, and its end with the padding
LENGTHS = 64  # examples whose lengths are told


def describe_batch(
    batch: Mapping[str, Any], tokenizer: Any, labels: Sequence[str]
) -> events.FirstBatch:
    """What a batch looks like.

    Waits for the device once; no random number is drawn and nothing changed.

    Args:
        batch: tensors of shape (examples, tokens) by name, `labels` of shape (examples,).
        tokenizer: of the model that reads it.
        labels: names of the classes, by index.
    """
    ids = batch["input_ids"].tolist()
    width = len(ids[0])
    # A decoder without a mask reads everything.
    mask = (
        batch["attention_mask"].tolist() if "attention_mask" in batch else [[1] * width] * len(ids)
    )
    lengths = [sum(row) for row in mask]
    shown = _positions(width)
    few = ids[:EXAMPLES]
    added = {id_ for id_ in tokenizer.all_special_ids if id_ != tokenizer.unk_token_id}
    whole = [id_ for id_, real in zip(ids[0], mask[0], strict=True) if real]
    kinds = batch["token_type_ids"].tolist()[:EXAMPLES] if "token_type_ids" in batch else []
    return events.FirstBatch(
        shapes={name: list(tensor.shape) for name, tensor in batch.items()},
        lengths=lengths[:LENGTHS],
        padded=1 - sum(lengths) / (width * len(ids)),
        positions=shown,
        tokens=[_tokens(tokenizer, [row[place] for place in shown]) for row in few],
        ids=_at(few, shown),
        token_type_ids=_at(kinds, shown),
        attention_mask=_at(mask[:EXAMPLES], shown),
        labels=[labels[index] for index in batch["labels"].tolist()[:EXAMPLES]],
        special=_names(tokenizer, sorted(added & {id_ for row in few for id_ in row})),
        form=_form(tokenizer, whole, added),
    )


def _names(tokenizer: Any, ids: list[int]) -> list[str]:
    return [str(name)[:_LONGEST] for name in tokenizer.convert_ids_to_tokens(ids)]


def _form(tokenizer: Any, ids: Sequence[int], added: set[int]) -> str:
    """The added tokens of a row by name, and what is between them as sentences."""
    parts: list[str] = []
    for own, run in groupby(ids, lambda id_: id_ not in added):
        parts += [""] if own else _names(tokenizer, list(run))
    several = parts.count("") > 1
    sentences = count(1)
    return " ".join(part or f"sentence{next(sentences) if several else ''}" for part in parts)


def _positions(width: int) -> list[int]:
    if width <= HEAD + TAIL:
        return list(range(width))
    return [*range(HEAD), *range(width - TAIL, width)]


def _at(rows: Sequence[Sequence[int]], positions: Sequence[int]) -> list[list[int]]:
    return [[int(row[place]) for place in positions] for row in rows]


def _tokens(tokenizer: Any, ids: list[int]) -> list[str]:
    """Tokens as a person reads them.

    A vocabulary of bytes (GPT-2's, RoBERTa's) writes every byte that is no ASCII as two letters
    that are not there; those tokens are decoded. A part of a character is then a replacement mark.
    """
    named = tokenizer.convert_ids_to_tokens(ids)
    special = set(tokenizer.all_special_ids)
    return [
        name[:_LONGEST] if id_ in special or name.isascii() else _plain(tokenizer, name)[:_LONGEST]
        for id_, name in zip(ids, named, strict=True)
    ]


_LONGEST = 40  # characters of a token


def _plain(tokenizer: Any, name: str) -> str:
    text = str(tokenizer.convert_tokens_to_string([name]))
    # Where a word begins, a vocabulary of bytes or of SentencePiece has a space before it.
    spaced = name.startswith(("\u0120", "\u2581")) and not text.startswith(" ")
    return " " + text if spaced else text or name
