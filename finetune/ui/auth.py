"""Identifies who sent a request and gives them their own view of the store.

A browser sends a signed identity in an HttpOnly cookie, a program the same as a header, and a user
signed in with Hugging Face is known by name. On one's own machine everything is the one user's.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finetune import owners
from finetune.environment import child_process
from finetune.errors import PublishError, TooMany
from finetune.hub import client
from finetune.owners import Identities, Visitor
from finetune.runs.store import RunStore
from finetune.ui.i18n import gettext, page_text

COOKIE = "finetune-visitor"
SECURE_COOKIE = f"__Host-{COOKIE}"  # over https: a browser lets no other host set this name
HEADER = "x-finetune-visitor"
ISSUE = "/finetune/visitor"  # where a program asks for an identity
_YEAR = 365 * 24 * 3600
_identities: dict[Path, Identities] = {}


def has_sign_in() -> bool:
    """True on a Space with sign-in; elsewhere a LoginButton cannot be created."""
    return os.getenv("SYSTEM") == "spaces" and bool(os.getenv("OAUTH_CLIENT_ID"))


class _SignOut(str):
    """The button's text for a signed-in visitor; Gradio fills in the name."""

    def format(self, *names: object) -> str:  # type: ignore[override]
        return gettext("Sign out ({name})", name=names[0])


def sign_in_button() -> None:
    """Draw the button of a Space's sign-in."""
    if not has_sign_in():
        return
    # Without its icon, which Gradio serves by a route that is closed here.
    button = gr.LoginButton(
        page_text("Sign in"), _SignOut(), size="sm", icon=None, elem_id="sign-in"
    )  # fmt: skip
    # The button signs in if it shows its first text, which here depends on the language.
    for fn in gr.context.Context.root_block.fns.values():  # type: ignore[union-attr]
        if (button._id, "click") in fn.targets:
            fn.js = re.sub(r"buttonValue === .*? \?", '!buttonValue.includes("(") ?', str(fn.js))


def hub_token(
    store: RunStore, typed: object, oauth: gr.OAuthToken | None, needed: bool = True
) -> str:
    """Return the visitor's own token: the typed one; else the sign-in's on a Space; else the one
    stored on this machine, if the machine is theirs alone. Empty if there is none, or not
    `needed`."""
    if not needed:
        return ""
    if text := str(typed or "").strip():
        return text
    if has_sign_in():
        if oauth is None:
            raise PublishError(
                "You are not signed in.", "Sign in with Hugging Face at the top of the page."
            )
        return oauth.token
    return (client.stored_token() or "") if store.visitor.policy.stored_token else ""


def visitor_store(store: RunStore, request: Any) -> RunStore:
    """Return the store as seen by the sender of a request, Gradio's or Starlette's."""
    visitor = request_visitor(store, request)
    child_process.asker.set(visitor.name)
    return store.for_visitor(visitor)


def request_visitor(store: RunStore, request: Any) -> Visitor:
    """The sender of a request."""
    if not owners.policy().several_people:
        return owners.LOCAL_USER
    request = getattr(request, "request", None) or request  # Gradio's holds Starlette's
    scope = getattr(request, "scope", {})
    sign_in = (scope.get("session") or {}).get("oauth_info") or {}
    name = (sign_in.get("userinfo") or {}).get("preferred_username") or ""
    if sign_in.get("expires_at") and sign_in["expires_at"] < time.time():
        name = ""
    return owners.policy().identify(str(name), _proven_owner(store, request.headers, scope))


def _proven_owner(store: RunStore, headers: Any, scope: Scope) -> str:
    """The owner that a program's header proves, or else a browser's cookie; empty if neither
    does."""
    issued = identities(store)
    cookies = cookie_parser(headers.get("cookie", ""))
    cookie = cookies.get(SECURE_COOKIE if _is_secure(scope) else COOKIE, "")
    return issued.owner(headers.get(HEADER, "")) or issued.owner(cookie)


def identities(store: RunStore) -> Identities:
    """The identities issued for a store's folder; one object each, since it counts new visitors."""
    return _identities.setdefault(store.root, Identities(store.root))


def _is_secure(scope: Scope) -> bool:
    return bool(os.environ.get("SPACE_ID")) or scope.get("scheme") == "https"


@dataclass
class VisitorCookie:
    """ASGI middleware that gives a browser its identity if it opens the page without one."""

    app: ASGIApp
    store: RunStore

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = ""  # a new one, for a browser that opens the page without one
        if scope["type"] == "http" and scope["path"] == "/" and owners.policy().several_people:
            headers = Headers(scope=scope)
            opened = headers.get("sec-fetch-mode", "navigate") == "navigate"
            if opened and not _proven_owner(self.store, headers, scope):
                with contextlib.suppress(TooMany):  # the page can still be read
                    token = identities(self.store).issue(client_address(scope))

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                name = SECURE_COOKIE if _is_secure(scope) else COOKIE
                site = "Lax; Secure" if _is_secure(scope) else "Lax"
                if os.environ.get("SPACE_ID"):  # the page is in a frame of another site
                    site = "None; Secure; Partitioned"
                cookie = f"{name}={token}; Path=/; HttpOnly; Max-Age={_YEAR}; SameSite={site}"
                headers = MutableHeaders(scope=message)
                headers.append("set-cookie", cookie)
                headers["cache-control"] = "private, no-store"
            await send(message)

        await self.app(scope, receive, send_with_cookie if token else send)


def client_address(scope: Scope) -> str:
    """The address a request comes from, behind known proxies."""
    return str((scope.get("client") or ("",))[0])


def issue(store: RunStore, request: Request) -> Response:
    """Answer a program, which keeps no cookies, with a new identity as plain text."""
    if not owners.policy().several_people:
        return PlainTextResponse("This app is its owner's alone; it asks nobody who they are.", 404)
    try:
        token = identities(store).issue(client_address(request.scope))
    except TooMany as error:
        return PlainTextResponse(str(error), 429, {"retry-after": "3600"})
    return PlainTextResponse(token, headers={"cache-control": "no-store"})
