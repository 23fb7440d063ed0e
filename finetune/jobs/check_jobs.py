"""Examinations: looking at the pairs of a configuration in a process of its own.

Knows no page and no dataset; what is found is `examination`'s business, and which process lives
`workers`'.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from finetune import hub_errors, owners
from finetune.config import RunConfig, is_upload
from finetune.data import catalog, check_report, hub_access
from finetune.data.check_report import CheckReport
from finetune.data.preview import FirstRows
from finetune.errors import ConfigError, DataError, StoreError
from finetune.jobs import background, workers
from finetune.jobs.background import JobKind, JobProgress
from finetune.owners import NOBODY
from finetune.runs.store import Run, RunStore

_ID = re.compile(r"[0-9a-f]{24}")
_KIND = JobKind("finetune.jobs.check", "examinations/*", 3, "examinations are going on")
_KEPT = 100
PARTIAL, GLANCE = "partial.json", "glance.json"
_Found = TypeVar("_Found", CheckReport, FirstRows)


@dataclass(frozen=True)
class CheckState(JobProgress):
    """How far an examination is.

    Args:
        report: what it found; None until it ends well.
        partial: what it found without a tokenizer; None until then, and where it stands in
            `report`.
        glance: the first rows, of what lies here as a file; None once the rows themselves can be
            shown.
    """

    report: CheckReport | None = None
    partial: CheckReport | None = None
    glance: FirstRows | None = None

    @property
    def found(self) -> CheckReport | None:
        """All that is known of the pairs by now."""
        return self.report or self.partial


def start_check(store: RunStore, config: RunConfig, again: bool = False) -> Run:
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
    check_source_access(store, config)
    folder = check_folder(store, config)
    if check_state(folder).report is not None and not again:
        _check_right(config)
        return folder
    if not store.visitor.may_start:
        raise DataError(*NOBODY)
    files = {
        "config.json": catalog.with_absolute_paths(config).to_json(),
        "owner": store.visitor.name,
    }
    background.start_job(store, folder, _KIND, files)
    _forget_old(folder.folder.parent)
    return folder


def _forget_old(parent: Path) -> None:
    """Keep the newest examinations; one that is asked for again is made again."""
    found = sorted(parent.glob("*/"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[_KEPT:]:
        if not workers.alive(Run(path)):
            shutil.rmtree(path, ignore_errors=True)


def abandon_check(folder: Run) -> None:
    """End an examination nobody waits for, and forget what it has written."""
    if workers.alive(folder):
        workers.kill_worker(folder)
        shutil.rmtree(folder.folder, ignore_errors=True)


def check_folder(store: RunStore, config: RunConfig) -> Run:
    """Where the examination of a configuration's pairs is, or would be."""
    return Run(check_report.folder_for(store.root, config))


def asked_by(folder: Run) -> str:
    """Who asked for an examination first; empty on one's own machine."""
    try:
        return (folder.folder / "owner").read_text(encoding="utf-8")
    except OSError:
        return ""


def check_source_access(store: RunStore, config: RunConfig) -> None:
    """See that what a configuration names is the visitor's to use.

    Raises:
        ConfigError: when it names a place on the disk of a machine that others share.
        DataError: when it names no dataset, or an upload that is not there or not theirs.
    """
    catalog.check_dataset(config.dataset)
    if is_upload(config.dataset):
        store.uploads.files(config.dataset)
    if store.visitor.alone:
        return
    if catalog.is_local_path(config.checkpoint):
        problem = "is on this machine's disk, which is not its visitors'; choose one of the Hub"
        raise ConfigError({"checkpoint": problem})
    if not catalog.may_be_fetched(config.checkpoint):
        raise ConfigError({"checkpoint": "is no name of the Hub; give it as owner/name"})


def get_check(store: RunStore, look_id: object) -> Run:
    """The examination of that id.

    Raises:
        DataError: for anything else, and for that of another visitor's upload.
    """
    if not isinstance(look_id, str) or not _ID.fullmatch(look_id):
        raise DataError("There is no such examination.", "Press Examine.")
    folder = Run(store.root / "examinations" / look_id)
    with contextlib.suppress(StoreError):
        config = folder.config()
        if is_upload(config.dataset):
            store.uploads.files(config.dataset)
        if owners.is_shared():
            if check_folder(store, config).id != look_id:
                raise DataError("There is no such examination.", "Press Examine.")
            _check_right(config)
    return folder


def _check_right(config: RunConfig) -> None:
    """See that the Hub would give a visitor what was examined, now that they ask.

    Raises:
        DataError: when it would not.
    """
    offered = catalog.find_dataset(config.dataset) is not None  # and so everybody's
    if not owners.is_shared() or offered or not catalog.is_hub_dataset(config.dataset):
        return
    if (cause := hub_access.refused("dataset", config.dataset)) is not None:
        raise hub_errors.refusal("dataset", config.dataset, cause)


def check_state(folder: Run) -> CheckState:
    """How far an examination is, from its folder."""
    found = background.job_progress(folder)
    known = CheckState(**vars(found))
    glance = _kept(folder, GLANCE, FirstRows)
    if report := _kept(folder, "report.json", CheckReport):
        shown = None if report.corpus else glance
        return replace(known, status="finished", report=report, glance=shown)
    partial = _kept(folder, PARTIAL, CheckReport)
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
