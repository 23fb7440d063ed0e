"""A loopback Hugging Face Hub: the real clients talk to it over real HTTP.

What lives here: repositories in memory, users and tokens, the requests the clients make, and
faults to order; `jobs` and `buckets` have the rest. Nothing of Finetune's, and nothing the
clients do not ask for.
"""

import base64
import hashlib
import json
import re
import secrets
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import yaml
from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.support import buckets, jobs
from tests.support.buckets import Refused

Files = dict[str, bytes]
LFS_SUFFIXES = (".safetensors", ".bin", ".onnx", ".parquet", ".png")
LFS_SIZE = 5 * 2**20
SIGNED = "X-Amz-Signature=0f1e2d3c4b5a"  # ends every address of the storage, as the Hub's does


@dataclass
class Space:
    """How a Space runs: its hardware, what it mounts and its public variables."""

    sdk: str
    hardware: str = "cpu-basic"
    sleep_time: int | None = None
    variables: dict[str, str] = field(default_factory=dict)
    volumes: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Repo:
    """A repository with the files of its head, and of the commits before it."""

    id: str
    kind: str = "model"
    private: bool = False
    gated: bool = False
    downloads: int = 0  # of a month
    files: Files = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)  # the latest last
    messages: dict[str, tuple[str, str]] = field(default_factory=dict)  # title and text by commit
    earlier: dict[str, Files] = field(default_factory=dict)  # by commit
    space: Space | None = None

    @property
    def head(self):
        return self.commits[-1] if self.commits else ""

    def at(self, revision):
        """The commit that a known revision stands for, and its files."""
        files = self.earlier.get(revision)
        return (self.head, self.files) if files is None else (revision, files)

    def commit(self, message, changes, text=""):
        if self.commits:
            self.earlier[self.head] = dict(self.files)
        changed = {**self.files, **changes}
        self.files = {path: content for path, content in changed.items() if content is not None}
        facts = json.dumps([self.head, message, sorted(changes), time.time()])
        self.commits.append(hashlib.sha1(facts.encode()).hexdigest())
        self.messages[self.head] = message, text
        return self.head


@dataclass(frozen=True)
class User:
    """Whom a token belongs to, and what it may do."""

    name: str
    role: str = "write"  # or `read`, or `contributor`: a sign-in that may write to what it made
    orgs: tuple[str, ...] = ()  # `name:read` where they may only read
    pays: bool = True  # whether they have a payment method
    pro: bool = False  # whether free hardware runs their Gradio Spaces
    made: set[str] = field(default_factory=set)  # repositories

    def may_write(self, full):
        if self.role == "contributor" and "/" in full and full not in self.made:
            return False
        return self.role != "read" and full.split("/")[0] in (self.name, *self.orgs)

    def belongs_to(self, namespace):
        """Whether they may see what is private there."""
        return namespace in (self.name, *(org.removesuffix(":read") for org in self.orgs))


@cache
def _key():
    return RSAKey.generate_key(2048, parameters={"kid": "test"})


@dataclass
class Provider:
    """What the Hub knows of sign-ins: OpenID Connect as the real one speaks it, but its consent
    page: whoever comes is `user` and agrees.

    Source: https://openid.net/specs/openid-connect-core-1_0.html
    """

    user: str = "ada"  # who signs in
    asked: list[str] = field(default_factory=list)  # the scopes of every sign-in, in their order
    tokens: dict[str, str] = field(default_factory=dict)  # access token -> the scopes it has
    codes: dict[str, dict[str, str]] = field(default_factory=dict)  # code -> what was asked


@dataclass
class Fault:
    """An answer given instead of the right one, so many times."""

    method: str = ""  # any
    path: str = ""
    status: int = 0  # 0 for the right answer
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0  # that the answer is late
    cut: bool = False  # whether the connection is cut
    after: int = 0  # bytes that pass before that: of an upload, or of the answer to others
    gate: threading.Event | None = None  # what the answer waits for
    done: bool = False  # whether the request is carried out although its answer is another


