"""Train: once, by folds, or as a search; and what tells beforehand."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finetune.api.verb import AnyStore, each, verb
from finetune.config import RunConfig
from finetune.data import check_report
from finetune.data.check_report import CheckReport
from finetune.engines.base import HERE
from finetune.engines.registry import make_spec
from finetune.errors import TrainingError
from finetune.evaluation import probe as probing
from finetune.evaluation.probe import ProbeReport
from finetune.hyperparameter import FOLDS
from finetune.jobs import check as checking
from finetune.jobs import probe as probes
from finetune.jobs import run_table, scheduler, service
from finetune.jobs.terminal import follow
from finetune.messages import message as _
from finetune.runs.grids import plan_runs
from finetune.runs.run import Run
from finetune.runs.store import as_store
from finetune.studies import driver, results
from finetune.studies.space import Budget, default_space, read_space

if TYPE_CHECKING:
    from finetune.data.splits import Pairs

_POLL = 0.2  # seconds between looks at what runs


def load_pairs(config: RunConfig, store: AnyStore = None) -> Pairs:
    """Load the sentence pairs of a configuration, as a run would train on them.

    Returns:
        `splits`, a `DatasetDict` with `train`, `validation` and perhaps `test`; `labels`, their
            classes.
    """
    from finetune.data import splits

    return splits.load_pairs(config, as_store(store).root)


def train(
    config: RunConfig,
    store: AnyStore = None,
    progress: bool = True,
    engine: str = HERE,
    **options: Any,
) -> Run:
    """Train a classifier in a process of its own and wait until it ends.

    The run belongs to the store: the page shows it, and it waits while another one trains.
    An interrupt (Ctrl-C, or a notebook's stop button) stops the run and keeps its best model.

    Args:
        store: the store of the run, or its folder; the default one if None.
        progress: True to show a progress bar with the evaluations above it.
        engine: as `python -m finetune train --engine` names it.
        options: of the engine, named as the flags of `python -m finetune train`. A billed one
            takes its `price`, in US dollars an hour: naming the price accepts it.

    Returns:
        the run, finished or stopped: `run.metrics`, `run.best` (a `from_pretrained` folder).
    """
    store = as_store(store)
    runs = service.start_runs(store, plan_runs(config), make_spec(engine, options))
    for number, run in enumerate(runs):
        try:
            summary = follow(store, run, progress)
        except KeyboardInterrupt:
            for other in reversed(runs[number:]):
                service.stop_run(store, other)
            summary = follow(store, run, False)
        if summary.status not in ("finished", "stopped"):
            raise TrainingError(summary.error or _("The run ended early."), summary.remedy)
        if summary.status == "stopped":
            return run
    return runs[-1]


def cross_validate(
    config: RunConfig,
    folds: int = 0,
    store: AnyStore = None,
    progress: bool = True,
    engine: str = HERE,
    **options: Any,
) -> Run:
    """Cross-validate a configuration, then train a model on all rows.

    The rows of train and validation are cut into folds that share no sentence; a test split stays
    as it is. For each fold a model is trained on the others, and answers the fold with its last
    state: nothing is picked. Then a model is trained on all rows in the same way.

    Args:
        folds: from 2 to 10; those of the configuration, or else 5, if 0.
        store, progress, engine, options: as `train` takes them.

    Returns:
        the run on all rows. Its `metrics` and `evaluate(run)` are the cross-validated ones: the
            answers for each row are by the model that had not seen it.
    """
    config = config.changed(folds=folds or config.folds or FOLDS, fold=0)
    return train(config, store, progress, engine, **options)


def search(
    config: RunConfig,
    space: Mapping[str, str] | None = None,
    trials: int = 20,
    minutes: float = 0.0,
    store: AnyStore = None,
) -> Run:
    """Search hyperparameters by training runs, and wait until the search ends. Runs that fall
    behind end early.

    Args:
        config: the configuration of the first trial; the result is never worse.
        space: field -> what to draw from, as `1e-5..3e-4`, `8,16` or empty for its usual range;
            learning rate, epochs, batch size and warm-up if None.
        trials: at most; 0 for no limit.
        minutes: of training, over all trials, after which no trial begins; 0 for no limit.
        store: the store of the runs, or its folder; the default one if None.

    Returns:
        the run with the best score, which is slightly too good because it was picked among many.

    Raises:
        ConfigError: if the space or the budget is invalid.
        TrainingError: if no trial has a score.
    """
    store = as_store(store)
    drawn = default_space() if space is None else read_space(space)
    study = driver.begin_search(store, config, drawn, Budget(trials, minutes))
    while driver.advance(store, study):
        scheduler.dispatch_queue(store)
        time.sleep(_POLL)
    best = results.best_trial(results.list_trials(store, study), study.minimize)
    if best is None:
        raise TrainingError("No trial of the search has a score.", "The runs' logs say why.")
    if not best.run_id:
        raise TrainingError("The run of the best trial was deleted.", "Search again.")
    return store.get(best.run_id)


@verb("check", text=checking.as_text, values=check_report.summarise, status=checking.status)
def check(config: RunConfig, store: AnyStore = None) -> CheckReport:
    """Look for what is wrong with the data before training on it.

    Args:
        store: keeps the rows read; a store or its folder; the default one if None.

    Returns:
        `splits`, `columns`, `findings` with what would resolve them, `baselines`, and `blocked`,
            the findings that make training impossible.
    """
    store = as_store(store)
    return checking.check_config(config, store.root)


@verb("probe", text=probing.as_text)
def probe(
    config: RunConfig,
    checkpoints: Sequence[str] = (),
    store: AnyStore = None,
    progress: bool = False,
) -> ProbeReport:
    """Rank checkpoints on your data by a linear model on their vectors, before training.

    Args:
        checkpoints: offered names, Hub ids or folders, from 2 to 8; by default the offered ones on
            this disk.
        store: keeps the rows read; a store or its folder; the default one if None.
        progress: True to print the checkpoint that is being looked at.

    Returns:
        `candidates`, the best first: each with its cross-validated `score`, whether it
            `may_be_best`, and its time and size; `words` is the score of TF-IDF.

    Raises:
        ConfigError, DataError: if there is nothing to compare, or too few pairs.
    """
    store = as_store(store)
    names = probes.check_request(store, config, each(checkpoints) or probes.candidates(config))
    begun: list[str] = []

    def tell(name: str, _done: int, _total: int) -> None:
        if progress and name not in begun:
            begun.append(name)
            print(f"{name} ...", flush=True)

    return probes.probe_checkpoints(config, names, store.root, tell)


@verb("runs", text=run_table.as_text, values=list, words=("words",))
def list_runs(words: Sequence[str] = (), store: AnyStore = None) -> list[dict[str, Any]]:
    """List the runs as the page does, the newest first. A cross-validation, a search, a grid or
    seeds are one line, whose name stands for its model in other commands.

    Args:
        words: list those with all these words.
        store: a store or its folder; the default one if None.

    Returns:
        of each line its `name`, `created`, `status`, `metric` and `score` as [value, low, high].
    """
    return run_table.lines(as_store(store), " ".join(each(words)))
