"""Visitors of an app, what belongs to whom, and how much each may have.

On one's own machine everything is one's own. Where several people share an app (on a Space, or
with `FINETUNE_VISITORS=1`) a run belongs to who started it: the signed-in user, or else the
browser, by an identity issued to it (`identities`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

# The message for a visitor without an identity: the fact, and the remedy.
NOBODY = (
    "This browser keeps no cookies, or many were new from its address within the hour.",
    "Allow them and load the page again, or sign in. A program sends what POST /finetune/visitor "
    "gives it.",
)
_MEGABYTE = 2**20


@dataclass(frozen=True)
class Visitor:
    """Who sends a request."""

    names: tuple[str, ...] = ()  # a signed-in user and a browser; the first gets what is new
    alone: bool = False  # on one's own machine, where everything is theirs

    @property
    def name(self) -> str:
        """The owner of what this visitor makes; empty on one's own machine."""
        return self.names[0] if self.names else ""

    @property
    def may_start(self) -> bool:
        return self.alone or bool(self.names)

    def owns(self, owner: str) -> bool:
        """Whether what belongs to `owner` is theirs to see."""
        return self.alone or owner in self.names

    @property
    def admin(self) -> bool:
        """Whether they look after a shared app: its Space's author, or in `FINETUNE_ADMINS`."""
        author = os.environ.get("SPACE_AUTHOR_NAME") or os.environ.get("SPACE_ID", "").split("/")[0]
        admins = [author, *os.environ.get("FINETUNE_ADMINS", "").split(",")]
        return any(f"user:{name.strip()}" in self.names for name in admins if name.strip())


LOCAL_USER = Visitor(alone=True)


def is_shared() -> bool:
    """Whether several people use this app, each with runs of their own."""
    return bool(os.environ.get("SPACE_ID")) or os.environ.get("FINETUNE_VISITORS") == "1"


def identify(user: str = "", browser: str = "") -> Visitor:
    """The visitor that a request comes from, by the name that a sign-in has proven and the owner
    that an issued token has proven (`identities`)."""
    if not is_shared():
        return LOCAL_USER
    names = (f"user:{user}" if user else "", browser)
    return Visitor(tuple(name for name in names if name))


@dataclass(frozen=True)
class Limits:
    """What one visitor of a shared app may have; on one's own machine nothing is limited."""

    runs: int  # folders kept
    waiting: int  # places in the queue
    upload_bytes: int  # of uploaded files, together
    all_upload_bytes: int  # of the uploaded files of all visitors
    new_visitors: int  # identities issued to one address in an hour; six times as many in a day
    hub_bytes: int  # of the Hub's datasets and checkpoints, in a day
    run_minutes: int  # that a run is worked on
    run_steps: int
    queue: int  # places in the queue, of all visitors together

    @classmethod
    def of_environment(cls) -> Limits:
        """Each as its `FINETUNE_MAX_...` says it; the README names them."""

        def limit(name: str, default: int) -> int:
            text = os.environ.get(f"FINETUNE_MAX_{name}", "").strip()
            return int(text) if text.isdecimal() else default

        return cls(
            runs=limit("RUNS", 20),
            waiting=limit("WAITING", 4),
            upload_bytes=limit("UPLOAD_MB", 500) * _MEGABYTE,
            all_upload_bytes=limit("ALL_UPLOADS_MB", 10_000) * _MEGABYTE,
            new_visitors=limit("NEW_VISITORS", 10),
            hub_bytes=limit("HUB_MB", 5000) * _MEGABYTE,
            run_minutes=limit("RUN_MINUTES", 240),
            run_steps=limit("RUN_STEPS", 100_000),
            queue=limit("QUEUE", 40),
        )
