"""Signing in on a Space: by default with the scopes that publishing needs, with more on request.

Gradio's own sign-in asks for every scope the Space may ask for; these routes replace its first
step. Source of the scopes: https://huggingface.co/docs/hub/oauth.
"""

from __future__ import annotations

import os
from functools import partial
from urllib.parse import urlencode

import gradio as gr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

LEAST = ("openid", "profile", "contribute-repos")  # new repositories, and those made here
MORE = "write-repos"  # any repository of the user's
_MORE_PATH = "/login/more"


def on_space() -> bool:
    """Whether this is a Space with sign-in; elsewhere a LoginButton cannot even be made."""
    return os.getenv("SYSTEM") == "spaces" and bool(os.getenv("OAUTH_CLIENT_ID"))


def routes() -> list[Route]:
    """Both sign-ins, to be asked before Gradio's; none where there is no sign-in."""
    if not on_space():
        return []
    allowed = os.environ.get("OAUTH_SCOPES", "").split()
    least = [scope for scope in LEAST if scope in allowed]
    more = [scope for scope in (*LEAST, MORE) if scope in allowed]
    return [
        Route("/login/huggingface", partial(_login, least), methods=["GET"]),
        Route(_MORE_PATH, partial(_login, more), methods=["GET"]),
    ]


async def _login(scopes: list[str], request: Request) -> Response:
    from authlib.integrations.starlette_client import OAuth

    oauth = OAuth()
    oauth.register(
        name="huggingface",  # the name under which Gradio's callback looks for the state
        client_id=os.environ["OAUTH_CLIENT_ID"],
        client_secret=os.environ["OAUTH_CLIENT_SECRET"],
        client_kwargs={"scope": " ".join(scopes)},
        server_metadata_url=f"{os.environ['OPENID_PROVIDER_URL']}/.well-known/openid-configuration",
    )
    # Back to the Space's own address, also where the page was opened under another.
    host = os.environ.get("SPACE_HOST", "").split(",")[0].strip()
    base = f"https://{host}" if host else str(request.base_url).rstrip("/")
    query = {"_target_url": request.query_params.get("_target_url") or "/"}
    if redirects := request.query_params.get("_nb_redirects"):
        query["_nb_redirects"] = redirects
    callback = f"{base}/login/callback?{urlencode(query)}"
    answer: Response = await oauth.huggingface.authorize_redirect(request, callback)
    return answer


def may_update(token: gr.OAuthToken | None) -> bool:
    """Whether a sign-in may write to repositories that were not made here."""
    return token is not None and MORE in (token.scope or "").split()


def wider_sign_in() -> str:
    """The address of the sign-in that may; for a tab of its own, as a Space stands in a frame."""
    return _MORE_PATH[1:]
