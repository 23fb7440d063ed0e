"""Who a request comes from, and what of the store is theirs.

A browser is known by an identity in a cookie that no script of a page can read, a program by the
same as a header; who is signed in with Hugging Face is known by that. All of it only where several
people share the app (`visitors.shared`).
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finetune import owners
from finetune.identities import Identities, TooMany
from finetune.owners import Visitor
from finetune.runs.store import RunStore

COOKIE = "finetune-visitor"
SECURE_COOKIE = f"__Host-{COOKIE}"  # behind https: no other host can set it
HEADER = "x-finetune-visitor"  # the same identity, for a client that is no browser
ISSUE = "/finetune/visitor"  # where a program asks for one
_YEAR = 365 * 24 * 3600


def visitor_store(store: RunStore, request: Any) -> RunStore:
    """The store as whoever sent the request may see it.

    Args:
        request: Gradio's or Starlette's; None in a direct call, which has no browser.
    """
    return store.seen_by(request_visitor(store, request))


def request_visitor(store: RunStore, request: gr.Request | None) -> Visitor:
    """Who sent a request."""
    if not owners.is_shared():
        return owners.LOCAL_USER
    underlying = getattr(request, "request", None) or request
    return owners.identify(_signed_in(underlying), _browser(identities(store), underlying))


def identities(store: RunStore) -> Identities:
    """The identities issued for a store's folder; one object of each, which counts."""
    return _identities(store.root)


@lru_cache(maxsize=64)
def _identities(root: Path) -> Identities:
    return Identities(root)


def _browser(known: Identities, request: Any) -> str:
    """The owner that the request's identity proves: its cookie's, or the header's of a client."""
    headers = getattr(request, "headers", None) or {}
    kept = _cookie(headers.get("cookie", ""), _name(getattr(request, "scope", None) or {}))
    return known.owner(kept) or known.owner(str(headers.get(HEADER, "")))


def _name(scope: Any) -> str:
    """The cookie's name; behind https no other is believed, for a neighbour could have set it."""
    return SECURE_COOKIE if _is_secure(scope) else COOKIE


def _is_secure(scope: Any) -> bool:
    return bool(os.environ.get("SPACE_ID")) or scope.get("scheme") == "https"


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def _signed_in(request: Any) -> str:
    """The name of the signed-in user; empty where nobody is, or no longer."""
    session = (getattr(request, "scope", None) or {}).get("session") or {}
    known = session.get("oauth_info") or {}
    if known.get("expires_at") and known["expires_at"] < time.time():
        return ""
    return str((known.get("userinfo") or {}).get("preferred_username") or "")


class VisitorCookie:
    """Gives every browser that opens the page its identity; an ASGI middleware.

    On a Space the page stands in a frame of another site, hence `SameSite=None` and `Partitioned`
    (CHIPS, https://developer.mozilla.org/docs/Web/Privacy/Guides/Privacy_sandbox/Partitioned_cookies).
    """

    def __init__(self, app: ASGIApp, store: RunStore) -> None:
        self._app = app
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = self._token(scope)
        if not token:
            await self._app(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.append("set-cookie", _set_cookie(scope, token))
                headers["cache-control"] = "private, no-store"  # one browser's identity
            await send(message)

        await self._app(scope, receive, send_with_cookie)

    def _token(self, scope: Scope) -> str:
        """An identity for a browser that opens the page without one; else empty."""
        if scope["type"] != "http" or scope["path"] != "/" or not owners.is_shared():
            return ""
        headers, known = Headers(scope=scope), identities(self._store)
        opened = headers.get("sec-fetch-mode", "navigate") == "navigate"  # no part of another page
        if not opened or known.owner(_cookie(headers.get("cookie", ""), _name(scope))):
            return ""
        try:
            return known.issue(address(scope))
        except TooMany:
            return ""  # the page can be read; what it refuses then, it says


def address(scope: Scope) -> str:
    """Where a request comes from; of one that a known proxy passed on, what that says."""
    return str((scope.get("client") or ("",))[0])


def _set_cookie(scope: Scope, token: str) -> str:
    cookie = f"{_name(scope)}={token}; Path=/; HttpOnly; Max-Age={_YEAR}"
    if os.environ.get("SPACE_ID"):
        return f"{cookie}; SameSite=None; Secure; Partitioned"
    return f"{cookie}; SameSite=Lax" + ("; Secure" if _is_secure(scope) else "")


def issue(store: RunStore, request: Request) -> Response:
    """An identity for a program, which keeps no cookies: the token as plain text."""
    if not owners.is_shared():
        return PlainTextResponse("This app is its owner's alone; it asks nobody who they are.", 404)
    try:
        token = identities(store).issue(address(request.scope))
    except TooMany as error:
        return PlainTextResponse(str(error), 429, {"retry-after": "3600"})
    return PlainTextResponse(token, headers={"cache-control": "no-store"})
