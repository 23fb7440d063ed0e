"""Files on their way from a browser into the store: counted as they come, used, and gone.

Gradio's own route takes files from anybody, any number of them, and keeps them for a day. This one
stands before it: it asks who sends, ends a request that brings too much while it is still coming,
and puts each request's files into a folder of their own, which is removed once the store has kept
them, when they are refused, and after an hour in which nobody used them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.route_utils import upload_fn
from gradio.routes import file_upload_statuses
from gradio.utils import get_upload_folder
from gradio_client.utils import is_http_url_like
from starlette.concurrency import run_in_threadpool
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Message

from finetune import owners
from finetune.errors import DataError
from finetune.owners import NOBODY, Limits, Visitor
from finetune.runs.store import RunStore
from finetune.ui import auth

MOST = 500 * 2**20  # bytes of one file

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 24 * 3600.0
_PREFIX = "finetune-"
_HANG_UP = {"connection": "close"}  # what still comes is not read


@dataclass
class _Incoming:
    """A file that came.

    Args:
        owner: who brought it.
        size: bytes; 0 once the store has kept it.
        when: it was last used, in seconds since the epoch.
        kept: where the store keeps it.
    """

    owner: str
    size: int
    when: float
    kept: Path | None = None


# Of the whole process: the paths are made here, and no two are alike.
_files: dict[str, _Incoming] = {}
_held: Counter[str] = Counter()  # owner -> bytes that lie here or are just coming
_lock = threading.Lock()


class _TooMuch(Exception):
    """A request brings more than its sender may have."""


class _Quota:
    """What a request may bring.

    Args:
        owner: who sends it.
        own, everyone: bytes that the sender, and all visitors together, may have here by now.
    """

    def __init__(self, owner: str, own: float, everyone: float) -> None:
        self._owner, self._own, self._everyone = owner, own, everyone
        self._taken = 0

    def take(self, size: int) -> None:
        """Count bytes that come.

        Raises:
            _TooMuch: when they are more than may be; they are not counted then.
        """
        with _lock:
            own, everyone = _held[self._owner] + size, _held.total() + size
            if own > self._own or everyone > self._everyone:
                raise _TooMuch
            self._taken += size
            _held[self._owner] += size

    def give_back(self) -> None:
        """What was counted is not here any more, or is counted by its files from now on."""
        with _lock:
            _held[self._owner] -= self._taken
            self._taken = 0


def _quota(store: RunStore) -> _Quota:
    if store.visitor.alone:
        return _Quota("", math.inf, math.inf)
    limits = Limits.of_environment()
    own = limits.upload_bytes - store.uploads.needed()
    return _Quota(store.visitor.name, own, limits.all_upload_bytes - store.brought_bytes())


@lru_cache(maxsize=1)
def _folder() -> Path:
    """Where this process puts what comes; within Gradio's folder, outside which it reads none."""
    return Path(get_upload_folder()) / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"


async def receive(store: RunStore, request: Request) -> Response:
    """Take the files of a form, and answer where they lie, as Gradio's own route does."""
    mine = auth.visitor_store(store, request)
    if not mine.visitor.may_start:
        return PlainTextResponse(" ".join(NOBODY), 403, _HANG_UP)
    quota = await run_in_threadpool(_quota, mine)
    announced = request.headers.get("content-length", "")
    place = _folder() / secrets.token_urlsafe(18)
    try:
        quota.take(int(announced) if announced.isdecimal() else 0)
        quota.give_back()
        paths = await _receive(request, place, quota)
        await run_in_threadpool(_note, mine.visitor.name, place, paths)
        return JSONResponse(paths)
    except _TooMuch:
        refusal, status = _too_much(), 413
    except ClientDisconnect:
        refusal, status = "The client is gone.", 400
    except (MultiPartException, TypeError, AttributeError) as error:  # a field that is no file
        refusal = str(getattr(error, "message", error))
        status = 413 if "maximum allowed size" in refusal else 400
    finally:
        quota.give_back()
        if not any(_is_below(path, place) for path in list(_files)):
            await run_in_threadpool(shutil.rmtree, place, ignore_errors=True)
    return PlainTextResponse(refusal, status, _HANG_UP)


async def _receive(request: Request, place: Path, quota: _Quota) -> list[str]:
    async def counted() -> Message:
        message = await request.receive()
        quota.take(len(message.get("body", b"")))
        return message

    upload_id = request.query_params.get("upload_id")
    try:
        paths, _, _ = await upload_fn(
            Request(request.scope, counted), str(place), MOST, upload_id,
            upload_progress=file_upload_statuses if upload_id else None,
        )  # fmt: skip
    finally:
        if upload_id:  # who watches the bar waits for that
            file_upload_statuses.set_done(upload_id)
    return [str(path) for path in paths]


