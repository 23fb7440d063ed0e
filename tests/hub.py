"""A loopback Hugging Face Hub: the real clients talk to it over real HTTP.

What lives here: repositories in memory, users and tokens, the requests the clients make, and
faults to order. Nothing of Finetune's, and nothing the clients do not ask for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import yaml

LFS_SUFFIXES = (".safetensors", ".bin", ".onnx", ".parquet", ".png")
LFS_SIZE = 5 * 2**20


@dataclass(frozen=True)
class Commit:
    """One commit: its sha, message, and the paths it touched."""

    sha: str
    message: str
    changed: list[str]


@dataclass
class Repo:
    """A repository with the files of its head."""

    id: str
    kind: str = "model"
    private: bool = False
    gated: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)

    @property
    def head(self) -> str:
        return self.commits[-1].sha if self.commits else "0" * 40

    def commit(self, message: str, changes: dict[str, bytes | None]) -> Commit:
        for path, content in changes.items():
            if content is None:
                self.files.pop(path, None)
            else:
                self.files[path] = content
        text = json.dumps([self.head, message, sorted(changes), time.time()])
        made = Commit(hashlib.sha1(text.encode()).hexdigest(), message, sorted(changes))
        self.commits.append(made)
        return made


@dataclass(frozen=True)
class User:
    """Whom a token belongs to, and what it may do: `read` or `write`."""

    name: str
    role: str = "write"
    orgs: tuple[str, ...] = ()


@dataclass
class Fault:
    """An answer given instead of the right one, so many times."""

    method: str
    path: re.Pattern[str]
    status: int
    times: int
    headers: dict[str, str]
    body: bytes
    seconds: float = 0.0
    cut: bool = False
    after: int = 0


class Refused(Exception):
    """An error answer: its status, and the code by which the clients know it."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message or code


