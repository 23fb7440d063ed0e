"""A label column: its cells as numbers, what a task reads in them, and findings of every task."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.errors import some
from finetune.findings import Finding, Remedy, question
from finetune.messages import message as _
from finetune.text_hashes import Integers

IMPOSSIBLE = _("Training is not possible with these rows.")
MOST_CHANGES = 300  # the longest `label_map`, in characters


@dataclass(frozen=True)
class Reading:
    """A task's interpretation of a label column."""

    names: list[str] = field(default_factory=list)  # of classes or labels; none for a score
    # The targets of each spelling, and at the end of a missing cell, whose number is -1.
    table: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    unknown: list[str] = field(default_factory=list)  # changed names that no label has
    unclear: str = ""  # what may stand for no label, such as -1, as long as nobody said it

    def targets(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Return what is learned of rows, from the encoder's numbers; shape (rows, ...)."""
        return np.asarray(self.table[codes])


@dataclass(frozen=True)
class LabelledRows:
    """A label column as an encoder has read it, and what the task made of it."""

    config: RunConfig
    column: str  # its name
    source: str  # the name of the whole source
    spellings: Sequence[str]
    named: bool  # True if the source itself names the classes
    codes: Mapping[str, NDArray[Any]]  # split of the source -> the encoder's numbers
    joined: bool = False  # True if the column stands for several columns of 0 and 1
    reading: Any = None
    # Split -> the source's split, and indices into it; before a maximum leaves out some.
    rows: Mapping[str, tuple[str, Integers]] = field(default_factory=dict)

    def counts(self) -> Integers:
        """How often each spelling occurs."""
        codes = np.concatenate(list(self.codes.values()))
        return np.bincount(codes[codes >= 0], minlength=len(self.spellings))

    def of(self, split: str) -> NDArray[Any]:
        """Return the targets of a split, shape (rows, ...)."""
        source_split, rows = self.rows[split]
        return np.asarray(self.reading.targets(self.codes[source_split][rows]))

    def where(self, has: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> list[tuple[str, Integers]]:
        """The rows, by split, for which `has` returns True of the encoder's numbers."""
        return [(split, np.flatnonzero(has(codes))) for split, codes in self.codes.items()]

    def spelled(self, spellings: Sequence[int]) -> list[tuple[str, Integers]]:
        """The rows whose label has one of these spellings, by split."""
        return self.where(lambda codes: np.isin(codes, spellings))

    def change(self, changes: Mapping[str, str], text: str) -> list[Remedy]:
        """Return a button that adds label changes to the configuration; no button if the resulting
        `label_map` would be too long."""
        own = {changeable(old): new for old, new in changes.items()}
        value = label_map(self.config.changed_labels | own)
        return [Remedy("label_map", value, text)] if len(value) <= MOST_CHANGES else []

    def changed(self) -> Iterator[Finding]:
        """Report the labels that a person changed."""
        if changes := self.config.label_map:
            title = _("Labels that you changed: {changes}", changes=changes)
            yield answered("label-map", title, Remedy("label_map", "", _("Undo")))

    def no_label(self, rows: Sequence[tuple[str, Integers]], other: str, text: str) -> Finding:
        """Ask whether what is unclear stands for no label. `rows` have it; otherwise it stands for
        `other`, which `text` says."""
        own = self.reading.unclear
        title = _(
            "Does {own} in the column {column!r} mean that a row has no label?",
            own=own, column=self.column,
        )  # fmt: skip
        remedies = self.change({own: ""}, _("No label: leave out these rows"))
        remedies += self.change({own: other}, text)
        return question("no-label", title, remedies, rows)

    def unreadable(self, spellings: Sequence[int]) -> Finding:
        """Report cells that are lists or objects, and cannot be read."""
        title = _("Cells of the column {column!r} that cannot be read", column=self.column)
        action, rows = _("They are left out."), self.spelled(spellings)
        return Finding("unreadable-labels", "warns", title, action, rows)

    def unknown_changes(self) -> list[Finding]:
        """Report that `label_map` changes labels that no row has."""
        names = some(self.reading.unknown)
        text = _("label_map changes {names}, but no row has that label.", names=names)
        undo = Remedy("label_map", "", _("Undo"))
        return impossible(text, "label-map", undo) if names else []

    def no_rows(self, split: str) -> list[Finding]:
        """Report that no row is left to train on (`train`) or for validation."""
        text = _("No row is left for validation.")
        if split == "train":
            text = _("No row of {source} can be trained on.", source=self.source)
        return [] if len(self.rows[split][1]) else impossible(text)


def changeable(name: str) -> str:
    """Remove the characters of a label's name that a configuration cannot hold."""
    return "".join(filter(str.isprintable, name))


def label_map(changed: Mapping[str, str]) -> str:
    """Write changes of labels as `RunConfig.label_map`."""
    return shlex.join(f"{old}={new}" for old, new in changed.items())


def answered(kind: str, title: str, undo: Remedy, rows: int = 0) -> Finding:
    """Report what a person chose, with a button that undoes it."""
    return Finding(kind, "notes", title, _("You chose it."), count=rows, remedies=[undo], done=True)


def impossible(text: str, kind: str = "impossible", *remedies: Remedy) -> list[Finding]:
    """Report why training is impossible."""
    return [Finding(kind, "blocks", text, IMPOSSIBLE, remedies=[*remedies])]
