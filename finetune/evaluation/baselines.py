"""Baselines: TF-IDF with logistic regression, and the checkpoint's own cosine similarity.

Both are scored on the validation pairs of the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from finetune.data import checkpoints
from finetune.data.splits import Pairs
from finetune.metrics.classification import accuracy_and_f1, confusion_matrix

TFIDF = "TF-IDF + logistic regression"
COSINE = "cosine similarity, not tuned"
MOST = 20_000  # pairs of each split; more change the figures in the third decimal and cost minutes
MOST_ENCODED = 2_000  # validation pairs that are encoded: as dear as an evaluation
MOST_TUNED = 500  # training pairs that the similarity's threshold is chosen on
WEIGHTS = 2_000_000  # of the regression; fitting takes some 300 bytes for each
_BATCH = 64
_SEED = 0

Labels = NDArray[np.int64]
Similarities = NDArray[np.float32]


class _Texts:
    """Texts and labels of a split, or of so many of its pairs, drawn with a seed."""

    def __init__(self, split: Dataset, most: int) -> None:
        if len(split) > most:
            rows = np.random.default_rng(_SEED).choice(len(split), most, replace=False)
            split = split.select(np.sort(rows))
        self.first: list[str] = split["sentence1"][:]
        paired = "sentence2" in split.column_names
        self.second: list[str] | None = split["sentence2"][:] if paired else None
        self.labels = np.asarray(split["label"][:], np.int64)


def measure_baselines(
    pairs: Pairs,
    checkpoint: str,
    max_length: int,
    half: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, dict[str, float]]:
    """Baseline -> `accuracy`, `f1`, and the number of `examples` it was measured on.

    Pairs are drawn with a seed where they are many, so that runs on the same pairs have the same
    baselines.

    Args:
        checkpoint: the model before any tuning; compared only where it is a sentence encoder.
        max_length: the longest sentence in tokens.
        half: whether to encode in bf16.
        stop: asked between two batches; what is known by then is returned.
    """

    def scores(answers: Labels, labels: Labels) -> dict[str, float]:
        confusion = confusion_matrix(labels, answers, len(pairs.labels))
        return {**accuracy_and_f1(confusion, pairs.positive), "examples": float(len(labels))}

    train, validation = (_Texts(pairs.splits[name], MOST) for name in ("train", "validation"))
    baselines = {TFIDF: scores(predict_by_tfidf(train, validation), validation.labels)}
    folder = _sentence_encoder(checkpoint)
    if folder is None or train.second is None or len(pairs.labels) != 2:
        return baselines
    train = _Texts(pairs.splits["train"], MOST_TUNED)
    validation = _Texts(pairs.splits["validation"], MOST_ENCODED)
    encoder = Encoder(folder, max_length, half, stop)
    tuned_on, similarity = encoder.similarity(train), encoder.similarity(validation)
    if tuned_on is not None and similarity is not None:
        answers = predict_by_threshold(tuned_on, train.labels, similarity, pairs.positive)
        baselines[COSINE] = scores(answers, validation.labels)
    return baselines


def predict_by_tfidf(train: _Texts, validation: _Texts) -> Labels:
    """Classes that logistic regression gives the validation pairs, of shape (pairs,).

    A pair is what its two TF-IDF vectors have in common and in what they differ (elementwise
    product and absolute difference, as InferSent joins sentence vectors: Conneau et al. 2017,
    https://arxiv.org/abs/1705.02364), and their cosine.
    """
    from scipy.sparse import csr_array, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    classes = len(np.unique(train.labels))
    if classes < 2:
        return np.full(len(validation.labels), train.labels[0])
    # Words of one letter count too, and characters stand for words where a script has no spaces.
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), token_pattern=r"(?u)[\u3040-\u9fff]|\w+", sublinear_tf=True,
        max_features=min(50_000, WEIGHTS // (2 * classes)),
    )  # fmt: skip
    vectorizer.fit(train.first + (train.second or []))

    def features(texts: _Texts) -> Any:
        first = vectorizer.transform(texts.first)
        if texts.second is None:
            return first
        second = vectorizer.transform(texts.second)
        common = first.multiply(second)
        cosine = csr_array(np.asarray(common.sum(axis=1)).reshape(-1, 1))
        return hstack([common, abs(first - second), cosine]).tocsr()

    model = LogisticRegression(max_iter=200).fit(features(train), train.labels)
    answers: Labels = model.predict(features(validation))
    return answers


def predict_by_threshold(
    tuned_on: Similarities, labels: Labels, similarity: Similarities, positive: int
) -> Labels:
    """Classes by the threshold of a similarity, and the side of it, that is most often right on the
    pairs it is tuned on; all of shape (pairs,)."""
    values = np.unique(tuned_on).astype(np.float64)
    edges = np.concatenate([[-np.inf], (values[1:] + values[:-1]) / 2, [np.inf]])
    right = ((tuned_on >= edges[:, None]) == (labels == positive)).sum(axis=1)
    high, low = int(right.argmax()), int(right.argmin())
    if right[high] >= len(labels) - right[low]:
        chosen = similarity >= edges[high]
    else:  # the positive class is that of unlike sentences
        chosen = similarity < edges[low]
    return np.where(chosen, positive, 1 - positive).astype(np.int64)


def _sentence_encoder(checkpoint: str) -> Path | None:
    """The folder of a checkpoint that is a sentence encoder, which has a `modules.json`
    (https://sbert.net); fetched where it is on the Hub. None for others."""
    from huggingface_hub import snapshot_download

    folder = Path(checkpoints.resolve_checkpoint(checkpoint))
    if not folder.is_dir():
        files = ["*.json", "*.txt", "*.model", "1_Pooling/*"]
        try:
            folder = Path(snapshot_download(checkpoint, allow_patterns=files))
            if (folder / "modules.json").is_file():
                snapshot_download(checkpoint, allow_patterns=[*files, "*.safetensors"])
        except Exception:  # no network, no such repository: there is no such baseline then
            return None
    return folder if (folder / "modules.json").is_file() else None


class Encoder:
    """A sentence encoder before any tuning, loaded without touching torch's random numbers.

    Args:
        folder: a sentence-transformers checkpoint.
        half: whether to compute in bf16.
    """

    def __init__(self, folder: Path, max_length: int, half: bool, stop: Callable[[], bool]) -> None:
        self._stop = stop
        self._half = half
        self._max_length = max_length
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        with torch.random.fork_rng():  # new weights are drawn for what a checkpoint lacks
            self._model = AutoModel.from_pretrained(folder, use_safetensors=True).eval()
        pooling = folder / "1_Pooling" / "config.json"
        settings = json.loads(pooling.read_text()) if pooling.is_file() else {}
        self._first_token = bool(settings.get("pooling_mode_cls_token"))
        if torch.accelerator.is_available():
            self._model.to(torch.accelerator.current_accelerator())

    def similarity(self, texts: _Texts) -> Similarities | None:
        """Cosine of the two sentences' vectors, of shape (pairs,); None when stopped."""
        assert texts.second is not None, "single sentences have no similarity"
        vectors = self._encode([*texts.first, *texts.second])
        if vectors is None:
            return None
        size = len(texts.first)
        cosine: Similarities = (vectors[:size] * vectors[size:]).sum(dim=1).numpy()
        return cosine

    def _encode(self, texts: Sequence[str]) -> torch.Tensor | None:
        """Vectors of length 1, of shape (texts, size)."""
        order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
        batches: list[torch.Tensor] = []
        with torch.inference_mode():
            for start in range(0, len(order), _BATCH):
                if self._stop():
                    return None
                batches.append(self._batch([texts[n] for n in order[start : start + _BATCH]]))
        return torch.cat(batches)[np.argsort(order)]

    def _batch(self, texts: list[str]) -> torch.Tensor:
        inputs = self._tokenizer(
            texts, truncation=True, max_length=self._max_length, padding=True, return_tensors="pt"
        ).to(self._model.device)
        with torch.autocast(self._model.device.type, torch.bfloat16, enabled=self._half):
            states = self._model(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"].unsqueeze(-1).float()
        pooled = states[:, 0] if self._first_token else (states * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(pooled, dim=1).cpu()
