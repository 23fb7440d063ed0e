"""Which checkpoint first? A linear model on the vectors of each, before any training.

Probes rank checkpoints far cheaper than fine-tuning all of them: Renggli et al. 2022, Which Model
to Transfer? (https://arxiv.org/abs/2010.06402), by a linear model on what a checkpoint makes of the
examples. Only training pairs are read, so that the validation split chooses nothing here.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from finetune import text_hashes
from finetune.config import RunConfig
from finetune.data import checkpoint_files
from finetune.environment import devices
from finetune.errors import DataError, FinetuneError, some
from finetune.evaluation import baselines
from finetune.evaluation.baselines import EncodingStopped, Vectors, encode
from finetune.messages import Text
from finetune.messages import message as _
from finetune.metrics import catalog, selection
from finetune.metrics.classification import Indices
from finetune.metrics.intervals import Interval
from finetune.metrics.shared_rows import SharedRows
from finetune.tasks import comparison
from finetune.tasks.base import Target, Targets, one_stratum
from finetune.tasks.registry import task_of

if TYPE_CHECKING:
    from finetune.data.splits import Pairs

PAIRS = 1000
FOLDS = 5
FEWEST = 50  # pairs; below, no difference of two checkpoints could be seen
Progress = Callable[[str, int, int], None]  # checkpoint, pairs read by all so far, of how many


@dataclass(frozen=True)
class Probed:
    """The findings on one checkpoint."""

    checkpoint: str
    problem: Text = ""  # why it could not be probed; empty if it was
    score: Interval | None = None
    similarity: Interval | None = None  # of cosine similarity alone, if two sentences are compared
    milliseconds: float = 0.0  # to encode a pair
    parameters: int = 0
    size: int = 0  # bytes of its weights
    may_be_best: bool = False  # False if another one is shown to be better

    @property
    def title(self) -> str:
        """The name without the owner or the folder."""
        return self.checkpoint.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True)
class _Setting:
    """What is the same for all checkpoints of a probe."""

    drawn: baselines.Texts
    fold_of: Indices  # shape (pairs,)
    target: Target
    max_length: int
    shared: SharedRows


@dataclass(frozen=True)
class ProbeReport:
    """The checkpoints, the best first, and those that could not be probed at the end."""

    candidates: list[Probed]
    words: Interval | None  # of TF-IDF, on the same folds
    metric: str  # name of the score
    classes: int
    pairs: int
    seconds: float = 0.0
    stopped: bool = False  # True if some were not looked at

    @property
    def complete(self) -> bool:
        """True if all checkpoints were compared."""
        return not self.stopped and all(one.score is not None for one in self.candidates)

    @property
    def words_do_as_well(self) -> bool:
        """True if no checkpoint's score is better than that of counting words."""
        scores = [one.score.value for one in self.candidates if one.score is not None]
        better = catalog.find(self.metric).rank
        if self.words is None or not scores:
            return False
        return max(map(better, scores)) <= better(self.words.value)

    @property
    def verdict(self) -> str:
        """Say which one to train first, or that the probe cannot tell."""
        probed = [one for one in self.candidates if one.score is not None]
        if self.stopped:
            total = len(self.candidates)
            return _(
                "Stopped: {n} of {total} checkpoints were compared.", n=len(probed), total=total
            )
        best = [one for one in probed if one.may_be_best]
        if not probed:
            return _("None of these could be read.")
        if len(probed) == 1:
            return _("Only {name} could be read.", name=probed[0].title)
        if len(best) == 1:
            return _("Train {name} first: it is ahead of the others here.", name=best[0].title)
        fastest = min(best, key=lambda one: one.milliseconds)
        return _(
            "{n:,} rows do not tell which of these is the best: {names}. The fastest is {fastest}.",
            names=some([one.title for one in best], 3), n=self.pairs, fastest=fastest.title,
        )  # fmt: skip

    def to_json(self) -> str:
        return TypeAdapter(ProbeReport).dump_json(self).decode() + "\n"


def as_text(report: ProbeReport) -> str:
    """Return a report in plain lines."""
    title = catalog.metric_name(report.metric, report.classes)
    lines = [f"{title} of a linear model on {report.pairs:,} training rows, cross-validated:"]
    for one in report.candidates:
        if one.score is None:
            lines.append(f"  {one.checkpoint}: {one.problem}")
            continue
        parts = [f"{one.score.value:.3f} ({one.score.low:.3f} to {one.score.high:.3f})"]
        if one.similarity is not None:
            parts.append(f"cosine {one.similarity.value:.3f}")
        parts.append(f"{one.milliseconds:.1f} ms a row")
        parts.append(f"{one.parameters / 1e6:.0f}M parameters")
        lines.append(f"  {one.checkpoint}: {', '.join(parts)}")
    if report.words is not None:
        lines.append(f"  counting words (TF-IDF): {report.words.value:.3f}")
    return "\n".join([*lines, f"  {report.verdict}"])


