"""Calls to the Hugging Face Hub that a person waits for: whose token it is, names, refusals in
words, patience and cancelling.

A token is an argument of one `Hub`, in memory as long as that lives; it reaches no file, log, event
or error's text. What is sent is `publish`' business.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from huggingface_hub import HfApi, SpaceHardware, get_session, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from finetune import hub_errors
from finetune.environment import hub_connection
from finetune.errors import Cancelled, PublishError

T = TypeVar("T")
PATIENCE = 120.0  # seconds without an answer or a byte sent, after which the Hub is given up
_UNREACHABLE = 3.0  # seconds to wait for the Hub before saying that it does not answer
_TRIES = 4  # where the Hub asks for pauses that are waited
_TICK = 0.05  # seconds between two looks whether somebody wants the end
ASLEEP = 3600  # seconds without a visitor after which a new Space that is billed sleeps
_hooks = threading.Lock()  # for what hears the answers of the one client that all share
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

    def may_write(self, full: str) -> bool:
        """Whether it may write to `namespace/name`, as far as the token says."""
        return full.split("/")[0] in self.namespaces or full in self.repos


def stored_token() -> str | None:
    """The token of `hf auth login` or HF_TOKEN on this machine, if any."""
    return get_token()


def whoami(token: str | None) -> Account:
    """Whose token it is.

    Raises:
        PublishError: when there is none, the Hub does not know it, it may only read, or the Hub
            does not answer.
    """
    return HubClient(token).account()


def full_repo_id(name: str, user: str) -> str:
    """`user/name` from what was typed, which may carry its namespace already.

    Raises:
        PublishError: when the Hub would not take the name.
    """
    typed = name.strip()
    full = typed if "/" in typed else f"{user}/{typed}"
    try:
        if not typed:
            raise HFValidationError("it is empty")
        validate_repo_id(full)
    except HFValidationError:
        raise PublishError(
            f"{typed!r} is not a repository name.",
            "Use letters, digits, '-', '_' and '.', at most 96, as in my-paraphrase-model.",
        ) from None
    return full


def default_sleep_time(hardware: str) -> int | None:
    """Of a new Space on some hardware, in seconds; None where it is not billed by its time."""
    return None if hardware == "cpu-basic" or hardware.startswith("zero-") else ASLEEP


def never_stop() -> bool:
    """What asks for no end."""
    return False


class HubClient:
    """The Hub as one person sees it, for one push.

    Every call runs in a thread of its own that is left behind when the call is cancelled or takes
    too long: the client waits without limit, and sleeps between its own tries. What is left behind
    can at most finish an upload that nothing refers to; a commit is not left behind by a cancel.

    Args:
        token: used for these calls only.
        stopped: whether the person wants the end.
        again, kept: what to do after a failure, and what it leaves, in the words of who asks.

    Attributes:
        api: the client.
        beat: what changes while a long call gets on; the patience counts anew when it does.

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
        self._pause = 0  # seconds that the Hub has asked for since anything last got on
        self._oauth = token.startswith(_OAUTH)

    def __repr__(self) -> str:
        return "Hub()"  # the client's holds the token

    def account(self) -> Account:
        """Whose token it is; see `account`."""
        if not hub_connection.hub_is_reachable(_UNREACHABLE):
            raise PublishError(
                f"The Hub at {hub_connection.hub_endpoint()} does not answer.",
                f"Check the network and {self._again}; {self._kept}.",
            )
        who = self.call("The sign-in", self.api.whoami)
        access = (who.get("auth") or {}).get("accessToken") or {}
        if access.get("role") == "read":
            raise PublishError(
                f"This token of {who['name']} may only read.",
                "Make one with write access in your Hub settings.",
            )
        # A contributor may write to what they made; a reader may not.
        orgs = [one for one in who.get("orgs") or [] if one.get("roleInOrg") != "read"]
        names = [who["name"], *(one["name"] for one in orgs if one.get("name"))]
        if access.get("role") != "fineGrained":
            return Account(who["name"], names)
        scoped = _writable(access.get("fineGrained") or {})
        found = Account(who["name"], [one for one in names if one in scoped],
                        tuple(one for one in scoped if "/" in one))  # fmt: skip
        if not found.namespaces and not found.repos:
            raise PublishError(
                f"This fine-grained token of {who['name']} may write to no repository.",
                "Give it write access to repositories in your Hub settings.",
            )
        return found

    def hardware(self, name: str) -> str:
        """The name and the price of a Space's hardware.

        Raises:
            PublishError: when there is no such hardware.
        """
        try:
            known = self.call("Asking which hardware there is", self.api.list_spaces_hardware)
        except HubRefused as error:
            if error.status != 404:
                raise
            # A Hub of one's own without such a list: those that the client library knows.
            _among(name, [str(one.value) for one in SpaceHardware])
            return f"{name}, price unknown"
        _among(name, [str(one.name) for one in known])
        found = next(one for one in known if one.name == name)
        hours = {"minute": 60, "hour": 1}.get(found.unit_label)
        if hours is None or not found.unit_cost_usd:
            return (
                f"{found.pretty_name}, no price an hour; for a Gradio Space the Hub asks for a "
                "subscription (PRO, Team or Enterprise)"
            )
        cost = found.unit_cost_usd * hours
        return f"{found.pretty_name}, {cost:.2f} USD an hour while it is awake"

    def check(self) -> None:
        """Raise `Cancelled` where the end is wanted."""
        if self._stopped():
            raise Cancelled("Cancelled; nothing was committed.", "Push again whenever you like.")

    def call(self, what: str, act: Callable[[], T], left: str = "", stoppable: bool = True) -> T:
        """The value of one call, made again after a short pause that the Hub asks for.

        Args:
            what: for the error, "The sign-in".
            act: asks the Hub.
            left: what is there although it failed, for the error.
            stoppable: whether a cancel leaves it behind; not for what cannot be undone.

        Raises:
            Cancelled: when the end is wanted.
            PublishError: when the Hub refuses or does not answer; never with a token in it.
        """
        for _ in range(_TRIES - 1):
            try:
                return self._once(what, act, left, stoppable)
            except HubRefused as error:
                asked = error.status == 429 or (error.status == 503 and stoppable)
                if not (asked and 0 < error.pause <= min(PATIENCE, hub_errors.LONGEST_PAUSE)):
                    raise
                until = time.monotonic() + error.pause
            while time.monotonic() < until:
                if stoppable:
                    self.check()
                time.sleep(_TICK)
        return self._once(what, act, left, stoppable)

    def _once(self, what: str, act: Callable[[], T], left: str, stoppable: bool) -> T:
        done: Future[T] = Future()

        def carry_out() -> None:
            try:
                done.set_result(act())
            except BaseException as error:
                done.set_exception(error)

        if stoppable:
            self.check()
        self._pause = 0
        self._listen(True)
        try:
            threading.Thread(target=carry_out, name="hub-call", daemon=True).start()
            self._wait(what, done, left, stoppable)
        finally:
            self._listen(False)
        try:
            return done.result()
        except PublishError:
            raise
        except Exception as error:
            if (inner := error.__cause__) is not None and isinstance(inner, PublishError):
                raise inner from None
            raise self._refused(error, what, left) from None

    def _wait(self, what: str, done: Future[Any], left: str, stoppable: bool) -> None:
        seen, since = self.beat(), time.monotonic()
        while True:
            try:
                done.exception(timeout=_TICK)
                return
            except TimeoutError:
                pass
            if stoppable:
                self.check()
            self._listen(True)  # the client is made anew after some failures
            if stoppable and self._pause > PATIENCE:  # else it would happen after the error
                raise self._asked_to_pause(what, left)
            if (now := self.beat()) != seen:
                seen, since, self._pause = now, time.monotonic(), 0
            if time.monotonic() - since > PATIENCE:
                raise self._silent(what, left)

    def _listen(self, on: bool) -> None:
        """Hear the answers to this token, or no longer: the client sleeps over a pause unsaid."""
        with _hooks:
            hooks = get_session().event_hooks
            others = [one for one in hooks["response"] if one != self._hear]
            hooks["response"] = [*others, self._hear] if on else others

    def _hear(self, response: Any) -> None:
        mine = f"Bearer {self.api.token}"
        if response.status_code == 429 and response.request.headers.get("Authorization") == mine:
            self._pause = hub_errors.pause(response)

    def _silent(self, what: str, left: str) -> PublishError:
        if not self._pause:
            return PublishError(
                f"{what}: for {PATIENCE:g} seconds the Hub has not answered, or has asked for "
                f"a pause.{left}",
                f"Check the network and {self._again}; {self._kept}.",
            )
        return PublishError(
            f"{what}: the Hub has asked for a pause of {hub_errors.duration(self._pause)}, and "
            f"for {PATIENCE:g} seconds nothing has got on.{left}",
            f"Wait as long and {self._again}; {self._kept}.",
        )

    def _asked_to_pause(self, what: str, left: str) -> HubRefused:
        return HubRefused(
            f"{what} was refused with status 429.{left}",
            f"The Hub asks for a pause of {hub_errors.duration(self._pause)}; "
            f"{self._again} after it.",
            429,
        )

    def _words(self, error: Exception | BaseException) -> str:
        """What an error of a client says, without what only its sender may know."""
        said = " ".join(str(error).replace(str(self.api.token), "\u2026").split())
        said = re.sub(r"hf_\w+|(?<=[?&])[^\s'\"]+", "\u2026", said)[:200].rstrip(". ")
        return f"{said} ({type(error).__name__})" if said else type(error).__name__

    def _refused(self, error: Exception, what: str, left: str) -> PublishError:
        """The Hub's refusal in our words: the status and its remedy, never a header or a token."""
        found = hub_errors.cause(error)
        words = hub_errors.TABLE[found.name or "silent"]
        remedy = words.sending.format(again=self._again, kept=self._kept)
        if not found.status:
            disk = next((e for e in hub_errors.chain(error) if isinstance(e, OSError)), None)
            said = disk.strerror if found.path and disk is not None else None
            said = said or self._words(hub_errors.chain(error)[-1])
            return PublishError(f"{what} failed: {said}.{left}", remedy)
        if found.status == 403 and self._oauth:
            remedy = (
                "This sign-in may write to new repositories and to those made here. Choose a new "
                "name, or press Check and sign in for all your repositories."
            )
        if found.status == 429 and found.pause:
            remedy = (
                f"The Hub asks for a pause of {hub_errors.duration(found.pause)}; "
                f"{self._again} after it."
            )
        fact = f"{what} was refused with status {found.status}.{left}"
        return HubRefused(fact, remedy, found.status, found.pause)


def _among(hardware: str, known: list[str]) -> None:
    if hardware not in known:
        raise PublishError(
            f"There is no hardware {hardware!r} for Spaces.", f"Choose one of: {', '.join(known)}."
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


def undecided(error: PublishError) -> bool:
    """Whether what was asked for may happen after all: the Hub has not refused it."""
    return not isinstance(error, HubRefused) or error.status >= 500


def _writable(granted: dict[str, Any]) -> list[str]:
    """Users, organisations and repositories a fine-grained token may write to."""
    return [
        str((one.get("entity") or {}).get("name") or "")
        for one in granted.get("scoped") or []
        if "repo.write" in (one.get("permissions") or [])
    ]
