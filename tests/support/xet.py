"""The storage behind the loopback Hub's buckets, as hf_xet speaks to it: xorbs, shards and
reconstructions of files.

Files are cut into chunks, chunks are packed into xorbs, and a shard says of which ranges of which
xorbs a file consists. Sources: https://huggingface.co/docs/xet/xorb, .../shard and .../api
"""

from __future__ import annotations

import json
import secrets
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow

from tests.support.answers import Refused

if TYPE_CHECKING:
    from tests.support.hub import Handler

EMPTY = "0" * 64  # the hash of a file without bytes
LIFETIME = 3600  # seconds that a token is good for
ENTRY = 48  # bytes of each record of a shard
BOOKEND = b"\xff" * 32  # ends a section of a shard
WITH_VERIFICATION, WITH_METADATA = 1 << 31, 1 << 30
FOOTER = b"XETBLOB"  # begins what may follow a xorb's chunks
PLAIN, LZ4, GROUPED_LZ4 = 0, 1, 2  # how a chunk is compressed


@dataclass(frozen=True)
class Chunk:
    """A chunk in its xorb: from where to where, and how many bytes it unpacks to."""

    start: int  # of its header
    end: int
    scheme: int
    size: int


@dataclass(frozen=True)
class Xorb:
    """The bytes of a xorb and where its chunks are."""

    data: bytes
    chunks: list[Chunk]

    def unpack(self, chunk: Chunk) -> bytes:
        """The content of one chunk."""
        packed = self.data[chunk.start + 8 : chunk.end]
        if chunk.scheme == PLAIN:
            return packed
        content: bytes = pyarrow.decompress(packed, chunk.size, codec="lz4", asbytes=True)
        return _ungroup(content) if chunk.scheme == GROUPED_LZ4 else content


@dataclass(frozen=True)
class Term:
    """A part of a file: the chunks `first` to before `last` of a xorb."""

    xorb: str
    first: int
    last: int
    size: int  # bytes that it unpacks to


def _ungroup(content: bytes) -> bytes:
    """Undo the grouping of every first, second, third and fourth byte."""
    result = bytearray(len(content))
    start = 0
    for group in range(4):
        length = len(result[group::4])
        result[group::4] = content[start : start + length]
        start += length
    return bytes(result)


def parse_xorb(data: bytes) -> Xorb:
    """Find the chunks of a xorb."""
    chunks: list[Chunk] = []
    start = 0
    while start < len(data) and not data.startswith(FOOTER, start):
        header = data[start : start + 8]
        end = start + 8 + int.from_bytes(header[1:4], "little")
        chunks.append(Chunk(start, end, header[4], int.from_bytes(header[5:8], "little")))
        start = end
    return Xorb(data, chunks)


def hexadecimal(value: bytes) -> str:
    """A hash as the clients write it: four numbers of 64 bits, the lowest byte of each first."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", value))


def parse_shard(data: bytes) -> dict[str, list[Term]]:
    """The files that a shard describes: their terms by their hashes."""
    records = (data[start : start + ENTRY] for start in range(ENTRY, len(data), ENTRY))
    files: dict[str, list[Term]] = {}
    while not (header := next(records)).startswith(BOOKEND):
        name, flags, count = struct.unpack_from("<32sII", header)
        files[hexadecimal(name)] = [_term(next(records)) for _ in range(count)]
        further = count * bool(flags & WITH_VERIFICATION) + bool(flags & WITH_METADATA)
        for _ in range(further):
            next(records)
    return files


def _term(record: bytes) -> Term:
    xorb, _, size, first, last = struct.unpack("<32s4I", record)
    return Term(hexadecimal(xorb), first, last, size)


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

    def read(self, file: str) -> bytes:
        """A file's content."""
        parts = []
        for term in self.files[file]:
            xorb = self.xorbs[term.xorb]
            parts += [xorb.unpack(chunk) for chunk in xorb.chunks[term.first : term.last]]
        return b"".join(parts)

    def reconstruction(self, file: str, url: str) -> dict[str, Any]:
        """How to fetch a file from an address."""
        terms = self.files[file]
        fetches: dict[str, list[dict[str, Any]]] = {}
        for term in terms:
            chunks = self.xorbs[term.xorb].chunks
            fetch = {
                "range": {"start": term.first, "end": term.last},
                "url": f"{url}/xorbs/{term.xorb}",
                "url_range": {"start": chunks[term.first].start,
                              "end": chunks[term.last - 1].end - 1},
            }  # fmt: skip
            if fetch not in fetches.setdefault(term.xorb, []):
                fetches[term.xorb].append(fetch)
        shown = [
            {"hash": term.xorb, "unpacked_length": term.size,
             "range": {"start": term.first, "end": term.last}}
            for term in terms
        ]  # fmt: skip
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
    storage.xorbs[xorb] = parse_xorb(request.body)
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