class LoopbackHub:
    """The server; a context manager.

    Attributes:
        url: its address, for HF_ENDPOINT.
        repos: (kind, id) -> repository.
        requests: (method, path, status) of every request answered.
        tokens_seen: every bearer token sent.
    """

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.users: dict[str, User] = {}
        self.aliases: dict[str, str] = {}
        self.requests: list[tuple[str, str, int]] = []
        self.tokens_seen: list[str] = []
        self.uploads: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        handler = type("Bound", (Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        # Another host name, as the Hub's storage has: the clients follow no redirect to it
        # while they ask for a file's metadata, and send it no token.
        self.storage = f"http://localhost:{self._server.server_port}"

    def __enter__(self) -> LoopbackHub:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add_user(
        self, token: str, name: str, role: str = "write", orgs: tuple[str, ...] = ()
    ) -> None:
        """Make a token known."""
        self.users[token] = User(name, role, orgs)

    def add_repo(
        self,
        repo_id: str,
        kind: str = "model",
        files: dict[str, bytes] | Path | None = None,
        gated: bool = False,
        private: bool = False,
    ) -> Repo:
        """A repository with one commit of these files, or of a folder's."""
        if isinstance(files, Path):
            found = (path for path in files.rglob("*") if path.is_file())
            files = {str(path.relative_to(files)): path.read_bytes() for path in found}
        repo = Repo(repo_id, kind, private, gated)
        repo.commit("first", dict(files or {}))
        self.repos[kind, repo_id] = repo
        return repo

    def alias(self, old: str, new: str) -> None:
        """Answer 307 to the new name, as the Hub does for renamed repositories."""
        self.aliases[old] = new

    def fail(
        self,
        method: str,
        path: str,
        status: int,
        times: int = 1,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        cut: bool = False,
        after: int = 0,
    ) -> None:
        """Answer the next requests whose path matches with an error, or cut the connection.

        Args:
            after: bytes of the body that still go out before the connection is cut.
        """
        fault = Fault(method, re.compile(path), status, times, headers or {}, body, 0.0, cut, after)
        self.faults.append(fault)

    def delay(self, path: str, seconds: float, times: int = 1) -> None:
        """Answer the next requests whose path matches late."""
        self.faults.append(Fault("", re.compile(path), 0, times, {}, b"", seconds))

    def fault_for(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.times and fault.method in ("", method) and fault.path.search(path):
                fault.times -= 1
                return fault
        return None

    def find(self, kind: str, repo_id: str, user: User | None) -> Repo:
        """A repository that this user may read.

        Raises:
            Refused: as the Hub answers: the same for a missing and for a private one.
        """
        repo = self.repos.get((kind, repo_id))
        mine = user is not None and repo_id.split("/")[0] in (user.name, *user.orgs)
        if repo is None or (repo.private and not mine):
            raise Refused(404 if user else 401, "RepoNotFound", "Repository not found")
        return repo


class Handler(BaseHTTPRequestHandler):
    """One request: find its route, answer it as the Hub would."""

    protocol_version = "HTTP/1.1"
    hub: ClassVar[LoopbackHub]

    def log_message(self, *_: object) -> None:
        """Quiet: the hub keeps its own list."""

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _answer(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self.body = self._read_body(size)
        self.path_only = unquote(urlsplit(self.path).path)
        try:
            fault = self.hub.fault_for(self.command, self.path_only)
            if fault is not None:
                time.sleep(fault.seconds)
            self.cut_after = fault.after if fault is not None else 0
            if fault is not None and fault.cut and not fault.after:
                self.close_connection = True
                self.connection.close()
                return
            if fault is not None and fault.status:
                self._send(fault.status, fault.body, fault.headers)
                return
            self.user = self._who()
            self._route()
        except Refused as refused:
            headers = {"X-Error-Code": refused.code, "X-Error-Message": refused.message}
            body = json.dumps({"error": refused.message}).encode()
            self._send(refused.status, body, {k: v for k, v in headers.items() if v})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _read_body(self, size: int) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(size)
        parts = []
        while length := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(length))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _who(self) -> User | None:
        header = self.headers.get("Authorization", "")
        if not header.startswith("Bearer "):
            return None
        token = header.removeprefix("Bearer ")
        self.hub.tokens_seen.append(token)
        if token not in self.hub.users:
            message = "Invalid credentials in Authorization header"
            raise Refused(401, "", message)
        return self.hub.users[token]

    def _route(self) -> None:
        for methods, pattern, action in ROUTES:
            match = re.fullmatch(pattern, self.path_only)
            if match and self.command in methods.split():
                old = match.groupdict().get("repo") or ""
                if old in self.hub.aliases:
                    target = self.path.replace(old, self.hub.aliases[old], 1)
                    self._send(307, b"", {"Location": target})
                else:
                    action(self, **match.groupdict())
                return
        raise Refused(404, "", f"no route for {self.command} {self.path_only}")

    def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.hub.requests.append((self.command, self.path_only, status))
        self.send_response(status)
        sent = {"Content-Length": str(len(body)), **(headers or {})}
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD" and self.cut_after:
            self.wfile.write(body[: self.cut_after])
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _writer(self, namespace: str) -> User:
        if self.user is None:
            raise Refused(401, "", "You must be signed in")
        if self.user.role == "read" or namespace not in (self.user.name, *self.user.orgs):
            raise Refused(403, "", "You may not write to this namespace")
        return self.user

    # What the clients ask for, in the order of a push and then of a download.

    def root(self) -> None:
        self._send(200)

    def whoami(self) -> None:
        if self.user is None:
            raise Refused(401, "", "Invalid credentials in Authorization header")
        access = {"displayName": "test", "role": self.user.role}
        self._json(
            {
                "type": "user",
                "name": self.user.name,
                "orgs": [{"name": name, "type": "org"} for name in self.user.orgs],
                "auth": {"type": "access_token", "accessToken": access},
            }
        )

    def create(self) -> None:
        wanted = json.loads(self.body)
        if self.user is None:
            raise Refused(401, "", "You must be signed in")
        namespace = wanted.get("organization") or self.user.name
        self._writer(namespace)
        repo_id, kind = f"{namespace}/{wanted['name']}", wanted.get("type") or "model"
        prefix = "" if kind == "model" else f"{kind}s/"
        where = {"url": f"{self.hub.url}/{prefix}{repo_id}", "name": repo_id}
        if (kind, repo_id) in self.hub.repos:
            self._json({"error": "You already created this repo", **where}, 409)
            return
        private = wanted.get("private") or wanted.get("visibility") == "private"
        self.hub.repos[kind, repo_id] = Repo(repo_id, kind, bool(private))
        self._json(where)

    def delete(self) -> None:
        wanted = json.loads(self.body)
        namespace = wanted.get("organization") or (self.user.name if self.user else "")
        self._writer(namespace)
        self.hub.repos.pop((wanted.get("type") or "model", f"{namespace}/{wanted['name']}"), None)
        self._json({})

    def validate_yaml(self) -> None:
        content = json.loads(self.body)["content"]
        problems = []
        try:
            front = yaml.safe_load(content.split("---\n")[1])
            if not isinstance(front, dict):
                problems.append({"message": "the front matter is no mapping"})
        except (yaml.YAMLError, IndexError) as error:
            problems.append({"message": str(error)})
        self._json({"errors": problems, "warnings": []}, 400 if problems else 200)

    def preupload(self, kind: str, repo: str, revision: str) -> None:
        self.hub.find(kind, repo, self.user)
        self._writer(repo.split("/")[0])
        files = [
            {
                "path": one["path"],
                "uploadMode": _mode(one["path"], one["size"]),
                "shouldIgnore": False,
                "oid": None,
            }
            for one in json.loads(self.body)["files"]
        ]
        self._json({"files": files})

    def lfs_batch(self, repo: str, prefix: str | None) -> None:
        self.hub.find((prefix or "models")[:-1], repo, self.user)
        self._writer(repo.split("/")[0])
        objects: list[dict[str, Any]] = []
        for one in json.loads(self.body)["objects"]:
            entry = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.hub.uploads:
                put = {"href": f"{self.hub.storage}/lfs/{one['oid']}", "header": {}}
                verify = {"href": f"{self.hub.storage}/lfs/{one['oid']}/verify", "header": {}}
                entry["actions"] = {"upload": put, "verify": verify}
            objects.append(entry)
        self._json({"transfer": "basic", "objects": objects})

    def lfs_put(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refused(400, "", "the content has another sha256")
        self.hub.uploads[oid] = self.body
        self._send(200)

    def lfs_verify(self, oid: str) -> None:
        wanted = json.loads(self.body)
        content = self.hub.uploads.get(oid)
        if content is None or len(content) != wanted["size"]:
            raise Refused(404, "", "no such object")
        self._json({})

    def commit(self, kind: str, repo: str, revision: str) -> None:
        found = self.hub.find(kind, repo, self.user)
        self._writer(repo.split("/")[0])
        message, changes = "", {}
        for line in filter(None, self.body.splitlines()):
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
                if value.get("parentCommit") not in (None, found.head):
                    raise Refused(412, "", "A commit has happened since")
            else:
                changes[value["path"]] = self._content(entry["key"], value)
        made = found.commit(message, changes)
        prefix = "" if kind == "model" else f"{kind}s/"
        url = f"{self.hub.url}/{prefix}{repo}/commit/{made.sha}"
        self._json({"success": True, "commitOid": made.sha, "commitUrl": url})

    def _content(self, key: str, value: dict[str, Any]) -> bytes | None:
        if key == "file":
            return base64.b64decode(value["content"])
        if key == "lfsFile":
            if value["oid"] not in self.hub.uploads:
                raise Refused(400, "", f"{value['path']} was not uploaded")
            return self.hub.uploads[value["oid"]]
        return None

    def info(self, kind: str, repo: str, revision: str = "main") -> None:
        found = self.hub.find(kind, repo, self.user)
        self._known(found, revision)
        self._json(
            {
                "_id": "0" * 24,
                "id": repo,
                "modelId": repo,
                "sha": found.head,
                "private": found.private,
                "gated": "auto" if found.gated else False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "siblings": [{"rfilename": path} for path in sorted(found.files)],
                "lastModified": "2026-01-01T00:00:00.000Z",
                "createdAt": "2026-01-01T00:00:00.000Z",
            }
        )

    def _known(self, repo: Repo, revision: str) -> None:
        if revision != "main" and revision not in {one.sha for one in repo.commits}:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")

    def tree(self, kind: str, repo: str, revision: str, path: str | None = None) -> None:
        found = self.hub.find(kind, repo, self.user)
        self._known(found, revision)
        prefix = f"{path}/" if path else ""
        inside = [name for name in sorted(found.files) if name.startswith(prefix)]
        if path and not inside:
            raise Refused(404, "EntryNotFound", f"{path} does not exist")
        folders = sorted({_parent(name) for name in inside} - {"", path or ""})
        self._json([*map(_folder, folders), *(_file(name, found) for name in inside)])

    def paths_info(self, kind: str, repo: str, revision: str) -> None:
        found = self.hub.find(kind, repo, self.user)
        wanted = _form(self.body, self.headers.get("Content-Type", ""))
        answer = []
        for path in wanted:
            if path in found.files:
                answer.append(_file(path, found))
            elif any(name.startswith(f"{path}/") for name in found.files):
                answer.append(_folder(path))
        self._json(answer)

    def refs(self, kind: str, repo: str) -> None:
        found = self.hub.find(kind, repo, self.user)
        branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": found.head}
        self._json({"branches": [branch], "converts": [], "tags": []})

    def history(self, kind: str, repo: str, revision: str) -> None:
        found = self.hub.find(kind, repo, self.user)
        self._json(
            [
                {"id": one.sha, "title": one.message, "message": "", "authors": [],
                 "date": "2026-01-01T00:00:00.000Z"}
                for one in reversed(found.commits)
            ]
        )  # fmt: skip

    def resolve(self, repo: str, revision: str, path: str, prefix: str | None) -> None:
        found = self.hub.find((prefix or "models")[:-1], repo, self.user)
        self._known(found, revision)
        owner = self.user is not None and repo.split("/")[0] == self.user.name
        if found.gated and not owner:
            raise Refused(403 if self.user else 401, "GatedRepo", f"{repo} is gated")
        if path not in found.files:
            raise Refused(404, "EntryNotFound", f"{path} does not exist")
        content = found.files[path]
        etag = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": found.head, "Accept-Ranges": "bytes"}
        if _mode(path, len(content)) == "lfs":
            self.hub.uploads[etag] = content
            headers["X-Linked-Etag"] = f'"{etag}"'
            headers["X-Linked-Size"] = str(len(content))
            self._send(302, b"", {**headers, "Location": f"{self.hub.storage}/lfs/{etag}"})
            return
        self._ranged(content, headers)

    def lfs_get(self, oid: str) -> None:
        if oid not in self.hub.uploads:
            raise Refused(404, "", "no such object")
        self._ranged(self.hub.uploads[oid], {"Accept-Ranges": "bytes"})

    def _ranged(self, content: bytes, headers: dict[str, str]) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted:
            self._send(200, content, headers)
            return
        first = int(wanted[1])
        last = min(int(wanted[2] or len(content) - 1), len(content) - 1)
        if first > last:
            self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        shown = {**headers, "Content-Range": f"bytes {first}-{last}/{len(content)}"}
        self._send(206, content[first : last + 1], shown)


def _mode(path: str, size: int) -> str:
    return "lfs" if path.endswith(LFS_SUFFIXES) or size > LFS_SIZE else "regular"


def _parent(path: str) -> str:
    return path.rsplit("/", 1)[0] if "/" in path else ""


def _folder(path: str) -> dict[str, Any]:
    return {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}


def _file(path: str, repo: Repo) -> dict[str, Any]:
    content = repo.files[path]
    entry: dict[str, Any] = {
        "type": "file",
        "oid": hashlib.sha1(content).hexdigest(),
        "size": len(content),
        "path": path,
    }
    if _mode(path, len(content)) == "lfs":
        oid = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 130}
    return entry


def _form(body: bytes, kind: str) -> list[str]:
    """`paths` of a request, sent as JSON or as a form."""
    if "json" in kind:
        paths = json.loads(body)["paths"]
    else:
        fields = [pair.split("=", 1) for pair in body.decode().split("&") if "=" in pair]
        paths = [unquote(value.replace("+", " ")) for name, value in fields if name == "paths"]
    return [paths] if isinstance(paths, str) else paths


_REPO = r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)"
_KIND = r"(?P<kind>model|dataset|space)s"
_REV = r"(?P<revision>[\w.-]+)"
_PREFIX = r"(?:(?P<prefix>datasets|spaces)/)?"

ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("GET HEAD", r"/", Handler.root),
    ("GET", r"/api/whoami-v2", Handler.whoami),
    ("POST", r"/api/repos/create", Handler.create),
    ("DELETE", r"/api/repos/delete", Handler.delete),
    ("POST", r"/api/validate-yaml", Handler.validate_yaml),
    ("POST", rf"/api/{_KIND}/{_REPO}/preupload/{_REV}", Handler.preupload),
    ("POST", rf"/{_PREFIX}{_REPO}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_put),
    ("GET HEAD", r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_get),
    ("POST", r"/lfs/(?P<oid>[0-9a-f]{64})/verify", Handler.lfs_verify),
    ("POST", rf"/api/{_KIND}/{_REPO}/commit/{_REV}", Handler.commit),
    ("GET", rf"/api/{_KIND}/{_REPO}/revision/{_REV}", Handler.info),
    ("GET", rf"/api/{_KIND}/{_REPO}/tree/{_REV}(?:/(?P<path>.+))?", Handler.tree),
    ("POST", rf"/api/{_KIND}/{_REPO}/paths-info/{_REV}", Handler.paths_info),
    ("GET", rf"/api/{_KIND}/{_REPO}/refs", Handler.refs),
    ("GET", rf"/api/{_KIND}/{_REPO}/commits/{_REV}", Handler.history),
    ("GET HEAD", rf"/{_PREFIX}{_REPO}/resolve/{_REV}/(?P<path>.+)", Handler.resolve),
    ("GET", rf"/api/{_KIND}/{_REPO}", Handler.info),
]
