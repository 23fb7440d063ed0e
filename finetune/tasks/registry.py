"""The tasks by name."""

from __future__ import annotations

from finetune.tasks.base import Target, Task
from finetune.tasks.single_label import SingleLabel

TASKS: dict[str, Task] = {task.name: task for task in (SingleLabel(),)}


def task_of(target: Target) -> Task:
    """Return the task of a target."""
    return TASKS[target.task]
