"""Restrict this process and its children to named files and folders, with Landlock.

Landlock needs Linux 5.13 but no privileges, and a restriction cannot be undone. Its system call
numbers are the same on every architecture.
Source: https://docs.kernel.org/userspace-api/landlock.html
"""

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping
from enum import IntFlag
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1  # a flag of landlock_create_ruleset: return the ABI
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38  # an option of prctl; without it only root may restrict itself
_SCOPES = 3  # no signals to processes outside, no connections to their abstract sockets
SCOPES_SINCE = 6  # the ABI
_SIZE_OF_FIRST = 8  # bytes of the attributes in the first ABI


class Access(IntFlag):
    """The kernel's access rights to a file, or to everything beneath a folder."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13  # move or link into another folder; ABI 2
    TRUNCATE = 1 << 14  # ABI 3
    IOCTL_DEV = 1 << 15  # ABI 5

    READ = EXECUTE | READ_FILE | READ_DIR
    DEVICE = READ_FILE | READ_DIR | WRITE_FILE | IOCTL_DEV
    # Files and folders; no links, which could mislead an unconfined process, and no devices.
    WRITE = (
        READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE
        | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER
    )  # fmt: skip
    OWN = WRITE | EXECUTE | MAKE_SYM | MAKE_SOCK | MAKE_FIFO
    # Files with secret names: the folder cannot be listed.
    UNLISTED = READ_FILE | WRITE_FILE | TRUNCATE | MAKE_REG | REMOVE_FILE


_OF_FILES = Access.EXECUTE | Access.WRITE_FILE | Access.READ_FILE | Access.TRUNCATE
_OF_FILES |= Access.IOCTL_DEV
_SINCE = {Access.REFER: 2, Access.TRUNCATE: 3, Access.IOCTL_DEV: 5}


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def abi() -> int:
    """The version of this kernel's Landlock; 0 if it has none, or forbids its use here."""
    if sys.platform != "linux":
        return 0
    try:
        return _call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def restrict(rules: Mapping[Access, Iterable[str | Path]]) -> None:
    """Restrict this process to the files and folders of `rules`; missing ones are skipped. Rights
    that an older kernel does not know are not restricted. OSError if the kernel has no Landlock, or
    this process has other threads, which would keep their access."""
    if len(os.listdir("/proc/self/task")) > 1:
        raise OSError("a process with several threads cannot be confined")
    version = abi()
    handled = Access((1 << 16) - 1)
    for access, since in _SINCE.items():
        if version < since:
            handled &= ~access
    scoped = version >= SCOPES_SINCE
    attributes = _Ruleset(handled, 0, _SCOPES if scoped else 0)
    size = ctypes.sizeof(attributes) if scoped else _SIZE_OF_FIRST
    ruleset = _call(_CREATE_RULESET, ctypes.byref(attributes), size, 0)
    try:
        for access, paths in rules.items():
            for path in paths:
                _allow(ruleset, str(path), access & handled)
        _check(_libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: Access) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)  # follows links: the rule is for the file
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            access &= _OF_FILES
        rule = _PathBeneath(access, handle)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(handle)


def _call(number: int, *arguments: object) -> int:
    call = _libc().syscall
    call.restype = ctypes.c_long
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _check(call(ctypes.c_long(number), *values))


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
