"""How many threads PyTorch computes with, for one thread that asks it, and their priority."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

_NICE = 15  # of threads that stand aside
T = TypeVar("T")

_changing_threads = threading.Lock()


def set_own_threads(threads: int) -> None:
    """Let PyTorch compute with so many threads where the calling thread asks it to. What
    `torch.set_num_threads` sets for all threads that are still to come is put back."""
    with _changing_threads:
        default = _in_new_thread(torch.get_num_threads)
        torch.get_num_threads()  # the first question takes the default, also after a number was set
        torch.set_num_threads(threads)
        _in_new_thread(lambda: torch.set_num_threads(default))


def default_threads() -> int:
    """How many threads PyTorch computes with unless told otherwise."""
    with _changing_threads:
        return _in_new_thread(torch.get_num_threads)


def _in_new_thread(function: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def take_one_thread() -> None:
    """Compute with one thread, which lets others go first: several would wait for each other."""
    set_own_threads(1)
    lower_priority()


def lower_priority() -> None:
    """Let other threads go first. Linux alone has priorities of threads, and inherits them."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
