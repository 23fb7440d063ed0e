"""What a tuned model says of two sentences.

Loads saved models and keeps the last few. Knows no page and no run's history.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch

from finetune import model
from finetune.errors import DataError

MAX_CHARACTERS = 20_000


@dataclass(frozen=True)
class Prediction:
    """The answer to one pair.

    Args:
        label: the most probable class.
        probabilities: class -> probability, in the model's order; they sum to 1.
        logits: raw scores, in the same order.
        tokens: length of the input in tokens, as the model read it.
        cut: tokens of the pair beyond what the model reads, which it did not see.
        seconds: tokenising and the forward pass.
    """

    label: str
    probabilities: dict[str, float]
    logits: list[float]
    tokens: int
    cut: int
    seconds: float


class Predictor:
    """One loaded model.

    Args:
        folder: what `model.save` wrote.
        max_length: the length in tokens it was trained with.
        paired: whether it was trained on pairs rather than single sentences.

    Raises:
        ModelError: when the folder is gone or damaged.
    """

    def __init__(self, folder: Path, max_length: int, paired: bool = True) -> None:
        self.paired = paired
        self._tokenizer, self._model = model.load_saved(folder)
        self._max_length = max_length
        names = self._model.config.id2label
        self.labels: list[str] = [names[index] for index in range(len(names))]

    def pair(self, sentence1: str, sentence2: str = "") -> Prediction:
        """Label and probabilities of one pair; of `sentence1` alone where it learned from such.

        Raises:
            DataError: when a sentence is empty or longer than `MAX_CHARACTERS`.
        """
        texts = [_readable("sentence1", sentence1)]
        if self.paired:
            texts.append(_readable("sentence2", sentence2))
        began = time.perf_counter()
        inputs = self._tokenizer(*texts, truncation=False, verbose=False)
        whole = len(inputs["input_ids"])
        inputs = self._tokenizer(
            *texts, truncation=True, max_length=self._max_length, return_tensors="pt"
        )
        with torch.inference_mode():
            logits = self._model(**inputs).logits[0].float()
        probabilities = torch.softmax(logits, dim=-1).tolist()
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        kept = int(inputs["input_ids"].shape[1])
        return Prediction(
            label=self.labels[best],
            probabilities=dict(zip(self.labels, probabilities, strict=True)),
            logits=logits.tolist(),
            tokens=kept,
            cut=whole - kept,
            seconds=time.perf_counter() - began,
        )


def _readable(name: str, text: object) -> str:
    """Text as a tokenizer can take it: no lone surrogates, no NUL."""
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{name} is empty.", "Write a sentence in every box.")
    if len(text) > MAX_CHARACTERS:
        raise DataError(
            f"{name} has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read.",
            "Shorten it.",
        )
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", " ")


class Shelf:
    """The models used last, loaded once each.

    Args:
        keep: how many to hold in memory; the least recently used goes first.
    """

    def __init__(self, keep: int = 3) -> None:
        self._keep = keep
        self._held: OrderedDict[tuple[str, int], Predictor] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, folder: Path, max_length: int, paired: bool = True) -> Predictor:
        """The predictor of a folder, loaded anew when its weights have changed.

        Raises:
            ModelError: when the folder is gone or damaged.
        """
        weights = folder / "model.safetensors"
        changed = weights.stat().st_mtime_ns if weights.exists() else 0
        key = (str(folder), changed)
        with self._lock:
            if key not in self._held:
                self._held[key] = Predictor(folder, max_length, paired)
            self._held.move_to_end(key)
            while len(self._held) > self._keep:
                self._held.popitem(last=False)
            return self._held[key]
