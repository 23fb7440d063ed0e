"""Which words a decision came from: integrated gradients over the words of one input.

The integral is captum's; what is here is the question put to it, the check of its answer, and
the way from tokens back to words. Knows no page, and loads no model.

Integrated gradients: Sundararajan, Taly, Yan 2017, https://arxiv.org/abs/1703.01365.
"""

from __future__ import annotations

import contextlib
import copy
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from finetune.errors import ModelError

STEPS = (32, 64, 128, 256)
TOLERANCE = 0.05
# A difference smaller than this many nats counts as this one: 5% of it moves no probability by
# more than 0.0025.
SMALLEST_DIFFERENCE = 0.2
# Tokens of one pass. Past some hundreds a larger batch gains no speed on two cores, and each
# token's activations are kept for the way back.
_TOKENS_AT_ONCE = 512
_MARKS_INSIDE = frozenset("'’-‐_")
_JOINER = "\u200d"
# First and last code point of scripts that are written without spaces.
_UNSPACED = (
    (0x0E00, 0x0EFF), (0x0F00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF),
    (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
)  # fmt: skip


@dataclass(frozen=True)
class WordWeight:
    """One word, or one mark, of a sentence.

    Args:
        sentence: 1 or 2.
        start: its first character's index in the sentence.
        end: the index after its last character.
        text: the characters between.
        weight: how much it moved the target, in nats: above zero for the decision, below zero
            against it. None where the input was cut before it, so that the model did not see it.
    """

    sentence: int
    start: int
    end: int
    text: str
    weight: float | None


@dataclass(frozen=True)
class Explanation:
    """Why a model decided as it did.

    The target is the log-odds of the explained class, ln(p / (1 - p)). Of two classes that is the
    one logit minus the other; of more, the logit minus the log of the others' summed exponentials.
    A lone logit can change while no probability does, when all logits rise together; this cannot.

    Args:
        label_index: the explained class: the predicted one, unless another was asked for.
        target: its log-odds for the input, in nats.
        baseline_target: the log-odds of the same class when every word is blanked out.
        words: all words of both sentences in order. Their weights and `special` sum to
            `target - baseline_target`, but for `error`.
        special: what tokens brought that belong to no word. Special tokens are the same in the
            baseline, so theirs is 0.
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

    @property
    def complete(self) -> bool:
        """Whether the weights account for the whole difference, within `TOLERANCE`."""
        return self.error <= TOLERANCE


@dataclass(frozen=True)
class _Token:
    """A token that the model reads: whose it is (None for special ones), and its characters."""

    sentence: int | None
    start: int
    end: int


def explain_pair(
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    sentence1: str,
    sentence2: str | None,
    max_length: int,
    label: int | None = None,
) -> Explanation:
    """The words a decision came from, by integrated gradients.

    The path goes from a baseline, the same input with the embedding of every token but the special
    ones replaced by the padding token's, straight to the input; positions, segments and mask are
    the input's all along. The integral is taken at more and more points until the weights sum to
    what they should (`TOLERANCE`); after the last of `STEPS` the answer says how far off it is.

    The model computes in fp32 (a half-precision one in a copy) without dropout, and is left as it
    was: modes, `requires_grad` and `.grad`. It must not be in use by another thread meanwhile.

    Args:
        tokenizer: a fast one, which knows each token's characters.
        model: a classifier, shape of its logits (batch, classes).
        sentence1: readable text.
        sentence2: the other, or None for a model of single sentences.
        max_length: the length in tokens the input is cut to.
        label: the class to explain; the most probable where None.

    Raises:
        ModelError: when the tokenizer is not a fast one or has no token to blank words with, or
            the model does not look up its input in one embedding.
    """
    blank = _blank(tokenizer)
    texts = [sentence1] if sentence2 is None else [sentence1, sentence2]
    inputs, kept = _tokenised(tokenizer, texts, max_length)
    _, whole = _tokenised(tokenizer, texts, None)
    with _at_rest(model) as still:
        device = next(still.parameters()).device
        decision = _Decision(still, {name: one.to(device) for name, one in inputs.items()}, label)
        words_only = torch.tensor([[one.sentence is not None for one in kept]], device=device)
        baseline = decision.ids.masked_fill(words_only, blank)
        base = decision.of_embeddings(baseline)
        weights, steps, error = _integrated(decision, baseline, decision.target - base)
    words, special = _words(texts, kept, whole, weights)
    return Explanation(decision.label, decision.target, base, words, special, steps, error)


def _blank(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that stands for no word."""
    if not tokenizer.is_fast:
        raise ModelError(
            f"The tokenizer {type(tokenizer).__name__} does not say which characters a token is.",
            "Only a model with a fast tokenizer (tokenizer.json) can be explained.",
        )
    named = (tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.unk_token_id)
    found = next((one for one in named if one is not None), None)
    if found is None:
        raise ModelError(
            "The tokenizer has no padding, mask or unknown token to blank a word with.",
            "Set its pad_token and save it again.",
        )
    return int(found)


def _tokenised(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], max_length: int | None
) -> tuple[dict[str, torch.Tensor], list[_Token]]:
    """Tensors of shape (1, tokens), and the tokens; uncut where `max_length` is None."""
    cut: dict[str, Any] = {"truncation": False, "verbose": False}
    if max_length is not None:
        cut = {"truncation": True, "max_length": max_length}
    found = tokenizer(*texts, return_tensors="pt", return_offsets_mapping=True, **cut)
    offsets = found.pop("offset_mapping")[0].tolist()
    tokens = []
    for (start, end), sentence in zip(offsets, found.sequence_ids(0), strict=True):
        if sentence is not None:
            start, end = _without_spaces(texts[sentence], start, end)
        tokens.append(_Token(sentence, start, end))
    return dict(found), tokens


