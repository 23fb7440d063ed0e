"""Baselines: TF-IDF with logistic regression, and the checkpoint's own cosine similarity.

Results are kept beside the rows, in `baseline-<key>.json`, and are not measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune import disk
from finetune.data import checkpoint_files
from finetune.errors import FinetuneError
from finetune.messages import message as _
from finetune.metrics.catalog import Metric, metric_name
from finetune.tasks.base import Target, Targets, Task
from finetune.tasks.registry import task_of

if TYPE_CHECKING:
    from datasets import Dataset

    from finetune.data.splits import Pairs

_BATCH = 64

TFIDF = _("counting words (TF-IDF)")
COSINE = _("comparing sentence vectors")
MOST = 20_000  # pairs of each split; more change the figures in the third decimal and cost minutes
MOST_ENCODED = 2_000  # validation pairs that are encoded: as dear as an evaluation
MOST_TUNED = 500  # training pairs that the similarity's threshold is chosen on
ENOUGH = 0.95  # of the similarity's accuracy or F1: training has little left to gain
_FEWEST = 30  # validation pairs behind such a sentence
WEIGHTS = 2_000_000  # of the regression; fitting takes some 300 bytes for each
_VERSION = 2  # of how they are measured and called

Vectors = NDArray[np.float32]


class EncodingStopped(BaseException):
    """An encoding was ended between two batches."""


class Texts(NamedTuple):
    """Sentences or pairs with what is learned of them."""

    first: list[str]
    second: list[str]  # empty for single sentences
    targets: Targets

    def of(self, rows: NDArray[np.bool_]) -> Texts:
        """Return those of a mask of shape (rows,)."""
        first, second = ([*compress(column, rows)] for column in self[:2])
        return Texts(first, second, self.targets[rows])


def measure_baselines(
    pairs: Pairs,
    checkpoint: str,
    max_length: int,
    half: bool = False,
    stop: Callable[[], bool] = lambda: False,
    metrics: Sequence[Metric] = (),
) -> dict[str, dict[str, float]]:
    """Return the scores of each baseline, and the number of `examples` it was measured on.

    Args:
        checkpoint: the model before any tuning; compared only if it is a sentence encoder.
        half: True to encode in bf16.
        stop: asked between two batches; the baselines measured by then are returned.
        metrics: those that answers suffice for are measured; the task's own by default.
    """
    paired, task = "sentence2" in pairs.splits["train"].column_names, task_of(pairs.target)
    folder = None
    if paired and task.uses_similarity(pairs.target):
        with contextlib.suppress(FinetuneError):
            folder = checkpoint_files.fetch(checkpoint)
    baselines = {TFIDF: measure_tfidf(pairs, metrics)}

    def go_on(done: int) -> None:
        if stop():
            raise EncodingStopped

    # A sentence encoder has this file (https://sbert.net).
    if folder is not None and (folder / "modules.json").is_file():
        weights = [path.stat().st_mtime_ns for path in sorted(folder.glob("*.safetensors"))]
        key = (COSINE, MOST_TUNED, MOST_ENCODED, str(folder), weights, max_length)

        def answer(train: Texts, validation: Texts) -> Targets:
            model, tokenizer, first_token = load_encoder(folder)
            texts = train.first + validation.first + train.second + validation.second
            vectors = encode(model, tokenizer, [texts], max_length, half, first_token, go_on)
            similarities = cosine(*np.split(vectors, 2))
            tuned_on, similarity = np.split(similarities, [len(train.targets)])
            return task.by_similarity(tuned_on, train.targets, similarity, pairs.target)

        with contextlib.suppress(EncodingStopped):
            most = MOST_TUNED, MOST_ENCODED
            baselines[COSINE] = _measured_once(pairs, key, most, answer, metrics)
    return {name: scores for name, scores in baselines.items() if scores}


def measure_tfidf(pairs: Pairs, metrics: Sequence[Metric] = ()) -> dict[str, float]:
    """Return the scores of TF-IDF; empty if no text has a word. Takes seconds and no torch."""

    def answer(train: Texts, validation: Texts) -> Targets | None:
        with contextlib.suppress(ValueError):  # the vocabulary is empty
            return predict_by_tfidf(train, validation, pairs.target)
        return None

    return _measured_once(pairs, (TFIDF, MOST, WEIGHTS), (MOST, MOST), answer, metrics)


def mean_scores(measured: Sequence[Mapping[str, float]], rows: Sequence[int]) -> dict[str, float]:
    """Return the mean of scores measured on folds of so many rows, and the sum of their
    `examples`."""
    return {
        name: sum(scores[name] for scores in measured)
        if name == "examples"
        else float(np.average([scores[name] for scores in measured], weights=rows))
        for name in measured[0]
        if all(name in scores for scores in measured)
    }


def why_no_training(
    baselines: Mapping[str, Mapping[str, float]], task: Task, classes: int, rows: int
) -> str:
    """Return a sentence for a person if a simple method is right on every validation pair, or if
    the checkpoint's similarity alone reaches 0.95 and exceeds a constant answer. Otherwise empty,
    and of fewer than 30 rows, where that can be chance.
    """
    if rows < _FEWEST:
        return ""
    constant = baselines.get(task.constant, {})
    bounded = {
        m.name: m.range[m.greater_is_better] for m in task.metrics
        if math.isfinite(m.range[m.greater_is_better])
    }  # fmt: skip
    for name, text in (
        (TFIDF, _("Counting words is already right on every row: no transformer is needed.")),
        (COSINE, _("The model is right on every row before any training: it needs none.")),
    ):
        scores = baselines.get(name, {})
        perfect = {metric for metric, most in bounded.items() if scores.get(metric) == most}
        if len(perfect) == len(bounded) and any(constant.get(m) != bounded[m] for m in perfect):
            return text
    for metric in (name for name, best in bounded.items() if best > 0):
        value = baselines.get(COSINE, {}).get(metric, 0.0)
        if value >= ENOUGH and value > constant.get(metric, 0.0):
            return _(
                "Training may not be needed: comparing the model's sentence vectors, with one "
                "threshold, reaches {metric} {value:.3f}.",
                metric=metric_name(metric, classes),
                value=value,
            )
    return ""


def _measured_once(
    pairs: Pairs, key: tuple[object, ...], most: tuple[int, int],
    answer: Callable[[Texts, Texts], Targets | None], metrics: Sequence[Metric],
) -> dict[str, float]:  # fmt: skip
    """Return the scores kept under a key of the rows and labels, measuring them if needed. `answer`
    gets so many pairs of train and validation at most, and answers the latter."""
    task, target = task_of(pairs.target), pairs.target
    added = [metric.name for metric in metrics if metric not in task.metrics]
    values = json.dumps([_VERSION, pairs.fingerprint, *key, *added])
    file = pairs.folder / f"baseline-{hashlib.sha256(values.encode()).hexdigest()[:24]}.json"
    if scores := disk.read_json(file):
        return scores
    splits = pairs.splits
    train, validation = draw(splits["train"], most[0]), draw(splits["validation"], most[1])
    if (answers := answer(train, validation)) is None:
        return {}
    scores = task.scores(answers, validation.targets, target, metrics or task.metrics)
    scores["examples"] = float(len(validation.targets))
    disk.write_atomically(file, json.dumps(scores))
    return scores


def draw(split: Dataset, most: int) -> Texts:
    """Draw texts and targets of a split, or of a number of its pairs, with a seed."""
    if len(split) > most:
        rows = np.random.default_rng(0).choice(len(split), most, replace=False)
        split = split.select(np.sort(rows))
    second = split["sentence2"][:] if "sentence2" in split.column_names else []
    return Texts(split["sentence1"][:], second, np.asarray(split["label"][:]))


def predict_by_tfidf(train: Texts, validation: Texts, target: Target) -> Targets:
    """Predict the targets of the validation pairs by a linear model.

    A pair is the elementwise product and absolute difference of its two TF-IDF vectors, as
    InferSent joins sentence vectors (https://arxiv.org/abs/1705.02364), and their cosine.
    """
    from scipy.sparse import csr_array, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    # One-letter words count too, and characters replace words in scripts without spaces.
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), token_pattern=r"(?u)[\u3040-\u9fff]|\w+", sublinear_tf=True,
        max_features=min(50_000, WEIGHTS // (2 * target.size)),
    )  # fmt: skip
    vectorizer.fit(train.first + train.second)

    def features(texts: Texts) -> Any:
        first = vectorizer.transform(texts.first)
        if not texts.second:
            return first
        second = vectorizer.transform(texts.second)
        common = first.multiply(second)
        cosine = csr_array(np.asarray(common.sum(axis=1)).reshape(-1, 1))
        return hstack([common, abs(first - second), cosine]).tocsr()

    with warnings.catch_warnings():  # of many classes, and of steps that do not suffice
        warnings.simplefilter("ignore")
        model = task_of(target).word_model().fit(features(train), train.targets)
    return np.asarray(model.predict(features(validation)))


def load_encoder(folder: Path) -> tuple[Any, Any, bool]:
    """Load a checkpoint's encoder and tokenizer, for `encode`. The last value is True if its first
    token's state is a text's vector."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    # New weights are drawn for what a checkpoint lacks.
    with checkpoint_files.open_files(folder) as files, torch.random.fork_rng():
        tokenizer = files.load(AutoTokenizer)
        model = files.load(AutoModel, use_safetensors=True).eval()
    model.to(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    pooling = files.contents.get("1_Pooling/config.json", {})
    return model, tokenizer, bool(pooling.get("pooling_mode_cls_token"))


def cosine(first: Vectors, second: Vectors) -> NDArray[np.float32]:
    """Return the cosine similarity of each row with the other's; shape (rows,)."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.asarray((first * second).sum(axis=1) / np.maximum(norms, 1e-12), np.float32)


def encode(
    encoder: Any,
    tokenizer: Any,
    columns: Sequence[Sequence[str]],
    max_length: int,
    half: bool = False,
    first_token: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Vectors:
    """Return the vectors of texts, or of pairs read together, of shape (rows, hidden).

    Args:
        encoder: a transformers model without a head, in evaluation mode.
        columns: the texts, or the first and the second sentences of pairs.
        max_length: texts are cut to so many tokens.
        half: True to compute in bf16.
        first_token: True to take the first token's state instead of the mean over all tokens.
        progress: called before each batch with the number of rows done; may raise
            `EncodingStopped`.
    """
    import torch

    tokens = tokenizer(*map(list, columns), truncation=True, max_length=max_length)
    order = np.argsort([len(ids) for ids in tokens["input_ids"]], kind="stable")  # hardly padded
    batches: list[Any] = []
    for rows in np.array_split(order, range(_BATCH, len(order), _BATCH)):
        progress(len(batches) * _BATCH)
        batch = {name: [values[row] for row in rows] for name, values in tokens.items()}
        inputs = tokenizer.pad(batch, return_tensors="pt").to(encoder.device)
        autocast = torch.autocast(encoder.device.type, torch.bfloat16, enabled=half)
        with torch.inference_mode(), autocast:
            states = encoder(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"].unsqueeze(-1)
        mean = (states * mask).sum(1) / mask.sum(1)
        batches.append((states[:, 0] if first_token else mean).cpu())
    return np.asarray(torch.cat(batches)[np.argsort(order)])
