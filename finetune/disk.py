"""Write files and folders that are complete after a crash, explain why one cannot be written, and
read JSON that may be damaged.

For the same full disk, libraries raise different errors: `OSError`, or in torch, safetensors and
numpy an exception with only a text. `writing` turns all of them into one error.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter

from finetune.errors import FinetuneError, StoreError
from finetune.messages import message as _

_Error = TypeVar("_Error", bound=FinetuneError)
_T = TypeVar("_T")

ELSEWHERE = _("or choose another folder with FINETUNE_RUNS")
_CAUSES = {
    errno.ENOSPC: (_("the disk is full"), _("Free some space")),
    errno.EDQUOT: (_("the disk quota is used up"), _("Free some space")),
    errno.EFBIG: (
        _("it would be larger than this process may write"),
        _("Raise that limit (ulimit -f)"),
    ),
    errno.EROFS: (_("the disk is read-only"), _("Make it writable")),
    errno.EACCES: (_("permission denied"), _("Give this user the right to write there")),
}
# Error in a name, which the person can mend -> fact, remedy.
_REMEDIES = {
    errno.ENOENT: (_("There is no {name}."), _("See that its name is right.")),
    errno.EISDIR: (_("{name} is a folder."), _("Name a file.")),
    errno.ENOTDIR: (_("{name} is not in a folder."), _("See that its name is right.")),
    errno.ENAMETOOLONG: (_("The name {name} is too long."), _("Give a shorter one.")),
    errno.EACCES: (
        _("{name} may not be read or written by this user."),
        _("Give this user the right to, or name another."),
    ),
}
# Short writes of torch's zip writer and of numpy's `tofile`, which give no cause.
_SHORT = re.compile(r"no space left|inline_container|PytorchStreamWriter|requested and \d+ written")


def cause(error: BaseException | None) -> int | None:
    """The error number of a failed write, whichever library failed; None for any other error."""
    while error is not None:
        text = str(error)
        for code in _CAUSES:
            words = (f"os error {code})", f"[Errno {code}]", f"strerror: {os.strerror(code)}")
            if getattr(error, "errno", 0) == code or any(word in text for word in words):
                return code
        if _SHORT.search(text) and "open file failed" not in text:
            return errno.ENOSPC
        error = error.__cause__
    return None


def is_full(error: BaseException) -> bool:
    """True if a file could not be written because of a full or unsuitable disk."""
    return cause(error) not in (None, errno.EACCES)  # which may be about reading


def failure(
    name: object, error: BaseException, kind: type[_Error], otherwise: str = ELSEWHERE
) -> _Error:
    """Say what cannot be written and why, with a remedy that ends in `otherwise`."""
    reason = getattr(error, "strerror", None) or str(error)
    reason, remedy = _CAUSES.get(cause(error) or 0, (reason, _("See that it can be written")))
    return kind(
        _("{name} cannot be written: {reason}."),
        _("{remedy}, {otherwise}.") if otherwise else "{remedy}.",
        name=name,
        reason=reason,
        remedy=remedy,
        otherwise=otherwise,
    )


def explained(error: Exception) -> FinetuneError | None:
    """Return an error for people, made of one of the operating system about a file; None if the
    error is a bug."""
    if not isinstance(error, OSError):
        return error if isinstance(error, FinetuneError) else None
    name = str(error.filename or "")
    short = name if len(name) <= 200 else f"{name[:80]}\u2026"
    if error.errno in _REMEDIES:
        fact, remedy = _REMEDIES[error.errno]
        return StoreError(fact, remedy, name=short)
    return failure(short or _("A file"), error, StoreError) if cause(error) else None


@contextlib.contextmanager
def writing(
    name: object, kind: type[FinetuneError] = StoreError, otherwise: str = ELSEWHERE
) -> Iterator[None]:
    """Turn any library's error about writing into `failure`; other errors pass."""
    try:
        yield
    except FinetuneError:
        raise
    except Exception as error:
        if cause(error) is None and not isinstance(error, OSError):
            raise
        raise failure(name, error, kind, otherwise) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to; the file replaces `path` when it is complete."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        yield new
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`: readers see the old or the new text. StoreError if that fails."""
    with writing(path), replacing(path) as new:
        new.write_text(text, encoding="utf-8")
        sync(new)


def write_result(path: Path, text: str) -> None:
    """Write a result as a whole or not at all; through a link, and to a pipe or a device such as
    `/dev/stdout`, as it is."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_text(text, encoding="utf-8")
    else:
        write_atomically(path, text)


def append_line(path: Path, line: bytes) -> None:
    """Append a line with a single write, so that lines of two processes never mix. A partial line
    that a killed process left is ended first, so that it does not spoil the new one. OSError if
    the line cannot be written; no part of it is."""
    with path.open("ab+", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        is_torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        line = b"\n" * is_torn + line + b"\n"
        if (written := file.write(line)) != len(line):
            file.truncate(os.fstat(file.fileno()).st_size - written)
            raise OSError(errno.ENOSPC, "the disk is full")


def remove_partial_line(path: Path) -> None:
    """Cut a file after its last newline."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read(1) not in (b"", b"\n"):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def make_newest(path: Path, others: Iterable[Path]) -> None:
    """Set a file's time to now, or just after the newest of `others` if the clock was set back."""
    newest = 0
    for other in others:
        with contextlib.suppress(OSError):  # it has just gone
            newest = max(newest, other.stat().st_mtime_ns)
    moment = max(time.time_ns(), newest + 1000)
    with contextlib.suppress(OSError):
        os.utime(path, ns=(moment, moment))


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Wait until everything in a folder is on the disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def replace_folder(new: Path, folder: Path) -> None:
    """Replace a folder by another one, once all files of that are on the disk.

    The old folder is renamed first; after a crash between the two renames `standing` finds it.
    """
    sync_folder(new)
    former = _former(folder)
    if folder.exists():
        shutil.rmtree(former, ignore_errors=True)
        folder.rename(former)
    shutil.move(new, folder)  # Landlock's first version forbids renaming into another folder
    sync(folder.parent)
    shutil.rmtree(former, ignore_errors=True)


def standing(folder: Path) -> Path:
    """Where the folder that `replace_folder` writes is: after a crash, where the old one is."""
    return folder if folder.exists() or not _former(folder).exists() else _former(folder)


def _former(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.former")


def remove_folder(folder: Path) -> None:
    """Remove what `replace_folder` has written. Readers see all of it or nothing."""
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(_former(folder), ignore_errors=True)
    shutil.rmtree(gone, ignore_errors=True)
    if folder.exists():
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; empty if the text is anything else."""
    try:
        value = parse_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; empty if the file is missing, unreadable or anything else."""
    try:
        return parse_object(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}


def read_part(path: Path, offset: int, size: int = -1) -> bytes:
    """Read a part of a file, by default all after an offset; nothing if it cannot be read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(offset)
        return file.read(size)
    return b""


def read_as(kind: type[_T], path: Path) -> _T | None:
    """Read a JSON file as a type that pydantic can check; None if that is not possible."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def read_cached(path: Path, parse: Callable[[str], _T]) -> _T:
    """Read and parse a file, once for each version of the file. OSError if it cannot be read."""
    status = path.stat()
    return cast(_T, _parsed(parse, str(path), status.st_ino, status.st_mtime_ns, status.st_size))


def read_cached_or(otherwise: _T, path: Path, parse: Callable[[str], _T]) -> _T:
    """Read and parse a file as `read_cached`; `otherwise` if that is not possible."""
    try:
        return read_cached(path, parse)
    except (OSError, ValueError):
        return otherwise


@lru_cache(maxsize=16_384)
def _parsed(parse: Callable[[str], Any], path: str, *version: int) -> Any:
    return parse(Path(path).read_text(encoding="utf-8", errors="replace"))