def _without_spaces(text: str, start: int, end: int) -> tuple[int, int]:
    """Some tokenizers count the space before a word as the word's."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


@contextlib.contextmanager
def _at_rest(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """The model in fp32, in eval mode, its parameters without gradients (which would keep more
    activations); afterwards as it was."""
    if any(one.is_floating_point() and one.dtype != torch.float32 for one in model.parameters()):
        model = copy.deepcopy(model).float()
    training = [one for one in model.modules() if one.training]
    learning = [one for one in model.parameters() if one.requires_grad]
    device = next(model.parameters()).device.type
    try:
        model.eval()
        for one in learning:
            one.requires_grad_(False)
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False):
            yield model
    finally:
        for one in learning:
            one.requires_grad_(True)
        for module in training:
            module.training = True


class _Decision:
    """The log-odds of one class as a function of its input's embeddings.

    Args:
        model: at rest.
        inputs: tensors of shape (1, tokens), `input_ids` among them.
        label: the class; None for the most probable.
    """

    def __init__(
        self, model: PreTrainedModel, inputs: dict[str, torch.Tensor], label: int | None
    ) -> None:
        self._model = model
        self._names = [name for name in inputs if name != "input_ids"]
        self.ids = inputs["input_ids"]
        self.others = tuple(inputs[name] for name in self._names)
        self.embedding = _embedding(model)
        logits = self._logits_once()
        self.label = int(logits.argmax()) if label is None else label
        self.target = float(_log_odds(logits, self.label))

    def __call__(self, ids: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """Log-odds, shape (batch,)."""
        return _log_odds(self._logits(ids, *others), self.label)

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

    def _logits(self, ids: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        named = dict(zip(self._names, others, strict=True))
        return self._model(input_ids=ids, **named).logits  # type: ignore[no-any-return]

    def _logits_once(self) -> torch.Tensor:
        calls: list[int] = []
        hook = self.embedding.register_forward_hook(lambda *_: calls.append(1))
        try:
            logits = self._logits(self.ids, *self.others)
        finally:
            hook.remove()
        if len(calls) != 1:
            raise ModelError(
                f"{type(self._model).__name__} looks its input up in its embedding {len(calls)} "
                "times, not once.",
                "Such a model cannot be explained.",
            )
        return logits


def _embedding(model: PreTrainedModel) -> torch.nn.Module:
    try:  # transformers raises NotImplementedError for a model that names no embedding
        return model.get_input_embeddings()  # type: ignore[no-any-return]
    except (NotImplementedError, AttributeError) as error:
        raise ModelError(
            f"{type(model).__name__} names no embedding of its input.",
            "Such a model cannot be explained.",
        ) from error


def _log_odds(logits: torch.Tensor, label: int) -> torch.Tensor:
    """Of one class against all others, shape (batch,) of logits (batch, classes); of a single
    output, that output."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    others = [index for index in range(logits.shape[1]) if index != label]
    return logits[:, label] - logits[:, others].logsumexp(dim=1)


