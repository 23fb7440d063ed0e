"""Which of several runs: ranked by their scores on the same validation pairs, with the set that may
hold the best, and the cheapest of it."""

import contextlib
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from finetune import disk
from finetune.data import csv_cells
from finetune.environment import devices
from finetune.errors import StoreError
from finetune.evaluation import report, saved_predictions, test_set
from finetune.inference import decision_rule, quantized
from finetune.messages import message as _
from finetune.metrics import catalog
from finetune.metrics.catalog import Metric
from finetune.metrics.intervals import Interval
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks import comparison
from finetune.tasks.registry import deciding_metric, task_of

_PAIRS, _SECONDS = 64, 3.0  # measured at most; five pairs are in any case
_FIRST = 3  # answers that are not counted: they are slow


@dataclass(frozen=True)
class RankedRun:
    """One of the runs."""

    id: str
    name: str
    score: Interval  # of the deciding metric, as new pairs will show it
    may_be_best: bool  # not shown to be worse than another one
    megabytes: float  # of its weights
    milliseconds: float | None  # of an answer to one pair; None if not measured on this machine


@dataclass(frozen=True)
class Ranking:
    """Runs on the same validation pairs, the best score first."""

    metric: Metric
    classes: int
    examples: int  # validation pairs
    runs: tuple[RankedRun, ...]
    others: int  # left out: runs that have not finished, or have other pairs

    @property
    def measured(self) -> bool:
        """True if the speed of all runs that may be the best is known."""
        return all(run.milliseconds is not None for run in self.runs if run.may_be_best)

    @property
    def cheapest(self) -> RankedRun | None:
        """The fastest of the runs that may be the best, the smallest if their speeds are unknown;
        None if all cost the same."""
        best = [run for run in self.runs if run.may_be_best]
        alike = len(best) > 1 and len({*map(self._cost, best)}) == 1
        return None if alike else min(best, key=self._cost)

    def _cost(self, run: RankedRun) -> tuple[float, float]:
        """Milliseconds and megabytes, as far as they are shown."""
        speed = run.milliseconds if self.measured else None
        return round(speed or 0.0, 1), round(run.megabytes, 1)

    @property
    def sentence(self) -> str:
        """The conclusion in one sentence."""
        best = [run for run in self.runs if run.may_be_best]
        cheapest, few = self.cheapest or best[0], len(best)
        cost = _("{megabytes:.1f} MB", megabytes=cheapest.megabytes)
        if self.measured:
            speed = cheapest.milliseconds
            cost = _("{milliseconds:.1f} ms a row, {size}", milliseconds=speed, size=cost)
        if few == 1:
            return _(
                "Of {runs} runs on the same {n:,} rows, only {name} may be the best ({cost}).",
                runs=len(self.runs), n=self.examples, name=cheapest.name, cost=cost,
            )  # fmt: skip
        if not self.cheapest:
            return _(
                "Of {runs} runs on the same {n:,} rows, {few} may be the best, and none of these "
                "is cheaper than another ({cost}).",
                runs=len(self.runs), few=few, n=self.examples, cost=cost,
            )  # fmt: skip
        return _(
            "Of {runs} runs on the same {n:,} rows, {few} may be the best; the cheapest of these "
            "is {name} ({cost}).",
            runs=len(self.runs), few=few, n=self.examples, name=cheapest.name, cost=cost,
        )  # fmt: skip


def rank_runs(runs: Sequence[Run]) -> Ranking:
    """Rank the finished ones of some runs that have the validation pairs of the first of them.

    What picking the best evaluation adds is taken off each score. Raises a StoreError if fewer than
    two runs can be compared.
    """
    finished = [run for run in runs if run.state().status == "finished" and run.has_model()]
    if not finished:
        raise StoreError("None of these runs has finished with a model.", "Train two on one file.")
    versions = [
        (run.best_step(), decision_rule.read_rule(run.best), saved_predictions.files_version(run))
        for run in finished
    ]
    folders = tuple(dict.fromkeys(run.folder for run in finished))
    metric, classes, examples, scored = _scored(folders, tuple(versions))
    ranked = []
    for run, score, may_be_best in scored:
        speed, size = read_speed(run), model_megabytes(run)
        milliseconds = speed.milliseconds if speed else None
        ranked.append(RankedRun(run.id, run.title(), score, may_be_best, size, milliseconds))
    ranked.sort(key=lambda run: -metric.rank(run.score.value))
    others = len({run.folder for run in runs}) - len(ranked)
    return Ranking(metric, classes, examples, tuple(ranked), others)


def beside(store: RunStore, run: Run) -> list[Run]:
    """Return a run and all others of a store, for `rank_runs` to rank those on its pairs."""
    return [run, *(other for other in store.runs() if other.id != run.id)]


