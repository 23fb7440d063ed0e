"""Cut long sentences before a tokenizer truncates them as a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def cut_inputs(
    tokenizer: Any, columns: Sequence[Sequence[str]], max_length: int
) -> list[list[str]]:
    """Cut sentences to about `2 * max_length` tokens. This does not change the inputs after
    truncation.

    A fast tokenizer that truncates a pair encodes every combination of the parts that it cuts off:
    two sentences of 20,000 tokens took 5 GB.

    Args:
        tokenizer: of transformers. Nothing is cut for a slow one, which keeps no such parts, or one
            that truncates on the left.
        columns: one or two lists of sentences, of the same length.
        max_length: tokens of an input.
    """
    cut = [list(column) for column in columns]
    if not tokenizer.is_fast or tokenizer.truncation_side != "right":
        return cut
    kept = 2 * max_length
    offsets = []  # of the tokens of each long text, by its index
    for texts in columns:
        found: dict[int, list[tuple[int, int]]] = {}
        if long := [at for at, text in enumerate(texts) if len(text) > kept]:
            encoded = tokenizer(
                [texts[at] for at in long], add_special_tokens=False, return_offsets_mapping=True,
                return_attention_mask=False, return_token_type_ids=False, verbose=False,
            )  # fmt: skip
            found = dict(zip(long, encoded["offset_mapping"], strict=True))
        offsets.append(found)
    for row in set().union(*offsets):
        tokens = [spans.get(row, []) for spans in offsets]
        fewest = min(map(len, tokens))
        for column, spans in zip(cut, tokens, strict=True):
            end = kept + (len(spans) > fewest)  # the longer sentence gets the odd token
            if len(spans) > end:
                column[row] = column[row][: spans[end][0]] or column[row]
    return cut
