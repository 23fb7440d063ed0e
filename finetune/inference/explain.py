"""Which words a decision came from: integrated gradients over the words of one input.

Integrated gradients: Sundararajan, Taly, Yan 2017, https://arxiv.org/abs/1703.01365.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

STEPS = (32, 64, 128, 256)
TOLERANCE = 0.05
# A difference smaller than this many nats counts as this one: 5% of it moves no probability by
# more than 0.0025.
SMALLEST_DIFFERENCE = 0.2
# Tokens of one pass. Past some hundreds a larger batch gains no speed on two cores, and each
# token's activations are kept for the way back.
_TOKENS_AT_ONCE = 512


@dataclass(frozen=True)
class WordWeight:
    """One word, or one mark, of sentence 1 or 2, as the tokenizer divides them."""

    sentence: int
    text: str
    # In nats: above zero for the decision, below zero against it; None where the input was cut.
    weight: float | None


@dataclass(frozen=True)
class Explanation:
    """Why a model decided as it did. The target is the log-odds of the explained class,
    ln(p / (1 - p)): of two classes the one logit minus the other."""

    label_index: int
    target: float  # of the input, in nats
    baseline_target: float  # of the input with every word blanked out
    # Of both sentences in order. Their weights and `special` sum to `target - baseline_target`,
    # but for `error`.
    words: list[WordWeight]
    special: float  # weight of tokens that belong to no word
    steps: int  # points at which the gradient was taken
    # The gap between that sum and that difference, as a part of the difference (of
    # `SMALLEST_DIFFERENCE` where that is larger).
    error: float


def explain_pair(
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    sentence1: str,
    sentence2: str | None,
    max_length: int,
    label: int,
) -> Explanation:
    """The words that a model's decision for class `label` came from, by integrated gradients.

    The path goes from a baseline, the same input with the embedding of every token but the special
    ones replaced by the padding token's, straight to the input. The integral is taken at more and
    more points until the weights sum to what they should (`TOLERANCE`), or `STEPS` end.

    Args:
        model: an fp32 classifier in eval mode, not in use by another thread.
    """
    texts = [sentence1] if sentence2 is None else [sentence1, sentence2]
    inputs = tokenizer(*texts, truncation=True, max_length=max_length, return_tensors="pt")
    inputs = inputs.to(model.device)
    in_text = torch.tensor([[sentence is not None for sentence in inputs.sequence_ids(0)]])
    ids, embedding = inputs["input_ids"], model.get_input_embeddings()
    with torch.no_grad():
        baseline = embedding(ids.masked_fill(in_text.to(model.device), tokenizer.pad_token_id or 0))
        path = embedding(ids) - baseline
        ends = _log_odds(model, inputs, torch.cat([baseline, baseline + path]), label)
    baseline_target, target = ends.tolist()
    difference = target - baseline_target
    for steps in STEPS:
        weights = _integrate(model, inputs, baseline, path, label, steps)
        error = abs(sum(weights) - difference) / max(abs(difference), SMALLEST_DIFFERENCE)
        if error <= TOLERANCE:
            break
    uncut = tokenizer(*texts, return_offsets_mapping=True, verbose=False)
    words = _weigh_words(texts, inputs, uncut, weights)
    special = sum(weights) - sum(word.weight or 0.0 for word in words)
    return Explanation(label, target, baseline_target, words, special, steps, error)


def _log_odds(model: Any, inputs: BatchEncoding, embeddings: Tensor, label: int) -> Tensor:
    """Of one class against all others, shape (batch,), when the tokens of an input have other
    embeddings, of shape (batch, length, width); of a single output, that output. The ids stay: a
    model may read from them where padding begins or which position is whose."""
    rows = {name: values.expand(len(embeddings), -1) for name, values in inputs.items()}
    hook = model.get_input_embeddings().register_forward_hook(lambda *_: embeddings)
    try:
        logits: Tensor = model(**rows).logits
    finally:
        hook.remove()
    if logits.shape[1] == 1:
        return logits[:, 0]
    others = [index for index in range(logits.shape[1]) if index != label]
    return logits[:, label] - logits[:, others].logsumexp(dim=1)


def _integrate(
    model: Any, inputs: BatchEncoding, baseline: Tensor, path: Tensor, label: int, steps: int
) -> list[float]:
    """A weight for each token: the gradients along the path from the baseline, times the path.

    At Gauss-Legendre points: a function as smooth as this one needs far fewer than equal steps."""
    points, shares = (
        torch.tensor(values / 2, dtype=path.dtype, device=path.device)[:, None, None]
        for values in np.polynomial.legendre.leggauss(steps)
    )
    rows = max(1, _TOKENS_AT_ONCE // path.shape[1])
    total = torch.zeros_like(path[0])
    for at, share in zip((points + 0.5).split(rows), shares.split(rows), strict=True):
        embeddings = (baseline + at * path).requires_grad_()
        log_odds = _log_odds(model, inputs, embeddings, label)
        (gradients,) = torch.autograd.grad(log_odds.sum(), embeddings)
        total += (share * gradients).sum(dim=0)
    return (total * path[0]).double().sum(dim=-1).tolist()  # type: ignore[no-any-return]


def _weigh_words(
    texts: list[str], inputs: BatchEncoding, uncut: BatchEncoding, weights: list[float]
) -> list[WordWeight]:
    """The words of the uncut texts, with the weights of the tokens of each that were read."""
    read: dict[tuple[int | None, int | None], float] = {}
    tokens = zip(inputs.sequence_ids(0), inputs.word_ids(0), weights, strict=True)
    for sentence, word, weight in tokens:
        read[sentence, word] = read.get((sentence, word), 0.0) + weight
    begins: dict[tuple[int, int | None], int] = {}  # sentence and word -> its first character
    for sentence, word, (first, last) in zip(
        uncut.sequence_ids(0), uncut.word_ids(0), uncut["offset_mapping"], strict=True
    ):
        if sentence is not None and texts[sentence][first:last].strip():
            begins.setdefault((sentence, word), first)
    # A word ends where the next one begins, less the spaces between.
    words = []
    for (key, first), (following, end) in pairwise([*begins.items(), ((-1, None), 0)]):
        piece = texts[key[0]][first : end if following[0] == key[0] else None]
        if text := piece.strip():
            words.append(WordWeight(key[0] + 1, text, read.get(key)))
    return words
