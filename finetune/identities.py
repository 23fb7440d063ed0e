"""Identities of a shared app's visitors, issued and signed by the server.

A token is a random number and its signature. The key lies beside the runs, so that identities
outlive a restart and several apps on one folder of runs know the same visitors. How many one
address may have is limited, since limits for each visitor mean nothing where visitors are free.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import ipaddress
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from finetune.errors import FinetuneError, StoreError
from finetune.owners import Limits

KEY = ".identity-key"
_KEY_BYTES = 32
_HOUR, _DAY = 3600.0, 24 * 3600.0
_HOURS_A_DAY = 6  # a day's limit, in limits of an hour
_ADDRESSES = 10_000  # remembered before those of yesterday are forgotten


class TooMany(FinetuneError):
    """An address has been issued as many identities as it may have for now."""


class Identities:
    """The identities of one folder of runs.

    Args:
        root: the folder; the key is made there when it is first needed.
        clock: seconds that never go back.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._key = b""
        self._issued: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def issue(self, address: str) -> str:
        """A new token for a request from an address.

        Raises:
            TooMany: when the address has had its share of the hour or the day.
            StoreError: when the key cannot be kept.
        """
        self._count(_network(address))
        number = secrets.token_urlsafe(16)
        return f"{number}.{self._signature(number)}"

    def owner(self, token: str) -> str:
        """The owner that a token proves, as runs name it; empty where it was not issued here."""
        number, _, signature = token.partition(".")
        if not signature or not hmac.compare_digest(
            signature.encode(), self._signature(number).encode()
        ):
            return ""
        return f"browser:{hashlib.sha256(number.encode()).hexdigest()[:32]}"

    def _signature(self, number: str) -> str:
        digest = hmac.digest(self._secret(), f"visitor {number}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def _count(self, network: str) -> None:
        limit = Limits.of_environment().new_visitors
        with self._lock:
            now = self._clock()
            times = [at for at in self._issued.get(network, []) if at > now - _DAY]
            recent = sum(at > now - _HOUR for at in times)
            if recent >= limit or len(times) >= limit * _HOURS_A_DAY:
                raise TooMany(
                    "{count} visitors were new from this address already.",
                    "Try again in an hour, or sign in.",
                    count=recent if recent >= limit else len(times),
                )
            self._issued[network] = [*times, now]
            if len(self._issued) > _ADDRESSES:
                for key in [key for key, times in self._issued.items() if times[-1] <= now - _DAY]:
                    del self._issued[key]

    def _secret(self) -> bytes:
        """The key, made by the process that needs it first.

        Raises:
            StoreError: when it can be neither read nor made.
        """
        if not self._key:
            path = self._root / KEY
            try:
                key = _read_or_make_key(path)
            except OSError as error:
                raise StoreError(
                    "{path} cannot be kept: {reason}.",
                    "Without it nobody can have runs of their own; free some space.",
                    path=path,
                    reason=error.strerror or error,
                ) from error
            if len(key) != _KEY_BYTES:  # with a short one anybody could sign
                raise StoreError(
                    "{path} is damaged.", "Delete it; who signs in loses nothing.", path=path
                )
            self._key = key
        return self._key


def _read_or_make_key(path: Path) -> bytes:
    """A key that its owner alone can read; of several processes the first makes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (key := file.read()):
            key = secrets.token_bytes(_KEY_BYTES)
            file.write(key)
    return key


def _network(address: str) -> str:
    """What counts as one address: of IPv6 the 64 bits that a household is given."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.ip_network((parsed, 64), strict=False))
