"""The Hugging Face Hub's address, and whether it can be reached."""

from __future__ import annotations

import os
import urllib.error
import urllib.request


def hub_endpoint() -> str:
    """The Hub's address, as its own clients read it."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def hub_is_reachable(timeout: float = 2.0) -> bool:
    """Whether the Hub answers now; its own clients would try for up to 46 seconds."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "TRUE", "YES", "ON"}:
        return False
    request = urllib.request.Request(hub_endpoint() + "/", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=timeout):
            return True
    except urllib.error.HTTPError:
        return True  # a refusal is an answer
    except (OSError, ValueError):
        return False
