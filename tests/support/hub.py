"""A loopback Hugging Face Hub: the real clients talk to it over real HTTP.

What lives here: repositories in memory, users and tokens, the requests the clients make, and
faults to order. Nothing of Finetune's, and nothing the clients do not ask for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml

from tests.support.oidc import Provider

LFS_SUFFIXES = (".safetensors", ".bin", ".onnx", ".parquet", ".png")
LFS_SIZE = 5 * 2**20
SIGNED = "X-Amz-Signature=0f1e2d3c4b5a"  # ends every address of the storage, as the Hub's does


HARDWARE = {"cpu-basic": ("CPU Basic", 0), "t4-small": ("Nvidia T4 - small", 6667)}


@dataclass
class Space:
    """How a Space runs: its hardware, what it mounts and its public variables."""

    sdk: str
    hardware: str = "cpu-basic"
    stages: list[str] = field(default_factory=lambda: ["BUILDING"])  # told in turn; the last stays
    trouble: str = ""
    sleep_time: int | None = None
    variables: dict[str, str] = field(default_factory=dict)
    volumes: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Commit:
    """One commit: its sha, message, the paths it touched, and the message's body."""

    sha: str
    message: str
    changed: list[str]
    description: str = ""


@dataclass
class Repo:
    """A repository with the files of its head, and of the commits before it."""

    id: str
    kind: str = "model"
    private: bool = False
    gated: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    earlier: dict[str, dict[str, bytes]] = field(default_factory=dict)  # by commit
    space: Space | None = None

    @property
    def head(self) -> str:
        return self.commits[-1].sha if self.commits else "0" * 40

    def at(self, revision: str) -> tuple[str, dict[str, bytes]]:
        """The commit that a known revision stands for, and its files."""
        known = self.earlier.get(revision)
        return (self.head, self.files) if known is None else (revision, known)

    def commit(
        self, message: str, changes: dict[str, bytes | None], description: str = ""
    ) -> Commit:
        if self.commits:
            self.earlier[self.head] = dict(self.files)
        for path, content in changes.items():
            if content is None:
                self.files.pop(path, None)
            else:
                self.files[path] = content
        text = json.dumps([self.head, message, sorted(changes), time.time()])
        sha = hashlib.sha1(text.encode()).hexdigest()
        made = Commit(sha, message, sorted(changes), description)
        self.commits.append(made)
        return made


@dataclass(frozen=True)
class User:
    """Whom a token belongs to, and what it may do.

    Args:
        role: `read`, `write`, `fineGrained`, or `contributor`: a sign-in that may write to what it
            made and to nothing else.
        orgs: their organisations; `name:read` where they may only read.
        pays: whether they have a payment method.
        pro: whether free hardware runs their Gradio Spaces.
        scopes: what a fine-grained token may write to: users, organisations, repositories.
        made: the repositories it made.
    """

    name: str
    role: str = "write"
    orgs: tuple[str, ...] = ()
    pays: bool = True
    pro: bool = False
    scopes: tuple[str, ...] = ()
    made: set[str] = field(default_factory=set)

    def may_write(self, full: str) -> bool:
        namespace = full.split("/")[0]
        if self.role == "contributor" and "/" in full and full not in self.made:
            return False
        if self.role == "read" or namespace not in (self.name, *self.orgs):
            return False
        return self.role != "fineGrained" or bool({namespace, full} & set(self.scopes))


@dataclass
class Fault:
    """An answer given instead of the right one, so many times.

    Args:
        seconds: that the answer is late; with status 0 it is the right one.
        cut: whether the connection is cut instead of an answer.
        after: bytes that still pass before that: of what is sent to the Hub by a PUT, of the answer
            to any other.
        lost: do what is asked, then cut the connection in place of the answer.
        gate: what the answer waits for.
    """

    method: str
    path: re.Pattern[str]
    status: int
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0
    cut: bool = False
    after: int = 0
    lost: bool = False
    gate: threading.Event | None = None


