"""Calls to the Hugging Face Hub that a person waits for: whose token it is, names, refusals in
words, time limits and cancelling.

A token is an argument of one `HubClient`, in memory as long as that lives; it reaches no file, log,
event or error's text.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from huggingface_hub import HfApi, get_session, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._http import hf_raise_for_status
from huggingface_hub.utils._validators import validate_repo_id

from finetune import hub_errors
from finetune.environment import hub_connection
from finetune.errors import Cancelled, PublishError

T = TypeVar("T")
PATIENCE = 120.0  # seconds without an answer or a byte sent, after which the Hub is given up
_UNREACHABLE = 3.0  # seconds to wait for the Hub before saying that it does not answer
_POLL = 0.05  # seconds between two looks whether somebody wants the end
ASLEEP = 3600  # seconds without a visitor after which a new Space that is billed sleeps
_OAUTH = "hf_oauth"  # begins the tokens of a sign-in on a Space


@dataclass(frozen=True)
class Account:
    """Whom a token belongs to.

    Args:
        name: the user.
        namespaces: where it may create repositories: the user, then organisations.
        repos: single repositories it may write to besides.
    """

    name: str
    namespaces: list[str]
    repos: tuple[str, ...] = ()

    def check_may_write(self, full: str) -> None:
        """
        Raises:
            PublishError: when it may not write to `namespace/name`, as far as the token says.
        """
        namespace = full.split("/")[0]
        if namespace not in self.namespaces and full not in self.repos:
            raise PublishError(
                f"{self.name} may not write to {namespace!r}.",
                f"Choose one of: {', '.join([*self.namespaces, *self.repos])}.",
            )


class HubRefused(PublishError):
    """The Hub answered with an error.

    Args:
        status: of the answer.
        pause: seconds that it asked for; 0 where it named none.
    """

    def __init__(self, fact: str, remedy: str, status: int, pause: int = 0) -> None:
        super().__init__(fact, remedy)
        self.status = status
        self.pause = pause


def may_still_arrive(error: PublishError) -> bool:
    """Whether what was sent may be accepted after all: the Hub has not refused it."""
    return not isinstance(error, HubRefused) or error.status >= 500


def stored_token() -> str | None:
    """The token of `hf auth login` or HF_TOKEN on this machine, if any."""
    return get_token()


def full_repo_id(name: str, user: str) -> str:
    """`user/name` from what was typed, which may carry its namespace already.

    Raises:
        PublishError: when the Hub would not take the name.
    """
    name = name.strip()
    full = name if "/" in name else f"{user}/{name}"
    try:
        if not name:
            raise HFValidationError("it is empty")
        validate_repo_id(full)
    except HFValidationError:
        raise PublishError(
            f"{name!r} is not a repository name.",
            "Use letters, digits, '-', '_' and '.', at most 96, as in my-paraphrase-model.",
        ) from None
    return full


def default_sleep_time(hardware: str) -> int | None:
    """Of a new Space on some hardware, in seconds; None where it is not billed by its time."""
    return None if hardware == "cpu-basic" or hardware.startswith("zero-") else ASLEEP


def never_stop() -> bool:
    """Default callback: never cancels."""
    return False


class HubClient:
    """The Hub as one person sees it, for one push.

    Every call runs in a thread of its own that is left behind when the call is cancelled or takes
    too long: the client library waits without limit, and sleeps between its own tries. What is left
    behind can at most finish an upload that nothing refers to; a commit is not left behind by a
    cancel.

    Args:
        token: used for these calls only.
        stopped: whether the person wants the end.
        again, kept: what to do after a failure, and what it leaves, in the words of who asks.

    Attributes:
        api: the client library's.
        beat: a value that changes while a long call gets on; the patience counts anew when it does.

    Raises:
        PublishError: when there is no token, or it can be none.
    """

    def __init__(
        self,
        token: str | None,
        stopped: Callable[[], bool] = never_stop,
        again: str = "press Push again",
        kept: str = "the model is safe here",
    ) -> None:
        if not token:
            raise PublishError(
                "You are not signed in.",
                "Run `hf auth login`, or paste a token with write access.",
            )
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise PublishError(
                "The token has spaces or characters no token has.", "Copy it again, whole."
            )
        self.api = HfApi(endpoint=hub_connection.hub_endpoint(), token=token)
        self.beat: Callable[[], object] = lambda: 0
        self._stopped, self._again, self._kept = stopped, again, kept
        self._oauth = token.startswith(_OAUTH)

    def __repr__(self) -> str:
        return "HubClient()"  # the api's holds the token

    def account(self) -> Account:
        """Whose token it is.

        Raises:
            PublishError: when the Hub does not know it or does not answer, or it may only read.
        """
        if not hub_connection.hub_is_reachable(_UNREACHABLE):
            raise PublishError(
                f"The Hub at {hub_connection.hub_endpoint()} does not answer.",
                f"Check the network and {self._again}; {self._kept}.",
            )
        user = self.call("The sign-in", self.api.whoami)
        access = (user.get("auth") or {}).get("accessToken") or {}
        if access.get("role") == "read":
            raise PublishError(
                f"This token of {user['name']} may only read.",
                "Make one with write access in your Hub settings.",
            )
        # A contributor may write to what they made; a reader may not.
        organisations = [org for org in user.get("orgs") or [] if org.get("roleInOrg") != "read"]
        names = [user["name"], *(org["name"] for org in organisations if org.get("name"))]
        if access.get("role") != "fineGrained":
            return Account(user["name"], names)
        writable = [
            str((scope.get("entity") or {}).get("name") or "")
            for scope in (access.get("fineGrained") or {}).get("scoped") or []
            if "repo.write" in (scope.get("permissions") or [])
        ]
        if not writable:
            raise PublishError(
                f"This fine-grained token of {user['name']} may write to no repository.",
                "Give it write access to repositories in your Hub settings.",
            )
        repos = tuple(name for name in writable if "/" in name)
        return Account(user["name"], [name for name in names if name in writable], repos)

    def hardware(self, name: str) -> str:
        """The name and the price of a Space's hardware.

        Raises:
            PublishError: when there is no such hardware.
        """
        offered = self.call("Asking which hardware there is", self.api.list_spaces_hardware)
        hardware = next((kind for kind in offered if kind.name == name), None)
        if hardware is None:
            names = ", ".join(str(kind.name) for kind in offered)
            raise PublishError(
                f"There is no hardware {name!r} for Spaces.", f"Choose one of: {names}."
            )
        hours = {"minute": 60, "hour": 1}.get(hardware.unit_label, 0)
        if cost := (hardware.unit_cost_usd or 0) * hours:
            return f"{hardware.pretty_name}, {cost:.2f} USD an hour while it is awake"
        return (
            f"{hardware.pretty_name}, no price an hour; for a Gradio Space the Hub asks for a "
            "subscription (PRO, Team or Enterprise)"
        )

    def check_stopped(self) -> None:
        """
        Raises:
            Cancelled: where the end is wanted.
        """
        if self._stopped():
            raise Cancelled("Cancelled; nothing was committed.", "Push again whenever you like.")

    def call(
        self, what: str, ask: Callable[[], T], left_behind: str = "", stoppable: bool = True
    ) -> T:
        """The value of one call.

        Args:
            what: for the error, "The sign-in".
            ask: asks the Hub.
            left_behind: what is there although it failed, for the error.
            stoppable: whether a cancel leaves it behind; not for what cannot be undone.

        Raises:
            Cancelled: when the end is wanted.
            PublishError: when the Hub refuses or does not answer; never with a token in it.
        """
        if stoppable:
            self.check_stopped()
        hooks = get_session().event_hooks["response"]
        if _refuse_long_pause not in hooks:
            hooks.append(_refuse_long_pause)
        future: Future[T] = Future()

        def carry_out() -> None:
            try:
                future.set_result(ask())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=carry_out, name="hub-call", daemon=True).start()
        beat, since = self.beat(), time.monotonic()
        while True:
            try:
                error = future.exception(timeout=_POLL)
                break
            except TimeoutError:
                pass
            if stoppable:
                self.check_stopped()
            if (now := self.beat()) != beat:
                beat, since = now, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                raise PublishError(
                    f"{what}: for {PATIENCE:g} seconds the Hub has not answered, or has asked for "
                    f"a pause.{left_behind}",
                    f"Check the network and {self._again}; {self._kept}.",
                )
        if error is None:
            return future.result()
        for cause in (error, error.__cause__):
            if isinstance(cause, PublishError):
                raise cause from None
        raise self._explained(error, what, left_behind) from None

    def _explained(self, error: BaseException, what: str, left_behind: str) -> PublishError:
        """The Hub's refusal in our words: the status and its remedy, never a header or a token."""
        cause, errors = hub_errors.cause(error), hub_errors.chain(error)
        words = hub_errors.TABLE[cause.name or "silent"]
        remedy = words.sending.format(again=self._again, kept=self._kept)
        if not cause.status:
            disk = [e.strerror for e in errors if isinstance(e, OSError) and e.strerror]
            reason = disk[0] if cause.path and disk else self._without_secrets(errors[-1])
            return PublishError(f"{what} failed: {reason}.{left_behind}", remedy)
        if cause.status == 403 and self._oauth:
            remedy = (
                "This sign-in may write to new repositories and to those made here. Choose a new "
                "name, or press Check and sign in for all your repositories."
            )
        if cause.status == 429 and cause.pause:
            remedy = (
                f"The Hub asks for a pause of {hub_errors.duration(cause.pause)}; "
                f"{self._again} after it."
            )
        fact = f"{what} was refused with status {cause.status}.{left_behind}"
        return HubRefused(fact, remedy, cause.status, cause.pause)

    def _without_secrets(self, error: BaseException) -> str:
        """What a client's error says, without tokens and the queries of signed addresses."""
        text = " ".join(str(error).replace(str(self.api.token), "\u2026").split())
        text = re.sub(r"hf_\w+|(?<=[?&])[^\s'\"]+", "\u2026", text)[:200].rstrip(". ")
        return f"{text} ({type(error).__name__})" if text else type(error).__name__


def _refuse_long_pause(response: Any) -> None:
    """Raise where the Hub asks for a long pause, over which the client would sleep unsaid."""
    if response.status_code == 429 and hub_errors.pause(response) > hub_errors.LONGEST_PAUSE:
        response.read()
        hf_raise_for_status(response)
