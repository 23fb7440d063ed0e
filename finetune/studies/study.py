"""A study's folder, `<store>/studies/<id>/`: its settings, and the result of each trial.

    study.json      the settings; written once
    trials.log      Optuna's journal: several processes and machines may serve one study
    STOP            no new trials
    END             the search is over: no trial is at work, and none begins

A trial is an ordinary run; the journal names it, and its `about.json` names the study.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from pydantic import BaseModel, ValidationError

from finetune import disk
from finetune.config import RunConfig
from finetune.engines.base import EngineSpec
from finetune.engines.registry import keep_token
from finetune.errors import JobError, StoreError
from finetune.hyperparameter import Choices, Range
from finetune.metrics import catalog
from finetune.runs.grids import new_name
from finetune.runs.run import Run
from finetune.runs.store import RunStore, new_id
from finetune.runs.summary import RunSummary
from finetune.studies.space import Budget, Space, distributions, outside
from finetune.tasks.base import SINGLE_LABEL
from finetune.tasks.registry import deciding_metric, find_task

if TYPE_CHECKING:
    import optuna

PARTS = 10  # parts of a trial; after each it is scored and may be pruned
# A trial among the worst quarter so far is pruned once `_STARTUP` trials are complete and `_WARMUP`
# of its parts are done. In simulated studies that lost the best trial in 2 of 100, pruning by the
# median in 19.
_KEPT, _STARTUP, _WARMUP = 75.0, 5, 3
_RANDOM = 8  # trials drawn at random before the sampler learns from them


class Noted:
    """Attributes of a trial, in the journal."""

    RUN = "run"  # its run
    TAKEN_UP = "taken_up"  # how many times its job was reattached
    SECONDS = "seconds"  # seconds worked on it, once it has ended
    ERROR = "error"  # why it failed or waits for room, by `messages.encode`
    FORM = "form"  # it has the form's values
    PRUNED = "pruned"  # the search stops it


class Settings(BaseModel, frozen=True):
    """Settings of a search: configuration, space and budget."""

    owner: str = ""
    created: float
    title: str = ""  # `search 2`; "" of a search of an older version
    config: dict[str, Any]  # of the first trial; the others differ in the fields of the space,
    # which need not contain its values
    space: dict[str, Range | Choices]
    budget: Budget
    parallel: int = 1  # trials running at a time
    pruning: bool = True
    keep_pruned: bool = False  # keep the weights of trials that are pruned
    spec: EngineSpec = EngineSpec()


@dataclass(frozen=True)
class Study:
    """One study."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @functools.cached_property
    def settings(self) -> Settings:
        try:
            return Settings.model_validate_json((self.folder / "study.json").read_text("utf-8"))
        except (OSError, ValidationError) as error:
            raise StoreError(
                "study.json of study {id} cannot be read.",
                "Its runs are still there, under Runs; begin another search.",
                id=self.id,
            ) from error

    @property
    def title(self) -> str:
        """The search's name, the first part of its trials' names."""
        return self.settings.title or f"search {self.id[:15]}"

    @property
    def config(self) -> RunConfig:
        return RunConfig.from_saved(self.settings.config)

    @functools.cached_property
    def outside(self) -> dict[str, Any]:
        """Values of the first trial that the search does not draw. If there are any, Optuna
        knows that trial without values and learns nothing from it."""
        return outside(dict(self.settings.space), self.config.to_dict())

    def values(self, trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
        """Return a trial's values of the searched fields."""
        return trial.params or {name: getattr(self.config, name) for name in self.settings.space}

    @property
    def metric(self) -> str:
        """The validation score to optimize: that of the task, once a trial has read its pairs."""
        task = find_task(str(disk.read_json(self.folder / "task.json").get("task", SINGLE_LABEL)))
        return deciding_metric(self.config, task)

    def learn_task(self, summary: RunSummary) -> None:
        """Note what the search's trials learn, from the state of one."""
        path = self.folder / "task.json"
        if summary.prepared is not None and not path.exists():
            disk.write_atomically(path, json.dumps({"task": summary.prepared.task}))

    @property
    def minimize(self) -> bool:
        """True if a lower score is better."""
        return not catalog.find(self.metric).greater_is_better

    def lock(self) -> FileLock:
        """Lock held by the process that draws trials."""
        return FileLock(self.folder / ".lock", timeout=0)

    def stop(self) -> None:
        """Begin no more trials; running ones continue."""
        disk.write_atomically(self.folder / "STOP", "")

    @property
    def is_stopped(self) -> bool:
        return (self.folder / "STOP").exists() or self.is_over

    def end(self) -> None:
        """End the search for good, whatever happens to its runs."""
        disk.write_atomically(self.folder / "END", "")

    @property
    def is_over(self) -> bool:
        return (self.folder / "END").exists()

    @functools.cached_property
    def states(self) -> type[optuna.trial.TrialState]:
        """Optuna's states of a trial."""
        import optuna

        return optuna.trial.TrialState

    @functools.cached_property
    def optuna_study(self) -> optuna.Study:
        """Open Optuna's study. Raises StoreError if its journal is damaged or has another space."""
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if self.settings.pruning:  # ends trials that are behind
            pruner = optuna.pruners.PercentilePruner(_KEPT, _STARTUP, _WARMUP)
        journal = self.folder / "trials.log"
        backend = JournalFileBackend(str(journal), JournalLock(journal))  # type: ignore[arg-type]
        with self._reading():
            return optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),
                study_name=self.id,
                direction="minimize" if self.minimize else "maximize",
                pruner=pruner,
                load_if_exists=True,
            )

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise StoreError if the journal is damaged."""
        try:
            yield
        except (ValueError, KeyError) as error:
            raise StoreError(
                "trials.log of study {id} cannot be read: {error}.",
                "Its runs are still there, under Runs; begin another search.",
                id=self.id,
                error=error,
            ) from error

    def draw(self) -> optuna.Trial:
        """Draw the next trial: first the configuration as it is, twice if it fails; then others."""
        import optuna

        trials, apart = self.trials(), bool(self.outside)
        forms = [trial for trial in trials if Noted.FORM in trial.user_attrs or not trial.number]
        # Not those that a killed process has only half drawn.
        tried = [form for form in forms if {Noted.RUN, Noted.ERROR} & form.user_attrs.keys()]
        if len(tried) < 2 and all(form.state == self.states.FAIL for form in forms):
            values = self.settings.config
            form = {} if apart else {name: values[name] for name in self.settings.space}
            self.optuna_study.enqueue_trial(form, user_attrs={Noted.FORM: True})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # Seeded by its number, so that another process does not draw the same.
            self.optuna_study.sampler = optuna.samplers.TPESampler(
                seed=self.config.seed + len(trials), n_startup_trials=_RANDOM, multivariate=True,
                group=apart,  # otherwise the fields of a trial without values are drawn one by one
            )  # fmt: skip
        is_form = apart and any(trial.state == self.states.WAITING for trial in self.trials())
        with self._reading():
            space = {} if is_form else distributions(dict(self.settings.space))
            return self.optuna_study.ask(space)

    def trials(self) -> list[optuna.trial.FrozenTrial]:
        """Return all trials in their order. StoreError if they were drawn from another space."""
        with self._reading():
            trials = self.optuna_study.get_trials(deepcopy=False)
            space = distributions(dict(self.settings.space))
            drawn = next((trial.distributions for trial in trials if trial.distributions), {})
            # A process killed while drawing has left only a part of them.
            if not drawn.items() <= space.items():
                raise ValueError("it has trials of another space than study.json")
            return trials

    def is_without_run(self, trial: optuna.trial.FrozenTrial) -> bool:
        """True if a drawn trial waits for room in the queue."""
        return trial.state == self.states.RUNNING and Noted.RUN not in trial.user_attrs

    def writable(self, trial: optuna.trial.FrozenTrial) -> optuna.Trial:
        """Return a running trial to report scores of; `ask` gives it only to who drew it."""
        import optuna

        return optuna.trial.Trial(self.optuna_study, trial._trial_id)


class JournalLock:
    """Held while lines are added to Optuna's journal; the system releases it if its process dies.
    Optuna's own lock is a file: if a killed process leaves one, everybody waits 30 seconds."""

    def __init__(self, journal: Path) -> None:
        self._journal, self._lock = journal, FileLock(journal.with_name(".trials.lock"))

    def acquire(self) -> bool:
        """Wait for the lock, and remove a partial line left in the journal by a killed process.
        Otherwise the next line would be damaged."""
        self._lock.acquire()
        disk.remove_partial_line(self._journal)
        return True

    def release(self) -> None:
        self._lock.release()


