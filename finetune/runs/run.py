"""A training run's folder: a job's folder (`job_folder`) with a configuration and a model.

<run id>/
    config.json     the RunConfig; a move to another engine may set its save_steps
    engine.json     the engine that trains it, if it is not local (`engines.base.EngineSpec`)
    about.json      title, tags and note (`RunMetadata`)
    checkpoints/    state to continue from, one folder a step; removed when the run has finished
    best/           the best model so far, a plain `from_pretrained` folder
    predictions/    validation logits of each evaluation, one .npz a step
    seen/           hashes of the training and validation pairs (`pair_index`)
    tensorboard/    event files, if report_to asks for them
"""

import contextlib
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from finetune import disk
from finetune.config import RunConfig, is_upload
from finetune.errors import ConfigError, NoSuchRun, StoreError
from finetune.messages import message as _
from finetune.runs import events, grids
from finetune.runs.job_folder import FORMAT, JobFolder, PathInside
from finetune.runs.queue import Queue
from finetune.runs.summary import RunSummary

SPEC = "engine.json"
NOTES = "finetune"  # the key of a saved model's `config.json` that other programs ignore
_LIMITS = {"name": 120, "tags": 200, "note": 5000}  # characters, of all tags together


class RunMetadata(BaseModel, frozen=True, defer_build=True):
    """Facts about a run besides its configuration: the contents of `about.json`."""

    group: str = ""  # shared by runs that repeat one configuration with other seeds
    created: float = 0.0  # seconds since the epoch
    pairs: str = ""  # the person's names of the uploaded files it is trained on
    study: str = ""  # the search whose trial it is
    searched: int = 0  # trials of the finished search that has chosen its hyperparameters
    title: str = ""  # given when it was made, as in `names`; "" of a run of an older version
    name: str = ""  # given by the person in its place
    tags: tuple[str, ...] = ()
    note: str = ""


def parse_tags(text: str) -> tuple[str, ...]:
    """Split tags at commas; each is returned once."""
    words = (" ".join(word.split()) for word in text.split(","))
    return tuple(dict.fromkeys(filter(None, words)))


