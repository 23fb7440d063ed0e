"""Errors of the Hub and its clients: their cause, a fact and a remedy for people, and when to
retry."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from huggingface_hub import errors as hub
from huggingface_hub.utils._http import parse_ratelimit_headers

from finetune import disk, owners
from finetune.environment import hub_connection
from finetune.errors import DataError, FinetuneError, ModelError
from finetune.messages import message as _

T = TypeVar("T")
Kind = Literal["dataset", "checkpoint", "model"]
_LONGEST_PAUSE = 60  # seconds to wait if the Hub asks for it; longer pauses are reported

# Cause -> why a dataset or a checkpoint cannot be read; `refused` is the default.
_FACTS = {
    "gated": _("{what} is gated."),
    "missing": _("{what} is not on the Hub, or it is private."),
    "revision": _("{what} has no revision {revision!r}."),
    "token": _("{what} cannot be read: the Hub does not accept this machine's token."),
    "forbidden": _("{what} cannot be read: this machine's token may not."),
    "pause": _("{what} cannot be read now: the Hub asks for {pause}."),
    "refused": _("{what} cannot be read: the Hub refused with status {status}."),
    "silent": _("{what} could not be read: the Hub at {endpoint} does not answer."),
    "disk": _("{what} cannot be kept: {reason}."),
    "pickle": _("{what} has no safetensors weights, and others can run code when they are opened."),
}
# Cause -> the remedy when reading.
_READING = {
    "gated": _("Accept its terms at {page} and sign in with `hf auth login`."),
    "missing": _("Check its name; for a private one sign in with `hf auth login`."),
    "revision": _("Leave dataset_revision empty for the newest, or give a branch, tag or commit."),
    "token": _("Sign in anew with `hf auth login`, or remove HF_TOKEN: what is public needs none."),
    "forbidden": _("Give the token read access to it in your Hub settings."),
    "pause": _("Try again after it."),
    "refused": _("Try again later."),
    "silent": _("Check the network and try again, or use what lies on this machine."),
    "disk": _("Free some space, or choose a folder that can be written with HF_HOME."),
    "pickle": _("Choose one that has them, or save it as safetensors where you trust it."),
}
# Cause -> the remedy when sending; `silent` is the default.
_SENDING = {
    "missing": _("There is no such repository, or the token may not see it."),
    "token": _("The token is wrong or has expired; make a new one in your Hub settings."),
    "forbidden": _("The token may not do this; it needs write access to that namespace."),
    "pause": _("The Hub asks for a pause; try again after it."),
    "fault": _("The Hub has a fault; try again in a while."),
    "disk": _("Free some space, or choose a folder that can be written with TMPDIR or HF_HOME."),
    "unpaid": _("It has to be paid for: choose other hardware, or see your Hub billing settings."),
    "behind": _("Someone else committed in between; see what they did, then try again."),
    "refused": _("The Hub does not take this; check the name and the licence."),
    "silent": _("Check the network and try again."),
}
# Status -> the remedy when sending with the token of a sign-in on the page.
_SIGNED_IN = {
    401: _("The sign-in has expired: sign out at the top of the page and in again."),
    403: _(
        "This sign-in may write to new repositories and to those made here. Choose a new name, or "
        "paste a token with write access."
    ),
}
_OF_STATUS = {
    401: "token", 402: "unpaid", 403: "forbidden", 404: "missing", 408: "fault", 409: "behind",
    412: "behind", 425: "pause", 429: "pause",
}  # fmt: skip
_OF_ERROR = {
    hub.GatedRepoError: "gated",  # a subclass of the next one
    hub.RepositoryNotFoundError: "missing",
    hub.RevisionNotFoundError: "revision",
    hub.EntryNotFoundError: "",  # the reader of the file says more
}
# Causes that mean that the caller may not read it.
NO_RIGHT = frozenset({"gated", "missing", "token", "forbidden"})
_SILENT = {
    "ConnectError", "ConnectTimeout", "ReadTimeout", "PoolTimeout", "ProxyError",
    "ConnectionError", "OfflineModeIsEnabled", "LocalEntryNotFoundError",
    "RemoteProtocolError", "ReadError", "IncompleteRead", "ChunkedEncodingError",
}  # fmt: skip


class Gated(Exception):
    """A repository that everybody can see but only some may read."""


@dataclass(frozen=True)
class Cause:
    """The cause of a failure."""

    name: str = ""  # empty if unknown
    status: int = 0  # of the Hub's answer
    pause: int = 0  # seconds that the Hub asked for
    reason: str = ""  # why a disk cannot be written


def chain(error: BaseException) -> list[BaseException]:
    """An error and its causes, the first cause last."""
    errors = [error]
    while True:
        last = errors[-1]
        cause = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if cause is None or cause in errors:
            return errors
        errors.append(cause)


def cause(error: BaseException) -> Cause:
    """The cause of an error of one of the Hub's clients."""
    errors, text = chain(error), str(error)
    if "safetensors" in text and ("file named" in text or "use_safetensors" in text):
        return Cause("pickle")
    for link in errors:
        if isinstance(link, Gated):
            return Cause("gated")
        if isinstance(link, hub.HfHubHTTPError) and (status := link.response.status_code) >= 400:
            default = _OF_STATUS.get(status, "fault" if status >= 500 else "refused")
            names = (name for kind, name in _OF_ERROR.items() if isinstance(link, kind))
            headers = link.response.headers
            named = re.fullmatch(r"\s*([0-9]{1,9})\s*", str(headers.get("Retry-After", "")))
            seconds, limit = int(named[1]) if named else 0, parse_ratelimit_headers(headers)
            if limit is not None and not limit.remaining:
                seconds = limit.reset_in_seconds
            return Cause(next(names, default), status, seconds)
    for link in errors:
        if isinstance(link, OSError) and disk.cause(link) is not None:
            return Cause("disk", reason=link.strerror or str(link))
    silent = any(type(link).__name__ in _SILENT for link in errors)
    return Cause("silent" if silent else "")


