"""Who a request comes from, and what of the store is theirs.

A browser is known by a secret in a cookie that no script of a page can read; who is signed in with
Hugging Face is known by that. Both only where several people share the app (`visitors.shared`).
"""

from __future__ import annotations

import os
import secrets
import time
from http.cookies import CookieError, SimpleCookie
from typing import Any

import gradio as gr
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finetune import visitors
from finetune.store import RunStore
from finetune.visitors import Visitor

COOKIE = "finetune-visitor"
HEADER = "x-finetune-visitor"  # the same secret, for a client that is no browser
_YEAR = 365 * 24 * 3600


def mine(store: RunStore, request: Any) -> RunStore:
    """The store as whoever sent the request may see it.

    Args:
        request: Gradio's or Starlette's; None in a direct call, which has no browser.
    """
    return store.seen_by(visitor(request))


def visitor(request: gr.Request | None) -> Visitor:
    """Who sent a request."""
    if not visitors.shared():
        return visitors.ALONE
    underlying = getattr(request, "request", None) or request
    return visitors.visitor(_signed_in(underlying), _secret(underlying))


def _secret(request: Any) -> str:
    """The browser's secret: its cookie's, or the header's of a client."""
    headers = getattr(request, "headers", None) or {}
    return _cookie(headers.get("cookie", "")) or str(headers.get(HEADER, ""))


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
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


class Remember:
    """Gives every browser that opens the page its secret; an ASGI middleware.

    On a Space the page stands in a frame of another site, hence `SameSite=None` and `Partitioned`
    (CHIPS, https://developer.mozilla.org/docs/Web/Privacy/Guides/Privacy_sandbox/Partitioned_cookies).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/" or not visitors.shared():
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        known = _cookie(headers.get(b"cookie", b"").decode("latin-1"))
        if visitors.visitor(secret=known).names:
            await self._app(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                cookie = f"{COOKIE}={secrets.token_urlsafe(32)}; Path=/; HttpOnly; Max-Age={_YEAR}"
                framed = "; SameSite=None; Secure; Partitioned"
                cookie += framed if os.environ.get("SPACE_ID") else "; SameSite=Lax"
                message["headers"] = [*message["headers"], (b"set-cookie", cookie.encode())]
            await send(message)

        await self._app(scope, receive, send_with_cookie)
