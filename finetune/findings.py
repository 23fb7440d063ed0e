"""Findings of a data check, and buttons that resolve them; a page can show and JSON hold them."""

import shlex
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from finetune import arguments
from finetune.messages import Text, message

Severity = Literal["blocks", "warns", "notes"]  # training is impossible; a risk; a fact


@dataclass(frozen=True)
class Example:
    """A row that illustrates a finding. Its texts are shortened; missing ones are empty."""

    split: str  # of the source
    line: int  # in the source, from 1
    sentence1: str = ""
    sentence2: str = ""
    label: str = ""
    note: Text = ""  # what is wrong with it, if the finding's title does not say


@dataclass(frozen=True)
class Remedy:
    """A value of a configuration's field that resolves a finding, or undoes that."""

    field: str
    value: bool | str
    text: Text  # of its button

    @property
    def option(self) -> str:
        """The option of the command line that sets the value, quoted for a shell."""
        return shlex.join(arguments.option(self.field, self.value))


@dataclass(frozen=True)
class Finding:
    """Something a person should know before training."""

    kind: str  # an identifier, such as `leakage`
    severity: Severity
    title: Text
    action: Text  # what will be done, and what the person can do
    # Splits of the source, and indices of the rows in them, until those are looked up. A finding
    # about no rows is not reported.
    where: Annotated[Any, Field(exclude=True)] = None
    remedies: list[Remedy] = field(default_factory=list)
    done: bool = False  # a remedy was chosen; `remedies` undo it
    count: int = 0  # rows concerned
    examples: list[Example] = field(default_factory=list)
    # Split of the source -> lines of the rows concerned, from 1; the first thousand of a split.
    rows: dict[str, list[int]] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The title and the number of rows, as an English sentence."""
        rows = f" ({self.count:,} {'row' if self.count == 1 else 'rows'})" if self.count else ""
        text = self.title.rstrip(".") + rows
        return text if text.endswith("?") else f"{text}."


def in_split(found: Sequence[Finding], split: str) -> list[Finding]:
    """Name the split of findings about the lines of a file."""
    return [
        replace(
            finding,
            rows={split or name: lines for name, lines in finding.rows.items()},
            examples=[replace(example, split=split) for example in finding.examples],
        )
        for finding in found
    ]


def question(kind: str, title: str, answers: Sequence[Remedy], where: Any = None) -> Finding:
    """Ask about columns or rows: nothing can be trained until one of the `answers` is chosen."""
    action = message("Choose other columns, or bring a file with more of them.")
    if answers:
        options = ", ".join(answer.option for answer in answers)
        action = message("Choose one; the options in a terminal: {options}", options=options)
    return Finding(kind, "blocks", title, action, where, [*answers])


def shorten(text: str, characters: int = 32) -> str:
    """Cut a text to at most this many characters; an ellipsis marks the cut."""
    return text if len(text) <= characters else text[: characters - 1] + "\u2026"
