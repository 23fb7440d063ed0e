"""Which requests reach the app at all: those to its own names, from its own pages or from programs.

A browser sends requests on behalf of any page it shows, with the visitor's cookies. The outermost
middleware refuses those that another page caused, and those to a name that is not the app's, behind
which a foreign page may hide (DNS rebinding). Programs send no Origin and are not concerned.

Sources: https://developer.mozilla.org/docs/Web/HTTP/Reference/Headers/Origin,
https://developer.mozilla.org/docs/Web/HTTP/Reference/Headers/Sec-Fetch-Site,
https://developer.mozilla.org/docs/Web/HTTP/Reference/Headers/X-Forwarded-For.
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

from finetune.errors import FinetuneError

ALLOWED = "FINETUNE_ALLOWED_HOSTS"
PROXIES = "FINETUNE_TRUSTED_PROXIES"

_LOCAL = {"localhost", "127.0.0.1", "::1"}
_EVERY_ADDRESS = {"0.0.0.0", "::"}
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://([^/?#@]+)")
_PORTS = {"http": "80", "https": "443"}
_PAGE = "/"
# Where a sign-in leads a browser, from the Hub's page and back.
_SIGN_IN = {"/login/callback", "/login/huggingface", "/login/more"}
# What a proxy says of a request; Gradio and the MCP server believe it.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto",
              "x-forwarded-port", "x-forwarded-prefix", "x-gradio-server")  # fmt: skip

Place = tuple[str, str]  # name and port; the port empty where it was left out


@dataclass(frozen=True)
class Names:
    """The hosts an app answers to.

    Args:
        bound: what `--host` names; of all addresses of the machine, any address and its own name.
        shared_link: address of Gradio's share link; empty while there is none.
    """

    bound: str
    shared_link: Callable[[], str] = str

    def accepts(self, place: Place) -> bool:
        """Whether a Host is one of the app's."""
        name, _ = place
        if name in _LOCAL or place in self.public() or (name, "") in self.public():
            return True
        bound = self.bound.lower().strip("[]")
        if bound not in _EVERY_ADDRESS:
            return name == bound
        # An address cannot be made to mean another machine, as a foreign name can.
        machine = socket.gethostname().lower()
        short = machine.partition(".")[0]
        return _is_address(name) or name in (machine, short, f"{short}.local")

    def public(self) -> set[Place]:
        """The names under which others know the app: a Space's, a share link's, a proxy's."""
        told = [os.environ.get(name, "") for name in ("SPACE_HOST", ALLOWED)]
        names = [one.strip().lower() for one in ",".join(told).split(",")]
        names.append(urlsplit(self.shared_link()).netloc.lower())
        return {place for name in names if (place := _place(name))}


def _place(host: str) -> Place | None:
    found = _HOST.fullmatch(host.lower())
    return (found[1] or found[2], found[3] or "") if found else None


