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
from finetune.hub.client import HubClient, may_still_arrive
from finetune.hub.push_plan import Files, PushPlan, head_commit
from finetune.phases import Phase

_SMALL = 2**20  # bytes, up to which a file is read at once rather than streamed


@dataclass(frozen=True)
class PushProgress:
    """How far a push is.

    Args:
        phase: what it does now.
        sent: bytes sent, or there already.
        total: bytes in all; 0 while unknown.
        there: bytes that the Hub had from before.
        full: the repository; empty while unknown.
        created: whether the push made it.
    """

    phase: Phase = Phase.CHECK_HUB
    sent: int = 0
    total: int = 0
    there: int = 0
    full: str = ""
    created: bool = False


ProgressCallback = Callable[[PushProgress], None]


class _CountedFile(io.BufferedIOBase):
    """A file whose bytes are counted as they are sent, and which ends when the end is wanted.

    The client sends what it reads from an object, rather than from a path or from bytes, as plain
    files over HTTP and not as Xet's chunks: only so is a push counted in bytes and soon cancelled.
    """

    def __init__(self, file: Any, check_stopped: Callable[[], None]) -> None:
        self._file, self._check_stopped = file, check_stopped
        self.sent = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_stopped()
        piece: bytes = self._file.read(size)
        self.sent = self._file.tell()
        return piece

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class Upload:
    """One push under way.

    Everything is opened and read at once: a model saved meanwhile does not mix in.

    Args:
        files: path in the repository -> content, or the file that has it.
        open_files: closes those files at the end.
        report: called with every progress.

    Attributes:
        created: whether it has made the repository.
        progress: how far it is.

    Raises:
        PublishError: when a file cannot be read.
    """

    def __init__(
        self,
        hub: HubClient,
        plan: PushPlan,
        files: Files,
        open_files: contextlib.ExitStack,
        report: ProgressCallback,
    ) -> None:
        self._hub, self._plan, self._report = hub, plan, report
        self.created = False
        self.progress = PushProgress(Phase.READ_FILES, 0, plan.size, full=plan.full)
        report(self.progress)
        self._parent = plan.head
        self._large: dict[str, _CountedFile] = {}
        self._additions: list[CommitOperationAdd] = []
        for path, content in files.items():
            try:
                source: Any = content
                if isinstance(content, Path) and content.stat().st_size > _SMALL:
                    file = open_files.enter_context(content.open("rb"))
                    source = self._large[path] = _CountedFile(file, hub.check_stopped)
                elif isinstance(content, Path):
                    source = io.BytesIO(content.read_bytes())
                self._additions.append(CommitOperationAdd(path, source))  # reads it, for its hash
            except OSError as error:
                raise PublishError(
                    f"{path} cannot be read: {error.strerror or error}.", "Try again."
                ) from error
        for counted in self._large.values():
            counted.sent = 0
        hub.beat = self._beat

    def carry_out(self, message: str) -> str:
        """Make the repository, send what the Hub does not have, then make one commit of all.

        Returns:
            The commit's sha.

        Raises:
            Cancelled: when the end was wanted, and nothing was committed.
            PublishError: when the Hub refuses or does not answer.
        """
        try:
            self._create_repository()
            self._send()
            return self._commit(message)
        except Cancelled as error:
            raise Cancelled(f"{error.fact}{self._left_behind}", error.remedy) from None

    @property
    def _left_behind(self) -> str:
        created = f" The repository {self._plan.full} was made but holds no model yet."
        return created if self.created else ""

    def _create_repository(self) -> None:
        if self._plan.exists:
            return
        api, full = self._hub.api, self._plan.full
        self._tell(Phase.CREATE_REPOSITORY)
        self._hub.call(
            f"Creating {full}",
            lambda: api.create_repo(full, private=self._plan.private),
            stoppable=False,
        )
        self.created = True
        # What the new repository holds: of two commits on it, one of them late, one arrives.
        info = self._hub.call(
            f"Looking into {full}", lambda: api.model_info(full), self._left_behind
        )
        self._parent = head_commit(info)

    def _send(self) -> None:
        self._tell(Phase.UPLOAD)
        self._hub.call(
            f"Sending the files to {self._plan.full}",
            lambda: self._hub.api.preupload_lfs_files(
                self._plan.full, self._additions, free_memory=False, num_threads=1
            ),
            self._left_behind,
        )
        there = sum(self._plan.files[path] for path, file in self._large.items() if not file.sent)
        self.progress = replace(self.progress, there=there, sent=self._plan.size)

    def _commit(self, message: str) -> str:
        self._tell(Phase.COMMIT)
        plan = self._plan
        operations: list[Any] = [*self._additions, *map(CommitOperationDelete, plan.removed)]
        self._hub.check_stopped()  # the last moment: a commit cannot be taken back
        try:
            commit = self._hub.call(
                f"The push to {plan.full}",
                lambda: self._hub.api.create_commit(
                    plan.full, operations, commit_message=message,
                    parent_commit=self._parent or None,
                ),
                self._left_behind,
                stoppable=False,
            )  # fmt: skip
        except PublishError as error:
            if not may_still_arrive(error):
                raise
            raise PublishError(
                f"{error.fact} The commit may still arrive.",
                "Look into the repository in a minute, and push again if it has not arrived.",
            ) from None
        self._tell(Phase.COMMITTED)
        return str(commit.oid)

    def _tell(self, phase: Phase) -> None:
        self.progress = replace(self.progress, phase=phase, created=self.created)
        self._report(self.progress)

    def _beat(self) -> int:
        """Bytes sent so far; reports them where they are more."""
        sent = sum(file.sent for file in self._large.values())
        if sent > self.progress.sent:
            self.progress = replace(self.progress, sent=sent)
            self._tell(self.progress.phase)
        return sent