def _too_much() -> str:
    limits = Limits.of_environment()
    return (
        f"These files are more than there is room for: a visitor may have "
        f"{limits.upload_bytes / 2**20:,.0f} MB, all visitors together "
        f"{limits.all_upload_bytes / 2**20:,.0f} MB. Bring a part of the rows, or delete a run of "
        "other files."
    )


def _is_below(path: str, place: Path) -> bool:
    return Path(path).is_relative_to(place)


def _note(owner: str, place: Path, paths: list[str]) -> None:
    """Know the files that came, and let nothing else lie beside them."""
    for other in place.iterdir():
        if other.is_file():  # what a field without a name left
            other.unlink()
    now = time.time()
    with _lock:
        for path in paths:
            _files[path] = _Incoming(owner, Path(path).stat().st_size, now)
            _held[owner] += _files[path].size


def path(visitor: Visitor, given: str) -> Path:
    """Where a file that a visitor has uploaded lies now.

    Raises:
        DataError: when it is not here any more, or not theirs.
    """
    gone = DataError(f"{Path(given).name!r} is not here any more.", "Upload it again.")
    with _lock:
        known = _files.get(given)
        if known is not None:
            known.when = time.time()
    if known is None and not visitor.alone:
        raise gone
    if known is not None and not visitor.owns(known.owner):
        raise gone
    where = known.kept if known and known.kept else Path(given)
    if not where.is_file():
        raise gone
    return where


def kept(given: str, where: Path) -> None:
    """The store has kept a file: it lies there from now on, and here no more."""
    with _lock:
        if (known := _files.get(given)) is not None:
            known.kept = where
            _forget(given, known)


def drop(given: str) -> None:
    """A file was refused, or is needed no more; one that the store has kept stays there."""
    with _lock:
        if (known := _files.get(given)) is not None and known.kept is None:
            _forget(given, known)
            del _files[given]


def _forget(given: str, known: _Incoming) -> None:
    """Remove an uploaded file and its folder; `_lock` is held."""
    _held[known.owner] -= known.size
    known.size = 0
    shutil.rmtree(Path(given).parent, ignore_errors=True)
    with contextlib.suppress(OSError):  # others came with it
        Path(given).parent.parent.rmdir()


def sweep(now: float) -> None:
    """Remove what nobody has used for an hour (a day on one's own machine), and what a killed app
    has left.

    Args:
        now: in seconds since the epoch.
    """
    wait = _HOUR if owners.is_shared() else _DAY
    with _lock:
        late = [given for given, known in _files.items() if now - known.when > wait]
    for given in late:
        drop(given)
        with _lock:
            _files.pop(given, None)
    for folder in Path(get_upload_folder()).glob(f"{_PREFIX}*/"):
        with contextlib.suppress(OSError):
            if folder != _folder() and now - folder.stat().st_mtime > _DAY:
                shutil.rmtree(folder, ignore_errors=True)


async def sweep_often() -> None:
    """Sweep every minute."""
    while True:
        await asyncio.sleep(_MINUTE)
        await run_in_threadpool(sweep, time.time())


def only_uploads(page: gr.Blocks) -> None:
    """Where several people share the app, let no file come past the route: Gradio fetches any
    address in place of a file, and the MCP server keeps what stands in a call, whoever sends it."""
    for block in page.blocks.values():
        move = block.async_move_resource_to_block_cache
        block.async_move_resource_to_block_cache = partial(_moved, move)  # type: ignore[method-assign]
    if (server := getattr(page, "mcp_server_obj", None)) is not None:
        server.convert_strings_to_filedata = partial(_uploaded, server.convert_strings_to_filedata)


async def _moved(move: Callable[[Any], Awaitable[str | None]], given: Any) -> str | None:
    if owners.is_shared() and is_http_url_like(given):
        raise gr.Error(_NOT_FETCHED, print_exception=False)
    return await move(given)


def _uploaded(convert: Callable[[Any, Any], Any], value: Any, positions: Any) -> Any:
    if owners.is_shared() and positions:
        raise gr.Error(_NOT_FETCHED, print_exception=False)
    return convert(value, positions)


_NOT_FETCHED = "Files are not fetched here. Send the file itself, as gradio_client does."
