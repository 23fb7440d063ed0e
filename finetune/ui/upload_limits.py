"""Receives uploaded files: identifies the sender and counts bytes as they come.

Gradio's own route takes any number of files from anybody. This route comes first, stores the files
in a folder of their sender and ends a request that exceeds the sender's limit. Gradio removes
leftover files after a while (`delete_cache` in `app.build`).
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections import Counter
from collections.abc import Callable
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
from finetune.owners import NOBODY, Visitor, policy
from finetune.runs.store import RunStore
from finetune.ui import auth
from finetune.ui.i18n import gettext

MAX_FILE_BYTES = 500 * 2**20

_CLOSE = {"connection": "close"}  # the rest of the request is not read
_THIS_PROCESS = secrets.token_hex(8)  # files left by another process count for nobody
_received: Counter[str] = Counter()  # owner -> bytes that came since the start
_stored: dict[str, Path] = {}  # path of a removed upload -> the store's copy


class _TooMuch(Exception):
    """A request exceeds the limit of its sender."""


async def receive(store: RunStore, request: Request) -> Response:
    """Save the files of a form, and answer with their paths as Gradio's own route does."""
    visitor_store = auth.visitor_store(store, request)
    owner = visitor_store.visitor.name
    if not visitor_store.visitor.may_start:
        return PlainTextResponse(" ".join(NOBODY), 403, _CLOSE)
    # Bytes received after this point, also by concurrent requests, count against the room below.
    own_before, all_before = _received[owner], _received.total()
    own_room, shared_room = await run_in_threadpool(_room, visitor_store)
    folder = _owner_folder(owner) / secrets.token_urlsafe(18)
    upload_id = request.query_params.get("upload_id")
    paths: list[str] = []

    def check(size: int) -> None:
        own, everyone = _received[owner] - own_before, _received.total() - all_before
        if own + size > own_room or everyone + size > shared_room:
            raise _TooMuch

    async def receive_counted() -> Message:
        message = await request.receive()
        _received[owner] += len(message.get("body", b""))
        check(0)
        return message

    try:
        check(int(request.headers.get("content-length", 0)))
        files, _, _ = await upload_fn(
            Request(request.scope, receive_counted), str(folder), MAX_FILE_BYTES, upload_id,
            upload_progress=file_upload_statuses if upload_id else None,
        )  # fmt: skip
        paths = list(map(str, files))
        request.app.get_blocks().upload_file_set.update(paths)  # Gradio deletes these
        return JSONResponse(paths)
    except _TooMuch:
        limits = policy().limits
        text = (
            f"The upload is too large: a visitor may store {limits.upload_bytes / 2**20:,.0f} MB, "
            f"and all visitors together {limits.all_upload_bytes / 2**20:,.0f} MB. Upload fewer "
            "rows, or delete a run that uses other files."
        )
        return PlainTextResponse(text, 413, _CLOSE)
    except (MultiPartException, ClientDisconnect, TypeError, AttributeError) as error:
        text = getattr(error, "message", "A field is not a file, or the form is incomplete.")
        return PlainTextResponse(text, 400, _CLOSE)
    finally:
        if upload_id:  # the progress bar waits for this
            file_upload_statuses.set_done(upload_id)
        if not paths:
            await run_in_threadpool(shutil.rmtree, folder, ignore_errors=True)


def _room(store: RunStore) -> tuple[float, float]:
    """Bytes that the visitor, and all visitors together, may still bring."""
    limits, folder = store.visitor.policy.limits, _owner_folder(store.visitor.name)
    own = limits.upload_bytes - store.uploads.needed() - _bytes(folder)
    return own, limits.all_upload_bytes - store.uploaded_bytes() - _bytes(folder.parent)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _owner_folder(owner: str) -> Path:
    digest = hashlib.sha256(owner.encode()).hexdigest()[:32]
    return Path(get_upload_folder(), _THIS_PROCESS, digest)


def _is_below(upload: str, folder: Path) -> bool:
    return Path(upload).resolve().is_relative_to(folder.resolve())


def path(visitor: Visitor, upload: str) -> Path:
    """Current path of a visitor's file, given the path that its upload returned."""
    current = _stored.get(upload, Path(upload))
    is_theirs = any(_is_below(upload, _owner_folder(name)) for name in visitor.names)
    if not (is_theirs or visitor.sees_all) or not current.is_file():
        raise DataError(
            "{name!r} is no longer available.", "Upload it again.", name=Path(upload).name
        )
    return current


def kept(upload: str, copy: Path) -> None:
    """Remove an uploaded file and use the store's copy in its place."""
    _stored[upload] = copy
    drop(upload)


def drop(upload: str) -> None:
    """Remove an uploaded file; any other file is left alone."""
    if _is_below(upload, _owner_folder("").parent):
        Path(upload).unlink(missing_ok=True)


def refuse_other_ways(page: gr.Blocks) -> None:
    """Refuse files that do not come through this route, if the app is shared.

    Gradio would otherwise also download any URL sent in place of a file, and its MCP server would
    save files contained in a call.
    """
    for block in page.blocks.values():
        move = block.async_move_resource_to_block_cache
        block.async_move_resource_to_block_cache = _guarded(move, is_http_url_like)  # type: ignore[method-assign]
    if (server := getattr(page, "mcp_server_obj", None)) is not None:
        convert = server.convert_strings_to_filedata
        server.convert_strings_to_filedata = _guarded(convert, lambda value, positions: positions)


def _guarded(function: Callable[..., Any], has_file: Callable[..., object]) -> Callable[..., Any]:
    def guarded(*values: Any) -> Any:
        if owners.policy().several_people and has_file(*values):
            text = gettext(
                "Files are not fetched here. Send the file itself, as gradio_client does."
            )
            raise gr.Error(text, print_exception=False)
        return function(*values)

    return guarded
