"""Whether the pushed model answers as the one here: both are asked the same pairs.

The model is loaded on the CPU in fp32, here before the push and from the Hub after it.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from huggingface_hub import snapshot_download
from numpy.typing import NDArray

from finetune.data import checkpoints
from finetune.errors import Cancelled, FinetuneError, ModelError, PublishError
from finetune.evaluation import saved_predictions
from finetune.hub.client import HubClient
from finetune.hub.model_card import EXAMPLES
from finetune.runs.run import Run
from finetune.runs.summary import RunSummary

PAIRS = 20  # validation pairs that both are asked
TOLERANCE = 1e-4  # of a logit, between the two


@dataclass(frozen=True)
class Verification:
    """The model from the Hub beside the one here."""

    pairs: int  # how many both were asked
    difference: float  # the largest of a logit
    problem: str = ""  # what differs, or why it could not be compared; empty where all is well


def score_model(run: Run, summary: RunSummary, folder: Path) -> NDArray[np.float32]:
    """The logits, of shape (pairs, classes), that a saved model gives to the run's first
    validation pairs, or to sentences of the project's own where those were not kept.

    Raises:
        ModelError: when the model cannot be loaded, or answers with what is no number.
    """
    from finetune.inference.scorer import Scorer

    names = ["sentence1", "sentence2"][: 1 + summary.paired]
    table = saved_predictions.read_examples(run)
    if table is None or not table.num_rows:
        sentences = [list(column) for column in zip(*EXAMPLES, strict=True)][: len(names)]
    else:
        sentences = [table.column(name).slice(0, PAIRS).to_pylist() for name in names]
    length = checkpoints.length_of(run.folder)
    scorer = Scorer(folder, length, summary.paired, "fp32", "cpu", threads=1, aside=True)
    try:
        return scorer.scores(sentences[0], sentences[1] if summary.paired else None)
    finally:
        scorer.free()


def score_saved_model(run: Run, summary: RunSummary) -> NDArray[np.float32]:
    """As `score_model`, of the model in `best/`, after which it may be pushed.

    Raises:
        PublishError: when it is damaged.
    """
    try:
        return score_model(run, summary, run.best)
    except ModelError as error:
        raise PublishError(f"{error.fact} Nothing was sent.", error.remedy) from None
    except Exception as error:  # damage raises whatever its bytes lead to
        reason = " ".join(str(error).split())[:300].rstrip(". ") or type(error).__name__
        raise PublishError(
            f"The saved model cannot be scored: {reason}. Nothing was sent.", "Train it again."
        ) from None


def verify_push(
    run: Run, summary: RunSummary, full: str, commit: str, local: NDArray[np.float32],
    hub: HubClient,
) -> Verification:  # fmt: skip
    """Load a pushed model from the Hub and ask it what the one here was asked.

    It comes into a temporary folder rather than into the Hub's cache, which visitors share.

    Args:
        full: the repository, `namespace/name`.
        commit: its sha.
        local: logits of the model here.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="finetune-verify-") as folder:
            hub.beat = lambda: _bytes_in(Path(folder))
            hub.call(
                f"Loading {full} back",
                lambda: snapshot_download(
                    full, revision=commit, local_dir=folder, token=hub.api.token, max_workers=2,
                    endpoint=hub.api.endpoint,
                ),
            )  # fmt: skip
            pushed = score_model(run, summary, Path(folder))
    except Cancelled:
        return Verification(0, 0.0, "It was not loaded back: you cancelled that.")
    except FinetuneError as error:
        return Verification(0, 0.0, f"It could not be loaded back. {error}")
    difference = float(np.abs(local - pushed).max(initial=0.0))
    problem = ""
    if not difference <= TOLERANCE:
        problem = f"A logit differs by {difference:.3g}; {TOLERANCE:g} is allowed."
    return Verification(len(local), difference, problem)


def _bytes_in(folder: Path) -> int:
    """How much is there by now, which changes while a download gets on."""
    with contextlib.suppress(OSError):  # a file may get its final name while it is looked at
        return sum(path.stat().st_size for path in folder.rglob("*"))
    return 0
