"""Explain a decision: by the weights of an input's words, and by small edits that change it.

Integrated gradients: Sundararajan, Taly, Yan 2017, https://arxiv.org/abs/1703.01365. The edits
follow plain rules of English. The idea: Ribeiro et al. 2020, https://arxiv.org/abs/2005.04118;
Gardner et al. 2020, https://arxiv.org/abs/2004.02709.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from finetune.data import token_lengths
from finetune.messages import message as _

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
MOST = 100
_TAKE_NOT = {
    "is", "are", "was", "were", "can", "could", "will", "would", "should", "must", "may", "might",
}  # fmt: skip
# After these, such a word is a noun ("the can"); as the first word it begins a question.
_TAKE_NONE = {"", "a", "an", "the", "this", "that", "my", "your", "his", "her", "its", "our", "no"}
_NEGATION = re.compile(r"\b(?:not|never|cannot)\b|n['’]t\b", re.IGNORECASE)
_WORD = re.compile(r"\w+(?:(?:['’-]|(?<=\d)[.,](?=\d))\w+)*")
# Fifteen digits at most: longer ones are codes, not amounts.
_NUMBER = re.compile(r"(?<![\w.,])[0-9](?:,?[0-9]){0,14}(?:\.[0-9]{1,6})?(?!\w|[.,][0-9])")
_KINDS = ("swap", "same", "negation", "number", "drop")  # of edits, in the order of trying them


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
    with the largest error is halved until the sum of errors is small (`TOLERANCE`), or time or
    points end.

    Args:
        model: an fp32 classifier in eval mode, not in use by another thread.
        on_progress: called with the fraction of the time that has passed, from 0 to 1.
    """
    texts = [sentence1] if sentence2 is None else [sentence1, sentence2]
    read = token_lengths.cut_inputs(tokenizer, [texts], max_length)
    inputs = tokenizer(read, truncation=True, max_length=max_length, return_tensors="pt")
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


@dataclass(frozen=True)
class Edit:
    """A pair that differs a little from the original one."""

    kind: str  # of `_KINDS`
    description: str  # what was done, a sentence for a person
    sentence1: str
    sentence2: str | None


@dataclass(frozen=True)
class Flip:
    """An edit that changed the decision, with the new class and its probability."""

    edit: Edit
    label: str
    probability: float | None  # None if the answer has none


def small_edits(sentence1: str, sentence2: str | None) -> list[Edit]:
    """Make at most `MOST` edits of a pair: swap the sentences, replace one by the other, insert or
    remove a negation, change a number, leave out a word."""
    edits = []
    if sentence2 is not None:
        first_twice = _("Sentence 2 becomes sentence 1, word for word.")
        second_twice = _("Sentence 1 becomes sentence 2, word for word.")
        edits = [
            Edit("swap", _("The two sentences change places."), sentence2, sentence1),
            Edit("same", first_twice, sentence1, sentence1),
            Edit("same", second_twice, sentence2, sentence2),
        ]
    for n, sentence in enumerate((sentence1, sentence2 or ""), 1):
        for kind, description, text in _changes(sentence):
            if sentence2 is not None:
                description = _("Sentence {n}: {change}", n=n, change=description)
            pair = (text, sentence2) if n == 1 else (sentence1, text)
            edits.append(Edit(kind, description, *pair))
    edits.sort(key=lambda edit: _KINDS.index(edit.kind))
    # Some change nothing, are equal or leave a sentence empty.
    different: dict[tuple[str, str | None], Edit] = {}
    for edit in edits:
        pair = edit.sentence1, edit.sentence2
        if pair != (sentence1, sentence2) and all(text is None or text.strip() for text in pair):
            different.setdefault(pair, edit)
    return list(different.values())[:MOST]


def find_flips(
    edits: Sequence[Edit], original: str, answers: Sequence[tuple[str, Mapping[str, float]]]
) -> list[Flip]:
    """Return the edits that change the decision: one of each kind, then the others, both by
    decreasing probability of the new class. `original`: the class of the unedited pair; `answers`:
    for each edit the predicted class, and class -> probability."""
    flips = [
        Flip(edit, label, probabilities.get(label))
        for edit, (label, probabilities) in zip(edits, answers, strict=True)
        if label != original
    ]
    flips.sort(key=lambda flip: -(flip.probability or 0.0))
    first_of = {flip.edit.kind: flip for flip in reversed(flips)}
    return sorted(flips, key=lambda flip: first_of[flip.edit.kind] is not flip)


def _replaced(text: str, word: re.Match[str], new: str) -> tuple[str, str]:
    """Describe the change of a word, and make it."""
    changed = text[: word.start()] + new + text[word.end() :]
    return _("“{word}” becomes “{other}”.", word=word[0], other=new), changed


def _without(text: str, word: re.Match[str]) -> str:
    """Remove a word and the space before it; the new first word gets the capital of a removed
    one."""
    left, right = text[: word.start()], text[word.end() :]
    if left.strip():
        return left.rstrip() + right
    right = right.lstrip(" \t,")
    return right[:1].upper() + right[1:] if word[0][0].isupper() else right


def _changes(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the kind of each change of a sentence, its description, and the new sentence."""
    negated, before = _NEGATION.search(text), ""
    for word in _WORD.finditer(text):
        yield "drop", _("“{word}” is left out.", word=word[0]), _without(text, word)
        lower = word[0].lower().replace("’", "'")
        if lower in ("not", "n't", "never"):
            yield "negation", _("“{word}” is taken out.", word=word[0]), _without(text, word)
        elif lower == "cannot" or lower.endswith("n't"):
            irregular = {"can't": word[0][:-2], "won't": f"{word[0][0]}ill"}
            yield "negation", *_replaced(text, word, irregular.get(lower, word[0][:-3]))
        elif word[0] in _TAKE_NOT and before not in _TAKE_NONE and not negated:
            new = "cannot" if lower == "can" else f"{word[0]} not"
            yield "negation", *_replaced(text, word, new)
        before = lower
    for number in _NUMBER.finditer(text):
        value, comma = Decimal(number[0].replace(",", "")), "," if "," in number[0] else ""
        for other in (value + 1, value * 2):
            yield "number", *_replaced(text, number, f"{other:{comma}f}".zfill(len(number[0])))