class Run(JobFolder):
    """A training run."""

    predictions = PathInside("predictions")
    checkpoints_folder = PathInside("checkpoints")
    unfinished_checkpoint = PathInside("checkpoints/.being-written")

    def config(self) -> RunConfig:
        """Read the run's configuration; StoreError if it cannot be read."""
        if not self.folder.is_dir():
            raise NoSuchRun
        if self.description.get("format") != FORMAT:
            raise StoreError(
                "Run {id} was made by another version of this app.",
                "Open it with that version; its model in best/ loads with from_pretrained.",
                id=self.id,
            )
        try:
            return disk.read_cached(self.folder / "config.json", RunConfig.from_json)
        except (OSError, ConfigError) as error:
            raise StoreError(
                "config.json of run {id} cannot be read: {error}",
                "Its model, log and events are still there; start a new run to train again.",
                id=self.id, error=error,
            ) from error  # fmt: skip

    def replace_config(self, config: RunConfig) -> None:
        """Replace the configuration by another one of the same training."""
        disk.write_atomically(self.folder / "config.json", config.to_json())

    def pinned_config(self) -> RunConfig:
        """The configuration, with a Hub dataset pinned to the commit that the run first read."""
        prepared = self.state().prepared
        revision = prepared.data.get("revision") if prepared is not None else ""
        return self.config().changed(**{"dataset_revision": revision} if revision else {})

    def about(self) -> RunMetadata:
        file, read = self.folder / "about.json", RunMetadata.model_validate_json
        return disk.read_cached_or(RunMetadata(), file, read)

    def describe(self, **values: Any) -> RunMetadata:
        """Change the run's `name`, `tags` or `note`; ConfigError if one is too long."""
        changed = self.about().model_copy(update=values)
        problems = {
            name: _("has {n:,} characters; at most {limit:,} are kept", n=n, limit=limit)
            for name, limit in _LIMITS.items()
            if (n := len("".join(getattr(changed, name)))) > limit
        }
        if problems:
            raise ConfigError(problems)
        if not self.folder.is_dir():
            raise NoSuchRun
        disk.write_atomically(self.folder / "about.json", changed.model_dump_json(indent=2))
        return changed

    def title(self, public: bool = False) -> str:
        """The run's name (see `names`). A `public` one omits the names of a person's files."""
        about = self.about()
        if about.name:
            return about.name
        try:
            config = self.config()
        except StoreError:
            return about.title or self.id
        data = grids.data_name(config, about.pairs)
        title = about.title or config.name or f"{data}-{self.id[:15]}"
        hides = public and is_upload(config.dataset) and title.startswith(f"{data}-")
        return grids.OWN_FILES + title[len(data) :] if hides else title

    def bundle(self) -> str:
        """The name of the bundle that the run belongs to (`store.Bundle`); "" for a single run."""
        first, between, _ = self.about().title.partition(grids.BETWEEN)
        return first if between else ""

    def exists(self) -> bool:
        """True if the run is there. A library may have created a deleted run's folder again."""
        return (self.folder / "config.json").is_file()

    def state(self) -> RunSummary:
        """The state of the run, from its events, its worker's lock and the queue. Its `saved_step`
        is that of the model in `best/`, which after a crash may be later than the last checkpoint;
        a resumed run reaches it again."""
        waits = self.id in Queue(self.folder.parent).waiting()  # first: its worker may remove it
        state, step = self._state_as(RunSummary), self.best_step()
        if step is not None or not self.has_model():
            state.saved_step = step
        if waits and state.status != "running":
            return replace(state, status="waiting", error="", remedy="", ended=0.0)
        return state

    @property
    def metrics(self) -> dict[str, float]:
        """Validation accuracy, F1 and loss of the best model; empty before the first evaluation."""
        best = self.state().best
        return dict(best.metrics) if best else {}

    @property
    def best(self) -> Path:
        """The folder of the best model; the former one if a crash interrupted its replacement."""
        return disk.standing(self.folder / "best")

    def has_model(self) -> bool:
        return (self.best / "config.json").exists()

    def best_step(self) -> int | None:
        """Optimizer steps that the model in `best/` has taken; None if unknown."""
        return saved_step(self.best)

    def discard(self) -> None:
        """Remove the model and the checkpoints; the events and the log stay."""
        disk.remove_folder(self.folder / "best")
        shutil.rmtree(self.checkpoints_folder, ignore_errors=True)

    def checkpoints(self) -> list[Path]:
        """The complete checkpoints, the latest last."""
        with contextlib.suppress(FileNotFoundError):  # a run that has just finished removes them
            return sorted(self.checkpoints_folder.glob("step-*/"))
        return []

    def checkpoint_step(self) -> int:
        """The step to continue from: that of the last checkpoint, or 0."""
        checkpoints = self.checkpoints()
        return int(checkpoints[-1].stem.rpartition("-")[2]) if checkpoints else 0

    def begin_checkpoint(self) -> Path:
        """Create an empty folder for a checkpoint, but not again the folder of a deleted run."""
        self.check_writable()
        shutil.rmtree(self.unfinished_checkpoint, ignore_errors=True)
        self.checkpoints_folder.mkdir(exist_ok=True)
        self.unfinished_checkpoint.mkdir()
        return self.unfinished_checkpoint

    def end_checkpoint(self, step: int, keep: int) -> None:
        """Make the written files the checkpoint of `step`, and remove older ones beyond `keep`.

        All files are on the disk before the name: after a power cut it is whole or absent.
        """
        name = f"step-{step:09d}.{time.time_ns()}"  # the same step may be written again
        disk.sync_folder(self.unfinished_checkpoint)
        self.check_writable()
        os.replace(self.unfinished_checkpoint, self.checkpoints_folder / name)
        disk.sync(self.checkpoints_folder)
        for old in self.checkpoints()[:-keep]:
            shutil.rmtree(old, ignore_errors=True)

    def resume(self) -> int:
        """Record that the run continues from its last checkpoint or from 0; returns that step."""
        step = self.checkpoint_step()
        self.stop_file.unlink(missing_ok=True)
        self.append(events.Resumed(step=step))
        return step


def read_notes(folder: Path) -> dict[str, Any]:
    """Read all that is noted with the model in a folder, as JSON values."""
    config: dict[str, Any] = disk.read_cached_or({}, folder / "config.json", disk.parse_object)
    notes = config.get(NOTES)
    return notes if isinstance(notes, dict) else {}


def saved_step(folder: Path) -> int | None:
    """Optimizer steps that the model in a folder has taken; None if unknown."""
    step = read_notes(folder).get("step")
    return step if type(step) is int else None
