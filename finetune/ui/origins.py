"""Refuses requests that another web page caused or that name a foreign host.

A browser sends requests for any page it shows, with the visitor's cookies. The outermost middleware
refuses those of other origins (CORSMiddleware, as Gradio's, would carry them out and withhold the
answer), and those to a host name that is not the app's, which may be a foreign page's (DNS
rebinding). Programs send no Origin and are not affected. Source of the headers:
https://developer.mozilla.org/docs/Web/HTTP/Reference/Headers/Sec-Fetch-Site.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from finetune.errors import FinetuneError

ALLOWED = "FINETUNE_ALLOWED_HOSTS"
PROXIES = "FINETUNE_TRUSTED_PROXIES"

_ADVICE = f"If that is the app's own address, start it with {ALLOWED} naming its host."
_LOCAL = {"localhost", "127.0.0.1", "::1"}
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://([^/?#@]+)")
_PORTS = {"http": "80", "https": "443"}
_SIGN_IN = {"/login/callback", "/login/huggingface"}  # opened from the Hub's page
# Headers that proxies set. Gradio and its MCP server would believe anybody's.
_FORWARDED = (b"forwarded", b"x-forwarded-", b"x-gradio-server")
_PRIVATE = ["127.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12",
            "192.168.0.0/16", "::1/128", "fc00::/7", "fe80::/10"]  # fmt: skip
_CLOSE = {"connection": "close"}  # a body that still comes is not read

Host = tuple[str, str]  # name and port; the port empty if left out


@dataclass(frozen=True)
class AllowedHosts:
    """The hosts an app answers to."""

    bound: str  # if "0.0.0.0" or "::", any address and the machine's name are allowed
    shared_link: Callable[[], str] = str  # address of Gradio's share link; empty without one

    def __contains__(self, host: Host) -> bool:
        name, _ = host
        if name in _LOCAL or {host, (name, "")} & self.public():
            return True
        bound = self.bound.lower().strip("[]")
        if bound not in ("0.0.0.0", "::"):
            return name == bound
        machine = socket.gethostname().lower()
        if name in (machine, f"{machine.partition('.')[0]}.local"):
            return True
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return False

    def public(self) -> set[Host]:
        """The names under which others reach the app: a Space's, a share link's, a proxy's."""
        names = [urlsplit(self.shared_link()).netloc]
        for variable in ("SPACE_HOST", ALLOWED):
            names += os.environ.get(variable, "").split(",")
        return {host for name in names if (host := _parse_host(name.strip()))}


def _parse_host(text: str) -> Host | None:
    match = _HOST.fullmatch(text.lower())
    return (match[1] or match[2], match[3] or "") if match else None


class OwnOrigin:
    """Outermost ASGI middleware that admits only the app's own pages and programs. It applies proxy
    headers from `trusted_proxies` only, and passes none on."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts
        self._behind_proxy = ProxyHeadersMiddleware(self._answer, trusted_proxies())  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # the page uses none
            await send({"type": "websocket.close", "code": 1008})
            return
        scope = dict(scope)
        if os.environ.get("SPACE_ID"):  # every request to a Space comes through its proxy
            scope["client"] = ("127.0.0.1", 0)
        if (scope.get("client") or ("",))[0] in self._behind_proxy.trusted_hosts:
            # Uvicorn ignores a forwarded host and expects one scheme; of several the first counts.
            headers = MutableHeaders(scope=scope)
            scheme = headers.get("x-forwarded-proto", "").split(",")[0].strip()
            headers["x-forwarded-proto"] = scheme
            host = headers.get("x-forwarded-host", "").split(",")[0].strip()
            if (parsed := _parse_host(host)) and parsed in self._hosts:
                headers["host"] = host
            scope["headers"] = headers.raw
        await self._behind_proxy(scope, receive, send)  # type: ignore[arg-type]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["headers"] = [pair for pair in scope["headers"] if not pair[0].startswith(_FORWARDED)]
        if refusal := self._refusal(scope):
            await PlainTextResponse(refusal, 403, _CLOSE)(scope, receive, send)
            return

        async def send_to_own_pages(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name in [name for name in headers if name.startswith("access-control-")]:
                    del headers[name]
                if scope["path"] != "/":  # the page itself may be in a frame
                    headers["cross-origin-resource-policy"] = "same-origin"
            await send(message)

        await self._app(scope, receive, send_to_own_pages)

    def _refusal(self, scope: Scope) -> str:
        """The reason to refuse a request; empty if none."""
        headers = Headers(scope=scope)
        host = _parse_host(headers.get("host", ""))
        if host is None or host not in self._hosts:
            return f"This app does not answer to {headers.get('host', '')[:100]!r}. {_ADVICE}"
        is_get, path, origin = scope["method"] == "GET", scope["path"], headers.get("origin")
        if is_get and path == "/":
            return ""
        if origin is not None:
            if self._is_own(origin, host, scope["scheme"]):
                return ""
            return f"This app does not answer to pages of {origin[:100]!r}. {_ADVICE}"
        # Browsers send no Origin if a page of another site merely gets something.
        opened = is_get and headers.get("sec-fetch-mode") == "navigate" and path in _SIGN_IN
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not opened:
            return "This app answers to its own pages only, and another one asked for this."
        return ""

    def _is_own(self, origin: str, host: Host, scheme: str) -> bool:
        """True if an origin is the app's, also if a proxy ends its TLS."""
        match = _ORIGIN.fullmatch(origin.lower())
        parsed = _parse_host(match[2]) if match else None
        if not match or not parsed or (scheme == "https" and match[1] == "http"):
            return False
        # A proxy may send another Host, so the app's public names count as its own too.
        default = _PORTS[match[1]]
        own = {(name, port or default) for name, port in {host, *self._hosts.public()}}
        return (parsed[0], parsed[1] or default) in own


def trusted_proxies() -> list[str]:
    """The networks whose proxy headers are believed; on a Space also every private one."""
    names = [name.strip() for name in os.environ.get(PROXIES, "").split(",") if name.strip()]
    try:
        networks = [str(ipaddress.ip_network(name, strict=False)) for name in names]
    except ValueError as error:
        raise FinetuneError(
            "{proxies} is wrong: {error}.", "Name addresses or networks, with commas between.",
            proxies=PROXIES, error=error,
        ) from error  # fmt: skip
    return networks + (_PRIVATE if os.environ.get("SPACE_ID") else [])
