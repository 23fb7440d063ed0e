"""HTML for the cost of a click on Train and for the pairs it reads."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice

import psutil
from markupsafe import Markup

from finetune import arguments
from finetune import config as run_config
from finetune.config import BUNDLED_DATASET, RunConfig
from finetune.data import catalog
from finetune.data.check_report import CheckReport
from finetune.environment import devices
from finetune.errors import DataError
from finetune.evaluation import baselines
from finetune.findings import Example
from finetune.jobs import check
from finetune.jobs.cost import Estimate
from finetune.jobs.run_table import value_text
from finetune.runs.store import RunStore
from finetune.tasks.registry import find_task
from finetune.training import recipe, schedule
from finetune.ui import theme
from finetune.ui.html import render
from finetune.ui.i18n import gettext

SCRIPT = theme.asset("costs.js")


def costs(
    estimate: Estimate,
    config: RunConfig,
    runs: int = 1,
    seconds: float | None = None,
    files: Mapping[str, str] | None = None,
    runs_folder: str = "",
    dataset: str = "",
) -> Markup:
    """Draw the estimate line by line, unusual values, and the equivalent command with `files` and
    `runs_folder`. `seconds` are for all `runs` that the click queues; `dataset` is a name to show
    in place of the configuration's."""
    steps, resolved = estimate.steps, dict(estimate.automatic)
    if steps is not None and config.eval_steps < 0 and estimate.report is not None:
        splits = estimate.report.splits
        rows = next((split.rows for split in splits if split.name == "validation"), 0)
        resolved["eval_steps"] = schedule.eval_every(
            config.changed(**estimate.automatic),
            steps.per_epoch,
            steps.total,
            config.num_processes,
            min(rows, config.max_eval_samples or rows),
        )
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
            if (ends := field.usual_range)
            and getattr(config, name) not in field.words
            and not ends[0] <= getattr(config, name) <= ends[1]
        ],
        automatic={  # placeholders of the boxes: `Automatic (4)`
            name: gettext("Automatic ({value})", value=value_text(resolved[name]))
            if name in resolved
            else gettext("Automatic")
            for name in ("num_train_epochs", "eval_steps", *recipe.FIELDS)
        },
        checkpoint=config.checkpoint.rstrip("/").rsplit("/")[-1],
        dataset=dataset or config.dataset,
        command=""
        if runs not in (1, 1 + config.folds)
        else arguments.command(config, files, runs_folder),
    )


def pairs_card(report: CheckReport | None, store: RunStore, dataset: str) -> Markup:
    """Draw three pairs, their classes and the baselines to beat; until they are checked, say so."""
    rows: list[Example] = []  # the first three of training; none if they are gone
    remark = None
    if report is not None and report.splits and report.corpus:
        from finetune.data import dataset_cache

        origin = next(split.origin for split in report.splits if split.name == "train")
        with suppress(DataError):
            rows = dataset_cache.preview_rows(store.root / "data" / report.corpus, origin)[:3]
    elif report is not None and report.splits:  # known beforehand
        with (catalog.BUNDLED_PAIRS / "train.csv").open(encoding="utf-8", newline="") as file:
            rows = [
                Example("train", line, first, second, report.labels[int(label)])
                for line, (first, second, label) in enumerate(islice(csv.reader(file), 1, 4), 1)
            ]
    if report is not None:
        task = find_task(report.task)
        scores = {task.constant: report.majority, **report.baselines}
        remark = baselines.why_no_training(scores, task, len(report.labels))
    return render(
        "pairs_card.html", report=report if rows else None, rows=rows, remark=remark,
        dataset=dataset,
    )  # fmt: skip


def bundled_card(store: RunStore) -> Markup:
    """The card of the bundled pairs, for the page's first paint, in English."""
    card = pairs_card(check.report_known_beforehand(RunConfig()), store, BUNDLED_DATASET)
    return Markup('<div lang="en">{}</div>').format(card)  # unseen on a page of another language
