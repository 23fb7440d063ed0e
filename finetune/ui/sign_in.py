"""Signing in on a Space, by Gradio's own button, with the scopes that the README's head names."""

from __future__ import annotations

import os


def on_space() -> bool:
    """Whether this is a Space with sign-in; elsewhere a LoginButton cannot even be made."""
    return os.getenv("SYSTEM") == "spaces" and bool(os.getenv("OAUTH_CLIENT_ID"))
