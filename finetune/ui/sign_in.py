"""Signing in on a Space: with the least that publishing needs, and with more for who asks for it.

Gradio's own sign-in asks for everything that the Space may ask for. These routes stand before it
and ask for less; what comes back from the Hub is Gradio's business, and who is signed in `visit`'s.

Sources: https://huggingface.co/docs/hub/spaces-oauth for the environment of a Space,
https://huggingface.co/docs/hub/oauth for the scopes.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlencode

import gradio as gr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

LEAST = ("openid", "profile", "contribute-repos")  # new repositories, and those made here
MORE = "write-repos"  # any repository of the person's
_NARROW, _WIDE = "/login/huggingface", "/login/more"


def on_space() -> bool:
    """Whether this is a Space with sign-in; elsewhere a LoginButton cannot even be made."""
    return os.getenv("SYSTEM") == "spaces" and bool(os.getenv("OAUTH_CLIENT_ID"))


def routes() -> list[Route]:
    """Both sign-ins, to stand before Gradio's; none where there is no sign-in."""
    if not on_space():
        return []
    allowed = os.environ.get("OAUTH_SCOPES", "").split()
    least = [one for one in LEAST if one in allowed]
    return [
        Route(_NARROW, _asking(least), methods=["GET"]),
        Route(_WIDE, _asking([*least, MORE] if MORE in allowed else least), methods=["GET"]),
    ]


def _asking(scopes: list[str]) -> Any:
    """A sign-in for these scopes that ends at Gradio's callback."""

    async def login(request: Request) -> Response:
        from authlib.integrations.starlette_client import OAuth

        oauth = OAuth()
        # Of the same name as Gradio's: its callback looks for the state under that.
        oauth.register(
            name="huggingface",
            client_id=os.environ["OAUTH_CLIENT_ID"],
            client_secret=os.environ["OAUTH_CLIENT_SECRET"],
            client_kwargs={"scope": " ".join(scopes)},
            server_metadata_url=f"{os.environ['OPENID_PROVIDER_URL']}/.well-known/openid-configuration",
        )
        answer: Response = await oauth.huggingface.authorize_redirect(request, _back(request))
        return answer

    return login


def _back(request: Request) -> str:
    """Where the Hub sends the browser afterwards: the Space's own address, also where the page was
    opened under another."""
    kept = {"_target_url": request.query_params.get("_target_url") or "/"}
    if tries := request.query_params.get("_nb_redirects"):
        kept["_nb_redirects"] = tries
    host = os.environ.get("SPACE_HOST", "").split(",")[0].strip()
    base = f"https://{host}" if host else str(request.base_url).rstrip("/")
    return f"{base}/login/callback?{urlencode(kept)}"


def may_update(token: gr.OAuthToken | None) -> bool:
    """Whether a sign-in may write to repositories that were not made here."""
    return token is not None and MORE in (token.scope or "").split()


def wider_sign_in() -> str:
    """The address of the sign-in that may; for a tab of its own, as a Space stands in a frame."""
    return _WIDE[1:]
