"""Why the Hub, or a client of it, gave nothing: one table from cause to words, and when to retry.

Used where a dataset or a checkpoint is read and where something is sent.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils._http import parse_ratelimit_headers

from finetune import logs, owners
from finetune.environment import hub_connection
from finetune.errors import DataError, FinetuneError, ModelError

T = TypeVar("T")
Kind = Literal["dataset", "checkpoint", "model"]
LONGEST_PAUSE = 60  # seconds the Hub may ask for that are waited; beyond, the person is told
_TRIES = 4


@dataclass(frozen=True)
class Words:
    """What is said of one cause.

    Args:
        fact: to who reads {what}, a dataset or a checkpoint; empty where their reader says more.
        remedy: to who reads.
        sending: the remedy for who sends; the fact is the status then.
    """

    fact: str
    remedy: str
    sending: str


_FAULT = "The Hub has a fault; {again} in a while: {kept}."
_NETWORK = "Check the network and {again}; {kept}."
TABLE = {
    "gated": Words(
        "{What} is gated.",
        "Accept its terms at {page} and sign in with `hf auth login`.",
        "The token may not do this; it needs write access to that namespace.",
    ),
    "missing": Words(
        "There is no {kind} {name!r} on the Hub, or it is private.",
        "Check its name; for a private one sign in with `hf auth login`.",
        "There is no such repository, or the token may not see it.",
    ),
    "revision": Words(
        "{What} has no revision {revision!r}.",
        "Leave dataset_revision empty for the newest, or give a branch, tag or commit.",
        "There is no such repository, or the token may not see it.",
    ),
    "token": Words(
        "{What} cannot be read: the Hub does not accept this machine's token.",
        "Sign in anew with `hf auth login`, or remove HF_TOKEN: what is public needs none.",
        "The token is wrong or has expired; make a new one in your Hub settings.",
    ),
    "forbidden": Words(
        "{What} cannot be read: this machine's token may not.",
        "Give the token read access to it in your Hub settings.",
        "The token may not do this; it needs write access to that namespace.",
    ),
    "pause": Words(
        "{What} cannot be read now: the Hub asks for a pause{of_time}.",
        "Try again after it.",
        "The Hub asks for a pause; wait a few minutes and {again}.",
    ),
    "fault": Words(
        "{What} cannot be read: the Hub has a fault (status {status}).", "Try again in a while.",
        _FAULT,
    ),
    "silent": Words(
        "{What} could not be read: the Hub at {endpoint} does not answer.",
        "Check the network and try again, or {instead}.",
        _NETWORK,
    ),
    "cut": Words(
        "The download of {what} broke off.",
        "Check the network and try again: what has come is kept.",
        _NETWORK,
    ),
    "full": Words(
        "{What} cannot be kept: the disk is full.", "Free some space and try again.",
        "Free some space and {again}.",
    ),
    "read-only": Words(
        "{What} cannot be kept: {path} is on a disk that can only be read.",
        "Choose a folder that can be, with HF_HOME.",
        "Choose a folder that can be written, with TMPDIR or HF_HOME, and {again}.",
    ),
    "no file": Words(
        "", "", "There is no such repository, or the token may not see it.",
    ),
    "not allowed": Words(
        "{What} cannot be had: this user may not use {path}.",
        "Give the right to it, or choose another folder with HF_HOME.",
        "Give the right to it, or choose another folder with TMPDIR or HF_HOME, and {again}.",
    ),
    "refused": Words(
        "{What} cannot be read: the Hub refused with status {status}.",
        "Check its name and try again.",
        "The Hub does not take this; check the name and the licence.",
    ),
    "unpaid": Words(
        "{What} cannot be read: the Hub wants it to be paid for.", "Choose another one.",
        "It has to be paid for: choose other hardware, or see your Hub billing settings.",
    ),
    "taken": Words(
        "{What} cannot be read: the Hub refused with status {status}.", "Try again in a while.",
        "Something of that name is already there; choose another name.",
    ),
    "raced": Words(
        "{What} cannot be read: the Hub refused with status {status}.", "Try again in a while.",
        "The repository is being changed by another commit; wait for its end, then {again}.",
    ),
    "behind": Words(
        "{What} cannot be read: the Hub refused with status {status}.", "Try again in a while.",
        "Someone else committed in between; see what they did, then {again}.",
    ),
    "large": Words(
        "{What} cannot be read: it is too large for the Hub.", "Choose another one.",
        "The Hub does not take files of that size.",
    ),
    "not arrived": Words(
        "{What} cannot be read: the Hub's storage does not have it.", "Try again in a while.",
        "The Hub's storage does not have what was sent; {again}, which sends it anew.",
    ),
    "pickle": Words(
        "{What} has no safetensors weights, and others can run code when they are opened.",
        "Choose one that has them, or save it as safetensors where you trust it.",
        "Choose a model with safetensors weights.",
    ),
}  # fmt: skip
_INSTEAD = {
    "dataset": "use the bundled pairs or your own files",
    "checkpoint": "use the bundled checkpoint",
    "model": "choose a run",
}
_OF_STATUS = {
    400: "refused", 401: "token", 402: "unpaid", 403: "forbidden", 404: "missing", 409: "taken",
    412: "behind", 413: "large", 429: "pause",
}  # fmt: skip
# Causes by which the Hub says that who asks has no right to it.
NO_RIGHT = frozenset({"gated", "missing", "token", "forbidden"})
_SILENT = {
    "ConnectError", "ConnectTimeout", "ReadTimeout", "PoolTimeout", "ProxyError",
    "ConnectionError", "OfflineModeIsEnabled", "LocalEntryNotFoundError",
}  # fmt: skip
_CUT = {"RemoteProtocolError", "ReadError", "IncompleteRead", "ChunkedEncodingError"}


class Gated(Exception):
    """A repository that the Hub describes to everybody and gives to some."""


@dataclass(frozen=True)
class Cause:
    """Why something failed.

    Args:
        name: its row in `TABLE`; empty where it is none of those.
        status: of the Hub's answer; 0 where it gave none.
        pause: seconds that the Hub asked for; 0 where it named none.
        path: what cannot be written.
    """

    name: str = ""
    status: int = 0
    pause: int = 0
    path: str = ""


def chain(error: BaseException) -> list[BaseException]:
    """An error and what it came from, the first cause last."""
    found = [error]
    while True:
        last = found[-1]
        cause = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if cause is None or cause in found:
            return found
        found.append(cause)


def cause(error: BaseException) -> Cause:
    """What an error of a client of the Hub comes from."""
    errors = chain(error)
    text = str(error)
    if "safetensors" in text and ("file named" in text or "use_safetensors" in text):
        return Cause("pickle")
    if any(isinstance(one, Gated) for one in errors):
        return Cause("gated")
    for one in errors:
        answer = getattr(one, "response", None) if isinstance(one, HfHubHTTPError) else None
        if isinstance(status := getattr(answer, "status_code", None), int) and status >= 400:
            return Cause(_name(one, status, answer), status, pause(answer))
    names = {type(one).__name__ for one in errors}
    if names & _CUT or any("Consistency check failed" in str(one) for one in errors):
        return Cause("cut")
    for one in errors:
        if isinstance(one, OSError) and (name := _DISK.get(one.errno or 0)):
            return Cause(name, path=str(one.filename or "the folder"))
    if names & _SILENT:
        return Cause("silent")
    return Cause()


_DISK = {
    errno.ENOSPC: "full", errno.EDQUOT: "full",
    errno.EROFS: "read-only", errno.EACCES: "not allowed", errno.EPERM: "not allowed",
}  # fmt: skip


def _name(error: BaseException, status: int, answer: Any) -> str:
    if isinstance(error, GatedRepoError):  # a kind of the next
        return "gated"
    if isinstance(error, RepositoryNotFoundError):
        return "missing"
    if isinstance(error, RevisionNotFoundError):
        return "revision"
    if isinstance(error, EntryNotFoundError):
        return "no file"
    try:
        path = str(answer.request.url.path)
    except (AttributeError, RuntimeError):  # an answer without its request
        path = ""
    if status == 404 and re.search(r"/lfs/|/verify$", path):
        return "not arrived"
    if status == 409 and "/commit/" in path:
        return "raced"
    return _OF_STATUS.get(status, "fault" if status >= 500 else "refused")


def pause(response: Any) -> int:
    """The seconds that an answer asks for, read as the client does; 0 where it names none."""
    headers = getattr(response, "headers", {})
    limit = parse_ratelimit_headers(headers)
    if limit is not None and not limit.remaining:
        return limit.reset_in_seconds
    given = str(headers.get("Retry-After", "")).strip()
    return int(given) if re.fullmatch(r"[0-9]{1,9}", given) else 0


def duration(seconds: int) -> str:
    """A pause in words."""
    if seconds >= 120:
        return f"{-(-seconds // 60)} minutes"
    return f"{seconds} second" + "s" * (seconds != 1)


def refusal(kind: Kind, name: str, found: Cause, revision: str = "") -> FinetuneError:
    """The error that tells why a dataset or a checkpoint cannot be had, of a cause that has a fact
    in the table."""
    words = TABLE[found.name]
    what = f"the {'Hub ' * (kind == 'dataset')}{kind} {name}"
    values = {
        "what": what,
        "What": what[0].upper() + what[1:],
        "kind": kind,
        "name": name,
        "revision": revision,
        "status": found.status,
        "path": found.path,
        "page": f"{hub_connection.hub_endpoint()}/{'datasets/' * (kind == 'dataset')}{name}",
        "endpoint": hub_connection.hub_endpoint(),
        "of_time": f" of {duration(found.pause)}" * bool(found.pause),
        "instead": _INSTEAD[kind],
    }
    remedy = words.remedy.format(**values)
    if owners.is_shared() and found.name in NO_RIGHT:
        remedy = "Choose one that everybody may read: visitors' runs have no token here."
    made: type[FinetuneError] = DataError if kind == "dataset" else ModelError
    return made(words.fact.format(**values), remedy)


def explained(
    kind: Kind, name: str, error: BaseException, revision: str = ""
) -> FinetuneError | None:
    """As `refusal`, of a client's error; None where the table has no fact for it."""
    found = cause(error)
    known = found.name and TABLE[found.name].fact
    return refusal(kind, name, found, revision) if known else None


def retried(read: Callable[[], T]) -> T:
    """The value of a call that reads, made again where the Hub asks for a pause or has a fault.

    Raises:
        Exception: that of the last try.
    """
    for tries in range(1, _TRIES):
        try:
            return read()
        except Exception as error:
            found = cause(error)
            seconds = found.pause or 2 ** (tries - 1)
            if found.name not in ("pause", "fault") or seconds > LONGEST_PAUSE:
                raise
        print(f"the Hub answered {found.status}; asking again in {duration(seconds)}", flush=True)
        time.sleep(seconds)
    return read()


def first_line(error: BaseException) -> str:
    """What an error says first, without what only signed addresses hold."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return logs.unsigned(line)[:300]
