"""The storage behind the loopback Hub's buckets, as hf_xet speaks to it: xorbs, shards and
reconstructions of files.

Files are cut into chunks, chunks are packed into xorbs, and a shard says of which ranges of which
xorbs a file consists. What a chunk holds only the clients know.
Sources: https://huggingface.co/docs/xet/xorb, .../shard and .../api
"""

from __future__ import annotations

import json
import secrets
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.answers import Refused

if TYPE_CHECKING:
    from tests.support.hub import Handler

EMPTY = "0" * 64  # the hash of a file without bytes
LIFETIME = 3600  # seconds that a token is good for
ENTRY = 48  # bytes of each record of a shard
BOOKEND = b"\xff" * 32  # ends a section of a shard
WITH_VERIFICATION, WITH_METADATA = 1 << 31, 1 << 30
FOOTER = b"XETBLOB"  # begins what may follow a xorb's chunks


@dataclass(frozen=True)
class Xorb:
    """The bytes of a xorb, and from where to where its chunks are, with their headers."""

    data: bytes
    chunks: list[tuple[int, int]]

    @classmethod
    def parse(cls, data: bytes) -> Xorb:
        chunks, end = [], 0
        while end < len(data) and not data.startswith(FOOTER, end):
            start, end = end, end + 8 + int.from_bytes(data[end + 1 : end + 4], "little")
            chunks.append((start, end))
        return cls(data, chunks)


class Term(NamedTuple):
    """A part of a file: the chunks `first` to before `last` of a xorb."""

    xorb: str
    size: int  # bytes that it unpacks to
    first: int
    last: int


def _hexadecimal(value: bytes) -> str:
    """A hash as the clients write it: four numbers of 64 bits, the lowest byte of each first."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", value))


def parse_shard(data: bytes) -> dict[str, list[Term]]:
    """The files that a shard describes: their terms by their hashes."""
    records = (data[start : start + ENTRY] for start in range(ENTRY, len(data), ENTRY))
    files: dict[str, list[Term]] = {}
    while not (header := next(records)).startswith(BOOKEND):
        name, flags, count = struct.unpack_from("<32sII", header)
        parts = (struct.unpack("<32s4I", next(records)) for _ in range(count))
        files[_hexadecimal(name)] = [Term(_hexadecimal(xorb), *rest) for xorb, _, *rest in parts]
        for _ in range(count * bool(flags & WITH_VERIFICATION) + bool(flags & WITH_METADATA)):
            next(records)
    return files


@dataclass
class Storage:
    """What was uploaded. It outlives a test, as the clients' caches in HF_HOME do: they do not
    send again what they know a storage to hold."""

    xorbs: dict[str, Xorb] = field(default_factory=dict)
    files: dict[str, list[Term]] = field(default_factory=lambda: {EMPTY: []})
    tokens: dict[str, str] = field(default_factory=dict)  # token -> `read` or `write`

    def token(self, scope: str) -> tuple[str, int]:
        """A new token, and when it expires."""
        token = f"xet_{secrets.token_urlsafe(12)}"
        self.tokens[token] = scope
        return token, int(time.time()) + LIFETIME

    def size(self, file: str) -> int:
        """How many bytes a file has."""
        return sum(term.size for term in self.files[file])

    def reconstruction(self, file: str, url: str) -> dict[str, Any]:
        """How to fetch a file from an address."""
        shown: list[dict[str, Any]] = []
        fetches: dict[str, list[dict[str, Any]]] = {}
        for xorb, size, first, last in self.files[file]:
            chunks, part = self.xorbs[xorb].chunks, {"start": first, "end": last}
            place = {"start": chunks[first][0], "end": chunks[last - 1][1] - 1}
            fetch = {"range": part, "url": f"{url}/xorbs/{xorb}", "url_range": place}
            if fetch not in fetches.setdefault(xorb, []):
                fetches[xorb].append(fetch)
            shown.append({"hash": xorb, "unpacked_length": size, "range": part})
        return {"offset_into_first_range": 0, "terms": shown, "fetch_info": fetches}


# The requests.


def _allow(request: Handler, *scopes: str) -> Storage:
    """The storage, if the request's token is good for this."""
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if request.hub.storage_of_buckets.tokens.get(token) not in scopes:
        raise Refused(403, "", "the token is not good for this")
    return request.hub.storage_of_buckets


def put_xorb(request: Handler, xorb: str) -> None:
    storage = _allow(request, "write")
    inserted = xorb not in storage.xorbs
    storage.xorbs[xorb] = Xorb.parse(request.body)
    request._json({"was_inserted": inserted})


def put_shard(request: Handler) -> None:
    _allow(request, "write").files.update(parse_shard(request.body))
    request._json({"result": 1})


def reconstruct(request: Handler, file: str) -> None:
    storage = _allow(request, "read", "write")
    if file not in storage.files:
        raise Refused(404, "", "there is no such file")
    request._json(storage.reconstruction(file, request.hub.url))


def get_xorb(request: Handler, xorb: str) -> None:
    """The bytes of a xorb."""
    storage = request.hub.storage_of_buckets
    request._ranged(storage.xorbs[xorb].data, {"Accept-Ranges": "bytes"})


def give_token(request: Handler, scope: str) -> None:
    """Answer with a token for the storage, in the headers for one client and in the body for the
    other."""
    token, expires = request.hub.storage_of_buckets.token(scope)
    url = request.hub.url
    headers = {
        "X-Xet-Cas-Url": url, "X-Xet-Access-Token": token, "X-Xet-Token-Expiration": str(expires),
        "Content-Type": "application/json",
    }  # fmt: skip
    body = {"casUrl": url, "accessToken": token, "exp": expires}
    request._send(200, json.dumps(body).encode(), headers)


def _hash(name: str) -> str:
    return rf"(?P<{name}>[0-9a-f]{{64}})"


def routes() -> Iterator[tuple[str, str, Callable[..., None]]]:
    """All but `/v2/...`, grants of uploads and known chunks: their 404 sends hf_xet to these."""
    yield "POST", rf"/v1/xorbs/default/{_hash('xorb')}", put_xorb
    yield "POST", r"/v1/shards", put_shard
    yield "GET", rf"/v1/reconstructions/{_hash('file')}", reconstruct
    yield "GET", rf"/xorbs/{_hash('xorb')}", get_xorb
