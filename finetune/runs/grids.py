"""Plan several runs from one form, by seeds or over a grid; compute the spread of their scores."""

import itertools
import re
import secrets
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.config import RunConfig, is_upload
from finetune.errors import ConfigError
from finetune.messages import message as _
from finetune.metrics import catalog
from finetune.metrics.intervals import Interval, mean_interval

GRID = ("learning_rate", "per_device_train_batch_size", "num_train_epochs")  # its fields
ALL_ROWS = "all rows"  # in the name of a cross-validation's last run
MOST = 100  # runs from one click


@dataclass(frozen=True)
class PlannedRun:
    """A run to create; runs that differ only in their seed, or in their fold, share a `group`.

    The runs of one click share the first part of their names, the next free one of `stem`.
    """

    config: RunConfig
    group: str = ""
    member: tuple[str, ...] = ()  # further parts of its name: `run 3`, `seed 43`
    stem: str = ""  # as in `RunStore.new_name`


def plan_runs(
    base: RunConfig, seeds: int = 1, grid: Mapping[str, str] | None = None
) -> list[PlannedRun]:
    """Plan the runs of a form, with `seed`, `seed` + 1 and so on; runs of one group stand together.
    A cross-validation is a group: a run for each fold, then one on all rows. `grid` has values
    separated by commas by field of `GRID`; empty for the base's own value. ConfigError names each
    invalid value."""
    axes: dict[str, list[Any]] = {}
    problems: dict[str, str] = {}
    if not isinstance(seeds, int) or not 1 <= seeds <= MOST:
        problems["seeds"] = _(
            "must be a whole number from 1 to {most}, got {seeds!r}", most=MOST, seeds=seeds
        )
    for name, text in (grid or {}).items():
        words = filter(None, map(str.strip, (text or "").split(",")))
        try:
            values = [getattr(base.changed(**{name: word}), name) for word in words]
            axes[name] = list(dict.fromkeys(values)) or [getattr(base, name)]
        except ConfigError as error:
            problems |= error.problems
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    folds = [*range(1, base.folds + 1), 0] if base.trains_on_all else [base.fold]
    if not problems and (count := len(points) * seeds * len(folds)) > MOST:
        problems["grid"] = _(
            "makes {count:,} runs; at most {most} are queued at once", count=count, most=MOST
        )
    if problems:
        raise ConfigError(problems)
    stem, planned = "grid" if len(points) > 1 else "", []
    for number, point in enumerate(points, 1):
        place = (f"run {number}",) if stem else ()
        group = secrets.token_urlsafe(9) if seeds > 1 else ""
        for seed in range(base.seed, base.seed + seeds):
            member = (*place, f"seed {seed}") if seeds > 1 else place
            if base.trains_on_all:
                group = secrets.token_urlsafe(9)
            for fold in folds:
                parts = (*member, f"fold {fold}" if fold else ALL_ROWS)
                config = base.changed(**point, seed=seed, fold=fold)
                planned.append(PlannedRun(config, group, parts if base.folds else member, stem))
    return planned


@dataclass(frozen=True)
class SeedSpread:
    """The spread of a score over the `count` runs of a group that have it."""

    count: int
    mean: float
    deviation: float  # sample standard deviation (n - 1); 0 for a single run
    interval: Interval | None  # of the mean over other seeds; None for one run, and over folds


def seed_spread(
    scores: Iterable[float | None], metric: str, independent: bool = True
) -> SeedSpread | None:
    """Mean and standard deviation of the scores that are not None; None if there are none. The
    interval ends where the metric's scale does; there is none unless the scores are `independent`:
    models of folds share most of their rows."""
    values = [score for score in scores if score is not None]
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    interval = mean_interval(values) if independent else None
    interval = interval and interval.within(*catalog.find(metric).range)
    return SeedSpread(len(values), statistics.fmean(values), deviation, interval)


BETWEEN = " \u00b7 "  # a name's parts: `search 2 · trial 3`, `tickets-3 · seed 43`
SEED = f"{BETWEEN}seed "
OWN_FILES = "own-files"  # in place of a file's name where others may read it
_LONGEST = 24  # characters of the data's part


def data_name(config: RunConfig, files: str = "") -> str:
    """Return the data's part of a name: `tickets` of `tickets.csv`, `mrpc` of `glue/mrpc`. `files`
    are the person's names of uploaded files, with commas between them."""
    if is_upload(config.dataset):
        name = Path(files.partition(",")[0]).stem or OWN_FILES
    else:
        name = config.dataset_config_name or config.dataset.rstrip("/").rpartition("/")[2]
    short = re.sub(r"[^\w.]+", "-", name).strip("-._")[:_LONGEST].rstrip("-._")
    return short or OWN_FILES


def new_name(wanted: str, stem: str, taken: Iterable[str], counter: str = "-") -> str:
    """Return `wanted` if it is free, otherwise it, or `stem` if it is "", with the next number:
    `stem-3`. Of `taken` names with parts the first one counts, too."""
    names = {name for whole in taken for name in (whole, whole.partition(BETWEEN)[0])}
    if wanted and wanted not in names:
        return wanted
    start = f"{wanted or stem}{counter}"
    texts = (name[len(start) :] for name in names if name.startswith(start))
    numbers = [int(text) for text in texts if re.fullmatch("[0-9]{1,9}", text)]
    return f"{start}{1 + max(numbers, default=1 if wanted else 0)}"
