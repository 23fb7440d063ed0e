"""Calls to the Hub that a person waits for: they can be cancelled, time out, and explain refusals.

A token is an argument of one `HubClient`; it reaches no file, log, event or error's text.
"""

import contextlib
import re
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from finetune import hub_errors
from finetune.environment import hub_connection
from finetune.errors import Cancelled, PublishError
from finetune.messages import message as _

T = TypeVar("T")
stored_token = get_token  # that of `hf auth login` or HF_TOKEN on this machine, if any
PATIENCE = 120.0  # seconds without an answer or a byte sent, until a call is abandoned
# After a lost answer: seconds between two looks, seconds until a change that the Hub does not show
# is given up, and seconds without any answer until that is reported.
PAUSE, APPEARS, SILENCE = 3.0, 120.0, 600.0
# Causes of an error answer, as in `hub_errors`, that leave open whether a change was made.
_OPEN = frozenset({"fault", "pause"})


@dataclass(frozen=True)
class Account:
    """The account of a token."""

    name: str
    namespaces: list[str]  # that it may create repositories in, the user's own first

    def repo_id(self, name: str) -> str:
        """Complete a typed name, with or without a namespace, to `namespace/name`."""
        name = name.strip()
        full = name if "/" in name else f"{self.name}/{name}"
        try:
            validate_repo_id(full)
        except HFValidationError:
            raise PublishError(
                "{name!r} is not a repository name.",
                "Use letters, digits, '-', '_' and '.', at most 96, as in my-paraphrase-model.",
                name=name,
            ) from None
        namespace = full.split("/")[0]
        if namespace not in self.namespaces:
            raise PublishError(
                "{name} may not write to {namespace!r}.",
                "Choose one of: {namespaces}.",
                name=self.name,
                namespace=namespace,
                namespaces=", ".join(self.namespaces),
            )
        return full


def default_sleep_time(hardware: str) -> int | None:
    """The seconds after which a new Space on some hardware sleeps; None if it is not billed."""
    return None if hardware == "cpu-basic" or hardware.startswith("zero-") else 3600


class NoAnswer(PublishError):
    """The Hub gave no answer, or failed. The requested change may have been made."""


class Absent(PublishError):
    """The Hub says that something does not exist; it may also be hidden from this token."""


