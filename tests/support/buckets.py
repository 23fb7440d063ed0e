"""Buckets of the loopback Hub: their files by path, each a hash that the storage behind them knows.

The storage is as hf_xet speaks to it: files are cut into chunks, chunks are packed into xorbs, and
a shard says of which ranges of which xorbs a file consists. What a chunk holds only the clients
know.
Sources: https://huggingface.co/docs/xet/xorb, .../shard and .../api
"""

import json
import secrets
import struct
import time
from dataclasses import dataclass, field
from typing import NamedTuple


class Refused(Exception):
    """An error answer: its status, and the code by which the clients know it."""

    def __init__(self, status, code="", message=""):
        super().__init__(message)
        self.status, self.code, self.message = status, code, message or code


def timestamp(seconds):
    """A time as the Hub writes it, in milliseconds and UTC: `2026-01-01T00:00:00.000Z`."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


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
    def parse(cls, data):
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


def _hexadecimal(value):
    """A hash as the clients write it: four numbers of 64 bits, the lowest byte of each first."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", value))


def parse_shard(data):
    """The files that a shard describes: their terms by their hashes."""
    records = (data[start : start + ENTRY] for start in range(ENTRY, len(data), ENTRY))
    files = {}
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

    def token(self, scope):
        """A new token, and when it expires."""
        token = f"xet_{secrets.token_urlsafe(12)}"
        self.tokens[token] = scope
        return token, int(time.time()) + LIFETIME

    def size(self, file):
        """How many bytes a file has."""
        return sum(term.size for term in self.files[file])

    def reconstruction(self, file, url):
        """How to fetch a file from an address."""
        shown = []
        fetches = {}
        for xorb, size, first, last in self.files[file]:
            chunks, part = self.xorbs[xorb].chunks, {"start": first, "end": last}
            place = {"start": chunks[first][0], "end": chunks[last - 1][1] - 1}
            fetch = {"range": part, "url": f"{url}/xorbs/{xorb}", "url_range": place}
            if fetch not in fetches.setdefault(xorb, []):
                fetches[xorb].append(fetch)
            shown.append({"hash": xorb, "unpacked_length": size, "range": part})
        return {"offset_into_first_range": 0, "terms": shown, "fetch_info": fetches}


# The requests.


def _allow(request, *scopes):
    """The storage, if the request's token is good for this."""
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if request.hub.storage_of_buckets.tokens.get(token) not in scopes:
        raise Refused(403, "", "the token is not good for this")
    return request.hub.storage_of_buckets


def put_xorb(request, xorb):
    storage = _allow(request, "write")
    inserted = xorb not in storage.xorbs
    storage.xorbs[xorb] = Xorb.parse(request.body)
    request._json({"was_inserted": inserted})


def put_shard(request):
    _allow(request, "write").files.update(parse_shard(request.body))
    request._json({"result": 1})


def reconstruct(request, file):
    storage = _allow(request, "read", "write")
    if file not in storage.files:
        raise Refused(404, "", "there is no such file")
    request._json(storage.reconstruction(file, request.hub.url))


def get_xorb(request, xorb):
    """The bytes of a xorb."""
    storage = request.hub.storage_of_buckets
    request._ranged(storage.xorbs[xorb].data, {"Accept-Ranges": "bytes"})


def give_token(request, scope):
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


@dataclass
class BucketFile:
    """A file of a bucket."""

    hash: str
    size: int
    mtime: float
    uploaded: float = field(default_factory=time.time)

    def answer(self, path):
        """As the Hub describes it."""
        return {
            "type": "file", "path": path, "size": self.size, "xetHash": self.hash,
            "mtime": timestamp(self.mtime), "uploadedAt": timestamp(self.uploaded),
        }  # fmt: skip


@dataclass
class Bucket:
    """A bucket with its files."""

    id: str
    storage: Storage
    private: bool = False
    created: float = field(default_factory=time.time)
    files: dict[str, BucketFile] = field(default_factory=dict)

    def apply(self, operation):
        """Add or delete one file; why it could not be done, if it could not."""
        path, name = operation["path"], operation.get("xetHash", "")
        if operation["type"] == "deleteFile":
            return None if self.files.pop(path, None) else "the file does not exist"
        if name not in self.storage.files:
            return "its content was not uploaded"
        size = self.storage.size(name)
        self.files[path] = BucketFile(name, size, operation["mtime"] / 1000)
        return None

    def answer(self):
        """As the Hub describes it."""
        return {
            "id": self.id, "private": self.private, "createdAt": timestamp(self.created),
            "size": sum(file.size for file in self.files.values()), "totalFiles": len(self.files),
        }  # fmt: skip


