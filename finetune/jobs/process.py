"""Which process is meant: a pid and when that process was born, for pids are reused.

The birth is counted from the machine's start and not from its clock, which can be set; the
machine's start has an id, so that nothing from before a reboot is taken for alive.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import psutil

ProcessMark = dict[str, Any]  # what job.json says of a process: pid, born


def identify_process(pid: int) -> ProcessMark | None:
    """What identifies a living process; None where there is none."""
    born = _born(pid)
    return {"pid": pid, "born": born} if born else None


def find_process(known: ProcessMark) -> psutil.Process | None:
    """The living process that was marked; None when it has ended, be its pid another's now."""
    pid = known.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0 or "born" not in known:
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or _born(pid) != known["born"]:
            return None
        return process
    except (psutil.Error, OverflowError):
        return None


def _born(pid: int) -> str:
    """The machine's start and the ticks from there; empty where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # The name, in brackets, may hold anything; the 22nd field is the 20th after it.
        return f"{_boot()}:{stat.rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        pass
    if _boot():
        return ""
    try:  # not Linux
        return f"{psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return ""


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
