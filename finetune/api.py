"""What a notebook or a script calls: `finetune.train`, `evaluate`, `load_pairs`, `push_to_hub`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config import RunConfig
from finetune.engines.options import make_ticket
from finetune.engines.registry import LOCAL
from finetune.errors import TrainingError
from finetune.evaluation import report
from finetune.hub import client, publish, push_plan
from finetune.jobs import scheduler, service
from finetune.jobs.terminal import TerminalBar
from finetune.messages import message as _
from finetune.runs.events import Event
from finetune.runs.run import Run
from finetune.runs.store import RunStore, as_run, default_root
from finetune.runs.summary import ENDED, RunSummary

if TYPE_CHECKING:
    from finetune.data.splits import Pairs
    from finetune.evaluation.report import RunEvaluation
    from finetune.hub.publish import Pushed

_POLL = 0.2  # seconds between two looks at a run's events


def load_pairs(config: RunConfig, store: RunStore | None = None) -> Pairs:
    """Read the sentence pairs that a configuration names, as a run would train on them.

    Returns:
        `splits`, a `DatasetDict` with `train`, `validation` and perhaps `test`; `labels`, their
        classes.
    """
    from finetune.data import splits

    return splits.load_pairs(config, store.root if store else default_root())


def train(
    config: RunConfig,
    store: RunStore | None = None,
    progress: bool = True,
    engine: str = LOCAL,
    **options: Any,
) -> Run:
    """Train a classifier in a process of its own and wait for its end.

    The run is one of the store's: the page shows it, and it waits its turn where another trains.
    An interrupt (Ctrl-C, or a notebook's stop button) stops the run, keeping its best model.

    Args:
        store: where the run is kept; the default folder of runs if None.
        progress: whether to show a progress bar with the evaluations above it.
        engine: where: `local`, `hub-job` or `ray`.
        options: of the engine, as the flags of `python -m finetune train` name them. A Hugging Face
            Job takes its `price`, in US dollars an hour: naming it is agreeing to it.

    Returns:
        the run, finished or stopped: `run.metrics`, `run.best` (a `from_pretrained` folder).
    """
    store = store or RunStore(default_root())
    run = service.start_run(store, config, make_ticket(engine, options))
    try:
        summary = _follow(store, run, progress)
    except KeyboardInterrupt:
        service.stop_run(store, run)
        summary = _follow(store, run, False)
    if summary.status not in ("finished", "stopped"):
        raise TrainingError(summary.error or _("The run ended early."), summary.remedy)
    return run


def search(
    config: RunConfig,
    space: Mapping[str, str] | None = None,
    trials: int = 20,
    minutes: float = 0.0,
    store: RunStore | None = None,
) -> Run:
    """Search hyperparameters by runs of their own, those that are behind ended early, and wait.

    Args:
        config: what the first trial trains with; a search is never worse than it.
        space: field -> what to draw from, as `1e-5..3e-4`, `8,16` or empty for its usual range;
            learning rate, epochs, batch size and warm-up if None.
        trials: at most; 0 for no limit.
        minutes: of training, all trials together, after which no trial begins; 0 for no limit.
        store: where the runs are kept; the default folder of runs if None.

    Returns:
        the run with the best score. That score was picked among many, and is a little too good.

    Raises:
        ConfigError: naming what is wrong with the space or the budget.
        TrainingError: where no trial has a score.
    """
    from finetune.search import driver, results
    from finetune.search.space import Budget, default_space, read_space

    store = store or RunStore(default_root())
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


def _follow(store: RunStore, run: Run, progress: bool) -> RunSummary:
    """Show a run's events until it has ended; its summary then."""
    show: Callable[[Event], object] = TerminalBar() if progress else lambda event: None
    offset = 0
    while True:
        summary = run.state()
        news, offset = run.tail(offset)
        for event in news:
            show(event)
        if summary.status in ENDED:
            return summary
        if summary.status == "waiting":
            scheduler.dispatch_queue(store)
        time.sleep(_POLL)


def evaluate(run: Run | Path | str, split: str = "validation") -> RunEvaluation:
    """Say how good a run's kept model is, how sure that is, and where it fails.

    Args:
        run: one that was evaluated at least once; a run, its folder or its id.
        split: `validation`, from the saved logits; or `test`, which opens the sealed test set:
            the model is scored on it, and the run notes that.

    Returns:
        `analysis.scores` has accuracy and F1 with their 95% intervals, `analysis.expected` those
        that new pairs will show, if being the best of several evaluations made them too good.
    """
    run = as_run(run)
    if split == "test":
        from finetune.evaluation import test_set

        test_set.open_test_set(run)
    return report.evaluate_run(run, run.state(), split)


def push_to_hub(
    run: Run | Path | str,
    repository: str,
    private: bool = False,
    token: str | None = None,
    update: bool = False,
) -> Pushed:
    """Push a run's best model with its model card to the Hugging Face Hub, as one commit.

    Args:
        run: a run, its folder or its id.
        repository: `name` or `namespace/name`.
        private: whether a new repository is private.
        token: with write access; that of `hf auth login` or `HF_TOKEN` if None.
        update: whether a repository that holds something gets a new commit.

    Returns:
        `url` and `commit`, and whether the model was loaded back and answers alike.
    """
    run = as_run(run)
    summary = run.state()
    request = push_plan.PushRequest(repository, private, update=update)
    return publish.push_run(run, summary, request, token or client.stored_token())
