"""The lock of Optuna's journal, which the system releases when the process that holds it dies.

Optuna's own is a file: one that a killed process leaves behind holds everybody up for 30 seconds.
"""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock
from optuna.storages.journal import JournalFileOpenLock

from finetune import disk


class JournalLock(JournalFileOpenLock):
    """Held while lines are added to the journal.

    Args:
        journal: Optuna's file.
    """

    def __init__(self, journal: Path) -> None:
        self._journal, self._lock = journal, FileLock(journal.with_name(".trials.lock"))

    def acquire(self) -> bool:
        """Wait for the lock, and remove half a line that a killed process left in the journal: the
        next one would make it a damaged line."""
        self._lock.acquire()
        disk.remove_partial_line(self._journal)
        return True

    def release(self) -> None:
        self._lock.release()
