"""What a click on Train starts: one run, several seeds, a grid or a search; and what that costs."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import gradio as gr
import psutil
from markupsafe import Markup

from finetune import arguments
from finetune import config as run_config
from finetune.config import RunConfig, is_upload
from finetune.data import catalog
from finetune.data.check_report import CheckReport
from finetune.engines import spending
from finetune.engines.base import EngineSpec
from finetune.environment import devices, project
from finetune.errors import ConfigError, DataError
from finetune.evaluation import baselines
from finetune.findings import Example
from finetune.jobs import check
from finetune.jobs.cost import Estimate
from finetune.jobs.run_table import value_text
from finetune.runs import grids
from finetune.runs.grids import PlannedRun
from finetune.runs.store import RunStore
from finetune.studies import driver
from finetune.studies import space as search_space
from finetune.studies.space import DEFAULT, Budget, Space, describe, read_space, searchable
from finetune.tasks.registry import find_task
from finetune.training import recipe
from finetune.ui import elements, feedback, form
from finetune.ui.html import asset, macro, render, rough_duration
from finetune.ui.i18n import gettext
from finetune.ui.run_view import setting_text

ONCE, SEEDS, GRID, SEARCH = KINDS = ("once", "seeds", "grid", "search")
COUNT = 2 + len(grids.GRID)  # of the controls
FIELDS = tuple(searchable())
SEARCH_COUNT = len(FIELDS) + 4  # of a search's controls
_DEFAULT_RUNS = project.ROOT / "runs"  # the command line's
_EXAMPLES = ("3e-5, 7e-5, 2e-4", "8, 16, 32", "2, 4, 6")  # of a grid's values
HIDDEN = ["ft-unseen"]  # hides a part and keeps its controls' values


def draw_choice() -> gr.Radio:
    """Draw the choice of what a click starts."""
    choices = list(zip(("Once", "Seeds", "Grid", "Search"), KINDS, strict=True))
    return elements.parts(choices, "What a click starts", "train-how")


def draw(how: gr.Radio) -> list[Any]:
    """Draw the controls for seeds and a grid, shown or hidden according to the choice `how`.
    Returns `how` and these controls in the order in which `plan` expects their values."""
    with gr.Column(elem_id="grid", elem_classes=HIDDEN) as grid:
        elements.note("Separate values with commas. An empty box keeps the form value.")
        with gr.Row():
            boxes = [
                elements.text_box(
                    run_config.hyperparameters()[name].label, f"grid-{name}", 130, placeholder=text
                )
                for name, text in zip(grids.GRID, _EXAMPLES, strict=True)
            ]
    with gr.Column(elem_id="several", elem_classes=HIDDEN) as several:
        seeds = elements.number_box(
            1, "Seeds", "seeds", min_width=165,
            info="Number of times to repeat the run, with seed, seed + 1 and so on.",
        )  # fmt: skip
    for part, kinds in ((several, (SEEDS, GRID)), (grid, (GRID,))):
        how.change(None, how, part, js=shown_for(kinds), **feedback.QUICK)
    # Choosing Seeds changes 1 to 3; choosing Grid resets the number to 1.
    script = (
        f"(how, seeds) => ({{{SEEDS}: seeds === '1' ? '3' : seeds, {GRID}: '1'}})[how] ?? seeds"
    )
    how.change(None, [how, seeds], seeds, js=script, **feedback.QUICK)
    how.change(None, None, None, js=asset("show_options.js"), **feedback.QUICK)
    return [how, seeds, *boxes]


def shown_for(kinds: Sequence[str]) -> str:
    """JavaScript that shows a part if the choice is one of `kinds`, and hides it otherwise."""
    updates = json.dumps([gr.update(elem_classes=HIDDEN), gr.update(elem_classes=[])])
    return f"(how) => {updates}[+{json.dumps([*kinds])}.includes(how)]"


def plan(values: Sequence[Any]) -> list[PlannedRun]:
    """Plan the runs that a click on Train starts. `values` are of the controls that `draw` returns,
    followed by those of the form. Raises ConfigError if one is invalid."""
    how, seeds, *grid = values[:COUNT]
    config = form.read(values[COUNT:])
    by_name = dict(zip(grids.GRID, grid, strict=True)) if how == GRID else {}
    several = elements.number(seeds or 1, whole=True) if how in (SEEDS, GRID) else 1
    return grids.plan_runs(config, several, by_name)


@dataclass(frozen=True)
class SearchForm:
    """The controls, and the part that holds them."""

    inputs: list[Any]
    trials: gr.Textbox
    part: gr.Column


def draw_search() -> SearchForm:
    """Draw the controls in the current block, hidden."""
    with gr.Column(elem_id="search", elem_classes=HIDDEN) as part:
        elements.note(
            gettext(
                "Train many times: first your own settings, then others; each run learns from "
                "those before it. The worst quarter is stopped early."
            )
        )
        with gr.Row():
            trials = elements.number_box(
                20, "Trials at most", "search-trials", min_width=150,
                placeholder="No limit",
                info="20 are needed to say which settings matter.",
            )  # fmt: skip
            minutes = elements.number_box(
                "", "Minutes of training", "search-minutes", min_width=150,
                placeholder="No limit", info="No trial begins after that.",
            )  # fmt: skip
        elements.note("A range such as 1..6, or values with commas between. Empty: as in the form.")
        boxes: list[Any] = []
        for name in elements.two_in_a_row(FIELDS):
            usual, label = describe(searchable()[name]), run_config.hyperparameters()[name].label
            value = usual if name in DEFAULT else ""
            box = elements.text_box(label, f"search-{name}", 130, value=value, placeholder=usual)
            boxes.append(box)
        parallel = elements.number_box(1, "At a time", "search-parallel", min_width=100)
        text = "Keep the weights of trials that end early"
        keep = gr.Checkbox(False, label=text, elem_id="search-keep")
    return SearchForm([*boxes, trials, minutes, parallel, keep], trials, part)


@contextlib.contextmanager
def problems_at_its_boxes() -> Iterator[None]:
    """Name the search's box in place of the form's, which has the same field."""
    try:
        yield
    except ConfigError as error:
        boxes = {*FIELDS, "trials", "parallel"}
        problems = {
            f"search-{name}" if name in boxes else name: text
            for name, text in error.problems.items()
        }
        raise ConfigError(problems) from error


@problems_at_its_boxes()
def read_search(values: Sequence[Any], spec: EngineSpec) -> tuple[Space, Budget, dict[str, Any]]:
    """Read the space, the budget, and options of `begin_search`. Raises ConfigError, also if the
    price on the engine of `spec` is above the limit."""
    texts = dict(zip(FIELDS, values, strict=False))
    space = read_space({name: str(text) for name, text in texts.items() if str(text or "").strip()})
    trials, minutes, parallel, keep = values[len(FIELDS) : SEARCH_COUNT]
    options = {"parallel": elements.number(parallel, whole=True), "keep_pruned": bool(keep)}
    budget = Budget(elements.number(trials, whole=True), elements.number(minutes))
    driver.check_price(budget, spec)
    return space, budget, options


def expected(store: RunStore, config: RunConfig, values: Sequence[Any], spec: EngineSpec) -> Markup:
    """Describe a search that begins with `config`: its time, its price if billed, the usual ranges
    that are moved around the first trial's values, as `Rows a step 4..12`, and the values that
    others leave out, as `Rows a step 8`. Raises ConfigError."""
    space, budget, _ = read_search(values, spec)
    if config.folds:
        return macro("feedback.html", "search_without_folds")()
    first, price = driver.first_trial(store, config, space), driver.trial_price(spec)
    moved = search_space.around(space, first)
    seconds = driver.expected_seconds(store, config, moved, budget, spec.place)
    labels = {name: gettext(run_config.hyperparameters()[name].label) for name in space}
    changed = [name for name in space if space[name] != moved[name]]
    apart = search_space.outside(moved, first.to_dict())
    texts, limit = [], 60 * budget.minutes
    if limit and (seconds is None or seconds >= limit):
        time = rough_duration(limit)
        texts.append(gettext("No trial begins after {time} of training.", time=time))
    elif seconds is not None:
        time = rough_duration(seconds)
        text = gettext("All trials: about {time} of training, less if some end early.", time=time)
        texts.append(text)
    elif budget.trials:
        texts.append(gettext("How long it takes is known after a run like it."))
    if price:
        most = spending.rounded_up(budget.trials * price)
        texts.append(gettext("All its trials together cost at most ${most:.2f}.", most=most))
    texts.append(gettext("First your own settings, then others."))
    if changed:
        values = ", ".join(
            gettext(
                "{name} {range} in place of {usual}", name=labels[name],
                range=describe(moved[name]), usual=describe(space[name]),
            )
            for name in changed
        )  # fmt: skip
        texts.append(gettext("Searched around your own settings: {values}.", values=values))
    if apart:
        values = ", ".join(f"{labels[name]} {setting_text(name, apart[name])}" for name in apart)
        texts.append(gettext("Your ranges leave out your own {values}.", values=values))
    return feedback.note(" ".join(texts))


def source(store: RunStore, config: RunConfig, report: CheckReport | None) -> str:
    """The name of a configuration's data."""
    with contextlib.suppress(DataError):  # an upload that is gone: Train says so
        if is_upload(config.dataset):
            return ", ".join(store.uploads.file_names(config.dataset).values())
    return report.source if report else config.dataset