class HubClient:
    """The Hub as one person sees it, until `stopped` says that they have cancelled."""

    def __init__(self, token: str | None, stopped: Callable[[], bool] = lambda: False) -> None:
        self._token, self._stopped = token or "", stopped
        if not re.fullmatch(r"[\x21-\x7e]+", self._token):  # tokens have no other characters
            raise PublishError(
                "You are not signed in.", "Run `hf auth login`, or paste a token with write access."
            )
        self.api = HfApi(endpoint=hub_connection.hub_endpoint(), token=token)
        # A value that changes while a long call progresses; each change restarts the patience.
        self.beat: Callable[[], object] = lambda: 0

    def account(self) -> Account:
        """The account of the token; PublishError for a token that may only read."""
        user = self.call(_("The sign-in"), self.api.whoami)
        access = (user.get("auth") or {}).get("accessToken") or {}
        if access.get("role") == "read":
            raise PublishError(
                "This token of {user} may only read.",
                "Make one with write access in your Hub settings.",
                user=user["name"],
            )
        organisations = [org for org in user.get("orgs") or [] if org.get("roleInOrg") != "read"]
        return Account(user["name"], [user["name"], *(org["name"] for org in organisations)])

    def price(self, name: str) -> str:
        """Describe the price of some hardware for a Space."""
        offered = self.call(_("Asking which hardware there is"), self.api.list_spaces_hardware)
        kinds = {str(kind.name): kind for kind in offered}
        if name not in kinds:
            raise PublishError(
                "There is no hardware {name!r} for Spaces.",
                "Choose one of: {names}.",
                name=name,
                names=", ".join(kinds),
            )
        kind = kinds[name]
        price = (kind.unit_cost_usd or 0) * (60 if kind.unit_label == "minute" else 1)
        sleep_time = default_sleep_time(name)
        text = _(
            "{hardware}, {price:.2f} USD an hour while it is awake",
            hardware=kind.pretty_name,
            price=price,
        )
        if not sleep_time:
            return text
        return _(
            "{price}; it sleeps after {n} minutes without a visitor", price=text, n=sleep_time // 60
        )

    def space_files(self, name: str, mark: str) -> set[str] | None:
        """The files of a Space, or None. PublishError if it has files but not `mark`."""

        def ask() -> set[str] | None:
            if not self.api.repo_exists(name, repo_type="space"):
                return None
            return set(self.api.list_repo_files(name, repo_type="space")) - {".gitattributes"}

        files = self.call(_("Looking for the Space {space}", space=name), ask)
        if files and files != {"README.md"} and mark not in files:
            raise PublishError(
                "The Space {name} exists and holds something else.",
                "Choose another name.",
                name=name,
            )
        return files

    def create_space(self, name: str, hardware: Any, private: bool = False) -> None:
        """Create a Gradio Space with its hardware in one call, because the Hub refuses free
        accounts a Gradio Space on free hardware. Billed hardware sleeps when nobody uses it."""
        create = partial(
            self.api.create_repo, name, repo_type="space", space_sdk="gradio",
            private=private or None, space_hardware=hardware,
            space_sleep_time=default_sleep_time(hardware),
        )  # fmt: skip
        exists = partial(self.exists, name, "space")
        self.change(_("Creating the Space {name}", name=name), create, exists)

    def exists(self, name: str, kind: str = "model") -> Literal[True] | None:
        """True if there is such a repository, None otherwise."""
        ask = partial(self.api.repo_exists, name, repo_type=kind)
        return self.call(_("Looking for {full}", full=name), ask, stoppable=False) or None

    def commit(
        self, action: str, name: str, operations: list[Any], message: str, kind: str = "model",
        parent: str | None = None,
    ) -> str:  # fmt: skip
        """Make one commit; returns its sha. A mark in its description tells it from others."""
        mark = f"Commit {secrets.token_hex(8)}"

        def find() -> str | None:
            ask = partial(self.api.list_repo_commits, name, repo_type=kind)
            commits = self.call(action, ask, stoppable=False)
            return next((one.commit_id for one in commits if mark in one.message), None)

        def send() -> str:
            return self.api.create_commit(
                name, operations, commit_message=message, commit_description=mark,
                repo_type=kind, parent_commit=parent,
            ).oid  # fmt: skip

        return self.change(action, send, find)

    def change(self, action: str, ask: Callable[[], T], find: Callable[[], T | None]) -> T:
        """Ask the Hub once to change something, and return its answer; see `call`. If the answer is
        lost, return what `find` finds instead.

        Raises:
            NoAnswer: if it is not known whether the change was made.
            PublishError: if it was refused.
        """
        try:
            return self.call(action, ask, stoppable=False)
        except NoAnswer as error:
            print(f"{error.fact} Checking whether the Hub has done it.", flush=True)
            with contextlib.suppress(PublishError):
                if (found := self.look_for(find)) is not None:
                    return found
            raise NoAnswer(
                "{fact} The Hub may carry it out all the same.",
                "Look there in a minute, and try again if it has not.",
                fact=error.fact,
            ) from None

    def look_for(self, find: Callable[[], T | None]) -> T | None:
        """Call `find` until it finds a change whose answer was lost. Returns None if the Hub does
        not show the change in time; raises if it gives no answer."""
        since = time.monotonic()
        while True:
            try:
                if (found := find()) is not None or time.monotonic() - since > APPEARS:
                    return found
            except (NoAnswer, Absent):
                if time.monotonic() - since > SILENCE:
                    raise
            time.sleep(PAUSE)

    def check_stopped(self) -> None:
        """Raise Cancelled if the person has cancelled."""
        if self._stopped():
            raise Cancelled("Cancelled; nothing was committed.", "Push again whenever you like.")

    def call(
        self, action: str, ask: Callable[[], T], stoppable: bool = True, patience: float = 0.0
    ) -> T:
        """Return the value of one call to the Hub; `action` names it in errors: "The sign-in".

        The call runs in a thread of its own, because the client library waits without limit. It is
        abandoned after `patience` seconds (`PATIENCE` if 0), or if `stoppable` and cancelled.
        """
        future: Future[T] = Future()

        def carry_out() -> None:
            try:
                future.set_result(ask())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=carry_out, daemon=True).start()
        patience = patience or PATIENCE
        beat, since = self.beat(), time.monotonic()
        while not future.done():
            if stoppable:
                self.check_stopped()
            wait([future], 0.05)
            if (now := self.beat()) != beat:
                beat, since = now, time.monotonic()
            if time.monotonic() - since > patience:
                raise NoAnswer(
                    "{action}: for {patience:g} seconds the Hub has not answered, or has asked for "
                    "a pause.",
                    "Check the network and try again.",
                    action=action,
                    patience=patience,
                )
        try:
            return future.result()
        except PublishError:
            raise
        except Exception as error:
            raise self._explained(error, action) from None

    def _explained(self, error: Exception, action: str) -> PublishError:
        """Turn the Hub's refusal into an error in our words, without headers and tokens."""
        cause = hub_errors.cause(error)
        remedy = hub_errors.sender_remedy(cause, signed_in=self._token.startswith("hf_oauth"))
        if status := cause.status:
            if cause.name in _OPEN:
                fact = _("{action} failed with status {status}.", action=action, status=status)
                return NoAnswer(fact, remedy)
            fact = _("{action} was refused with status {status}.", action=action, status=status)
            return (Absent if status == 404 else PublishError)(fact, remedy)
        if cause.name == "silent":
            endpoint = hub_connection.hub_endpoint()
            fact = _("{action} failed: the Hub at {endpoint} does not answer.", action=action,
                     endpoint=endpoint)  # fmt: skip
            return NoAnswer(fact, remedy)
        reason = cause.reason or self._without_secrets(hub_errors.chain(error)[-1])
        return NoAnswer("{action} failed: {reason}.", remedy, action=action, reason=reason)

    def _without_secrets(self, error: BaseException) -> str:
        """The text of a client's error, without tokens and the queries of signed addresses."""
        text = " ".join(str(error).replace(self._token, "\u2026").split())
        text = re.sub(r"hf_\w+|(?<=[?&])[^\s'\"]+", "\u2026", text)[:200].rstrip(". ")
        return f"{text} ({type(error).__name__})" if text else type(error).__name__
