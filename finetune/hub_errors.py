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
        sending: the remedy for who sends; the fact is the status then.
        fact: for who reads a dataset or a checkpoint; empty where their reader says more.
        remedy: for who reads.
    """

    sending: str
    fact: str = "{What} cannot be read: the Hub refused with status {status}."
    remedy: str = "Try again in a while."


_NO_REPOSITORY = "There is no such repository, or the token may not see it."
_MAY_NOT_WRITE = "The token may not do this; it needs write access to that namespace."
_NETWORK = "Check the network and {again}; {kept}."
TABLE = {
    "gated": Words(
        _MAY_NOT_WRITE,
        "{What} is gated.",
        "Accept its terms at {page} and sign in with `hf auth login`.",
    ),
    "missing": Words(
        _NO_REPOSITORY,
        "There is no {kind} {name!r} on the Hub, or it is private.",
        "Check its name; for a private one sign in with `hf auth login`.",
    ),
    "revision": Words(
        _NO_REPOSITORY,
        "{What} has no revision {revision!r}.",
        "Leave dataset_revision empty for the newest, or give a branch, tag or commit.",
    ),
    "no file": Words(_NO_REPOSITORY, fact=""),
    "token": Words(
        "The token is wrong or has expired; make a new one in your Hub settings.",
        "{What} cannot be read: the Hub does not accept this machine's token.",
        "Sign in anew with `hf auth login`, or remove HF_TOKEN: what is public needs none.",
    ),
    "forbidden": Words(
        _MAY_NOT_WRITE,
        "{What} cannot be read: this machine's token may not.",
        "Give the token read access to it in your Hub settings.",
    ),
    "pause": Words(
        "The Hub asks for a pause; wait a few minutes and {again}.",
        "{What} cannot be read now: the Hub asks for a pause{of_time}.",
        "Try again after it.",
    ),
    "fault": Words(
        "The Hub has a fault; {again} in a while: {kept}.",
        "{What} cannot be read: the Hub has a fault (status {status}).",
    ),
    "silent": Words(
        _NETWORK,
        "{What} could not be read: the Hub at {endpoint} does not answer.",
        "Check the network and try again, or {instead}.",
    ),
    "cut": Words(
        _NETWORK,
        "The download of {what} broke off.",
        "Check the network and try again: what has come is kept.",
    ),
    "full": Words(
        "Free some space and {again}.",
        "{What} cannot be kept: the disk is full.",
        "Free some space and try again.",
    ),
    "read-only": Words(
        "Choose a folder that can be written, with TMPDIR or HF_HOME, and {again}.",
        "{What} cannot be kept: {path} is on a disk that can only be read.",
        "Choose a folder that can be, with HF_HOME.",
    ),
    "not allowed": Words(
        "Give the right to it, or choose another folder with TMPDIR or HF_HOME, and {again}.",
        "{What} cannot be had: this user may not use {path}.",
        "Give the right to it, or choose another folder with HF_HOME.",
    ),
    "refused": Words("The Hub does not take this; check the name and the licence."),
    "unpaid": Words(
        "It has to be paid for: choose other hardware, or see your Hub billing settings."
    ),
    "taken": Words("Something of that name is already there; choose another name."),
    "behind": Words("Someone else committed in between; see what they did, then {again}."),
    "large": Words("The Hub does not take files of that size."),
    "not arrived": Words(
        "The Hub's storage does not have what was sent; {again}, which sends it anew."
    ),
    "pickle": Words(
        "Choose a model with safetensors weights.",
        "{What} has no safetensors weights, and others can run code when they are opened.",
        "Choose one that has them, or save it as safetensors where you trust it.",
    ),
}
_INSTEAD = {
    "dataset": "use the bundled pairs or your own files",
    "checkpoint": "use the bundled checkpoint",
    "model": "choose a run",
}
_OF_STATUS = {
    401: "token", 402: "unpaid", 403: "forbidden", 404: "missing", 409: "taken", 412: "behind",
    413: "large", 429: "pause",
}  # fmt: skip
_OF_ERROR = {
    GatedRepoError: "gated",  # a kind of the next
    RepositoryNotFoundError: "missing",
    RevisionNotFoundError: "revision",
    EntryNotFoundError: "no file",
}
_OF_DISK = {
    errno.ENOSPC: "full", errno.EDQUOT: "full",
    errno.EROFS: "read-only", errno.EACCES: "not allowed", errno.EPERM: "not allowed",
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
    errors = [error]
    while True:
        last = errors[-1]
        cause = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if cause is None or cause in errors:
            return errors
        errors.append(cause)


def cause(error: BaseException) -> Cause:
    """What an error of a client of the Hub comes from."""
    errors, text = chain(error), str(error)
    names = {type(one).__name__ for one in errors}
    if "safetensors" in text and ("file named" in text or "use_safetensors" in text):
        return Cause("pickle")
    if any(isinstance(one, Gated) for one in errors):
        return Cause("gated")
    for one in errors:
        response = getattr(one, "response", None) if isinstance(one, HfHubHTTPError) else None
        if response is not None and response.status_code >= 400:
            return Cause(_name(one, response), response.status_code, pause(response))
    if names & _CUT or any("Consistency check failed" in str(one) for one in errors):
        return Cause("cut")
    for one in errors:
        if isinstance(one, OSError) and (name := _OF_DISK.get(one.errno or 0)):
            return Cause(name, path=str(one.filename or "the folder"))
    return Cause("silent" if names & _SILENT else "")


def _name(error: BaseException, response: Any) -> str:
    for kind, name in _OF_ERROR.items():
        if isinstance(error, kind):
            return name
    status = response.status_code
    try:
        path = response.request.url.path
    except RuntimeError:  # a response without its request
        path = ""
    if status == 404 and re.search(r"/lfs/|/verify$", path):
        return "not arrived"
    if status == 409 and "/commit/" in path:
        return "behind"
    return _OF_STATUS.get(status, "fault" if status >= 500 else "refused")


def pause(response: Any) -> int:
    """The seconds that a response asks for, read as the client does; 0 where it names none."""
    limit = parse_ratelimit_headers(response.headers)
    if limit is not None and not limit.remaining:
        return limit.reset_in_seconds
    seconds = str(response.headers.get("Retry-After", "")).strip()
    return int(seconds) if re.fullmatch(r"[0-9]{1,9}", seconds) else 0


def duration(seconds: int) -> str:
    """A pause in words."""
    if seconds >= 120:
        return f"{-(-seconds // 60)} minutes"
    return f"{seconds} second" + "s" * (seconds != 1)


def refusal(kind: Kind, name: str, cause: Cause, revision: str = "") -> FinetuneError:
    """The error that says why a dataset or a checkpoint cannot be had.

    Args:
        cause: one that has a fact in the table.
    """
    words, endpoint = TABLE[cause.name], hub_connection.hub_endpoint()
    what = f"the {'Hub ' * (kind == 'dataset')}{kind} {name}"
    values = {
        "what": what,
        "What": what[0].upper() + what[1:],
        "kind": kind,
        "name": name,
        "revision": revision,
        "status": cause.status,
        "path": cause.path,
        "page": f"{endpoint}/{'datasets/' * (kind == 'dataset')}{name}",
        "endpoint": endpoint,
        "of_time": f" of {duration(cause.pause)}" * bool(cause.pause),
        "instead": _INSTEAD[kind],
    }
    remedy = words.remedy.format(**values)
    if owners.is_shared() and cause.name in NO_RIGHT:
        remedy = "Choose one that everybody may read: visitors' runs have no token here."
    error: type[FinetuneError] = DataError if kind == "dataset" else ModelError
    return error(words.fact.format(**values), remedy)


def explained(
    kind: Kind, name: str, error: BaseException, revision: str = ""
) -> FinetuneError | None:
    """As `refusal`, of a client's error; None where the table has no fact for it."""
    known = cause(error)
    return refusal(kind, name, known, revision) if known.name and TABLE[known.name].fact else None


def retried(read: Callable[[], T]) -> T:
    """The value of a call that reads, made again where the Hub asks for a pause or has a fault.

    Raises:
        Exception: that of the last try.
    """
    for tries in range(1, _TRIES):
        try:
            return read()
        except Exception as error:
            known = cause(error)
            seconds = known.pause or 2 ** (tries - 1)
            if known.name not in ("pause", "fault") or seconds > LONGEST_PAUSE:
                raise
        print(f"the Hub answered {known.status}; asking again in {duration(seconds)}", flush=True)
        time.sleep(seconds)
    return read()


def first_line(error: BaseException) -> str:
    """What an error says first, without what only signed addresses hold."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return logs.unsigned(line)[:300]
