"""Set the number and the priority of PyTorch's threads, for one calling thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

_NICE = 15  # of threads with low priority
T = TypeVar("T")

_changing_threads = threading.Lock()


def set_own_threads(threads: int) -> None:
    """Set the number of threads with which PyTorch computes for the calling thread.
    `torch.set_num_threads` also sets it for all new threads; that is undone."""
    with _changing_threads:
        default = _in_new_thread(torch.get_num_threads)
        torch.get_num_threads()  # the first question takes the default, also after a number was set
        torch.set_num_threads(threads)
        _in_new_thread(lambda: torch.set_num_threads(default))


def default_threads() -> int:
    """PyTorch's default number of computing threads."""
    with _changing_threads:
        return _in_new_thread(torch.get_num_threads)


def _in_new_thread(function: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def take_one_thread() -> None:
    """Compute with one thread of low priority, because several would wait for each other."""
    set_own_threads(1)
    lower_priority()


def lower_priority() -> None:
    """Let other threads go first. Only Linux has priorities of threads, which new threads
    inherit."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
