"""The lock of Optuna's journal, which the system releases if its process dies.

Optuna's own lock is a file. If a killed process leaves one behind, everybody waits 30 seconds.
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
        """Wait for the lock, and remove a partial line left in the journal by a killed process.
        Otherwise the next line would be damaged."""
        self._lock.acquire()
        disk.remove_partial_line(self._journal)
        return True

    def release(self) -> None:
        self._lock.release()
