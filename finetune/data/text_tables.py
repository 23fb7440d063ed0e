"""The base class of tables in text files: their encoding and their lines; and lines of labels."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from finetune.data import encodings, table
from finetune.data.table import MAX_FIELD, OnBadRow, ReadOptions, Rows, Table, remark
from finetune.findings import Remedy
from finetune.messages import message as _

LABEL = "__label__"  # before each label of a line
_LABELS = re.compile(rf"(?:^|(?<=[\s,])){LABEL}([^\s,]+)")


class TextTable(Table):
    """A table in a text file, which may be gzipped."""

    def __init__(self, path: Path, name: str, options: ReadOptions) -> None:
        super().__init__(path, name)
        self._encoding = encodings.detect(path, name, options.encoding)
        # The encoding is reported unless it is plainly UTF-8, and asked for if it is in doubt.
        encoding = self._encoding
        label = encoding.name
        if encoding.readings:
            choices = ", ".join(f"{name} ({sample})" for name, sample in encoding.readings)
            title = _("{name} is not UTF-8, and its encoding is in doubt.", name=self.name)
            action = _("Choose the encoding in which it reads well: {choices}", choices=choices)
            answers = [
                Remedy("encoding", codec, f"{codec}: {sample}")
                for codec, sample in encoding.readings
            ]
            asked = remark("encoding", title, action, answers=answers, severity="blocks")
            self.remarks.append(asked)
        elif encoding.guessed:
            text = _(
                "{name} is not UTF-8; it was read as {encoding}. Where letters are wrong, choose "
                "another encoding.",
                name=self.name,
                encoding=label,
            )
            self.notes.append(text)
        elif options.encoding:
            self.notes.append(_("{name} is read as {encoding}.", name=self.name, encoding=label))
        elif encoding.name.startswith(("utf-16", "utf-32")):
            label = encoding.name[:6].upper()
            self.notes.append(_("{name} is {encoding}.", name=self.name, encoding=label))
        if encoding.broken:
            text = _(
                "{name} is {encoding} with {n:,} broken places, read as \ufffd.",
                name=self.name,
                encoding="UTF-8" if encoding.name == "utf-8" else encoding.name,
                n=encoding.broken,
            )
            self.notes.append(text)

    def _open(self) -> io.TextIOWrapper:
        file = table.open_bytes(self.path, self.name)
        return io.TextIOWrapper(file, encoding=self._encoding.name, errors="replace", newline="")

    def _lines(self, on_bad_row: OnBadRow = lambda line, reason: None) -> Iterator[tuple[int, str]]:
        """Yield lines without NULs, numbered from 1; too long ones are reported and skipped."""
        number = 0
        with self._open() as text:
            while line := text.readline(MAX_FIELD):
                number += 1
                if len(line) < MAX_FIELD or line.endswith(("\n", "\r")):
                    yield number, line.replace("\0", "") if "\0" in line else line
                    continue
                reason = _("is longer than {max_field:,} characters", max_field=MAX_FIELD)
                on_bad_row(number, reason)
                while line and not line.endswith(("\n", "\r")):
                    line = text.readline(MAX_FIELD)


class LabelledLines(TextTable):
    """Lines of a text and its labels, which `__label__` marks, as fastText reads them."""

    def __init__(self, path: Path, name: str, options: ReadOptions) -> None:
        super().__init__(path, name, options)
        self.columns = ["label", "text"]
        self._several = any(len(_LABELS.findall(line)) > 1 for _n, line in self._lines())
        text = _(
            "Each line of {name} is a text and its labels, marked by {mark}.",
            name=self.name,
            mark=LABEL,
        )
        self.notes.append(text)

    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        names = self.columns if columns is None else columns
        for number, line in self._lines(on_bad_row):
            labels, text = _LABELS.findall(line), _LABELS.sub("", line).strip(" ,\t\r\n")
            cells = {"label": labels if self._several else "".join(labels), "text": text}
            if labels or text:
                yield number, {name: cells[name] for name in names}


def are_labelled(head: bytes) -> bool:
    """True if nearly every line of the beginning of a file has marked labels at an end."""
    lines = [line.strip() for line in head.splitlines()[:1000] if line.strip()]
    mark = LABEL.encode()
    marked = [line.startswith(mark) or line.split()[-1].startswith(mark) for line in lines]
    return sum(marked) > 0.9 * len(lines)
