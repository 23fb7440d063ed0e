"""Examinations: looking at the pairs of a configuration in a process of its own.

Knows no page and no dataset; what is found is `examination`'s business, and which process lives
`workers`'.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from finetune import catalog, errands, hub_access, hub_errors, uploads, visitors, workers
from finetune.config import DATA_FIELDS, RunConfig
from finetune.errands import Kind, Progress
from finetune.errors import ConfigError, DataError, StoreError
from finetune.glance import Glance
from finetune.report import Report
from finetune.store import Run, RunStore
from finetune.visitors import NOBODY

_ID = re.compile(r"[0-9a-f]{24}")
_KIND = Kind("finetune.examine", "examinations/*", 3, "examinations are going on")
_KEPT = 100
PARTIAL, GLANCE = "partial.json", "glance.json"
_Found = TypeVar("_Found", Report, Glance)


@dataclass(frozen=True)
class Look(Progress):
    """How far an examination is.

    Args:
        report: what it found; None until it ends well.
        partial: what it found without a tokenizer; None until then, and where it stands in
            `report`.
        glance: the first rows, of what lies here as a file; None once the rows themselves can be
            shown.
    """

    report: Report | None = None
    partial: Report | None = None
    glance: Glance | None = None

    @property
    def found(self) -> Report | None:
        """All that is known of the pairs by now."""
        return self.report or self.partial


def examine(store: RunStore, config: RunConfig, again: bool = False) -> Run:
    """Look at the pairs of a configuration in a process of its own; the folder it writes into.

    What was examined before is not examined again, for whoever asks.

    Args:
        again: examine anew, since a source may have changed.

    Raises:
        ConfigError, DataError: as `check_source`; DataError also when nobody known asks for what
            was not examined before.
        JobError: when too many are going on, or no process can be started.
        StoreError: when the folder cannot be made.
    """
    check_source(store, config)
    folder = examination(store, config)
    if look(folder).report is not None and not again:
        _check_right(config)
        return folder
    if not store.visitor.may_start:
        raise DataError(*NOBODY)
    files = {"config.json": located(config).to_json(), "owner": store.visitor.name}
    errands.start(store, folder, _KIND, files)
    _forget_old(folder.folder.parent)
    return folder


def _forget_old(parent: Path) -> None:
    """Keep the newest examinations; one that is asked for again is made again."""
    found = sorted(parent.glob("*/"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[_KEPT:]:
        if not workers.alive(Run(path)):
            shutil.rmtree(path, ignore_errors=True)


def abandon(folder: Run) -> None:
    """End an examination nobody waits for, and forget what it has written."""
    if workers.alive(folder):
        workers.kill(folder)
        shutil.rmtree(folder.folder, ignore_errors=True)


def examination(store: RunStore, config: RunConfig) -> Run:
    """Where the examination of a configuration's pairs is, or would be."""
    config = located(config)
    values = [getattr(config, name) for name in (*DATA_FIELDS, "checkpoint", "max_length")]
    if visitors.shared() and catalog.is_hub_dataset(config.dataset):
        values.append("for everybody")  # made without a token: nobody's private rows
    name = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:24]
    return Run(store.root / "examinations" / name)


def located(config: RunConfig) -> RunConfig:
    """A configuration whose files are named by absolute paths, for workers elsewhere."""
    file = config.accelerate_config
    return config.changed(
        checkpoint=catalog.located(config.checkpoint),
        accelerate_config=file and os.path.abspath(os.path.expanduser(file)),
    )


def asked_by(folder: Run) -> str:
    """Who asked for an examination first; empty on one's own machine."""
    try:
        return (folder.folder / "owner").read_text(encoding="utf-8")
    except OSError:
        return ""


def check_source(store: RunStore, config: RunConfig) -> None:
    """See that what a configuration names is the visitor's to use.

    Raises:
        ConfigError: when it names a place on the disk of a machine that others share.
        DataError: when it names no dataset, or an upload that is not there or not theirs.
    """
    catalog.check_dataset(config.dataset)
    if uploads.is_upload(config.dataset):
        store.uploads.files(config.dataset)
    if store.visitor.alone:
        return
    if catalog.on_disk(config.checkpoint):
        problem = "is on this machine's disk, which is not its visitors'; choose one of the Hub"
        raise ConfigError({"checkpoint": problem})
    if not catalog.may_be_fetched(config.checkpoint):
        raise ConfigError({"checkpoint": "is no name of the Hub; give it as owner/name"})


def get(store: RunStore, look_id: object) -> Run:
    """The examination of that id.

    Raises:
        DataError: for anything else, and for that of another visitor's upload.
    """
    if not isinstance(look_id, str) or not _ID.fullmatch(look_id):
        raise DataError("There is no such examination.", "Press Examine.")
    folder = Run(store.root / "examinations" / look_id)
    with contextlib.suppress(StoreError):
        config = folder.config()
        if uploads.is_upload(config.dataset):
            store.uploads.files(config.dataset)
        if visitors.shared():
            if examination(store, config).id != look_id:
                raise DataError("There is no such examination.", "Press Examine.")
            _check_right(config)
    return folder


def _check_right(config: RunConfig) -> None:
    """See that the Hub would give a visitor what was examined, now that they ask.

    Raises:
        DataError: when it would not.
    """
    offered = catalog.dataset(config.dataset) is not None  # and so everybody's
    if not visitors.shared() or offered or not catalog.is_hub_dataset(config.dataset):
        return
    if (cause := hub_access.refused("dataset", config.dataset)) is not None:
        raise hub_errors.refusal("dataset", config.dataset, cause)


def look(folder: Run) -> Look:
    """How far an examination is, from its folder."""
    found = errands.progress(folder)
    known = Look(**vars(found))
    glance = _kept(folder, GLANCE, Glance)
    if report := _kept(folder, "report.json", Report):
        shown = None if report.corpus else glance
        return replace(known, status="finished", report=report, glance=shown)
    partial = _kept(folder, PARTIAL, Report)
    known = replace(known, partial=partial, glance=None if partial else glance)
    if found.status == "failed" and not found.remedy:
        log = folder.log_tail(2000).strip().splitlines()
        return replace(known, remedy=f"Try a part of the file. {log[-1] if log else ''}".strip())
    return known


def _kept(folder: Run, name: str, kind: type[_Found]) -> _Found | None:
    """What an examination has written; None where it has not, or not to the end."""
    if values := folder.read_json(folder.folder / name):
        with contextlib.suppress(TypeError, KeyError, ValueError):
            return kind.from_dict(values)
    return None
