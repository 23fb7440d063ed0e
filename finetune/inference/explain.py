"""Which words a decision came from: integrated gradients over the words of one input.

Integrated gradients: Sundararajan, Taly, Yan 2017, https://arxiv.org/abs/1703.01365; the integral
is captum's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from finetune.errors import ModelError

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
    """One word, or one mark, of sentence 1 or 2, as the tokenizer divides them.

    Args:
        start, end: of its characters in the sentence.
        weight: how much it moved the target, in nats: above zero for the decision, below zero
            against it. None where the input was cut before it.
    """

    sentence: int
    start: int
    end: int
    text: str
    weight: float | None


@dataclass(frozen=True)
class Explanation:
    """Why a model decided as it did.

    The target is the log-odds of the explained class, ln(p / (1 - p)): of two classes the one logit
    minus the other. A lone logit can change while no probability does; this cannot.

    Args:
        label_index: the explained class.
        target: its log-odds for the input, in nats.
        baseline_target: the log-odds of the same class when every word is blanked out.
        words: all words of both sentences in order. Their weights and `special` sum to
            `target - baseline_target`, but for `error`.
        special: weight of tokens that belong to no word.
        steps: points at which the gradient was taken.
        error: the gap between that sum and that difference, as a part of the difference (of
            `SMALLEST_DIFFERENCE` where that is larger).
    """

    label_index: int
    target: float
    baseline_target: float
    words: list[WordWeight]
    special: float
    steps: int
    error: float


def explain_pair(
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    sentence1: str,
    sentence2: str | None,
    max_length: int,
    label: int,
) -> Explanation:
    """The words a decision came from, by integrated gradients.

    The path goes from a baseline, the same input with the embedding of every token but the special
    ones replaced by the padding token's, straight to the input. The integral is taken at more and
    more points until the weights sum to what they should (`TOLERANCE`), or `STEPS` end.

    Args:
        tokenizer: a fast one, which knows each token's characters.
        model: an fp32 classifier in eval mode, not in use by another thread.
        label: the class to explain.

    Raises:
        ModelError: when the tokenizer is not a fast one or has no token to blank words with.
    """
    tokens = (tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.unk_token_id)
    blank = next((token for token in tokens if token is not None), None)
    if not tokenizer.is_fast or blank is None:
        raise ModelError(
            f"The tokenizer {type(tokenizer).__name__} does not say which characters a token is, "
            "or has no token to blank a word with.",
            "Only a model with a fast tokenizer (tokenizer.json) and a pad_token can be explained.",
        )
    texts = [sentence1] if sentence2 is None else [sentence1, sentence2]
    inputs = tokenizer(*texts, truncation=True, max_length=max_length, return_tensors="pt")
    inputs = inputs.to(model.device)
    uncut = tokenizer(*texts, return_offsets_mapping=True, verbose=False)
    decision = _Decision(model, inputs, label)
    with torch.no_grad():
        in_text = [sentence is not None for sentence in inputs.sequence_ids(0)]
        baseline = decision.ids.masked_fill(torch.tensor([in_text], device=model.device), blank)
        target = float(decision(decision.ids, *decision.others))
        baseline_target = decision.of_embeddings(baseline)
        weights, steps, error = _integrate(decision, baseline, target - baseline_target)
    words, special = _weigh_words(texts, inputs, uncut, weights)
    return Explanation(label, target, baseline_target, words, special, steps, error)


class _Decision:
    """The log-odds of one class as a function of its input's embeddings."""

    def __init__(self, model: PreTrainedModel, inputs: BatchEncoding, label: int) -> None:
        self._model, self._label = model, label
        self._names = [name for name in inputs if name != "input_ids"]
        self.ids = inputs["input_ids"]
        self.others = tuple(inputs[name] for name in self._names)
        self.embedding = model.get_input_embeddings()

    def __call__(self, ids: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """Log-odds of the class against all others, shape (batch,); of a single output, that."""
        named: dict[str, Any] = dict(zip(self._names, others, strict=True))
        logits: torch.Tensor = self._model(input_ids=ids, **named).logits
        if logits.shape[1] == 1:
            return logits[:, 0]
        rest = [index for index in range(logits.shape[1]) if index != self._label]
        return logits[:, self._label] - logits[:, rest].logsumexp(dim=1)

    def of_embeddings(self, ids: torch.Tensor) -> float:
        """The log-odds when only the embeddings are those of other tokens.

        A model may also read from its ids where padding begins or which position is whose; the
        path of the integral does not change that, so its starting point must not either.
        """
        other = self.embedding(ids)
        hook = self.embedding.register_forward_hook(lambda *_: other)
        try:
            return float(self(self.ids, *self.others))
        finally:
            hook.remove()


def _integrate(
    decision: _Decision, baseline: torch.Tensor, difference: float
) -> tuple[list[float], int, float]:
    """A weight for each token, the steps it took, and how far off their sum is.

    Gauss-Legendre points: for a function as smooth as this one they need far fewer than equal
    steps do.
    """
    from captum.attr import LayerIntegratedGradients  # half a second, for it loads matplotlib

    method = LayerIntegratedGradients(decision, decision.embedding)
    for steps in STEPS:
        embeddings = method.attribute(
            decision.ids,
            baseline,
            additional_forward_args=decision.others,
            n_steps=steps,
            method="gausslegendre",
            internal_batch_size=max(1, _TOKENS_AT_ONCE // decision.ids.shape[1]),
        )
        weights = embeddings[0].double().sum(dim=-1)
        error = abs(float(weights.sum()) - difference) / max(abs(difference), SMALLEST_DIFFERENCE)
        if error <= TOLERANCE:
            break
    return weights.tolist(), steps, error


def _weigh_words(
    texts: list[str], inputs: BatchEncoding, uncut: BatchEncoding, weights: Sequence[float]
) -> tuple[list[WordWeight], float]:
    """Tokens' weights summed up by word, and what belongs to no word.

    Args:
        inputs: the tokens that the model read, one for each of `weights`.
        uncut: those of the whole texts, with their characters.
    """
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
    spans = list(begins.items())
    for (key, first), following in itertools.zip_longest(spans, spans[1:]):
        same = following is not None and following[0][0] == key[0]
        piece = texts[key[0]][first : following[1] if same else None]
        text = piece.strip()
        start = first + len(piece) - len(piece.lstrip())
        if text:
            words.append(WordWeight(key[0] + 1, start, start + len(text), text, read.get(key)))
    return words, sum(weights) - sum(word.weight or 0.0 for word in words)