def find(request, bucket, write=False):
    """A bucket that the user may read, or write to; refused alike if it is missing or private."""
    held, user = request.hub.buckets.get(bucket), request.user
    mine = user is not None and user.belongs_to(bucket.split("/")[0])
    if held is None or (held.private and not mine):
        raise Refused(404 if user else 401, "RepoNotFound", "Repository not found")
    if write:
        request._writer(bucket)
    return held


def create(request, bucket):
    namespace, _, name = bucket.partition("/")
    user = request._writer(None if namespace == "me" else namespace)
    bucket = f"{user.name}/{name}" if namespace == "me" else bucket
    exists = bucket in request.hub.buckets
    if not exists:
        private = json.loads(request.body).get("visibility") == "private"
        request.hub.buckets[bucket] = Bucket(bucket, request.hub.storage_of_buckets, private)
        user.made.add(bucket)
    request._json({"url": f"{request.hub.url}/buckets/{bucket}"}, 409 if exists else 200)


def info(request, bucket):
    request._json(find(request, bucket).answer())


def tree(request, bucket, prefix=None):
    """The files, at any depth, whose paths start with a prefix."""
    files = find(request, bucket).files
    paths = sorted(name for name in files if name.startswith(prefix or ""))
    request._json([files[path].answer(path) for path in paths])


def paths_info(request, bucket):
    files = find(request, bucket).files
    paths = json.loads(request.body)["paths"]
    request._json([files[path].answer(path) for path in paths if path in files])


def batch(request, bucket):
    """Do what can be done of a list, and say what could not."""
    held = find(request, bucket, write=True)
    operations = [json.loads(line) for line in request.body.splitlines() if line]
    failed = []
    for operation in operations:
        if error := held.apply(operation):
            failed.append({"path": operation["path"], "error": error})
    done = len(operations) - len(failed)
    answer = {
        "success": not failed, "processed": len(operations), "succeeded": done, "failed": failed
    }  # fmt: skip
    request._json(answer, 200 if done or not failed else 422)


def resolve(request, bucket, path):
    """What a client must know to fetch a file."""
    held = find(request, bucket)
    if path not in held.files:
        raise Refused(404, "EntryNotFound", f"{path} does not exist")
    file = held.files[path]
    headers = {
        "X-Xet-Hash": file.hash, "X-Linked-Size": str(file.size),
        "X-Xet-Refresh-Route": f"{request.hub.url}/api/buckets/{bucket}/xet-read-token",
    }  # fmt: skip
    request._send(200, b"", headers)


def token(request, bucket, scope):
    find(request, bucket, write=scope == "write")
    give_token(request, scope)


def routes():
    bucket, known = r"(?P<bucket>[\w.-]+/[\w.-]+)", r"[0-9a-f]{64}"
    yield "POST", rf"/api/buckets/{bucket}", create
    yield "GET", rf"/api/buckets/{bucket}", info
    yield "GET", rf"/api/buckets/{bucket}/tree(?:/(?P<prefix>.+))?", tree
    yield "POST", rf"/api/buckets/{bucket}/paths-info", paths_info
    yield "POST", rf"/api/buckets/{bucket}/batch", batch
    yield "GET", rf"/api/buckets/{bucket}/xet-(?P<scope>read|write)-token", token
    yield "HEAD", rf"/buckets/{bucket}/resolve/(?P<path>.+)", resolve
    # Of the storage all but `/v2/...`, grants of uploads and known chunks: their 404 sends hf_xet
    # to these.
    yield "POST", rf"/v1/xorbs/default/(?P<xorb>{known})", put_xorb
    yield "POST", r"/v1/shards", put_shard
    yield "GET", rf"/v1/reconstructions/(?P<file>{known})", reconstruct
    yield "GET", rf"/xorbs/(?P<xorb>{known})", get_xorb
