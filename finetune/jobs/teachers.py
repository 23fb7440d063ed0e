"""Teachers: finished runs or classifiers of the Hub whose logits a run learns from as well.

Hinton et al. 2015, Distilling the Knowledge in a Neural Network, https://arxiv.org/abs/1503.02531.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from finetune import disk, owners
from finetune.config import RunConfig
from finetune.data import catalog
from finetune.errors import ConfigError, ModelError, NoSuchRun
from finetune.messages import message as _
from finetune.metrics.calibration import Logits
from finetune.runs import pair_index
from finetune.runs.run import Run
from finetune.runs.store import RunStore, named_run
from finetune.text_hashes import Integers

if TYPE_CHECKING:
    from datasets import Dataset

    from finetune.tasks.base import Target


def find_run(name: str, store: RunStore, owner: str | None = None) -> Run | None:
    """Find a teacher among the runs of a store, by id, name or, on one's own machine, folder.

    Args:
        owner: in a shared app only this visitor's runs have a name; None for those the store shows.
            An id is known only to whoever may see its run.
    """
    shared = owners.policy().several_people
    for run in store.runs():
        theirs = owner is None or not shared or run.owner == owner
        if name == run.id or (theirs and name == run.title()):
            return run
    if not shared and catalog.is_local_path(name):
        try:
            return named_run(Path(name), store.root)
        except NoSuchRun:
            return None
    return None


def with_ids(store: RunStore, config: RunConfig) -> RunConfig:
    """Replace the names of teachers among a visitor's runs by their ids: a visitor may be known by
    several names, and a worker knows only one of them."""
    if not config.teacher or not owners.policy().several_people:
        return config
    found = [(name, find_run(name, store)) for name in config.teachers]
    return config.changed(teacher=shlex.join(run.id if run else name for name, run in found))


def check_teachers(store: RunStore, config: RunConfig) -> None:
    """Raise a ConfigError unless the visitor may learn from each teacher, and it has a model."""
    for name in config.teachers:
        run = find_run(name, store)
        problem: str | None = None
        if run is not None:
            if not run.has_model():
                problem = _("names {name}, which has no model yet", name=name)
            elif config.folds and run.config().dataset == config.dataset:
                problem = _("names {name}, which has learned rows that folds hold out", name=name)
        elif catalog.is_hub_id(name):
            problem = catalog.checkpoint_problem(name, store.visitor.policy)
        else:
            problem = _("names {name}, which is none of your runs", name=name)
        if problem:
            raise ConfigError({"teacher": problem})


def of_the_hub(run: Run, config: RunConfig) -> list[str]:
    """Return a run's teachers that are fetched from the Hub."""
    store = RunStore(run.folder.parent)
    named = [name for name in config.teachers if catalog.is_hub_id(name)]
    return [name for name in named if find_run(name, store, run.owner) is None]


def check_unseen(run: Run, config: RunConfig, hashes: Mapping[str, Integers]) -> None:
    """Raise a ModelError if a teacher among the runs was trained on validation pairs that this run
    holds out: what it knows of them would make the run's scores too good.

    Args:
        hashes: `Pairs.pair_hashes`, of the training and the validation pairs.
    """
    held_out = np.setdiff1d(hashes["validation"], hashes["train"])
    for name in config.teachers:
        teacher = find_run(name, RunStore(run.folder.parent), run.owner)
        index = pair_index.read_pair_index(teacher) if teacher is not None else None
        seen = int(index.among("train", held_out).sum()) if index is not None else 0
        if seen:
            raise ModelError(
                "The teacher {name} was trained on {n} of these validation pairs, so the score "
                "would be too good.",
                "Choose a teacher that was trained on the same training pairs.",
                name=name,
                n=seen,
            )


def teacher_logits(run: Run, config: RunConfig, texts: Dataset, target: Target) -> Logits:
    """Return the mean logits of a run's teachers for some examples.

    Args:
        texts: with `sentence1` and perhaps `sentence2`.
        target: the teachers must answer with the same classes or labels, in any order.

    Returns:
        of shape (examples, target.size).

    Raises:
        ModelError: if a teacher is gone, or answers with something else.
    """
    from finetune.data import checkpoint_files, checkpoints
    from finetune.inference.scorer import Scorer

    store = RunStore(run.folder.parent)
    names = [name for name in ("sentence1", "sentence2") if name in texts.column_names]
    columns: Sequence[list[str]] = [texts[name][:] for name in names]
    parts = []
    for name in config.teachers:
        teacher, length = find_run(name, store, run.owner), config.max_length
        if teacher is None and not catalog.is_hub_id(name):
            raise ModelError("The teacher {name} is gone.", "Choose another one.", name=name)
        if teacher is not None:
            folder, length = teacher.best, checkpoints.length_of(teacher.folder)
        else:
            folder = checkpoint_files.fetch(name)
            most = checkpoints.most_tokens(disk.read_json(folder / "config.json"))
            length = min(length, most or length)
        scorer = Scorer(folder, length)
        try:
            known = list(scorer.target.names)
            if sorted(known) != sorted(target.names) or scorer.target.task != target.task:
                raise ModelError(
                    "The teacher {name} answers with {known}, not with {classes}.",
                    "Choose one that was trained on the same answers.",
                    name=name,
                    known=", ".join(known)[:80] or _("a score"),
                    classes=", ".join(target.names)[:80] or _("a score"),
                )
            if not known and not _same_scale(scorer.target, target):
                raise ModelError(
                    "The teacher {name} answers with scores from {low:g} to {high:g}, these pairs "
                    "have scores from {least:g} to {most:g}.",
                    "Choose one that was trained on the same scale.",
                    name=name,
                    low=scorer.target.low,
                    high=scorer.target.high,
                    least=target.low,
                    most=target.high,
                )
            logits = scorer.scores(*columns)
        finally:
            scorer.free()
        order = [known.index(label) for label in target.names] or [0]
        parts.append(logits[:, order])
    return np.asarray(np.mean(parts, axis=0), np.float32)


def _same_scale(one: Target, other: Target) -> bool:
    """True if the ends of two ranges of scores are no further apart than a quarter of the wider
    one. A model of the Hub that does not say its scale has none."""
    width = max(one.high - one.low, other.high - other.low)
    ends = abs(one.low - other.low), abs(one.high - other.high)
    return one.high > one.low and max(ends) <= width / 4