def _is_address(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return False


class Origins:
    """Refuses what another page or a foreign name asks; an ASGI middleware around all others.

    Args:
        names: the hosts that are the app's.
    """

    def __init__(self, app: ASGIApp, names: Names) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope = forwarded(scope, self._names)
        if refusal := self._refusal(scope):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": "foreign origin"})
            else:
                await PlainTextResponse(refusal, 403, _REFUSED)(scope, receive, send)
            return

        async def send_without_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                _close(MutableHeaders(scope=message), scope["path"] == _PAGE)
            await send(message)

        await self._app(scope, receive, send_without_cors)

    def _refusal(self, scope: Scope) -> str:
        """Why a request is refused; empty where it is not."""
        headers = Headers(scope=scope)
        given = headers.get("host", "")
        host = _place(given)
        if host is None or not self._names.accepts(host):
            return (
                f"This app does not answer to the name {given[:100]!r}. If it is the app's own, "
                f"start it with {ALLOWED}={host[0] if host else 'NAME'} (several with commas)."
            )
        getting = scope["type"] == "http" and scope["method"] == "GET"
        path, origin = scope["path"], headers.get("origin")
        if getting and path == _PAGE:
            return ""
        if origin is not None and not self._is_own(origin, host, scope["scheme"]):
            return (
                f"This app does not answer to pages of {origin[:100]!r}. If its own address is "
                f"that, start it with {ALLOWED} naming it."
            )
        # Browsers leave out the Origin where a page of another site merely gets something.
        site = headers.get("sec-fetch-site", "none")
        if origin is None and site in ("cross-site", "same-site"):
            opened = getting and headers.get("sec-fetch-mode") == "navigate"
            if not (opened and path in _SIGN_IN):
                return "This app answers to its own pages only, and another one asked for this."
        return ""

    def _is_own(self, origin: str, host: Place, scheme: str) -> bool:
        """Whether a page of that origin is the app's, whether or not a proxy ends its TLS."""
        found = _ORIGIN.fullmatch(origin.lower())
        if found is None or (place := _place(found[2])) is None:
            return False
        if scheme in ("https", "wss") and found[1] != "https":
            return False
        default = _PORTS[found[1]]
        name, port = place[0], place[1] or default
        if (name, port) == (host[0], host[1] or default):
            return True
        # A proxy that sends another Host: the app's public names are its own all the same.
        return any((name, port) == (one, at or default) for one, at in self._names.public())


_REFUSED = {"cache-control": "no-store", "x-content-type-options": "nosniff",
            "connection": "close"}  # fmt: skip  # a body that still comes is not read


def _close(headers: MutableHeaders, is_page: bool) -> None:
    """Let no other page read an answer; the page itself may stand in a frame."""
    for name in [one for one in headers if one.startswith("access-control-")]:
        del headers[name]
    if not is_page:
        headers["cross-origin-resource-policy"] = "same-origin"


def forwarded(scope: Scope, names: Names) -> Scope:
    """The request as its proxy got it, where the proxy is known; else without a proxy's headers.

    On a Space every request comes through its proxy; elsewhere `FINETUNE_TRUSTED_PROXIES` names
    them.
    """
    headers = Headers(scope=scope)
    trusted = proxies()
    peer = (scope.get("client") or ("",))[0]
    kept: dict[str, str] = {}
    changed = dict(scope)
    if os.environ.get("SPACE_ID") or _among(peer, trusted):
        proto = headers.get("x-forwarded-proto", "").split(",")[0].strip().lower()
        if proto in ("http", "https"):
            kept["x-forwarded-proto"] = proto
            changed["scheme"] = proto.replace("http", "ws") if scope["type"] != "http" else proto
        given = headers.get("x-forwarded-host", "").split(",")[0].strip()
        if (place := _place(given)) and names.accepts(place):
            kept["x-forwarded-host"] = given
        hops = ",".join(headers.getlist("x-forwarded-for")).split(",")
        changed["client"] = (_client(peer, hops, trusted), 0)
    others = [one for one in scope["headers"] if one[0].decode("latin-1") not in _FORWARDED]
    changed["headers"] = [*others, *((k.encode(), v.encode("latin-1")) for k, v in kept.items())]
    return changed


def _client(peer: str, hops: list[str], trusted: list[Network]) -> str:
    """The last hop that is no proxy of ours: what stands before it, anybody can have written."""
    for hop in reversed(hops):
        try:
            known = ipaddress.ip_address(hop.strip())
        except ValueError:
            break
        inner = bool(os.environ.get("SPACE_ID")) and not known.is_global
        if not inner and not _among(hop.strip(), trusted):
            return str(known)
    return peer


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def proxies() -> list[Network]:
    """The proxies whose headers are believed.

    Raises:
        FinetuneError: naming what is no address.
    """
    given = [one.strip() for one in os.environ.get(PROXIES, "").split(",") if one.strip()]
    try:
        return [ipaddress.ip_network(one, strict=False) for one in given]
    except ValueError as error:
        raise FinetuneError(
            f"{PROXIES} is wrong: {error}.", "Name addresses or networks, with commas between."
        ) from error


def _among(address: str, networks: list[Network]) -> bool:
    with contextlib.suppress(ValueError):
        return any(ipaddress.ip_address(address) in one for one in networks)
    return False
