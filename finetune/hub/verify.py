"""Whether the pushed model answers as the one here: both are asked the same pairs.

The model is loaded on the CPU in fp32, here before the push and from the Hub after it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from huggingface_hub import snapshot_download
from numpy.typing import NDArray

from finetune import text_hashes
from finetune.data import checkpoints
from finetune.environment import hub_connection
from finetune.errors import Cancelled, FinetuneError, ModelError, PublishError, StoreError, some
from finetune.evaluation import saved_predictions
from finetune.hub.client import HubClient
from finetune.hub.model_card import EXAMPLES
from finetune.metrics.calibration import probabilities
from finetune.runs.run import Run
from finetune.runs.summary import RunSummary

PAIRS = 20  # validation pairs that both are asked
TOLERANCE = 1e-4  # of a logit, between the two
_DRIFT = 0.1  # of probability, between the model here in fp32 and its evaluation, perhaps in bf16


@dataclass(frozen=True)
class Verification:
    """The model from the Hub beside the one here.

    Args:
        pairs: how many both were asked.
        difference: the largest difference of a logit.
        problem: what differs, or why it could not be compared; empty where all is well.
    """

    pairs: int
    difference: float
    problem: str = ""


@dataclass(frozen=True)
class ModelAnswers:
    """What a model says of the pairs it is asked.

    Args:
        labels: the names of its classes.
        logits: of shape (pairs, classes).
    """

    labels: list[str]
    logits: NDArray[np.float32]


def score_saved_model(run: Run, summary: RunSummary) -> ModelAnswers:
    """What the model in `best/` says, after which it may be pushed.

    Raises:
        PublishError: when it is damaged: it cannot be scored, or says something else than it did
            in its evaluation.
    """
    try:
        answers = _answers(run, summary, run.best)
    except ModelError as error:
        raise PublishError(f"{error.fact} Nothing was sent.", error.remedy) from None
    except Exception as error:  # damage raises whatever its bytes lead to
        reason = " ".join(str(error).split())[:300].rstrip(". ") or type(error).__name__
        raise PublishError(
            f"The saved model cannot be scored: {reason}. Nothing was sent.", "Train it again."
        ) from None
    labels = summary.prepared.labels if summary.prepared else []
    labels = [text_hashes.replace_surrogates(name) for name in labels]
    problem = ""
    if labels and answers.labels != labels:
        problem = f"its classes are {some(answers.labels)}, and it has learned {some(labels)}"
    elif (drift := _drift(run, summary, answers)) > _DRIFT:
        problem = f"its probabilities differ from those of its evaluation by {drift:.2f} on average"
    if problem:
        raise PublishError(
            f"The saved model is damaged: {problem}. Nothing was sent.", "Train it again."
        )
    return answers


def _answers(run: Run, summary: RunSummary, folder: Path) -> ModelAnswers:
    """
    Raises:
        ModelError: when the model cannot be loaded, or answers with what is no number.
    """
    from finetune.inference.scorer import Scorer

    length = checkpoints.length_of(run.folder)
    scorer = Scorer(folder, length, "fp32", "cpu", threads=1, aside=True)
    try:
        return ModelAnswers(scorer.labels, scorer.scores(*_questions(run, summary.paired)))
    finally:
        scorer.free()


def _questions(run: Run, paired: bool) -> tuple[list[str], list[str] | None]:
    """The first validation pairs; sentences of the project's own where those were not kept."""
    table = saved_predictions.read_examples(run)
    if table is None or not table.num_rows:
        first, second = (list(sentences) for sentences in zip(*EXAMPLES, strict=True))
        return first, second if paired else None
    names = ("sentence1", "sentence2") if paired else ("sentence1",)
    part = table.slice(0, PAIRS)
    columns = [cast(list[str], part.column(name).to_pylist()) for name in names]
    return columns[0], columns[1] if paired else None


def _drift(run: Run, summary: RunSummary, answers: ModelAnswers) -> float:
    """The mean total variation between a model's answers and those of its evaluation; 0 where the
    latter were not kept."""
    if summary.best is None or saved_predictions.read_examples(run) is None:
        return 0.0
    try:
        logits = saved_predictions.read_logits(run, summary.best.step).logits
    except StoreError:
        return 0.0
    evaluated = probabilities(logits[: len(answers.logits)])
    return float(np.abs(evaluated - probabilities(answers.logits)).sum(axis=1).mean() / 2)


def verify_push(
    run: Run,
    summary: RunSummary,
    full: str,
    commit: str,
    token: str | None,
    stopped: Callable[[], bool],
    local: ModelAnswers,
) -> Verification:
    """Load a pushed model from the Hub and ask it what the one here was asked.

    It comes into a temporary folder rather than into the Hub's cache, which visitors share.

    Args:
        full: the repository, `namespace/name`.
        commit: its sha.
        token: used for these calls only.
        stopped: whether nobody waits for it any more.
        local: answers of the model here.
    """
    try:
        hub = HubClient(token, stopped)
        with tempfile.TemporaryDirectory(prefix="finetune-verify-") as folder:
            hub.beat = lambda: _bytes_in(Path(folder))
            hub.call(
                f"Loading {full} back",
                lambda: snapshot_download(
                    full, revision=commit, local_dir=folder, token=token, max_workers=2,
                    endpoint=hub_connection.hub_endpoint(),
                ),
            )  # fmt: skip
            return _compare(local, _answers(run, summary, Path(folder)))
    except Cancelled:
        return Verification(0, 0.0, "It was not loaded back: you cancelled that.")
    except FinetuneError as error:
        return Verification(0, 0.0, f"It could not be loaded back. {error}")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return Verification(0, 0.0, f"It could not be loaded back: {reason}.")


def _bytes_in(folder: Path) -> int:
    """How much is there by now, which changes while a download gets on."""
    total = 0
    with contextlib.suppress(OSError):  # a file may get its final name while it is looked at
        for path in folder.rglob("*"):
            total += path.stat().st_size
    return total


def _compare(local: ModelAnswers, pushed: ModelAnswers) -> Verification:
    pairs, difference, problem = len(local.logits), 0.0, ""
    if local.labels != pushed.labels:
        problem = f"Its classes are {pushed.labels}, those of the model here {local.labels}."
    else:
        difference = float(np.abs(local.logits - pushed.logits).max(initial=0.0))
        if not difference <= TOLERANCE:
            problem = f"A logit differs by {difference:.3g}; {TOLERANCE:g} is allowed."
    return Verification(pairs, difference, problem)
