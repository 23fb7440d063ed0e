"""What the Hub lets somebody read: with this machine's token, or none where people share the app.

What lies in a cache may have been fetched with a token that its reader does not have. So a visitor
gets it only where the Hub would give it to everybody now, or is silent and gave it so before.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING

from finetune import hub_errors, owners
from finetune.environment import hub_connection
from finetune.hub_errors import Cause, Kind

if TYPE_CHECKING:
    from huggingface_hub import DatasetInfo, ModelInfo

_TIMEOUT = 10.0  # seconds for an answer
_TIMEOUT_OF_A_PAGE = 3.0
_KEPT = 600  # seconds in which a page does not ask again


def token() -> bool | None:
    """For the Hub's clients: where several people share the app, a visitor must not read with its
    owner's token."""
    return False if owners.is_shared() else None


def info(kind: Kind, repo: str, revision: str = "") -> DatasetInfo | ModelInfo:
    """What the Hub says of a repository to who asks.

    Raises:
        Exception: that of the client, or `hub_errors.Gated`; `hub_errors.cause` tells what it is.
    """
    return hub_errors.retried(lambda: _asked(kind, repo, revision, _TIMEOUT))


def _asked(kind: Kind, repo: str, revision: str, timeout: float) -> DatasetInfo | ModelInfo:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub_connection.hub_endpoint())
    ask = api.dataset_info if kind == "dataset" else api.model_info
    found = ask(repo, revision=revision or None, token=token(), timeout=timeout)
    if owners.is_shared() and found.gated:  # its name may be known to all, its files are not
        raise hub_errors.Gated
    return found


def granted(kind: Kind, repo: str) -> bool:
    """Whether the Hub says that who asks may read a repository.

    For pages, as `refused`: the answer is kept for ten minutes.
    """
    return _known(kind, repo, int(time.time() // _KEPT)) == _GRANTED


def refused(kind: Kind, repo: str) -> Cause | None:
    """Why the Hub says that who asks may not read a repository; None where it does not say so, or
    is silent."""
    found = _known(kind, repo, int(time.time() // _KEPT))
    return found if found.name in hub_errors.NO_RIGHT else None


_GRANTED = Cause("granted")


@lru_cache(maxsize=256)
def _known(kind: Kind, repo: str, when: int) -> Cause:
    try:
        _asked(kind, repo, "", _TIMEOUT_OF_A_PAGE)
    except Exception as error:  # each client library has its own
        return hub_errors.cause(error)
    return _GRANTED