class Server(ThreadingHTTPServer):
    """Quiet about clients that hang up: tests want them to."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), OSError | ValueError):
            super().handle_error(request, client_address)


class LoopbackHub:
    """The server; a context manager."""

    def __init__(self):
        self.jobs = jobs.Jobs()
        # Kept for good: what the clients remember of it lies in HF_HOME, and outlives a test.
        self.storage_of_buckets = buckets.Storage()
        handler = type("Bound", (Handler,), {"hub": self})
        self._server = Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        # Another host name, as the Hub's storage has: the clients follow no redirect to it
        # while they ask for a file's metadata, and send it no token.
        self.storage = f"http://localhost:{self._server.server_port}"
        self.reset()

    def reset(self):
        """Forget all that was added and asked."""
        self.repos = {}  # by kind and id
        self.buckets = {}  # by id
        self.jobs.close()
        self.jobs = jobs.Jobs(self.environment())
        self.users = {}  # by token
        self.requests = []  # method, path, status
        self.targets = []  # whole addresses of requests
        self.tokens_seen = []
        self.provider = Provider()  # of sign-ins
        self.uploads = {}  # sha256 -> content of every large file sent
        self.faults = []

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.jobs.close()
        self._server.shutdown()
        self._server.server_close()

    def environment(self, home=None):
        """What makes the clients of a process talk to this Hub alone; with a folder of their own
        for what they remember of it, which no other server's clients may have used."""
        own = {"HF_HOME": str(home), "HF_XET_CACHE": str(home / "xet")} if home else {}
        return {
            "HF_ENDPOINT": self.url, "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_XET_TELEMETRY_ENABLED": "0", "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            "HF_XET_CLIENT_RETRY_BASE_DELAY": "20ms",  # seconds, else
        } | own  # fmt: skip

    def add_user(self, token, name, *values, **named):
        """Make a token known; see `User`."""
        self.users[token] = User(name, *values, **named)

    def add_repo(self, repo_id, kind="model", files=None, **values):
        """A repository with one commit of these files, or of a folder's; see `Repo`."""
        if isinstance(files, Path):
            paths = (path for path in files.rglob("*") if path.is_file())
            files = {str(path.relative_to(files)): path.read_bytes() for path in paths}
        repo = Repo(repo_id, kind, space=Space("gradio") if kind == "space" else None, **values)
        repo.commit("first", dict(files or {}))
        self.repos[kind, repo_id] = repo
        return repo

    def fail(self, *values, **named):
        """Give the next requests whose path matches another answer; see `Fault`."""
        self.faults.append(Fault(*values, **named))
        return self.faults[-1]

    def fault_for(self, method, path):
        for fault in self.faults:
            if fault.times and fault.method in ("", method) and re.search(fault.path, path):
                fault.times -= 1
                return fault
        return Fault()

    def find(self, kind, repo_id, user):
        """A repository that this user may read; refused alike if it is missing or private."""
        repo = self.repos.get((kind, repo_id))
        mine = user is not None and repo_id.split("/")[0] in (user.name, *user.orgs)
        if repo is None or (repo.private and not mine):
            raise Refused(404 if user else 401, "RepoNotFound", "Repository not found")
        return repo


