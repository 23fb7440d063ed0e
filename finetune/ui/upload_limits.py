"""Receives uploaded files: asks who sends them and counts them as they come.

Gradio's own route takes any number of files from anybody; its limit is for one file. This route is
asked before it and ends a request that brings more than its sender may have while it still comes.
The files are removed once the store has a copy, when they are refused, and otherwise by Gradio
(`delete_cache` in `app.build`).
"""

from __future__ import annotations

import contextlib
import math
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
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

MAX_FILE_BYTES = 500 * 2**20

_CLOSE = {"connection": "close"}  # the rest of the request is not read


@dataclass
class _Upload:
    """An uploaded file.

    Args:
        owner: who sent it.
        size: bytes in the upload folder; 0 once it was removed from there.
        kept: the store's copy.
    """

    owner: str
    size: int
    kept: Path | None = None


# Of the whole process; the keys are paths that no two requests share.
_uploads: dict[str, _Upload] = {}
_held: Counter[str] = Counter()  # owner -> bytes in the upload folder or arriving
_lock = threading.Lock()


class _TooMuch(Exception):
    """A request brings more than its sender may have."""


class _Quota:
    """Counts one request against what its sender, and all visitors together, may have."""

    def __init__(self, store: RunStore) -> None:
        self._owner = store.visitor.name
        self._own = self._everyone = math.inf
        self._counted = 0
        _forget_removed_files()
        if not store.visitor.alone:
            limits = Limits.of_environment()
            self._own = limits.upload_bytes - store.uploads.needed()
            self._everyone = limits.all_upload_bytes - store.uploaded_bytes()

    def check(self, size: int) -> None:
        """Raise `_TooMuch` when so many bytes more are too many."""
        if _held[self._owner] + size > self._own or _held.total() + size > self._everyone:
            raise _TooMuch

    def count(self, size: int) -> None:
        """Count bytes that arrive, or raise `_TooMuch`."""
        with _lock:
            self.check(size)
            self._counted += size
            _held[self._owner] += size

    def release(self) -> None:
        """End the request: what arrived is counted by its files from now on."""
        with _lock:
            _held[self._owner] -= self._counted
            self._counted = 0


def _forget_removed_files() -> None:
    with _lock:
        for given, upload in list(_uploads.items()):
            if upload.kept is None and not Path(given).is_file():
                _remove(given, _uploads.pop(given))


async def receive(store: RunStore, request: Request) -> Response:
    """Save the files of a form, and answer with their paths as Gradio's own route does."""
    mine = auth.visitor_store(store, request)
    if not mine.visitor.may_start:
        return PlainTextResponse(" ".join(NOBODY), 403, _CLOSE)
    quota = await run_in_threadpool(_Quota, mine)
    length = request.headers.get("content-length", "")
    folder = Path(get_upload_folder()) / secrets.token_urlsafe(18)
    saved = False
    try:
        quota.check(int(length) if length.isdecimal() else 0)
        paths = await _save(request, folder, quota)
        saved = await run_in_threadpool(_register, mine.visitor.name, folder, paths)
        request.app.get_blocks().upload_file_set.update(paths)  # which Gradio empties
        return JSONResponse(paths)
    except _TooMuch:
        refusal, status = _too_much(), 413
    except ClientDisconnect:
        refusal, status = "The client is gone.", 400
    except (MultiPartException, TypeError, AttributeError) as error:  # a field that is no file
        refusal = str(getattr(error, "message", error))
        status = 413 if "maximum allowed size" in refusal else 400
    finally:
        quota.release()
        if not saved:
            await run_in_threadpool(shutil.rmtree, folder, ignore_errors=True)
    return PlainTextResponse(refusal, status, _CLOSE)


def _too_much() -> str:
    limits = Limits.of_environment()
    return (
        f"These files are more than there is room for: a visitor may have "
        f"{limits.upload_bytes / 2**20:,.0f} MB, all visitors together "
        f"{limits.all_upload_bytes / 2**20:,.0f} MB. Bring a part of the rows, or delete a run of "
        "other files."
    )


async def _save(request: Request, folder: Path, quota: _Quota) -> list[str]:
    async def counted() -> Message:
        message = await request.receive()
        quota.count(len(message.get("body", b"")))
        return message

    upload_id = request.query_params.get("upload_id")
    try:
        paths, _, _ = await upload_fn(
            Request(request.scope, counted), str(folder), MAX_FILE_BYTES, upload_id,
            upload_progress=file_upload_statuses if upload_id else None,
        )  # fmt: skip
    finally:
        if upload_id:  # the progress bar waits for this
            file_upload_statuses.set_done(upload_id)
    return [str(path) for path in paths]


def _register(owner: str, folder: Path, paths: list[str]) -> bool:
    """Remember the files of a request; whether there are any."""
    for other in folder.iterdir():
        if other.is_file():  # of a field with another name than "files"
            other.unlink()
    with _lock:
        for path in paths:
            _uploads[path] = _Upload(owner, Path(path).stat().st_size)
            _held[owner] += _uploads[path].size
    return bool(paths)


def path(visitor: Visitor, given: str) -> Path:
    """Where a file that a visitor has uploaded is now.

    Args:
        given: the path with which the upload was answered.

    Raises:
        DataError: when it was removed, or is another's.
    """
    with _lock:
        upload = _uploads.get(given)
    current = upload.kept if upload and upload.kept else Path(given)
    theirs = visitor.owns(upload.owner) if upload else visitor.alone
    if not theirs or not current.is_file():
        raise DataError(f"{Path(given).name!r} is not here any more.", "Upload it again.")
    return current


def kept(given: str, copy: Path) -> None:
    """Remove an uploaded file of which the store has a copy, and use the copy in its place."""
    with _lock:
        if (upload := _uploads.get(given)) is not None:
            upload.kept = copy
            _remove(given, upload)


def drop(given: str) -> None:
    """Remove an uploaded file that was refused or is not needed any more, unless it is kept."""
    with _lock:
        if (upload := _uploads.get(given)) is not None and upload.kept is None:
            _remove(given, _uploads.pop(given))


def _remove(given: str, upload: _Upload) -> None:
    """Remove a file with its folder; `_lock` is held."""
    _held[upload.owner] -= upload.size
    upload.size = 0
    shutil.rmtree(Path(given).parent, ignore_errors=True)
    with contextlib.suppress(OSError):  # the request's folder has other files
        Path(given).parent.parent.rmdir()


def refuse_other_ways(page: gr.Blocks) -> None:
    """On a shared app, let files come by this route only: Gradio would also fetch any address that
    is sent in place of a file, and its MCP server saves files that are part of a call."""
    for block in page.blocks.values():
        move = block.async_move_resource_to_block_cache
        block.async_move_resource_to_block_cache = partial(_move, move)  # type: ignore[method-assign]
    if (server := getattr(page, "mcp_server_obj", None)) is not None:
        server.convert_strings_to_filedata = partial(_convert, server.convert_strings_to_filedata)


async def _move(move: Callable[[Any], Awaitable[str | None]], resource: Any) -> str | None:
    if is_http_url_like(resource):
        _refuse_if_shared()
    return await move(resource)


def _convert(convert: Callable[[Any, Any], Any], value: Any, positions: Any) -> Any:
    if positions:
        _refuse_if_shared()
    return convert(value, positions)


def _refuse_if_shared() -> None:
    if owners.is_shared():
        text = "Files are not fetched here. Send the file itself, as gradio_client does."
        raise gr.Error(text, print_exception=False)