def _integrated(
    decision: _Decision, baseline: torch.Tensor, difference: float
) -> tuple[list[float], int, float]:
    """A weight for each token, the steps it took, and how far off their sum is.

    Gauss-Legendre points: for a function as smooth as this one they need far fewer than equal
    steps do.
    """
    from captum.attr import LayerIntegratedGradients  # half a second, for it loads matplotlib

    method = LayerIntegratedGradients(decision, decision.embedding)
    weights, error, taken = torch.zeros(0), float("inf"), 0
    for steps in STEPS:
        found = method.attribute(
            decision.ids,
            baseline,
            additional_forward_args=decision.others,
            n_steps=steps,
            method="gausslegendre",
            internal_batch_size=max(1, _TOKENS_AT_ONCE // decision.ids.shape[1]),
        )
        weights, taken = found[0].double().sum(dim=-1), steps
        error = abs(float(weights.sum()) - difference) / max(abs(difference), SMALLEST_DIFFERENCE)
        if error <= TOLERANCE:
            break
    return weights.tolist(), taken, error


def _words(
    texts: list[str], kept: Sequence[_Token], whole: Sequence[_Token], weights: list[float]
) -> tuple[list[WordWeight], float]:
    """Tokens' weights summed up by word, and what is no word's.

    Args:
        kept: the tokens that the model read, one for each of `weights`.
        whole: those of the uncut texts.
    """
    words: list[WordWeight] = []
    special = sum(weight for one, weight in zip(kept, weights, strict=True) if one.sentence is None)
    for index, text in enumerate(texts):
        theirs = [one for one in whole if one.sentence == index]
        spans = _spans(text, [(one.start, one.end) for one in theirs if one.start < one.end])
        read: dict[int, float] = {}
        for one, weight in zip(kept, weights, strict=True):
            if one.sentence != index:
                continue
            if (place := _place(spans, one.start)) is None:
                special += weight
            else:
                read[place] = read.get(place, 0.0) + weight
        unread = {_place(spans, one.start) for one in theirs} - set(read)
        for place, (start, end) in enumerate(spans):
            weight_of = None if place in unread else read.get(place, 0.0)
            words.append(WordWeight(index + 1, start, end, text[start:end], weight_of))
    return words, special


def _place(spans: list[tuple[int, int]], start: int) -> int | None:
    """The word that a token from `start` belongs to; one of spaces alone goes to the next word."""
    if not spans:
        return None
    return min(bisect_right(spans, start, key=lambda span: span[1]), len(spans) - 1)


def _spans(text: str, tokens: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where a text's words and marks begin and end; all but its spaces is in one of them.

    Args:
        text: a sentence.
        tokens: first and last (exclusive) character of each token. A word never ends inside a
            token, and in a script without spaces each token is a word.
    """
    inside = {at for start, end in tokens for at in range(start + 1, end)}
    edges = {at for token in tokens for at in token}
    spans: list[tuple[int, int]] = []
    begin: int | None = None
    for at, character in enumerate(text):
        if begin is not None and at not in inside:
            if character.isspace():
                spans.append((begin, at))
                begin = None
            elif not _one_word(text, at, edges):
                spans.append((begin, at))
                begin = at
        if begin is None and not character.isspace():
            begin = at
    return spans if begin is None else [*spans, (begin, len(text))]


def _one_word(text: str, at: int, edges: set[int]) -> bool:
    """Whether no word begins at `at`, which is neither the first character nor after a space."""
    before, after = text[at - 1], text[at]
    if _clings(after) or before == _JOINER:
        return True
    if before.isspace():
        return False
    if _unspaced(before) and _unspaced(after):
        return at not in edges
    if _unspaced(before) or _unspaced(after):
        return False
    if _wordly(before) and _wordly(after):
        return True
    if _wordly(before):  # a mark inside a word, as in don't or 3.5
        return _inside_word(text, at)
    if _wordly(after):
        return _inside_word(text, at - 1)
    repeated = before == after and unicodedata.category(before)[0] == "P"
    return repeated or (_flag(before) and _flag(after))


def _inside_word(text: str, at: int) -> bool:
    """Whether the mark at `at` stands between parts of one word."""
    if not 0 < at < len(text) - 1:
        return False
    before, mark, after = text[at - 1], text[at], text[at + 1]
    if mark in _MARKS_INSIDE:
        return _wordly(before) and _wordly(after)
    return mark in ".,:" and before.isdigit() and after.isdigit()


def _clings(character: str) -> bool:
    """Accents, vowel signs, joiners and skin tones belong to what they follow."""
    return unicodedata.category(character) in {"Mn", "Mc", "Me", "Cf"} or (
        0x1F3FB <= ord(character) <= 0x1F3FF
    )


def _wordly(character: str) -> bool:
    return unicodedata.category(character)[0] in "LNM" or character == "_"


def _unspaced(character: str) -> bool:
    point = ord(character)
    return point >= 0x0E00 and any(first <= point <= last for first, last in _UNSPACED)


def _flag(character: str) -> bool:
    """A flag is two letters of a range of their own."""
    return 0x1F1E6 <= ord(character) <= 0x1F1FF
