"""The address of the Hugging Face Hub, and a check that it can be reached."""

import os
import urllib.error
import urllib.request


def hub_endpoint() -> str:
    """The Hub's address, as its own clients read it."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def hub_is_reachable(timeout: float = 5.0) -> bool:
    """True if the Hub answers within `timeout` seconds.

    The Hub's own client would keep retrying for up to 46 seconds.
    """
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
