"""The tasks by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from finetune.config import RunConfig
from finetune.errors import DataError
from finetune.metrics import catalog
from finetune.metrics.catalog import LOSS, Metric
from finetune.tasks.base import SINGLE_LABEL, Target, Task
from finetune.tasks.multi_label import MultiLabel
from finetune.tasks.regression import CutScores, Regression
from finetune.tasks.single_label import SingleLabel

_TASKS: tuple[Task, ...] = (SingleLabel(), Regression(), MultiLabel(), CutScores())
TASKS: Mapping[str, Task] = {task.name: task for task in _TASKS}


def find_task(name: str) -> Task:
    """Return a task by name; DataError if there is none."""
    if name not in TASKS:
        raise DataError(
            "There is no task {name!r}.",
            "Choose one of: {tasks}.",
            name=name,
            tasks=", ".join(TASKS),
        )
    return TASKS[name]


def score_metrics() -> list[Metric]:
    """Return the metrics that a run can have: each task's, its headline first, and the further
    ones."""
    own = [metric for task in TASKS.values() for metric in (task.headline, *task.metrics)]
    return list(dict.fromkeys((*own, *catalog.OPTIONAL)))


def task_of(target: Target) -> Task:
    """Return the task of a target."""
    return find_task(target.task)


def measured(config: RunConfig, target: Target) -> list[Metric]:
    """Return the metrics of a run, the loss left out: those of its task, and those it adds unless
    they are of another kind of answer."""
    task, added = task_of(target), [*config.added_metrics, deciding_metric(config, task_of(target))]
    fitting = (of for of in catalog.named(added) if of.kind in (task.headline.kind, "any"))
    return list(dict.fromkeys((*task.metrics, *fitting)))


def deciding_metric(config: RunConfig, task: Task) -> str:
    """Return the name of the metric by which a run chooses its best model: the configuration's, or
    the task's headline if that is automatic or of another task."""
    name = config.metric_for_best_model
    if name == "auto":
        return task.headline.name
    known = {LOSS.name, *config.added_metrics, *(metric.name for metric in task.metrics)}
    found = catalog.find(name)
    other_kind = name != LOSS.name and found.kind not in (task.headline.kind, "any")
    of_other = other_kind or (found in catalog.STANDARD and name not in known)
    return task.headline.name if of_other else name


def recognise(cells: Sequence[Any]) -> Task:
    """Return the task of a label column from a sample of its cells: classes, unless the cells are
    plainly of another task."""
    return next((task for task in TASKS.values() if task.recognises(cells)), TASKS[SINGLE_LABEL])
