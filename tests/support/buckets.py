"""Buckets of the loopback Hub: their files by path, each a hash that the storage knows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support import xet
from tests.support.answers import Refused, timestamp

if TYPE_CHECKING:
    from tests.support.hub import Handler


@dataclass
class BucketFile:
    """A file of a bucket."""

    hash: str
    size: int
    mtime: float
    uploaded: float = field(default_factory=time.time)

    def answer(self, path: str) -> dict[str, Any]:
        """As the Hub describes it."""
        return {
            "type": "file", "path": path, "size": self.size, "xetHash": self.hash,
            "mtime": timestamp(self.mtime), "uploadedAt": timestamp(self.uploaded),
        }  # fmt: skip


@dataclass
class Bucket:
    """A bucket with its files."""

    id: str
    storage: xet.Storage
    private: bool = False
    created: float = field(default_factory=time.time)
    files: dict[str, BucketFile] = field(default_factory=dict)

    def apply(self, operation: dict[str, Any]) -> str | None:
        """Add or delete one file; why it could not be done, if it could not."""
        path, name = operation["path"], operation.get("xetHash", "")
        if operation["type"] == "deleteFile":
            return None if self.files.pop(path, None) else "the file does not exist"
        if name not in self.storage.files:
            return "its content was not uploaded"
        size = self.storage.size(name)
        self.files[path] = BucketFile(name, size, operation["mtime"] / 1000)
        return None

    def answer(self) -> dict[str, Any]:
        """As the Hub describes it."""
        return {
            "id": self.id, "private": self.private, "createdAt": timestamp(self.created),
            "size": sum(file.size for file in self.files.values()), "totalFiles": len(self.files),
        }  # fmt: skip


def find(request: Handler, bucket: str, write: bool = False) -> Bucket:
    """A bucket that the user may read, or write to; refused alike if it is missing or private."""
    held, user = request.hub.buckets.get(bucket), request.user
    mine = user is not None and user.belongs_to(bucket.split("/")[0])
    if held is None or (held.private and not mine):
        raise Refused(404 if user else 401, "RepoNotFound", "Repository not found")
    if write:
        request._writer(bucket)
    return held


def create(request: Handler, bucket: str) -> None:
    namespace, _, name = bucket.partition("/")
    user = request._writer(None if namespace == "me" else namespace)
    bucket = f"{user.name}/{name}" if namespace == "me" else bucket
    exists = bucket in request.hub.buckets
    if not exists:
        private = json.loads(request.body).get("visibility") == "private"
        request.hub.buckets[bucket] = Bucket(bucket, request.hub.storage_of_buckets, private)
        user.made.add(bucket)
    request._json({"url": f"{request.hub.url}/buckets/{bucket}"}, 409 if exists else 200)


def info(request: Handler, bucket: str) -> None:
    request._json(find(request, bucket).answer())


def tree(request: Handler, bucket: str, prefix: str | None = None) -> None:
    """The files, at any depth, whose paths start with a prefix."""
    files = find(request, bucket).files
    paths = sorted(name for name in files if name.startswith(prefix or ""))
    request._json([files[path].answer(path) for path in paths])


def paths_info(request: Handler, bucket: str) -> None:
    files = find(request, bucket).files
    paths = json.loads(request.body)["paths"]
    request._json([files[path].answer(path) for path in paths if path in files])


def batch(request: Handler, bucket: str) -> None:
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


def resolve(request: Handler, bucket: str, path: str) -> None:
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


def token(request: Handler, bucket: str, scope: str) -> None:
    find(request, bucket, write=scope == "write")
    xet.give_token(request, scope)


def routes() -> Iterator[tuple[str, str, Callable[..., None]]]:
    bucket = r"(?P<bucket>[\w.-]+/[\w.-]+)"
    yield "POST", rf"/api/buckets/{bucket}", create
    yield "GET", rf"/api/buckets/{bucket}", info
    yield "GET", rf"/api/buckets/{bucket}/tree(?:/(?P<prefix>.+))?", tree
    yield "POST", rf"/api/buckets/{bucket}/paths-info", paths_info
    yield "POST", rf"/api/buckets/{bucket}/batch", batch
    yield "GET", rf"/api/buckets/{bucket}/xet-(?P<scope>read|write)-token", token
    yield "HEAD", rf"/buckets/{bucket}/resolve/(?P<path>.+)", resolve
    yield from xet.routes()