@lru_cache(maxsize=16)
def _scored(
    folders: tuple[Path, ...], versions: object
) -> tuple[Metric, int, int, list[tuple[Run, Interval, bool]]]:
    """Score the runs in some folders; `versions` change with their files. Returns the metric, the
    numbers of classes and of pairs, and each run with its score, and if it may be the best."""
    answered: list[report.KeptAnswers] = []
    for folder in folders:
        with contextlib.suppress(StoreError):
            each = report.kept_answers(Run(folder))
            if not answered or report.same_pairs(each, answered[0]):
                answered.append(each)
    if len(answered) < 2:
        raise StoreError(
            "No two of these runs have finished on the same validation rows.",
            "Train two on the same ones.",
        )
    target, truth = answered[0].target, answered[0].truth
    task = task_of(target)
    metric = catalog.find(deciding_metric(answered[0].run.config(), task))
    if not metric.of_answers:
        metric = task.headline
    scores, added = [], []
    shared = next((each.shared for each in answered if each.shared), None)
    for each in answered:
        score = task.intervals(each.answers, truth, target, [metric], shared)
        picked = each.picking
        expected = picked.expected_intervals(score) if picked else {}
        scores.append(expected.get(metric.name, score[metric.name]))
        added.append(metric.rank(picked.bias.get(metric.name, 0.0)) if picked else 0.0)
    values = np.stack([each.answers for each in answered])
    kept = comparison.may_be_best(values, truth, target, metric, shared, np.array(added)).tolist()
    ranked = [*zip((each.run for each in answered), scores, kept, strict=True)]
    return metric, target.size, len(truth), ranked


def ranking_csv(ranking: Ranking) -> str:
    """Return a ranking as CSV."""
    heads = ("id", "name", ranking.metric.name, "low", "high", "may_be_best", "milliseconds", "MB")
    rows = [
        (
            run.id, run.name, f"{run.score.value:.6f}", f"{run.score.low:.6f}",
            f"{run.score.high:.6f}", str(run.may_be_best).lower(),
            "" if run.milliseconds is None else f"{run.milliseconds:.3f}", f"{run.megabytes:.1f}",
        )
        for run in ranking.runs
    ]  # fmt: skip
    return csv_cells.to_csv([heads, *rows])


@dataclass(frozen=True)
class Speed:
    """A measurement of one model."""

    milliseconds: float  # median time of an answer to a pair that is asked alone
    pairs: int  # that were measured
    precision: str
    machine: str
    step: int | None  # optimizer steps of the model


def read_speed(run: Run) -> Speed | None:
    """Read the measurement of a run's model; None if there is none of it on this machine."""
    speed = disk.read_as(Speed, run.folder / "speed.json")
    if speed is None or (speed.machine, speed.step) != (_machine(), run.best_step()):
        return None
    return speed if (speed.precision == "int8") == _is_small(run) else None


def model_megabytes(run: Run) -> float:
    """Size of the weights that answer on this machine, in 10^6 bytes: those in int8 if they are
    used."""
    if _is_small(run):
        return (run.best / quantized.MODEL).stat().st_size / 1e6
    return sum(path.stat().st_size for path in run.best.glob("*.safetensors")) / 1e6


def measure_speed(run: Run) -> Speed:
    """Measure a run's model as Predict uses it, on up to 64 of its validation pairs, and keep the
    result. Takes about three seconds besides loading."""
    from finetune.inference.scorer import Scorer

    table = test_set.validation_examples(run)
    rows = np.linspace(0, table.num_rows - 1, min(_PAIRS, table.num_rows)).astype(int)
    texts = saved_predictions.sentences_of(table.take(rows))
    scorer = Scorer.of_run(run, single_requests=True)
    times: list[float] = []
    for row in [*[0] * _FIRST, *range(len(rows))]:
        began = time.perf_counter()
        scorer.scores(*([column[row]] for column in texts))
        times.append(time.perf_counter() - began)
        if len(times) > _FIRST + 5 and sum(times) > _SECONDS:
            break
    scorer.free()
    counted, step = times[_FIRST:], run.best_step()
    median = 1000 * statistics.median(counted)
    speed = Speed(median, len(counted), scorer.precision, _machine(), step)
    disk.write_atomically(run.folder / "speed.json", json.dumps(asdict(speed), indent=1) + "\n")
    return speed


def _is_small(run: Run) -> bool:
    return quantized.answers_on_cpu(run.best) and not devices.list_accelerators()


def _machine() -> str:
    return devices.accelerator_name() or devices.processor_name()


def as_text(ranked: Ranking) -> str:
    """Return a ranking as a table, and its conclusion."""
    title, width = catalog.metric_title(ranked.metric.name, ranked.classes), 16
    lines = [f"  {title:>{width}} (95% interval)       ms a row      MB  run"]
    for run in ranked.runs:
        shown = f"{run.score.value:.4f} ({run.score.low:.4f} to {run.score.high:.4f})"
        speed = "-" if run.milliseconds is None else f"{run.milliseconds:.2f}"
        mark = "*" if run.may_be_best else " "
        lines.append(f"{mark} {shown:>{width + 16}} {speed:>13} {run.megabytes:7.1f}  {run.name}")
    lines.append(str(ranked.sentence))
    if ranked.others:
        lines.append(f"Runs that have not finished, or have other validation rows: {ranked.others}")
    return "\n".join(lines)


def as_values(ranked: Ranking) -> dict[str, Any]:
    """Return a ranking as JSON has it, with its conclusion."""
    cheapest = ranked.cheapest
    return {
        "sentence": str(ranked.sentence), "metric": ranked.metric.name,
        "examples": ranked.examples, "runs": [asdict(run) for run in ranked.runs],
        "cheapest": cheapest.id if cheapest else None, "others": ranked.others,
    }  # fmt: skip