class Handler(BaseHTTPRequestHandler):
    """One request: find its route, answer it as the Hub would."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer takes 40 ms longer
    hub: ClassVar[LoopbackHub]

    def log_message(self, *_):
        """Quiet: the hub keeps its own list."""

    def do_GET(self):
        size = int(self.headers.get("Content-Length") or 0)
        self.path_only = unquote(urlsplit(self.path).path)
        self.hub.targets.append(self.path)
        fault = self.hub.fault_for(self.command, self.path_only)
        self.answer = fault if fault.done else None
        if fault.cut and re.match(r"PUT |POST /v1/", f"{self.command} {self.path_only}"):
            self.rfile.read(min(size, fault.after))
            return self._hang_up()
        self.body = self._read_body(size)
        try:
            time.sleep(fault.seconds)
            if fault.gate is not None and not fault.done:
                fault.gate.wait(60)
            self.cut_after = fault.after
            if fault.cut and not fault.after:
                self._hang_up()
            elif fault.status and not fault.done:
                self._send(fault.status, fault.body, fault.headers)
            else:
                self.user = self._who()
                self._route()
        except Refused as refused:
            headers = {"X-Error-Message": refused.message}
            headers |= {"X-Error-Code": refused.code} if refused.code else {}
            self._send(refused.status, json.dumps({"error": refused.message}).encode(), headers)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _hang_up(self):
        self.close_connection = True
        self.connection.close()

    def _read_body(self, size):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(size)
        body = b""
        while length := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _who(self):
        header = self.headers.get("Authorization", "")
        if not header.startswith("Bearer ") or re.match(r"/v\d/", self.path_only):
            return None  # the storage of buckets has tokens of its own
        token = header.removeprefix("Bearer ")
        self.hub.tokens_seen.append(token)
        if token not in self.hub.users:
            raise Refused(401, "", "Invalid credentials in Authorization header")
        return self.hub.users[token]

    def _route(self):
        for methods, pattern, action in ROUTES:
            match = re.fullmatch(pattern, self.path_only)
            if match and self.command in methods.split():
                return action(self, **match.groupdict())
        raise Refused(404, "", f"no route for {self.command} {self.path_only}")

    def _send(self, status, body=b"", headers=None):
        if self.answer is not None:
            status, body, headers = self.answer.status or status, self.answer.body, None
            if self.answer.gate is not None:
                self.answer.gate.wait(60)
        self.hub.requests.append((self.command, self.path_only, status))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: self.cut_after or None])
            self.close_connection = self.close_connection or bool(self.cut_after)

    def start_stream(self, kind):
        """Begin an answer that comes in parts."""
        self.hub.requests.append((self.command, self.path_only, 200))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def stream(self, part):
        """Send a part; where the connection is to be cut, only to there."""
        frame = b"%x\r\n%b\r\n" % (len(part), part)
        if self.cut_after and len(part) >= self.cut_after:
            self.wfile.write(frame[: frame.index(b"\n") + 1] + part[: self.cut_after])
            raise BrokenPipeError
        self.wfile.write(frame)
        self.cut_after -= len(part) if self.cut_after else 0

    def end_stream(self):
        self.wfile.write(b"0\r\n\r\n")

    def _json(self, value, status=200):
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _writer(self, namespace):
        """The user, if they may write to a namespace (their own by default) or a repository."""
        user = self.user
        if user is None or not user.may_write(namespace or user.name):
            raise Refused(403, "", "You may not write to this namespace")
        return user

    # What the clients ask for, in the order of a push and then of a download.

    def root(self):
        self._send(200)

    def whoami(self):
        if self.user is None:
            raise Refused(401, "", "Invalid credentials in Authorization header")
        role = self.user.role
        orgs = [
            {"name": name.removesuffix(":read"), "type": "org",
             "roleInOrg": "read" if name.endswith(":read") else "write"}
            for name in self.user.orgs
        ]  # fmt: skip
        access = {} if role == "contributor" else {"displayName": "test", "role": role}
        auth = {"type": "access_token", "accessToken": access}
        self._json({"type": "user", "name": self.user.name, "orgs": orgs, "auth": auth})

    def create(self):
        body = json.loads(self.body)
        user = self._writer(body.get("organization"))
        repo_id = f"{body.get('organization') or user.name}/{body['name']}"
        kind = body.get("type") or "model"
        prefix = "" if kind == "model" else f"{kind}s/"
        where = {"url": f"{self.hub.url}/{prefix}{repo_id}", "name": repo_id}
        if (kind, repo_id) in self.hub.repos:
            return self._json({"error": "You already created this repo", **where}, 409)
        private = body.get("private") or body.get("visibility") == "private"
        repo = Repo(repo_id, kind, bool(private))
        if kind == "space":
            hardware = body.get("hardware", "cpu-basic")
            if not user.pays or (hardware == "cpu-basic" and not user.pro):
                raise Refused(402, "", "This takes a subscription or a payment method")
            repo.space = Space(body["sdk"], hardware, body.get("sleepTimeSeconds"))
        self.hub.repos[kind, repo_id] = repo
        user.made.add(repo_id)
        self._json(where)

    def oidc(self):
        url = self.hub.url
        self._json(
            {
                "issuer": url, "authorization_endpoint": f"{url}/oauth/authorize",
                "token_endpoint": f"{url}/oauth/token", "jwks_uri": f"{url}/oauth/jwks",
                "id_token_signing_alg_values_supported": ["RS256"],
                "response_types_supported": ["code"],
            }
        )  # fmt: skip

    def oidc_keys(self):
        """What its signatures are checked with."""
        self._json({"keys": [_key().as_dict(private=False)]})

    def authorize(self):
        """Send the browser back, with a code."""
        query = dict(parse_qsl(urlsplit(self.path).query))
        code = secrets.token_urlsafe(8)
        self.hub.provider.codes[code] = query
        self.hub.provider.asked.append(query["scope"])
        mark = "&" if "?" in query["redirect_uri"] else "?"
        back = urlencode({"code": code, "state": query["state"]})
        self._send(302, b"", {"Location": f"{query['redirect_uri']}{mark}{back}"})

    def exchange(self):
        """The tokens for a code, which is good for once."""
        form, url = dict(parse_qsl(self.body.decode())), self.hub.url
        provider = self.hub.provider
        asked = provider.codes.pop(form["code"])
        assert form["redirect_uri"] == asked["redirect_uri"]
        token, scope, name = f"hf_oauth_{secrets.token_urlsafe(12)}", asked["scope"], provider.user
        provider.tokens[token] = scope
        now = int(time.time())
        claims = {
            "iss": url, "aud": asked["client_id"], "sub": "1", "iat": now, "exp": now + 3600,
            "nonce": asked["nonce"], "name": name.title(), "preferred_username": name,
            "profile": f"{url}/{name}", "picture": "",
        }  # fmt: skip
        identity = jwt.encode({"alg": "RS256", "kid": "test"}, claims, _key())
        role = "write" if "write-repos" in scope.split() else "contributor"
        self.hub.add_user(token, name, role)
        self._json(
            {"access_token": token, "token_type": "bearer", "expires_in": 3600, "scope": scope,
             "id_token": identity}
        )  # fmt: skip

    def hardware(self):
        self._json([flavor.answer(name) for name, flavor in jobs.SPACES.items()])

    def _space(self, repo):
        return self.hub.find("space", repo, self.user).space

    def runtime(self, repo):
        space = self._space(repo)
        self._json(
            {"stage": "BUILDING", "hardware": {"current": None, "requested": space.hardware},
             "gcTimeout": space.sleep_time, "storage": None, "volumes": space.volumes or None}
        )  # fmt: skip

    def request_hardware(self, repo):
        space, body = self._space(repo), json.loads(self.body)
        if not self._writer(repo).pays:
            raise Refused(402, "", "This takes a payment method")
        space.hardware = body["flavor"]
        space.sleep_time = body.get("sleepTimeSeconds", space.sleep_time)
        self.runtime(repo)

    def set_volumes(self, repo):
        self._writer(repo)
        volumes = json.loads(self.body)["volumes"]
        for volume in volumes:
            if volume["type"] == "bucket" and volume["source"] not in self.hub.buckets:
                raise Refused(404, "", f"there is no bucket {volume['source']}")
        self._space(repo).volumes = volumes
        self._json({})

    def add_variable(self, repo):
        self._writer(repo)
        space, body = self._space(repo), json.loads(self.body)
        space.variables[body["key"]] = body["value"]
        self._json({key: {"value": value} for key, value in space.variables.items()})

    def validate_yaml(self):
        front = yaml.safe_load(json.loads(self.body)["content"].split("---\n")[1])
        problems = [] if isinstance(front, dict) else [{"message": "it is no mapping"}]
        self._json({"errors": problems, "warnings": []}, 400 if problems else 200)

    def preupload(self, kind, repo, revision):
        held = self.hub.find(kind, repo, self.user).files
        self._writer(repo)
        files = []
        for file in json.loads(self.body)["files"]:
            path, mode = file["path"], _mode(file["path"], file["size"])
            oid = _oid(path, held.get(path))
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self._json({"files": files})

    def lfs_batch(self, repo, prefix):
        self.hub.find((prefix or "models")[:-1], repo, self.user)
        self._writer(repo)
        objects = []
        for entry in json.loads(self.body)["objects"]:
            upload = {"upload": {"href": f"{self.hub.storage}/lfs/{entry['oid']}"}}
            missing = {"actions": upload} if entry["oid"] not in self.hub.uploads else {}
            objects.append({"oid": entry["oid"], "size": entry["size"], **missing})
        self._json({"transfer": "basic", "objects": objects})

    def lfs_put(self, oid):
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.hub.uploads[oid] = self.body
        self._send(200)

    def commit(self, kind, repo, revision):
        target = self.hub.find(kind, repo, self.user)
        self._writer(repo)
        message = text = ""
        changes = {}
        for line in filter(None, self.body.splitlines()):
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message, text = value["summary"], value.get("description", "")
                if value.get("parentCommit") not in (None, target.head):
                    raise Refused(412, "", "A commit has happened since")
            elif entry["key"] == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                changes[value["path"]] = self.hub.uploads[value["oid"]]
            else:
                changes[value["path"]] = None
        commit = target.commit(message, changes, text)
        prefix = "" if kind == "model" else f"{kind}s/"
        url = f"{self.hub.url}/{prefix}{repo}/commit/{commit}"
        self._json({"success": True, "commitOid": commit, "commitUrl": url})

    def commits(self, kind, repo, revision):
        target = self._at(kind, repo, revision)
        self._json(
            [
                {"id": commit, "authors": [{"user": repo.split("/")[0]}],
                 "date": "2026-01-01T00:00:00.000Z", "title": target.messages[commit][0],
                 "message": target.messages[commit][1]}
                for commit in reversed(target.commits)
            ]
        )  # fmt: skip

    def info(self, kind, repo, revision="main"):
        target = self._at(kind, repo, revision)
        sizes = "blobs" in dict(parse_qsl(urlsplit(self.path).query))
        sha, files = target.at(revision)
        self._json(
            {
                "_id": "0" * 24, "id": repo, "modelId": repo, "private": target.private,
                "sha": sha or None, "disabled": False, "downloads": 0,
                "gated": "auto" if target.gated else False, "likes": 0, "tags": [],
                "siblings": [
                    {"rfilename": path} | ({"size": len(content)} if sizes else {})
                    for path, content in sorted(files.items())
                ],
                "config": json.loads(files.get("config.json", b"{}")),
                "lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z",
            }
        )  # fmt: skip

    def listing(self, kind):
        query = dict(parse_qsl(urlsplit(self.path).query))
        found = [
            repo for (its, name), repo in self.hub.repos.items()
            if its == kind and not repo.private and query["search"].lower() in name.lower()
        ]  # fmt: skip
        found.sort(key=lambda repo: -repo.downloads)
        answer = [{"id": repo.id, "downloads": repo.downloads} for repo in found]
        self._json(answer[: int(query["limit"])])

    def _at(self, kind, repo, revision):
        target = self.hub.find(kind, repo, self.user)
        if revision != "main" and revision not in target.commits:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return target

    def tree(self, kind, repo, revision, path=None):
        prefix = f"{path}/" if path else ""
        _, files = self._at(kind, repo, revision).at(revision)
        inside = [name for name in sorted(files) if name.startswith(prefix)]
        if path and not inside:
            raise Refused(404, "EntryNotFound", f"{path} does not exist")
        parents = (name.rpartition("/")[0] for name in inside)
        folders = [
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}
            for folder in sorted(set(parents) - {"", path or ""})
        ]
        self._json([*folders, *(_file(name, files) for name in inside)])

    def resolve(self, repo, revision, path, prefix):
        target = self._at((prefix or "models")[:-1], repo, revision)
        owner = self.user is not None and repo.split("/")[0] == self.user.name
        if target.gated and not owner:
            raise Refused(403 if self.user else 401, "GatedRepo", f"{repo} is gated")
        commit, files = target.at(revision)
        if path not in files:
            raise Refused(404, "EntryNotFound", f"{path} does not exist")
        content = files[path]
        etag = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if _mode(path, len(content)) == "lfs":
            self.hub.uploads[etag] = content
            headers["X-Linked-Etag"] = f'"{etag}"'
            headers["X-Linked-Size"] = str(len(content))
            headers["Location"] = f"{self.hub.storage}/lfs/{etag}?{SIGNED}"
            return self._send(302, b"", headers)
        return self._ranged(content, headers)

    def lfs_get(self, oid):
        self._ranged(self.hub.uploads[oid], {"Accept-Ranges": "bytes"})

    def _ranged(self, content, headers):
        limits = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not limits:
            return self._send(200, content, headers)
        first = int(limits[1])
        last = min(int(limits[2] or len(content) - 1), len(content) - 1)
        shown = {**headers, "Content-Range": f"bytes {first}-{last}/{len(content)}"}
        self._send(206, content[first : last + 1], shown)


def _oid(path, content):
    """By what the clients know a file that is there: git's hash of a blob, or sha256 of a large
    file's content."""
    if content is None:
        return None
    if _mode(path, len(content)) == "lfs":
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _mode(path, size):
    return "lfs" if path.endswith(LFS_SUFFIXES) or size > LFS_SIZE else "regular"


