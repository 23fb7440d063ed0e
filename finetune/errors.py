"""The errors that people are meant to read; each names the wrong value and what to do about it.

Bugs stay ordinary exceptions.
"""

from collections.abc import Sequence


class FinetuneError(Exception):
    """A fact and its remedy.

    Args:
        fact: what is wrong, with the value.
        remedy: what to do; empty where the fact already says it.
    """

    def __init__(self, fact: str, remedy: str = "") -> None:
        super().__init__(f"{fact} {remedy}".strip())
        self.fact = fact
        self.remedy = remedy


class ConfigError(FinetuneError):
    """All problems of one configuration at once.

    Args:
        problems: name of the hyperparameter -> what is wrong with its value.
    """

    def __init__(self, problems: dict[str, str]) -> None:
        super().__init__("; ".join(f"{name} {text}" for name, text in problems.items()) + ".")
        self.problems = dict(problems)


class DataError(FinetuneError):
    """The sentence pairs cannot be read or cannot be trained on."""


class ModelError(FinetuneError):
    """A checkpoint cannot be found, trusted, loaded or used."""


class TrainingError(FinetuneError):
    """The training loop cannot go on: a loss that is not a number, a full device."""


class StoreError(FinetuneError):
    """A run folder cannot be read or written."""


class NoSuchRun(StoreError):
    """The run does not exist, or is not the caller's to see."""

    def __init__(self) -> None:
        super().__init__("There is no such run.", "Choose one from the list of runs.")


class JobError(FinetuneError):
    """A worker process cannot be started or stopped."""


class PublishError(FinetuneError):
    """The Hub refused the push, or did not answer."""


class Cancelled(PublishError):
    """The push was cancelled, and nothing was committed."""


def some(names: Sequence[object], most: int = 8) -> str:
    """The first few of some names, and how many more there are."""
    shown = ", ".join(str(name)[:60] for name in names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")