class Server(ThreadingHTTPServer):
    """Quiet about clients that hang up: tests want them to."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError | ValueError):
            super().handle_error(request, client_address)


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
        buckets: id -> whether it is private.
        requests: (method, path, status) of every request answered.
        uploads: sha256 -> content of every large file sent.
        first_commit: whether a new repository has a commit, as on the Hub.
        part_size: bytes of a part of a larger file; 0 to take every file whole.
        targets: the whole address of every request, its query included.
        tokens_seen: every bearer token sent.
        provider: of sign-ins.
    """

    def __init__(self) -> None:
        self.reset()
        handler = type("Bound", (Handler,), {"hub": self})
        self._server = Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        # Another host name, as the Hub's storage has: the clients follow no redirect to it
        # while they ask for a file's metadata, and send it no token.
        self.storage = f"http://localhost:{self._server.server_port}"

    def reset(self) -> None:
        """Forget all that was added and asked."""
        self.repos: dict[tuple[str, str], Repo] = {}
        self.buckets: dict[str, bool] = {}
        self.users: dict[str, User] = {}
        self.aliases: dict[str, str] = {}
        self.requests: list[tuple[str, str, int]] = []
        self.targets: list[str] = []
        self.tokens_seen: list[str] = []
        self.provider = Provider()
        self.uploads: dict[str, bytes] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.part_size = 0
        self.first_commit = False
        self.faults: list[Fault] = []

    def __enter__(self) -> LoopbackHub:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add_user(self, token: str, name: str, *values: Any, **named: Any) -> None:
        """Make a token known; see `User`."""
        self.users[token] = User(name, *values, **named)

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
        repo.space = Space("gradio") if kind == "space" else None
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
        **named: Any,
    ) -> None:
        """Answer the next requests whose path matches with an error; see `Fault`."""
        fault = Fault(method, re.compile(path), status, times, headers or {}, **named)
        self.faults.append(fault)

    def delay(self, path: str, seconds: float, times: int = 1) -> None:
        """Answer the next requests whose path matches late."""
        self.faults.append(Fault("", re.compile(path), 0, times, seconds=seconds))

    def hold(self, path: str) -> threading.Event:
        """Let the next request whose path matches wait until the event is set."""
        gate = threading.Event()
        self.faults.append(Fault("", re.compile(path), 0, gate=gate))
        return gate

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
        self.path_only = unquote(urlsplit(self.path).path)
        self.hub.targets.append(self.path)
        fault = self.hub.fault_for(self.command, self.path_only)
        if fault is not None and fault.cut and self.command == "PUT":
            self.rfile.read(min(size, fault.after))
            self._hang_up()
            return
        self.body = self._read_body(size)
        self.lost = fault is not None and fault.lost
        try:
            if fault is not None:
                time.sleep(fault.seconds)
            if fault is not None and fault.gate is not None:
                fault.gate.wait(60)
            self.cut_after = fault.after if fault is not None else 0
            if fault is not None and fault.cut and not fault.after:
                self._hang_up()
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

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

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
        if self.lost:
            self._hang_up()
            return
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
        """The user, if they may write there: a namespace, or a repository by its full name."""
        if self.user is None:
            raise Refused(401, "", "You must be signed in")
        if not self.user.may_write(namespace):
            raise Refused(403, "", "You may not write to this namespace")
        return self.user

    # What the clients ask for, in the order of a push and then of a download.

    def root(self) -> None:
        self._send(200)

    def whoami(self) -> None:
        if self.user is None:
            raise Refused(401, "", "Invalid credentials in Authorization header")
        access: dict[str, Any] = {"displayName": "test", "role": self.user.role}
        if self.user.role == "contributor":
            access = {}
        if self.user.role == "fineGrained":
            access["fineGrained"] = {"global": [], "scoped": [
                {"entity": {"name": name, "type": "model" if "/" in name else "user"},
                 "permissions": ["repo.content.read", "repo.write"]}
                for name in self.user.scopes
            ]}  # fmt: skip
        self._json(
            {
                "type": "user",
                "name": self.user.name,
                "orgs": [
                    {
                        "name": name.removesuffix(":read"),
                        "type": "org",
                        "roleInOrg": "read" if name.endswith(":read") else "write",
                    }
                    for name in self.user.orgs
                ],
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
        made = Repo(repo_id, kind, bool(private))
        if kind == "space":
            made.space = self._new_space(wanted)
        if self.hub.first_commit:
            made.commit("initial commit", {".gitattributes": b""})
        self.hub.repos[kind, repo_id] = made
        self.user.made.add(repo_id)
        self._json(where)

    def _new_space(self, wanted: dict[str, Any]) -> Space:
        assert self.user is not None
        made = Space(wanted["sdk"], wanted.get("hardware", "cpu-basic"))
        made.sleep_time = wanted.get("sleepTimeSeconds")
        if made.hardware not in HARDWARE:
            raise Refused(400, "", f"there is no hardware {made.hardware}")
        free = made.hardware == "cpu-basic" and not self.user.pro
        if not self.user.pays or (made.sdk != "static" and free):
            raise Refused(402, "", "This takes a subscription or a payment method")
        return made

    # Sign-ins.

    def oidc(self) -> None:
        self._json(self.hub.provider.metadata(self.hub.url))

    def oidc_keys(self) -> None:
        self._json(self.hub.provider.keys())

    def authorize(self) -> None:
        target = self.hub.provider.authorize(dict(parse_qsl(urlsplit(self.path).query)))
        self._send(302, b"", {"Location": target})

    def exchange(self) -> None:
        found = self.hub.provider.exchange(dict(parse_qsl(self.body.decode())), self.hub.url)
        role = "write" if "write-repos" in found["scope"].split() else "contributor"
        self.hub.add_user(found["access_token"], self.hub.provider.user, role)
        self._json(found)

    # What belongs to Spaces alone.

    def hardware(self) -> None:
        self._json(
            [
                {"name": name, "prettyName": pretty, "cpu": "4 vCPU", "ram": "15 GB",
                 "accelerator": None, "unitCostMicroUSD": cost, "unitCostUSD": cost / 1e6,
                 "unitLabel": "minute"}
                for name, (pretty, cost) in HARDWARE.items()
            ]
        )  # fmt: skip

    def _space(self, repo: str, write: bool = True) -> Space:
        found = self.hub.find("space", repo, self.user)
        if write:
            self._writer(repo)
        assert found.space is not None
        return found.space

    def runtime(self, repo: str) -> None:
        self._runtime(self._space(repo, write=False))

    def _runtime(self, space: Space) -> None:
        hardware = {"current": None, "requested": space.hardware}
        stage = space.stages.pop(0) if len(space.stages) > 1 else space.stages[0]
        self._json(
            {"stage": stage, "errorMessage": space.trouble, "hardware": hardware,
             "gcTimeout": space.sleep_time, "storage": None, "volumes": space.volumes or None}
        )  # fmt: skip

    def request_hardware(self, repo: str) -> None:
        space, wanted = self._space(repo), json.loads(self.body)
        if wanted["flavor"] not in HARDWARE:
            raise Refused(400, "", "Invalid flavor")
        assert self.user is not None
        if not self.user.pays:
            raise Refused(402, "", "This takes a payment method")
        space.hardware = wanted["flavor"]
        space.sleep_time = wanted.get("sleepTimeSeconds", space.sleep_time)
        self._runtime(space)

    def set_volumes(self, repo: str) -> None:
        space = self._space(repo)
        volumes = json.loads(self.body)["volumes"]
        for one in volumes:
            if one["type"] == "bucket" and one["source"] not in self.hub.buckets:
                raise Refused(404, "", f"there is no bucket {one['source']}")
        space.volumes = volumes
        self._json({})

    def add_variable(self, repo: str) -> None:
        space, wanted = self._space(repo), json.loads(self.body)
        space.variables[wanted["key"]] = wanted["value"]
        self._json({key: {"value": value} for key, value in space.variables.items()})

    def create_bucket(self, repo: str) -> None:
        self._writer(repo)
        known = repo in self.hub.buckets
        if not known:
            self.hub.buckets[repo] = json.loads(self.body).get("visibility") == "private"
        self._json({"url": f"{self.hub.url}/buckets/{repo}"}, 409 if known else 200)

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
        held = self.hub.find(kind, repo, self.user).files
        self._writer(repo)
        files = [
            {
                "path": one["path"],
                "uploadMode": _mode(one["path"], one["size"]),
                "shouldIgnore": False,
                "oid": _oid(one["path"], held.get(one["path"])),
            }
            for one in json.loads(self.body)["files"]
        ]
        self._json({"files": files})

    def lfs_batch(self, repo: str, prefix: str | None) -> None:
        self.hub.find((prefix or "models")[:-1], repo, self.user)
        self._writer(repo)
        objects: list[dict[str, Any]] = []
        for one in json.loads(self.body)["objects"]:
            entry = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.hub.uploads:
                put = {"href": f"{self.hub.storage}/lfs/{one['oid']}", "header": {}}
                if 0 < self.hub.part_size < one["size"]:
                    put["header"] = self._parts(one["oid"], one["size"])
                verify = {"href": f"{self.hub.storage}/lfs/{one['oid']}/verify", "header": {}}
                entry["actions"] = {"upload": put, "verify": verify}
            objects.append(entry)
        self._json({"transfer": "basic", "objects": objects})

    def lfs_put(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refused(400, "", "the content has another sha256")
        self.hub.uploads[oid] = self.body
        self._send(200)

    def _parts(self, oid: str, size: int) -> dict[str, str]:
        """Where each part of a large file goes, as S3's multipart uploads have it."""
        count = -(-size // self.hub.part_size)
        urls = {str(n): f"{self.hub.storage}/lfs/{oid}/part/{n}" for n in range(1, count + 1)}
        return {"chunk_size": str(self.hub.part_size), **urls}

    def lfs_part(self, oid: str, number: str) -> None:
        self.hub.parts[oid, int(number)] = self.body
        self._send(200, b"", {"ETag": f'"{hashlib.md5(self.body).hexdigest()}"'})

    def lfs_complete(self, oid: str) -> None:
        wanted = [one["partNumber"] for one in json.loads(self.body)["parts"]]
        self.body = b"".join(self.hub.parts.pop((oid, number)) for number in wanted)
        self.lfs_put(oid)

    def lfs_verify(self, oid: str) -> None:
        wanted = json.loads(self.body)
        content = self.hub.uploads.get(oid)
        if content is None or len(content) != wanted["size"]:
            raise Refused(404, "", "no such object")
        self._json({})

    def commit(self, kind: str, repo: str, revision: str) -> None:
        found = self.hub.find(kind, repo, self.user)
        self._writer(repo)
        message, description, changes = "", "", {}
        for line in filter(None, self.body.splitlines()):
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message, description = value["summary"], value.get("description", "")
                if value.get("parentCommit") not in (None, found.head):
                    raise Refused(412, "", "A commit has happened since")
            else:
                changes[value["path"]] = self._content(entry["key"], value)
        made = found.commit(message, changes, description)
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
        sizes = "blobs" in dict(parse_qsl(urlsplit(self.path).query))
        self._json(
            {
                "_id": "0" * 24,
                "id": repo,
                "modelId": repo,
                "sha": found.at(revision)[0] if found.commits else None,
                "private": found.private,
                "gated": "auto" if found.gated else False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "siblings": [
                    {"rfilename": path} | ({"size": len(content)} if sizes else {})
                    for path, content in sorted(found.at(revision)[1].items())
                ],
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
        files = found.at(revision)[1]
        inside = [name for name in sorted(files) if name.startswith(prefix)]
        if path and not inside:
            raise Refused(404, "EntryNotFound", f"{path} does not exist")
        folders = sorted({_parent(name) for name in inside} - {"", path or ""})
        self._json([*map(_folder, folders), *(_file(name, files) for name in inside)])

    def paths_info(self, kind: str, repo: str, revision: str) -> None:
        found = self.hub.find(kind, repo, self.user)
        wanted = _form(self.body, self.headers.get("Content-Type", ""))
        answer, files = [], found.at(revision)[1]
        for path in wanted:
            if path in files:
                answer.append(_file(path, files))
            elif any(name.startswith(f"{path}/") for name in files):
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
                {"id": one.sha, "title": one.message, "message": one.description, "authors": [],
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
        commit, files = found.at(revision)
        if path not in files:
            raise Refused(404, "EntryNotFound", f"{path} does not exist")
        content = files[path]
        etag = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if _mode(path, len(content)) == "lfs":
            self.hub.uploads[etag] = content
            headers["X-Linked-Etag"] = f'"{etag}"'
            headers["X-Linked-Size"] = str(len(content))
            self._send(302, b"", {**headers, "Location": f"{self.hub.storage}/lfs/{etag}?{SIGNED}"})
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


def _oid(path: str, content: bytes | None) -> str | None:
    """By what the clients know a file that is there: git's hash of a blob, or sha256 of a large
    file's content."""
    if content is None:
        return None
    if _mode(path, len(content)) == "lfs":
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _mode(path: str, size: int) -> str:
    return "lfs" if path.endswith(LFS_SUFFIXES) or size > LFS_SIZE else "regular"


def _parent(path: str) -> str:
    return path.rsplit("/", 1)[0] if "/" in path else ""


def _folder(path: str) -> dict[str, Any]:
    return {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}


def _file(path: str, files: dict[str, bytes]) -> dict[str, Any]:
    content = files[path]
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
    ("GET", r"/\.well-known/openid-configuration", Handler.oidc),
    ("GET", r"/oauth/jwks", Handler.oidc_keys),
    ("GET", r"/oauth/authorize", Handler.authorize),
    ("POST", r"/oauth/token", Handler.exchange),
    ("GET", r"/api/whoami-v2", Handler.whoami),
    ("POST", r"/api/repos/create", Handler.create),
    ("DELETE", r"/api/repos/delete", Handler.delete),
    ("GET", r"/api/spaces/hardware", Handler.hardware),
    ("GET", rf"/api/spaces/{_REPO}/runtime", Handler.runtime),
    ("POST", rf"/api/spaces/{_REPO}/hardware", Handler.request_hardware),
    ("PUT", rf"/api/spaces/{_REPO}/volumes", Handler.set_volumes),
    ("POST", rf"/api/spaces/{_REPO}/variables", Handler.add_variable),
    ("POST", rf"/api/buckets/{_REPO}", Handler.create_bucket),
    ("POST", r"/api/validate-yaml", Handler.validate_yaml),
    ("POST", rf"/api/{_KIND}/{_REPO}/preupload/{_REV}", Handler.preupload),
    ("POST", rf"/{_PREFIX}{_REPO}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_put),
    ("GET HEAD", r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_get),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})/part/(?P<number>\d+)", Handler.lfs_part),
    ("POST", r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_complete),
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
