"""Errors for people; each names the wrong value and what to do about it.

Bugs stay ordinary exceptions.
"""

from collections.abc import Mapping, Sequence

from finetune.messages import Message
from finetune.messages import message as _


class FinetuneError(Exception):
    """A fact and its remedy, which the page translates.

    Args:
        fact: what is wrong, with placeholders for the values as `str.format` takes them.
        remedy: what to do; empty if the fact already says it.
        values: for the placeholders of both.
    """

    def __init__(self, fact: str, remedy: str = "", /, **values: object) -> None:
        self.fact, self.remedy = _formatted(fact, values), _formatted(remedy, values)
        super().__init__(f"{self.fact} {self.remedy}".strip())

    @property
    def text(self) -> str:
        """Fact and remedy as one text that the page can translate."""
        if not self.remedy:
            return self.fact
        return Message("{fact} {remedy}", fact=self.fact, remedy=self.remedy)


def _formatted(text: str, values: Mapping[str, object]) -> str:
    ready = not values or (isinstance(text, Message) and text.values)
    return text if ready else Message(str(text), **values)


class ConfigError(FinetuneError):
    """All problems of a configuration: hyperparameter -> what is wrong with its value."""

    def __init__(self, problems: dict[str, str]) -> None:
        listed = "; ".join(f"{name} {text}" for name, text in problems.items())
        super().__init__(f"{listed.rstrip('.')}.")
        self.problems = problems


class DataError(FinetuneError):
    """The sentence pairs cannot be read or cannot be trained on."""


class ModelError(FinetuneError):
    """A checkpoint cannot be found, trusted, loaded or used."""


class TrainingError(FinetuneError):
    """Training cannot continue: a loss that is not a number, a full device."""


class StoreError(FinetuneError):
    """A run folder cannot be read or written."""


class NoSuchRun(StoreError):
    """The run does not exist, or the caller may not see it."""

    def __init__(self, name: str = "", nearest: Sequence[str] = ()) -> None:
        problem, remedy = _("There is no such run."), _("Choose one from the list of runs.")
        if name:
            problem = _("There is no run named {name}.", name=name[:80])
            remedy = _("Choose one that `python -m finetune runs` lists.")
        if nearest:
            remedy = _("Did you mean {names}?", names=", ".join(nearest))
        super().__init__(problem, remedy)


class TooMany(FinetuneError):
    """An address has been issued the most identities that it may have for now."""


class JobError(FinetuneError):
    """A worker process cannot be started or stopped."""


class WrongAccount(JobError):
    """The account of a token cannot see what was requested."""


class PublishError(FinetuneError):
    """The Hub refused the push, or did not answer."""


class Cancelled(PublishError):
    """The push was cancelled, and nothing was committed."""


def some(names: Sequence[object], most: int = 8) -> str:
    """Join the first few names, and say how many more there are."""
    shown = ", ".join(str(name)[:60] for name in names[:most])
    more = len(names) - most
    return Message("{names} and {more} more", names=shown, more=more) if more > 0 else shown