def probe(
    pairs: Pairs,
    config: RunConfig,
    checkpoints: Sequence[str],
    progress: Progress = lambda checkpoint, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> ProbeReport:
    """Rank checkpoints by how well a linear model on their vectors learns the pairs.

    Up to 1,000 training pairs are encoded once by each: the mean u and v of the two sentences'
    states, joined as (u, v, |u - v|, u * v), as InferSent does (https://arxiv.org/abs/1705.02364),
    with their cosine. A checkpoint that is a classifier already reads each pair whole, and its
    first token counts. The linear model is the task's own (`Task.word_model`), scored by
    cross-validation in which no sentence is on both sides. DataError if there are fewer than 50
    training pairs, or all have the same answer.

    Args:
        config: gives `max_length`; its checkpoint is not probed unless it is among `checkpoints`.
        checkpoints: offered names, Hub ids or folders.
        progress: called between two batches.
        stop: asked as often; True ends the probe with what was measured.
    """
    began = time.monotonic()
    drawn, target = baselines.draw(pairs.splits["train"], PAIRS), pairs.target
    task = task_of(target)
    if len(drawn.targets) < FEWEST:
        raise DataError(
            "There are only {n} training rows.",
            "A probe needs {least}: train the checkpoint that suits your language.",
            n=len(drawn.targets), least=FEWEST,
        )  # fmt: skip
    shared = text_hashes.shared_rows(drawn.first, drawn.second)
    strata = one_stratum(task.strata(drawn.targets))
    fold_of = selection.assign_folds(strata, FOLDS, shared.fold_groups(FOLDS))
    setting = _Setting(drawn, fold_of, target, config.max_length, shared)
    found: list[Probed] = []
    answers: dict[str, Targets] = {}
    names = list(dict.fromkeys(checkpoints))
    rows, stopped = len(drawn.targets), False
    for index, checkpoint in enumerate(names):

        def go_on(done: int, checkpoint: str = checkpoint, before: int = index * rows) -> None:
            progress(checkpoint, before + done, len(names) * rows)
            if stop():
                raise EncodingStopped

        probed = Probed(checkpoint, _("not looked at"))
        try:
            if not stopped:
                with checkpoint_files.explaining(checkpoint):
                    probed, answers[checkpoint] = _probe_one(checkpoint, setting, go_on)
        except EncodingStopped:
            stopped = True
        except FinetuneError as error:
            probed = Probed(checkpoint, error.fact)
        found.append(probed)

    def by_words(own: NDArray[np.bool_], others: NDArray[np.bool_]) -> Targets:
        return baselines.predict_by_tfidf(drawn.of(others), drawn.of(own), target)

    words = _interval(cross_answers(fold_of, by_words), setting)
    ranked = rank(found, answers, drawn.targets, target, shared)
    seconds = time.monotonic() - began
    return ProbeReport(ranked, words, task.headline.name, target.size, rows, seconds, stopped)


def cross_answers(
    fold_of: Indices, answer: Callable[[NDArray[np.bool_], NDArray[np.bool_]], Targets]
) -> Targets | None:
    """Return the answers to all examples, each by what was fitted to the other folds. None if that
    is not possible, as without words. `answer` gets the masks of a fold's own examples and of the
    others, and answers its own."""
    folds = [fold_of == fold for fold in np.unique(fold_of)]
    try:
        given = np.concatenate([answer(own, ~own) for own in folds])
    except ValueError:  # no words, or one answer only
        return None
    answers = np.empty_like(given)
    answers[np.concatenate([np.flatnonzero(own) for own in folds])] = given
    return answers


def join(first: Vectors, second: Vectors | None) -> Vectors:
    """Return the features of pairs by their sentences' vectors: u, v, |u - v| and u * v, of the
    vectors at length 1, and their cosine. Columns have mean 0; all before the cosine together have
    the variance 1, and so has the cosine.

    On 1,000 training pairs of MRPC this scale is the best of four between 0.3 and 10.
    """
    u = first / np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-9)
    if second is None:
        return _standardized(u)
    v = second / np.maximum(np.linalg.norm(second, axis=1, keepdims=True), 1e-9)
    alike = baselines.cosine(u, v)[:, None]
    joined = _standardized(np.hstack([u, v, abs(u - v), u * v]))
    return np.hstack([joined, _standardized(alike)])


