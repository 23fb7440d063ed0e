"""HTML for the cost of a click on Train and for the pairs it reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil
from markupsafe import Markup

from finetune import arguments
from finetune import config as run_config
from finetune.config import RunConfig
from finetune.data.check_report import CheckReport
from finetune.environment import devices
from finetune.errors import DataError
from finetune.evaluation import baselines
from finetune.jobs.cost import Estimate
from finetune.runs.store import RunStore
from finetune.runs.summary import MAJORITY
from finetune.ui import theme
from finetune.ui.html import render
from finetune.ui.run_view import duration

SCRIPT = theme.asset("costs.js")


def costs(
    estimate: Estimate,
    config: RunConfig,
    runs: int = 1,
    seconds: float | None = None,
    files: Mapping[str, str] | None = None,
    runs_folder: str = "",
) -> Markup:
    """Draw the estimate line by line, unusual values, and the equivalent command with `files` and
    `runs_folder`. `seconds` are for all `runs` that the click queues."""
    return render(
        "costs.html",
        estimate=estimate,
        config=config,
        runs=runs,
        seconds=seconds,
        machine_memory=0 if devices.list_accelerators() else psutil.virtual_memory().total,
        unusual=[
            (name, getattr(config, name), *field.usual_range)
            for name, field in run_config.hyperparameters().items()
            if (ends := field.usual_range) and not ends[0] <= getattr(config, name) <= ends[1]
        ],
        trained_on=_trained_on(config, files or {}),
        command="" if runs > 1 else arguments.command(config, files, runs_folder),
        duration=duration,
        rough_duration=rough_duration,
    )


def _trained_on(config: RunConfig, files: Mapping[str, str]) -> str:
    """Say which checkpoint is trained on which pairs; `files` are paths or names of an upload."""
    dataset = ", ".join(Path(file).name for file in files.values()) or config.dataset
    return f"{config.checkpoint.rstrip('/').rsplit('/')[-1]} \u00b7 {dataset}"


def pairs_card(report: CheckReport | None, store: RunStore) -> Markup:
    """Draw three pairs, their classes and the baselines to beat; empty until checked."""
    if report is None or not report.corpus or not report.splits:
        return Markup()
    from finetune.data import dataset_cache

    origin = next(split.origin for split in report.splits if split.name == "train")
    try:
        rows = dataset_cache.preview_rows(store.root / "data" / report.corpus, origin)[:3]
    except DataError:
        return Markup()
    remark = baselines.why_no_training(
        {MAJORITY: report.majority, **report.baselines}, len(report.labels)
    )
    return render("pairs_card.html", report=report, rows=rows, remark=remark)


def rough_duration(seconds: float) -> str:
    """`10 s`, `2 min`, `1 h 30 min`."""
    if seconds < 50:
        return duration(max(5, 5 * round(seconds / 5)))
    if seconds < 3570:
        return f"{max(1, round(seconds / 60))} min"
    return duration(600 * round(seconds / 600))