_opened = functools.lru_cache(maxsize=256)(Study)  # its journal is read on, not reread


def create_study(
    store: RunStore,
    config: RunConfig,
    space: Space,
    budget: Budget,
    token: str = "",
    **options: Any,
) -> Study:
    """Create a study whose first trial is the configuration itself, with numbers for automatic
    values that are searched. `token` is of the Hub, for an engine that asks it; `options` are
    further values of `Settings`."""
    folder = store.root / "studies"
    study = Study(folder / new_id(folder))
    values = config.to_dict()
    taken = {study.title for study in studies(store)} | store.taken_names()
    settings = Settings(
        owner=store.visitor.name, created=time.time(),
        title=new_name(config.name, "search", taken, " "),
        config=values, space=space, budget=budget, **options,
    )  # fmt: skip
    with disk.writing(study.folder):
        study.folder.mkdir(parents=True)
    keep_token(study.id, token)
    disk.write_atomically(study.folder / "study.json", settings.model_dump_json(indent=2) + "\n")
    return study


def studies(store: RunStore) -> list[Study]:
    """Return the visitor's studies, newest first."""
    found = []
    for path in sorted(store.root.glob("studies/*/study.json"), reverse=True):
        study = _opened(path.parent)
        with contextlib.suppress(StoreError):  # only a lone owner sees damaged studies
            if store.visitor.sees_all or store.visitor.owns(study.settings.owner):
                found.append(study)
    return found


def find_study(store: RunStore, study_id: str) -> Study:
    """Return the study of an id or a name. Raises JobError if the visitor may see none."""
    for study in studies(store):
        if study_id in (study.id, study.title):
            return study
    raise JobError("There is no such search.", "Choose one from the list.")


def trial_run(store: RunStore, trial: optuna.trial.FrozenTrial) -> Run | None:
    """Return the run of a trial; None if it was deleted."""
    run_id = trial.user_attrs.get(Noted.RUN)
    try:
        return store.everyone.get(run_id)
    except StoreError:
        return None
