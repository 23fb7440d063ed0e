"""Visitors of an app: their identities, what they own, and their limits.

Outside a shared app everything belongs to one person. In a shared app (on a Space, or with
`FINETUNE_VISITORS=1`) a run belongs to the signed-in user who started it, or else to the browser,
by an identity that the server has issued and signed.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import ipaddress
import math
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from finetune import disk
from finetune.errors import StoreError, TooMany
from finetune.hyperparameter import FOLDS
from finetune.messages import message as _

# The message for a visitor without an identity: the fact, and the remedy.
NOBODY = (
    _("This browser keeps no cookies, or many were new from its address within the hour."),
    _(
        "Allow them and load the page again, or sign in. A program sends what POST "
        "/finetune/visitor gives it."
    ),
)
ANY_CHECKPOINT = "FINETUNE_ANY_CHECKPOINT"
KEY = ".identity-key"  # a file beside the runs: identities outlive a restart
_KEY_BYTES = 32
_MEGABYTE = 2**20
_HOUR, _DAY = 3600.0, 24 * 3600.0
_HOURS_A_DAY = 6  # a day's limit of new visitors, in limits of an hour
_ADDRESSES = 10_000  # remembered


@dataclass(frozen=True)
class Visitor:
    """The sender of a request."""

    names: tuple[str, ...] = ()  # a signed-in user and a browser; the first owns what is new
    sees_all: bool = False  # True outside a shared app

    @property
    def name(self) -> str:
        """The owner of what this visitor creates; empty outside a shared app."""
        return self.names[0] if self.names else ""

    @property
    def may_start(self) -> bool:
        return self.sees_all or bool(self.names)

    def owns(self, owner: str) -> bool:
        """True if the visitor may see what belongs to `owner`."""
        return self.sees_all or owner in self.names

    @property
    def admin(self) -> bool:
        """True for a shared app's administrator: its Space's author, or in `FINETUNE_ADMINS`."""
        author = os.environ.get("SPACE_AUTHOR_NAME") or os.environ.get("SPACE_ID", "").split("/")[0]
        admins = [author, *os.environ.get("FINETUNE_ADMINS", "").split(",")]
        return any(f"user:{name.strip()}" in self.names for name in admins if name.strip())

    @property
    def policy(self) -> Policy:
        """The policy for this visitor."""
        return Policy() if self.sees_all else SharedApp()


LOCAL_USER = Visitor(sees_all=True)


def _limit(name: str, default: int, unit: int = 1) -> Any:
    def value() -> int:
        text = os.environ.get(f"FINETUNE_MAX_{name}", "").strip()
        return unit * (int(text) if text.isdecimal() else default)

    return field(default_factory=value)


@dataclass(frozen=True)
class Limits:
    """The limits of one visitor of a shared app, read from the environment when this is created."""

    runs: int = _limit("RUNS", 20)  # folders kept
    waiting: int = _limit("WAITING", 4)  # places in the queue
    upload_bytes: int = _limit("UPLOAD_MB", 500, _MEGABYTE)  # of uploaded files, together
    all_upload_bytes: int = _limit("ALL_UPLOADS_MB", 10_000, _MEGABYTE)  # of all visitors' files
    new_visitors: int = _limit("NEW_VISITORS", 10)  # identities issued to one address in an hour
    hub_bytes: int = _limit("HUB_MB", 5000, _MEGABYTE)  # of datasets and checkpoints, in a day
    run_minutes: int = _limit("RUN_MINUTES", 240)  # of work on a run
    run_steps: int = _limit("RUN_STEPS", 100_000)
    queue: int = _limit("QUEUE", 40)  # places in the queue, of all visitors together
    at_once: int = 1  # jobs of a kind; others wait
    job_minutes: int = _limit("JOB_MINUTES", 30)  # of work on another job
    worker_bytes: int = _limit("WORKER_MB", 0, _MEGABYTE)  # of a worker's memory; 0 for 3/4 of all

    @property
    def folds(self) -> int:
        """Folds of the cross-validation that is offered: all its runs can wait. Below 2: none."""
        return int(min(FOLDS, self.waiting - 1, self.runs - 1))


UNLIMITED = Limits(**dict.fromkeys(Limits.__dataclass_fields__, cast(int, math.inf)))


class Policy:
    """Rules of an app. These hold outside a shared app: everything belongs to its one user."""

    several_people = False  # each has their own runs, and is identified by a sign-in or a cookie
    owner_asks = True  # may name this machine's files, accounts and clusters
    any_checkpoint = True  # True if any may be chosen, False if only offered ones
    stored_token = True  # requests to the Hub use this machine's token
    asks_rights = False  # cached data of the Hub is shown only if the Hub would still give it
    confines_workers = False  # a job can access only its own files
    limits = UNLIMITED

    def worker_environment(self) -> dict[str, str]:
        """Variables that every worker gets, on any machine; they override inherited ones."""
        return {}

    def identify(self, user: str = "", browser: str = "") -> Visitor:
        """The visitor that a request comes from: a signed-in `user`, as proven by the sign-in, or
        the `browser`, as the owner that an issued token has proven."""
        return LOCAL_USER


class SharedApp(Policy):
    """The policy of a shared app (on a Space, or with `FINETUNE_VISITORS=1`): visitors trust the
    owner, and nobody else. The limits are read from the environment when this is created."""

    several_people, owner_asks, stored_token = True, False, False
    asks_rights, confines_workers = True, True

    def __init__(self) -> None:
        self.any_checkpoint = os.environ.get(ANY_CHECKPOINT) == "1"
        self.limits = Limits()

    def worker_environment(self) -> dict[str, str]:
        """Visitors' limits, and no token: the owner's would open private and gated repositories."""
        names = filter(lambda name: name.startswith("FINETUNE_MAX_"), os.environ)
        chosen_freely = {ANY_CHECKPOINT: "1"} if self.any_checkpoint else {}
        no_token = {"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": ""}
        no_token |= {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
        limits = {name: os.environ[name] for name in names}
        return limits | no_token | chosen_freely | {"FINETUNE_VISITORS": "1"}

    def identify(self, user: str = "", browser: str = "") -> Visitor:
        names = (f"user:{user}" if user else "", browser)
        return Visitor(tuple(filter(None, names)))


def policy() -> Policy:
    """The policy of this process, from its environment."""
    shared = bool(os.environ.get("SPACE_ID")) or os.environ.get("FINETUNE_VISITORS") == "1"
    return SharedApp() if shared else Policy()


class Identities:
    """Identities of browsers: each is a random number and its signature, by a key that is created
    in the folder of runs when it is first needed. The number of identities for an address is
    limited, because limits for each visitor mean nothing if visitors can be created freely."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._issued: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def issue(self, address: str) -> str:
        """Issue a token for a request from an address; TooMany if it has reached its limit."""
        network = address  # for counting: of IPv6 the 64 bits that a household is given
        with contextlib.suppress(ValueError):
            parsed = ipaddress.ip_address(address)
            if isinstance(parsed, ipaddress.IPv6Address):
                whole = ipaddress.ip_network((parsed, 64), strict=False)
                network = str(parsed.ipv4_mapped or whole)
        self._count(network)
        number = secrets.token_urlsafe(16)
        return f"{number}.{self._signature(number)}"

    def owner(self, token: str) -> str:
        """The owner that a token proves, as named in runs; empty if it was not issued here."""
        number, _, signature = token.partition(".")
        if not signature or not hmac.compare_digest(
            signature.encode(), self._signature(number).encode()
        ):
            return ""
        return f"browser:{hashlib.sha256(number.encode()).hexdigest()[:32]}"

    def _signature(self, number: str) -> str:
        digest = hmac.digest(self._key, f"visitor {number}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    @cached_property
    def _key(self) -> bytes:
        """The key, created by the process that needs it first. Only its owner can read it."""
        path = self._root / KEY
        with disk.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not (key := file.read()):
                    key = secrets.token_bytes(_KEY_BYTES)
                    file.write(key)
        if len(key) != _KEY_BYTES:  # anybody could sign with a short key
            raise StoreError(
                "{path} is damaged.", "Delete it; who signs in loses nothing.", path=path
            )
        return key

    def _count(self, network: str) -> None:
        limit = Limits().new_visitors
        with self._lock:
            now = self._clock()
            times = [at for at in self._issued.pop(network, []) if at > now - _DAY]
            recent = sum(at > now - _HOUR for at in times)
            self._issued[network] = times  # moved to the end; the first is the oldest
            if recent >= limit or len(times) >= limit * _HOURS_A_DAY:
                raise TooMany(
                    "{count} visitors were new from this address already.",
                    "Try again in an hour, or sign in.",
                    count=recent if recent >= limit else len(times),
                )
            times.append(now)
            if len(self._issued) > _ADDRESSES:
                del self._issued[next(iter(self._issued))]