def sender_remedy(cause: Cause, signed_in: bool = False) -> str:
    """The remedy for a cause when sending."""
    if signed_in and cause.status in _SIGNED_IN:
        return _SIGNED_IN[cause.status]
    return _SENDING.get(cause.name, _SENDING["silent"])


def refusal(kind: Kind, name: str, cause: Cause, revision: str = "") -> FinetuneError:
    """Make the error that says why a dataset or a checkpoint cannot be read."""
    endpoint = hub_connection.hub_endpoint()
    fact = _FACTS.get(cause.name, _FACTS["refused"])
    remedy = _READING.get(cause.name, _READING["refused"])
    if owners.policy().asks_rights and cause.name in NO_RIGHT:
        remedy = _("Choose one that everybody may read: visitors' runs have no token here.")
    names = {
        "dataset": _("The Hub dataset {name}", name=name),
        "checkpoint": _("The checkpoint {name}", name=name),
    }
    error: type[FinetuneError] = DataError if kind == "dataset" else ModelError
    return error(
        fact,
        remedy,
        what=names[kind],
        revision=revision,
        page=f"{endpoint}/{'datasets/' * (kind == 'dataset')}{name}",
        endpoint=endpoint,
        pause=_("a pause of {n} seconds", n=cause.pause) if cause.pause else _("a pause"),
        status=cause.status,
        reason=cause.reason,
    )


def explained(
    kind: Kind, name: str, error: BaseException, revision: str = ""
) -> FinetuneError | None:
    """Make the error of `refusal` for a client's error; None if its cause is unknown."""
    reason = cause(error)
    return refusal(kind, name, reason, revision) if reason.name else None


def retried(read: Callable[[], T]) -> T:
    """Call a function that reads, again if the Hub asks for a pause or has a fault."""
    for seconds in (1, 2, 4):
        try:
            return read()
        except Exception as error:
            reason = cause(error)
            if reason.name not in ("pause", "fault") or reason.pause > _LONGEST_PAUSE:
                raise
        print(f"the Hub answered {reason.status}; asking again", flush=True)
        time.sleep(reason.pause or seconds)
    return read()