def _command(store: RunStore, config: RunConfig) -> str:
    """The command that trains the same; it names folders on one's own machine only."""
    alone, root = store.visitor.policy.owner_asks, store.root.resolve()
    files: dict[str, str] = {}
    with contextlib.suppress(DataError):
        if is_upload(config.dataset):
            files = store.uploads.file_names(config.dataset)
        if files and alone:
            paths = store.uploads.files(config.dataset)
            files = {split: str(path.resolve()) for split, path in paths.items()}
    return arguments.command(config, files, str(root) if alone and root != _DEFAULT_RUNS else "")


def costs(
    store: RunStore, estimate: Estimate, config: RunConfig, runs: int, seconds: float | None
) -> Markup:
    """Draw the estimate line by line, unusual values, and the equivalent command. `seconds` are for
    all `runs` that the click queues."""
    steps, resolved = estimate.steps, dict(estimate.automatic)
    if steps is not None and config.eval_steps < 0 and estimate.report is not None:
        splits = estimate.report.splits
        rows = next((split.rows for split in splits if split.name == "validation"), 0)
        resolved["eval_steps"] = recipe.eval_every(
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
        dataset=source(store, config, estimate.report),
        command=_command(store, config) if runs in (1, 1 + config.folds) else "",
    )


def pairs_card(report: CheckReport | None, store: RunStore, config: RunConfig) -> Markup:
    """Draw three pairs, their classes and the baselines to beat; until they are checked, say so."""
    rows: list[Example] = []  # the first three of training; none if they are gone
    remark = None
    if report is not None and report.splits and report.corpus:
        from finetune.data import dataset_cache

        origin = next(split.origin for split in report.splits if split.name == "train")
        with contextlib.suppress(DataError):
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
        remark = baselines.why_no_training(scores, task, len(report.labels), report.validation_rows)
    return render(
        "pairs_card.html", report=report if rows else None, rows=rows, remark=remark,
        dataset=source(store, config, report),
    )  # fmt: skip


def bundled_card(store: RunStore) -> Markup:
    """The card of the bundled pairs, for the page's first paint, in English."""
    card = pairs_card(check.report_known_beforehand(RunConfig()), store, RunConfig())
    return Markup('<div lang="en">{}</div>').format(card)  # unseen on a page of another language
