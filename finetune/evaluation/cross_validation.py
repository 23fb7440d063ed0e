"""Cross-validation: every row is answered by a model that has not seen it, and one model is trained
on all of them.

The runs of the folds keep their last model: none is picked by the rows that it is scored on. The
run on all rows gets their answers as the predictions of its validation split, fold by fold:

predictions/validation.parquet, step-000000.npz, swapped.npz   as `saved_predictions` writes them
predictions/folds.json                                         a `Fold` each; written last
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from finetune import disk
from finetune.errors import DataError, some
from finetune.evaluation import baselines, saved_predictions
from finetune.evaluation.saved_predictions import SavedLogits, SwappedLogits
from finetune.messages import message as _
from finetune.runs.run import Run
from finetune.tasks.base import Target
from finetune.text_hashes import Integers

_FILE = "folds.json"
_BEFORE = 0  # the step under which the answers are kept
_ANEW = _("Start the cross-validation anew.")


@dataclass(frozen=True)
class Fold:
    """A model's scores on the fold that it has not seen."""

    number: int  # from 1
    rows: int
    step: int  # optimizer steps it had taken
    metrics: dict[str, float]
    baselines: dict[str, dict[str, float]]  # on the same rows


def read_folds(run: Run) -> list[Fold]:
    """Return the folds of a run on all rows; empty for other runs, and until they have ended."""
    return disk.read_as(list[Fold], run.predictions / _FILE) or []


def mean_over(folds: Sequence[Fold]) -> dict[str, float]:
    """Return the mean of the models' scores, weighted by the rows of the folds."""
    rows = [fold.rows for fold in folds]
    return baselines.mean_scores([fold.metrics for fold in folds], rows) if folds else {}


def baselines_over(folds: Sequence[Fold]) -> dict[str, dict[str, float]]:
    """Return the mean of each baseline's scores, weighted by the rows of the folds."""
    rows = [fold.rows for fold in folds]
    return {
        name: baselines.mean_scores([fold.baselines.get(name, {}) for fold in folds], rows)
        for name in (folds[0].baselines if folds else ())
    }


def gather(run: Run, others: Iterable[Run]) -> None:
    """Give a run on all rows the answers of the other runs of its group, unless it has them.
    DataError names the folds that are missing or have not finished."""
    if read_folds(run):
        return
    config, group = run.config(), run.about().group
    ended = {
        other.config().fold: other
        for other in others
        if group and other.about().group == group and other.state().status == "finished"
    }
    numbers = range(1, config.folds + 1)
    if missing := [str(number) for number in numbers if number not in ended]:
        raise DataError(
            "The model on all rows needs {folds} folds; these have not finished: {missing}.",
            "Resume their runs, then this one; or start the cross-validation anew.",
            folds=config.folds, missing=some(missing, 10),
        )  # fmt: skip
    parts, folds = [], []
    for number in numbers:
        summary = ended[number].state()
        if (best := summary.best) is None or summary.prepared is None:
            raise DataError("Run {name} has no scores.", _ANEW, name=ended[number].title())
        logits = saved_predictions.read_logits(ended[number], best.step, summary.prepared.target)
        parts.append((ended[number], logits))
        folds.append(Fold(number, len(logits.labels), best.step, best.metrics, summary.baselines))
    _write(run, parts)
    text = TypeAdapter(list[Fold]).dump_json(folds, indent=2).decode()
    disk.write_atomically(run.predictions / _FILE, text + "\n")


def _write(run: Run, parts: Sequence[tuple[Run, SavedLogits]]) -> None:
    """Write the predictions of all folds into a run's folder, one behind the other."""
    logits, labels = (
        np.concatenate([getattr(part, name) for _, part in parts]) for name in ("logits", "labels")
    )
    saved_predictions.save_logits(run, _BEFORE, logits, labels)
    tables = [saved_predictions.read_examples(other, labels=part.labels) for other, part in parts]
    if all(table is not None for table in tables):
        saved_predictions.save_examples(run, "validation", pa.concat_tables(tables))
    swapped = [saved_predictions.read_swapped_logits(other) for other, _ in parts]
    orders = [order for order in swapped if order is not None]
    if len(orders) == len(parts):
        sizes = np.cumsum([0, *(len(part.labels) for _, part in parts[:-1])])
        rows = [order.rows + first for order, first in zip(orders, sizes, strict=True)]
        given, other = (
            np.concatenate([getattr(order, name) for order in orders])
            for name in ("given", "swapped")
        )
        joined = SwappedLogits(_BEFORE, np.concatenate(rows), given, other)
        saved_predictions.save_swapped_logits(run, joined)


def out_of_fold(run: Run, target: Target, hashes: Integers) -> SavedLogits:
    """Return the answers for all rows, fold by fold, each by a model that has not seen the row.
    DataError if there are none yet, or the rows are others by now; `hashes` are those of its rows
    in that order, as `Pairs.pair_hashes` has them."""
    from finetune.runs import pair_index

    if not read_folds(run):
        raise DataError("The folds of this run have not finished.", _ANEW)
    answers = saved_predictions.read_logits(run, _BEFORE, target)
    table = saved_predictions.read_examples(run, labels=answers.labels)
    if table is not None:
        kept = pair_index.pair_hashes(*saved_predictions.sentences_of(table))
        if not np.array_equal(kept, hashes):
            raise DataError("The data has changed since the folds were trained.", _ANEW)
    return answers


def keep_orders(run: Run, step: int) -> None:
    """Make the folds' answers in both orders those of a run on all rows, whose kept model has taken
    `step` optimizer steps."""
    orders = saved_predictions.read_swapped_logits(run)
    if orders is None:
        raise DataError(
            "The folds were not asked in both orders.",
            "The model on all rows has seen these rows, so its own answers would tell nothing.",
        )
    saved_predictions.save_swapped_logits(run, dataclasses.replace(orders, step=step))
