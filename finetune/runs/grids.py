"""Several runs from one form: the same with other seeds, and a small grid of hyperparameters.

Also what the runs of one group say together. Starts nothing; that is `jobs`' business.
"""

from __future__ import annotations

import itertools
import secrets
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from finetune import config as config_
from finetune.config import RunConfig
from finetune.errors import ConfigError
from finetune.metrics import intervals

GRID = ("learning_rate", "per_device_train_batch_size", "num_train_epochs")
MOST = 100  # runs from one click


@dataclass(frozen=True)
class PlannedRun:
    """One run to be made.

    Args:
        config: its configuration.
        group: shared with the runs that differ from it by the seed alone; empty for one of its own.
    """

    config: RunConfig
    group: str = ""


def plan_runs(
    base: RunConfig, seeds: int = 1, grid: Mapping[str, str] | None = None
) -> list[PlannedRun]:
    """The runs of a form, those of one group together.

    Args:
        seeds: runs of each configuration, with `seed`, `seed` + 1 and so on.
        grid: field of `GRID` -> values with commas between; empty for the base's own.

    Raises:
        ConfigError: naming every value that cannot be used, and a number of runs beyond `MOST`.
    """
    problems: dict[str, str] = {}
    if not isinstance(seeds, int) or not 1 <= seeds <= MOST:
        problems["seeds"] = f"must be a whole number from 1 to {MOST}, got {seeds!r}"
    axes = {}
    for name, text in (grid or {}).items():
        try:
            axes[name] = _values(base, name, text)
        except ConfigError as error:
            problems |= error.problems
    if problems:
        raise ConfigError(problems)
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if len(points) * seeds > MOST:
        raise ConfigError(
            {"grid": f"makes {len(points) * seeds:,} runs; at most {MOST} are queued at once"}
        )
    varied = {name for name, values in axes.items() if len(values) > 1}
    found = []
    for point in points:
        group = secrets.token_urlsafe(9) if seeds > 1 else ""
        for more in range(seeds):
            seed = base.seed + more
            name = _name(base, point, varied, seed, seeds)
            found.append(PlannedRun(base.changed(**point, seed=seed, name=name), group))
    return [PlannedRun(one.config.check(), one.group) for one in found]


def _values(base: RunConfig, name: str, text: str) -> list[Any]:
    words = [word.strip() for word in str(text or "").split(",") if word.strip()]
    values = [getattr(RunConfig.from_dict({name: word}), name) for word in words]
    return list(dict.fromkeys(values)) or [getattr(base, name)]


def _name(
    base: RunConfig, point: Mapping[str, Any], varied: set[str], seed: int, seeds: int
) -> str:
    """A name that tells the runs of one click apart; none where nothing differs."""
    parts = [f"{_SHORT[name]} {value:g}" for name, value in point.items() if name in varied]
    if seeds > 1:
        parts.append(f"seed {seed}")
    if not parts:
        return base.name
    head = base.name or f"{base.checkpoint.rsplit('/')[-1]} on {_dataset(base)}"
    return f"{head}, {', '.join(parts)}"[:300]


def _dataset(base: RunConfig) -> str:
    return "own files" if base.dataset.startswith("upload/") else base.dataset


_SHORT = {
    "learning_rate": "lr",
    "per_device_train_batch_size": "batch",
    "num_train_epochs": "epochs",
}
assert set(_SHORT) == set(GRID) <= set(config_.knobs())


@dataclass(frozen=True)
class SeedSpread:
    """A score over the runs of a group.

    Args:
        count: runs that have it.
        mean: their mean.
        deviation: their sample standard deviation (n - 1); 0 for a single run.
        interval: the 95% interval of the mean over other seeds (Student's t); None for a single
            run.
    """

    count: int
    mean: float
    deviation: float
    interval: tuple[float, float] | None = None


def seed_spread(scores: Iterable[float | None]) -> SeedSpread | None:
    """Mean and standard deviation of the scores there are; None where there is none."""
    known = [score for score in scores if score is not None]
    if not known:
        return None
    deviation = statistics.stdev(known) if len(known) > 1 else 0.0
    mean = intervals.mean_interval(known)
    ends = (mean.low, mean.high) if mean is not None else None
    return SeedSpread(len(known), statistics.fmean(known), deviation, ends)
