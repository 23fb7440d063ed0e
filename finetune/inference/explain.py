"""Explain a decision by words: integrated gradients over the words of one input.

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

POINTS = 9  # of a section of the path; odd, to include its middle
MOST_SECTIONS = 16
SECONDS = 1.5  # limit of an explanation, unless the first section alone takes longer
TOLERANCE = 0.05
# A difference smaller than this many nats counts as this one: 5% of it moves no probability by
# more than 0.0025.
SMALLEST_DIFFERENCE = 0.2
# Points of the path, from 0 to 1 -> their log-odds, shape (points,), and the part of each token in
# the slope, shape (points, length).
_Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class WordWeight:
    """A word or mark of sentence 1 or 2, as the tokenizer divides them."""

    sentence: int
    text: str
    # In nats: above zero for the decision, below zero against it; None if the word was cut off.
    weight: float | None


@dataclass(frozen=True)
class Explanation:
    """The reasons for a model's decision. The target is the log-odds of the explained class, ln(p /
    (1 - p)): of two classes the one logit minus the other."""

    label_index: int
    target: float  # of the input, in nats
    baseline_target: float  # of the input with every word blanked out
    # Of both sentences in order. Their weights and `special` sum to `target - baseline_target`, up
    # to `error`.
    words: list[WordWeight]
    special: float  # weight of tokens that belong to no word
    steps: int  # points at which the gradient was taken
    # Upper bound of the gap between this sum and the difference, relative to the difference or to
    # `SMALLEST_DIFFERENCE`, whichever is larger.
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
        """The error of the integral: its distance from the difference between the ends."""
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
    """Weigh the words of an input for a model's decision for class `label`, by integrated
    gradients.

    The path goes straight from a baseline to the input. The baseline is the same input with the
    embedding of every token except special ones replaced by that of the padding token. The section
    with
    the largest error is halved until the sum of errors is small (`TOLERANCE`), or time or points
    end.

    Args:
        model: an fp32 classifier in eval mode, not in use by another thread.
        on_progress: called with the fraction of the time that has passed, from 0 to 1.
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
    """Log-odds of one class against all others, shape (batch,), for other embeddings of an input's
    tokens, shape (batch, length, width). A single output is returned as it is. The ids stay,
    because a model may derive padding and positions from them."""
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
    """Divide the path into sections whose errors sum to at most `tolerance`, in nats; the sum is
    larger if the time or the sections end."""
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
    """Integrate a section at Gauss-Legendre points. A function as smooth as this one needs far
    fewer of them than of equal steps."""
    at, factors = map(torch.from_numpy, np.polynomial.legendre.leggauss(POINTS))
    half = (stop - start) / 2
    values, gradients = slopes(start + half * (at + 1))
    weights = (half * factors[:, None] * gradients).sum(dim=0)
    return _Section(start, stop, (ends[0], float(values[POINTS // 2]), ends[1]), weights)


def _weigh_words(
    texts: list[str], inputs: BatchEncoding, uncut: BatchEncoding, weights: list[float]
) -> list[WordWeight]:
    """Return the words of the uncut texts, each with the weights of its tokens that were read."""
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
