"""Sends the files of a push and makes one commit of them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete

from finetune.errors import Cancelled, PublishError
from finetune.hub.client import HubClient, HubRefused
from finetune.hub.push_plan import Files, PushPlan, head_commit
from finetune.phases import Phase


@dataclass(frozen=True)
class PushProgress:
    """How far a push is."""

    phase: Phase = Phase.CHECK_HUB
    sent: int = 0  # bytes sent, or there already
    total: int = 0  # bytes in all; 0 while unknown
    full: str = ""  # the repository


ProgressCallback = Callable[[PushProgress], None]


class _CountedFile(io.BufferedReader):
    """A file whose bytes are counted as they are sent, and which ends when the end is wanted.

    The client sends what it reads from an object, rather than from a path, as plain files over
    HTTP and not as Xet's chunks: only so is a push counted in bytes and soon cancelled.
    """

    def __init__(self, path: Path, check_stopped: Callable[[], None]) -> None:
        super().__init__(io.FileIO(path))
        self._check_stopped = check_stopped
        self.sent = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_stopped()
        piece = super().read(size)
        self.sent = self.tell()
        return piece


class Upload:
    """One push under way: how far it is, and whether it has made the repository."""

    def __init__(self, hub: HubClient, plan: PushPlan, report: ProgressCallback) -> None:
        self._hub, self._plan, self._report = hub, plan, report
        self._files: list[_CountedFile] = []
        self.created = False
        self.progress = PushProgress(Phase.READ_FILES, 0, plan.size, plan.full)
        report(self.progress)

    def send(self, files: Files, message: str) -> str:
        """Make the repository, send what the Hub does not have, then make one commit of all.

        Returns:
            The commit's sha.

        Raises:
            Cancelled: when the end was wanted, and nothing was committed.
            PublishError: when the Hub refuses or does not answer.
        """
        with contextlib.ExitStack() as open_files:
            additions = []
            for path, content in files.items():
                source: Any = content
                if isinstance(content, Path):
                    source = _CountedFile(content, self._hub.check_stopped)
                    self._files.append(open_files.enter_context(source))
                additions.append(CommitOperationAdd(path, source))  # reads it, for its hash
            for file in self._files:
                file.sent = 0
            self._hub.beat = self._bytes_sent
            try:
                return self._commit(additions, message)
            except PublishError as error:
                if not self.created:
                    raise
                fact = f"{error.fact} The repository {self._plan.full} was made, without a model."
                kind = Cancelled if isinstance(error, Cancelled) else PublishError
                raise kind(fact, error.remedy) from None

    def _commit(self, additions: list[CommitOperationAdd], message: str) -> str:
        hub, full = self._hub, self._plan.full
        parent = self._plan.head
        if not self._plan.exists:
            self._tell(Phase.CREATE_REPOSITORY)
            hub.call(
                f"Creating {full}",
                lambda: hub.api.create_repo(full, private=self._plan.private),
                stoppable=False,
            )
            self.created = True
            # What the new repository holds: of two commits on it, one of them late, one arrives.
            parent = head_commit(hub.call(f"Looking into {full}", lambda: hub.api.model_info(full)))
        self._tell(Phase.UPLOAD)
        hub.call(
            f"Sending the files to {full}",
            lambda: hub.api.preupload_lfs_files(full, additions, free_memory=False, num_threads=1),
        )
        self.progress = replace(self.progress, sent=self._plan.size)
        self._tell(Phase.COMMIT)
        hub.check_stopped()  # the last moment: a commit cannot be taken back
        operations = [*additions, *map(CommitOperationDelete, self._plan.removed)]
        try:
            commit = hub.call(
                f"The push to {full}",
                lambda: hub.api.create_commit(
                    full, operations, commit_message=message, parent_commit=parent or None
                ),
                stoppable=False,
            )
        except PublishError as error:
            if isinstance(error, HubRefused) and error.status < 500:
                raise
            raise PublishError(
                f"{error.fact} The commit may still arrive.",
                "Look into the repository in a minute, and push again if it has not arrived.",
            ) from None
        self._tell(Phase.COMMITTED)
        return str(commit.oid)

    def _tell(self, phase: Phase) -> None:
        self.progress = replace(self.progress, phase=phase)
        self._report(self.progress)

    def _bytes_sent(self) -> int:
        """Bytes sent so far; reports them where they are more."""
        sent = sum(file.sent for file in self._files)
        if sent > self.progress.sent:
            self.progress = replace(self.progress, sent=sent)
            self._report(self.progress)
        return sent
