"""What a model must beat: TF-IDF with logistic regression, and the checkpoint's own similarity.

Scored on the same validation pairs as the model. Answering the most frequent class is
`metrics.majority`. Knows no run and no page.
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
from finetune.training.metrics import AccuracyAndF1

TFIDF = "TF-IDF + logistic regression"
COSINE = "cosine similarity, not tuned"
MOST = 20_000  # pairs of each split; more change the figures in the third decimal and cost minutes
MOST_ENCODED = 2_000  # validation pairs that are encoded: as dear as an evaluation
MOST_TUNED = 500  # training pairs that the similarity's threshold is chosen on
WEIGHTS = 2_000_000  # of the regression; fitting takes some 300 bytes for each
_SEED = 0

Scores = dict[str, float]


class _Split:
    """Texts and labels of a split, or of as many pairs of it as are wanted, drawn with a seed."""

    def __init__(self, split: Dataset, most: int) -> None:
        if len(split) > most:
            drawn = np.random.default_rng(_SEED).choice(len(split), most, replace=False)
            split = split.select(np.sort(drawn))
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
) -> dict[str, Scores]:
    """The scores of the baselines that make sense for these pairs, by their names.

    At most 20,000 pairs of each split are used, and 500 training and 2,000 validation pairs are
    encoded; those are drawn with a seed, so that runs on the same pairs have the same baselines.

    Beside each baseline's scores stands on how many `examples` it was measured.

    Args:
        checkpoint: the model before any tuning; asked only where it is a sentence encoder.
        max_length: the longest sentence in tokens.
        half: whether to encode in bf16.
        stop: asked between two batches; what is known by then is returned.
    """
    metric = AccuracyAndF1(pairs.labels, pairs.positive)
    train, validation = (_Split(pairs.splits[name], MOST) for name in ("train", "validation"))
    found = {TFIDF: _scores(metric, tfidf(train, validation), validation.labels)}
    folder = _sentence_encoder(checkpoint)
    if folder is None or train.second is None or len(pairs.labels) != 2:
        return found
    train = _Split(pairs.splits["train"], MOST_TUNED)
    validation = _Split(pairs.splits["validation"], MOST_ENCODED)
    encoder = Encoder(folder, max_length, half, stop)
    known = encoder.similarity(train), encoder.similarity(validation)
    if known[0] is not None and known[1] is not None:
        answers = by_threshold(known[0], train.labels, known[1], pairs.positive)
        found[COSINE] = _scores(metric, answers, validation.labels)
    return found


def _scores(metric: AccuracyAndF1, answers: NDArray[Any], labels: NDArray[Any]) -> Scores:
    scores: Scores = metric.compute(predictions=answers, references=labels)
    return {**scores, "examples": float(len(labels))}


def tfidf(train: _Split, validation: _Split) -> NDArray[np.int64]:
    """Classes that logistic regression gives the validation pairs, of shape (pairs,).

    A pair is what its two TF-IDF vectors have in common and in what they differ (elementwise
    product and absolute difference, as InferSent joins sentence vectors: Conneau et al. 2017,
    https://arxiv.org/abs/1705.02364), and their cosine.
    """
    from scipy.sparse import csr_array, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    # Words of one letter count too, and characters stand for words where a script has no spaces.
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), token_pattern=r"(?u)[\u3040-\u9fff]|\w+", sublinear_tf=True,
        max_features=min(50_000, WEIGHTS // (2 * len(np.unique(train.labels)))),
    )  # fmt: skip
    vectorizer.fit(train.first + (train.second or []))

    def features(split: _Split) -> Any:
        first = vectorizer.transform(split.first)
        if split.second is None:
            return first
        second = vectorizer.transform(split.second)
        common = first.multiply(second)
        cosine = csr_array(np.asarray(common.sum(axis=1)).reshape(-1, 1))
        return hstack([common, abs(first - second), cosine]).tocsr()

    if len(np.unique(train.labels)) < 2:  # nothing to tell apart
        return np.full(len(validation.labels), train.labels[0])
    model = LogisticRegression(max_iter=200).fit(features(train), train.labels)
    answers: NDArray[np.int64] = model.predict(features(validation))
    return answers


def by_threshold(
    known: NDArray[np.float32], labels: NDArray[np.int64], asked: NDArray[np.float32], positive: int
) -> NDArray[np.int64]:
    """Classes by the threshold of a similarity, and the side of it, that is most often right on the
    known pairs; all of shape (pairs,)."""
    above, right = _above(known, labels == positive, asked)
    below, other = _above(known, labels != positive, asked)
    chosen = above if right >= other else ~below
    return np.where(chosen, positive, 1 - positive).astype(np.int64)


def _above(
    known: NDArray[np.float32], wanted: NDArray[np.bool_], asked: NDArray[np.float32]
) -> tuple[NDArray[np.bool_], int]:
    """Which of those asked are above the threshold that best tells the wanted of the known pairs
    from the others, and of how many of the known pairs it is right."""
    order = np.argsort(-known, kind="stable")
    right = wanted[order].astype(np.int64)
    # Right when the k most similar are called wanted.
    hits = np.concatenate([[0], np.cumsum(right)])
    misses = np.concatenate([[0], np.cumsum(1 - right)])
    correct = hits + (misses[-1] - misses)
    best = int(np.argmax(correct))
    ranked = known[order]
    upper = ranked[best - 1] if best else np.inf
    lower = ranked[best] if best < len(ranked) else -np.inf
    threshold = upper if not np.isfinite(lower) else lower if not np.isfinite(upper) else (
        (upper + lower) / 2
    )  # fmt: skip
    above = asked >= threshold if best else asked > threshold
    return above, int(correct[best])


def _sentence_encoder(checkpoint: str) -> Path | None:
    """The folder of a checkpoint that says how its sentence vectors are made; None for others.

    Source: `modules.json` of https://sbert.net.
    """
    folder = Path(checkpoints.resolve_checkpoint(checkpoint))
    if not folder.is_dir():
        folder = _in_cache(checkpoint) or folder
    return folder if (folder / "modules.json").is_file() else None


def _in_cache(repo: str) -> Path | None:
    """Where the Hub's cache has a checkpoint whose `modules.json` was or can be fetched."""
    from huggingface_hub import snapshot_download

    try:
        wanted = ["*.json", "*.txt", "*.model", "1_Pooling/*"]
        found = Path(snapshot_download(repo, allow_patterns=wanted))
        if (found / "modules.json").is_file():
            return Path(snapshot_download(repo, allow_patterns=[*wanted, "*.safetensors"]))
    except Exception:  # no network, no such repository: there is no such baseline then
        return None
    return found


class Encoder:
    """A sentence encoder as it comes, made without touching torch's random numbers.

    Args:
        folder: a sentence-transformers checkpoint.
        max_length: the longest sentence in tokens.
        half: whether to compute in bf16.
        stop: asked between two batches.
    """

    def __init__(self, folder: Path, max_length: int, half: bool, stop: Callable[[], bool]) -> None:
        self._stop = stop
        self._half = half
        self._max_length = max_length
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        with torch.random.fork_rng():  # new weights are drawn for what a checkpoint lacks
            self._model = AutoModel.from_pretrained(folder, use_safetensors=True).eval()
        pooling = folder / "1_Pooling" / "config.json"
        known = json.loads(pooling.read_text()) if pooling.is_file() else {}
        self._first_token = bool(known.get("pooling_mode_cls_token"))
        if torch.accelerator.is_available():
            self._model.to(torch.accelerator.current_accelerator())

    def similarity(self, split: _Split) -> NDArray[np.float32] | None:
        """Cosine of the two sentences' vectors, of shape (pairs,); None when stopped."""
        assert split.second is not None, "single sentences have no similarity"
        vectors = self._encode([*split.first, *split.second])
        if vectors is None:
            return None
        size = len(split.first)
        cosine: NDArray[np.float32] = (vectors[:size] * vectors[size:]).sum(dim=1).numpy()
        return cosine

    def _encode(self, texts: Sequence[str]) -> torch.Tensor | None:
        """Vectors of length 1, of shape (texts, size), of sentences in the order given."""
        order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
        found: list[torch.Tensor] = []
        with torch.inference_mode():
            for at in range(0, len(order), 64):
                if self._stop():
                    return None
                found.append(self._batch([texts[n] for n in order[at : at + 64]]))
        vectors = torch.cat(found)
        back = torch.empty_like(vectors)
        back[torch.tensor(order)] = vectors
        return back

    def _batch(self, texts: list[str]) -> torch.Tensor:
        inputs = self._tokenizer(
            texts, truncation=True, max_length=self._max_length, padding=True, return_tensors="pt"
        ).to(self._model.device)
        with torch.autocast(self._model.device.type, torch.bfloat16, enabled=self._half):
            states = self._model(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"].unsqueeze(-1).float()
        pooled = states[:, 0] if self._first_token else (states * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(pooled, dim=1).cpu()
