"""Who asks, what is theirs, and how much they may have.

On one's own machine everything is one's own. Where several people share an app (on a Space, or
with `FINETUNE_VISITORS=1`) a run belongs to who started it: the signed-in user, or else the
browser, known by an identity issued to it (`identities`). Standard library only; how a browser
keeps it and who is signed in is the page's business.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

# What is said to a visitor without an identity: the fact, and the remedy.
NOBODY = (
    "This browser keeps no cookies, or many were new from its address within the hour.",
    "Allow them and load the page again, or sign in. A program sends what POST /finetune/visitor "
    "gives it.",
)


@dataclass(frozen=True)
class Visitor:
    """Who asks.

    Args:
        names: the owners they are: a signed-in user and a browser; the first gets what is new.
            Nobody, where empty: such a visitor has nothing and may start nothing.
        alone: whether this is one's own machine, where everything is theirs.
    """

    names: tuple[str, ...] = ()
    alone: bool = False

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
        named = [author, *os.environ.get("FINETUNE_ADMINS", "").split(",")]
        return any(f"user:{name.strip()}" in self.names for name in named if name.strip())


LOCAL_USER = Visitor(alone=True)


def is_shared() -> bool:
    """Whether several people use this app, each with runs of their own."""
    return bool(os.environ.get("SPACE_ID")) or os.environ.get("FINETUNE_VISITORS") == "1"


def identify(user: str = "", browser: str = "") -> Visitor:
    """Who a request comes from.

    Args:
        user: the name a sign-in has proven; empty where nobody is signed in.
        browser: the owner that an issued token has proven (`identities`); empty where none has.
    """
    if not is_shared():
        return LOCAL_USER
    names = (f"user:{user}" if user else "", browser)
    return Visitor(tuple(name for name in names if name))


@dataclass(frozen=True)
class Limits:
    """What one visitor of a shared app may have; on one's own machine nothing is limited.

    Args:
        runs: run folders kept.
        waiting: places in the queue.
        upload_bytes: of uploaded files, together.
        all_upload_bytes: of the uploaded files of all visitors.
        new_visitors: identities issued to one address in an hour; six times as many in a day.
        hub_bytes: of the Hub's datasets and checkpoints, in a day.
        run_minutes: that a run is worked on.
        run_steps: that a run takes.
        queue: places in the queue, of all visitors together.
    """

    runs: int = 20
    waiting: int = 4
    upload_bytes: int = 500 * 2**20
    all_upload_bytes: int = 10_000 * 2**20
    new_visitors: int = 10
    hub_bytes: int = 5000 * 2**20
    run_minutes: int = 240
    run_steps: int = 100_000
    queue: int = 40

    @classmethod
    def of_environment(cls) -> Limits:
        """Each as its `FINETUNE_MAX_...` says it; the README names them."""
        return cls(
            runs=_number("FINETUNE_MAX_RUNS", cls.runs),
            waiting=_number("FINETUNE_MAX_WAITING", cls.waiting),
            upload_bytes=_megabytes("FINETUNE_MAX_UPLOAD_MB", cls.upload_bytes),
            all_upload_bytes=_megabytes("FINETUNE_MAX_ALL_UPLOADS_MB", cls.all_upload_bytes),
            new_visitors=_number("FINETUNE_MAX_NEW_VISITORS", cls.new_visitors),
            hub_bytes=_megabytes("FINETUNE_MAX_HUB_MB", cls.hub_bytes),
            run_minutes=_number("FINETUNE_MAX_RUN_MINUTES", cls.run_minutes),
            run_steps=_number("FINETUNE_MAX_RUN_STEPS", cls.run_steps),
            queue=_number("FINETUNE_MAX_QUEUE", cls.queue),
        )


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() else otherwise


def _megabytes(name: str, otherwise: int) -> int:
    return _number(name, otherwise // 2**20) * 2**20
