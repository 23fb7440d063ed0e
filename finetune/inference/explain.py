"""Which words a decision came from: integrated gradients over the words of one input.

Integrated gradients: Sundararajan, Taly, Yan 2017, https://arxiv.org/abs/1703.01365.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from finetune.data import truncation

POINTS = 9  # of a section of the path; odd, so that its middle is one of them
MOST_SECTIONS = 16
SECONDS = 1.5  # in which it ends, unless the first section alone takes longer
TOLERANCE = 0.05
# A difference smaller than this many nats counts as this one: 5% of it moves no probability by
# more than 0.0025.
SMALLEST_DIFFERENCE = 0.2
# Points of the path, from 0 to 1 -> log-odds there, of shape (points,), and
# what each token adds to their slope, of shape (points, length).
_Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]


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
    # The gap between that sum and that difference at most, as a part of the difference (of
    # `SMALLEST_DIFFERENCE` where that is larger).
    error: float


@dataclass(frozen=True)
class _Section:
    """A section of the path from the baseline (0) to the input (1), and its integral."""

    start: float
    stop: float
    values: tuple[float, float, float]  # log-odds at its start, middle and stop
    weights: Tensor  # of shape (length,)

    @property
    def gap(self) -> float:
        """What the integral misses of the difference between its ends."""
        return abs(float(self.weights.sum()) - (self.values[2] - self.values[0]))


def explain_pair(
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    sentence1: str,
    sentence2: str | None,
    max_length: int,
    label: int,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Explanation:
    """The words that a model's decision for class `label` came from, by integrated gradients.

    The path goes from a baseline, the same input with the embedding of every token but the special
    ones replaced by the padding token's, straight to the input. The section whose integral misses
    most is halved until all together sum to what they should (`TOLERANCE`), or time or points end.

    Args:
        model: an fp32 classifier in eval mode, not in use by another thread.
        on_progress: called with the share of the time that is over, from 0 to 1.
    """
    texts = [sentence1] if sentence2 is None else [sentence1, sentence2]
    read = truncation.cut_inputs(tokenizer, [[text] for text in texts], max_length)
    inputs = tokenizer(*read, truncation=True, max_length=max_length, return_tensors="pt")
    inputs = inputs.to(model.device)
    in_text = torch.tensor([[sentence is not None for sentence in inputs.sequence_ids(0)]])
    ids, embedding = inputs["input_ids"], model.get_input_embeddings()
    with torch.no_grad():
        baseline = embedding(ids.masked_fill(in_text.to(model.device), tokenizer.pad_token_id or 0))
        path = embedding(ids) - baseline
        ends = _log_odds(model, inputs, torch.cat([baseline, baseline + path]), label)
    baseline_target, target = ends.tolist()

    def slopes(at: Tensor) -> tuple[Tensor, Tensor]:
        embeddings = (baseline + at.to(path)[:, None, None] * path).requires_grad_()
        values = _log_odds(model, inputs, embeddings, label)
        (gradients,) = torch.autograd.grad(values.sum(), embeddings)
        return values.detach(), (gradients * path).sum(dim=-1).double().cpu()

    scale = max(abs(target - baseline_target), SMALLEST_DIFFERENCE)
    sections = _integrate(slopes, (baseline_target, target), TOLERANCE * scale, on_progress)
    weights = torch.stack([section.weights for section in sections]).sum(dim=0).tolist()
    error = sum(section.gap for section in sections) / scale
    uncut = tokenizer(*texts, return_offsets_mapping=True, verbose=False)
    words = _weigh_words(texts, inputs, uncut, weights)
    special = sum(weights) - sum(word.weight or 0.0 for word in words)
    steps = POINTS * (2 * len(sections) - 1)
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
    slopes: _Slopes,
    ends: tuple[float, float],
    tolerance: float,
    on_progress: Callable[[float], None],
) -> list[_Section]:
    """Sections of the path that together miss no more than `tolerance`, in nats, of the difference
    between the `ends`; more where the time or the sections end."""
    began = time.monotonic()
    sections = [_measure(slopes, 0.0, 1.0, ends)]
    while sum(section.gap for section in sections) > tolerance and len(sections) < MOST_SECTIONS:
        elapsed = time.monotonic() - began
        on_progress(min(1.0, elapsed / SECONDS))
        if elapsed * (1 + 2 / (2 * len(sections) - 1)) > SECONDS:  # two more like those measured
            break
        worst = max(sections, key=lambda section: section.gap)
        sections.remove(worst)
        middle = (worst.start + worst.stop) / 2
        sections.append(_measure(slopes, worst.start, middle, worst.values[:2]))
        sections.append(_measure(slopes, middle, worst.stop, worst.values[1:]))
    return sections


def _measure(slopes: _Slopes, start: float, stop: float, ends: tuple[float, float]) -> _Section:
    """Integrate a section at Gauss-Legendre points: a function as smooth as this one needs far
    fewer of them than of equal steps."""
    at, shares = map(torch.from_numpy, np.polynomial.legendre.leggauss(POINTS))
    half = (stop - start) / 2
    values, gradients = slopes(start + half * (at + 1))
    weights = (half * shares[:, None] * gradients).sum(dim=0)
    return _Section(start, stop, (ends[0], float(values[POINTS // 2]), ends[1]), weights)


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