def _file(path, files):
    size, oid = len(files[path]), hashlib.sha256(files[path]).hexdigest()
    entry = {"type": "file", "oid": oid[:40], "size": size, "path": path}
    if _mode(path, size) == "lfs":
        entry["lfs"] = {"oid": oid, "size": size, "pointerSize": 130}
    return entry


_REPO = r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)"
_KIND = r"(?P<kind>model|dataset|space)s"
_REV = r"(?P<revision>[\w.-]+)"
_PREFIX = r"(?:(?P<prefix>datasets|spaces)/)?"

ROUTES = [
    ("GET HEAD", r"/", Handler.root),
    ("GET", r"/\.well-known/openid-configuration", Handler.oidc),
    ("GET", r"/oauth/jwks", Handler.oidc_keys),
    ("GET", r"/oauth/authorize", Handler.authorize),
    ("POST", r"/oauth/token", Handler.exchange),
    ("GET", r"/api/whoami-v2", Handler.whoami),
    ("POST", r"/api/repos/create", Handler.create),
    ("GET", r"/api/spaces/hardware", Handler.hardware),
    ("GET", rf"/api/spaces/{_REPO}/runtime", Handler.runtime),
    ("POST", rf"/api/spaces/{_REPO}/hardware", Handler.request_hardware),
    ("PUT", rf"/api/spaces/{_REPO}/volumes", Handler.set_volumes),
    ("POST", rf"/api/spaces/{_REPO}/variables", Handler.add_variable),
    ("POST", r"/api/validate-yaml", Handler.validate_yaml),
    ("POST", rf"/api/{_KIND}/{_REPO}/preupload/{_REV}", Handler.preupload),
    ("POST", rf"/{_PREFIX}{_REPO}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_put),
    ("GET HEAD", r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_get),
    ("POST", rf"/api/{_KIND}/{_REPO}/commit/{_REV}", Handler.commit),
    ("GET", rf"/api/{_KIND}/{_REPO}/commits/{_REV}", Handler.commits),
    ("GET", rf"/api/{_KIND}", Handler.listing),
    ("GET", rf"/api/{_KIND}/{_REPO}/revision/{_REV}", Handler.info),
    ("GET", rf"/api/{_KIND}/{_REPO}/tree/{_REV}(?:/(?P<path>.+))?", Handler.tree),
    ("GET HEAD", rf"/{_PREFIX}{_REPO}/resolve/{_REV}/(?P<path>.+)", Handler.resolve),
    ("GET", rf"/api/{_KIND}/{_REPO}", Handler.info),
    *buckets.routes(),
    *jobs.routes(),
]

TOKEN = "hub-token-of-ada"