def _standardized(features: Vectors) -> Vectors:
    scale = np.maximum(features.std(axis=0), 1e-9) * np.sqrt(features.shape[1])
    return np.asarray((features - features.mean(axis=0)) / scale, np.float32)


def rank(
    found: Sequence[Probed], answers: dict[str, Targets], truth: Targets, target: Target,
    shared: SharedRows | None = None,
) -> list[Probed]:  # fmt: skip
    """Order checkpoints by their scores, and mark those that may be the best by `answers`: the
    cross-validated ones of each, of the shape of `truth`."""
    metric, probed = task_of(target).headline, [one for one in found if one.score is not None]
    kept = np.ones(len(probed), bool)
    if len(probed) > 1:
        each = np.stack([answers[one.checkpoint] for one in probed])
        kept = comparison.may_be_best(each, truth, target, metric, shared)
    marked = [replace(one, may_be_best=bool(best)) for one, best in zip(probed, kept, strict=True)]
    marked.sort(key=lambda one: -metric.rank(one.score.value) if one.score else 0.0)
    return [*marked, *(one for one in found if one.score is None)]


def _probe_one(
    checkpoint: str, setting: _Setting, go_on: Callable[[int], None]
) -> tuple[Probed, Targets]:
    """Encode the pairs and score the linear model. `go_on` gets the pairs read, and may raise
    `EncodingStopped`."""
    import torch

    from finetune.training import model as models

    go_on(0)
    folder = checkpoint_files.fetch(checkpoint)
    drawn, length = setting.drawn, setting.max_length
    with torch.random.fork_rng():
        tokenizer, model, _head = models.load_classifier(checkpoint, setting.target, length, 0.0)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model.eval().to(device)
    began = time.monotonic()
    encoder, half = getattr(model, model.base_model_prefix), devices.prefers_bf16()
    kinds = getattr(model.config, "architectures", None) or [""]
    columns = [each for each in (drawn.first, drawn.second) if each]
    reads_pairs = len(columns) == 2 and kinds[0].endswith("ForSequenceClassification")
    given = [columns] if reads_pairs else [[each] for each in columns]
    vectors = []  # of the first and of the second sentences, or of the pairs together
    for place, texts in enumerate(given):

        def read(done: int, before: int = place * len(drawn.first)) -> None:
            go_on((before + done) // len(given))

        vectors.append(encode(encoder, tokenizer, texts, length, half, reads_pairs, read))
    seconds = time.monotonic() - began
    if not all(np.isfinite(each).all() for each in vectors):
        raise DataError("Its answers are not numbers.", "Choose another checkpoint.")
    answers, similar = _answers(vectors, setting)
    return Probed(
        checkpoint,
        score=_interval(answers, setting),
        similarity=_interval(similar, setting),
        milliseconds=1000 * seconds / len(drawn.targets),
        parameters=model.num_parameters(),
        size=sum(path.stat().st_size for path in folder.glob("*.safetensors")),
    ), answers


def _answers(vectors: list[Vectors], setting: _Setting) -> tuple[Targets, Targets | None]:
    """Return the cross-validated answers of the linear model, and of a cut on the cosine alone if
    the vectors are of two sentences and may be compared."""
    target, truth = setting.target, setting.drawn.targets
    features, task = join(vectors[0], vectors[1] if len(vectors) > 1 else None), task_of(target)

    def by_vectors(own: NDArray[np.bool_], rest: NDArray[np.bool_]) -> Targets:
        with warnings.catch_warnings():  # of steps that do not suffice
            warnings.simplefilter("ignore")
            fitted = task.word_model().fit(features[rest], truth[rest])
        return np.asarray(fitted.predict(features[own]))

    answers = cross_answers(setting.fold_of, by_vectors)
    if answers is None:
        raise DataError(
            "Without a fifth of the rows, only one answer is left.",
            "Bring more rows with each answer.",
        )
    if len(vectors) < 2 or not task.uses_similarity(target):
        return answers, None
    alike = baselines.cosine(*vectors)

    def by_cosine(own: NDArray[np.bool_], rest: NDArray[np.bool_]) -> Targets:
        return task.by_similarity(alike[rest], truth[rest], alike[own], target)

    return answers, cross_answers(setting.fold_of, by_cosine)


def _interval(answers: Targets | None, setting: _Setting) -> Interval | None:
    if answers is None:
        return None
    task, truth = task_of(setting.target), setting.drawn.targets
    found = task.intervals(answers, truth, setting.target, [task.headline], setting.shared)
    return found[task.headline.name]
