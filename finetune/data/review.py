"""What annotators say of rows: which were accepted, rejected or skipped, and answers of several
people to one row."""

import ast
import contextlib
import json
import re
from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from finetune.config import NO_COLUMN
from finetune.data.table import remark
from finetune.findings import Finding, Remedy
from finetune.messages import message as _
from finetune.tasks.cells import MISSING, label_text, read_cell

STATUS = ".status"  # ends the name of a column that says of each of several answers if it counts
DISAGREEMENT, UNANSWERED = "disagreement", "unanswered"
LOST = (DISAGREEMENT, UNANSWERED)  # kinds of remarks about rows that nobody meant to leave out
_KEPT = re.compile(
    r"(accept|approv|submit|complet|validat|verif|review|confirm|annotat|label|finish|done|keep|kept|"
    r"ok)\w*( \w+)?"
)
_LEFT_OUT = re.compile(
    r"(reject|ignor|skip|discard|draft|cancel|pending|default|declin|un(label|annotat|review)|invalid|"
    r"delet|remov|to do|todo|in progress)\w*( \w+)?"
)
_REVIEW = re.compile("review|annotat|approv|accept|verdict")  # in names of columns
_UNDECIDED = re.compile(r"(ignor|skip|discard|draft|pending)\w*")
_YES, _NO = {"1", "true", "yes", "x"}, {"0", "false", "no"}


def word(column: str, cell: Any) -> str:
    """Return what a status column says of a row, in small letters: its own last word if a cell says
    yes, and "" if it says no or nothing."""
    text = " ".join(re.split(r"[\s_-]+", label_text(cell).lower()))
    if text in _YES:
        return re.split(r"[\W_]+", column.lower())[-1]
    return "" if text in _NO | MISSING else text


def is_left_out(said: str) -> bool:
    """True for a word that says that a row, or an answer, does not count."""
    return bool(_LEFT_OUT.fullmatch(said))


def certainty(column: str, values: Collection[str]) -> int:
    """Return 2 if a column with these values says which rows count, in words that only annotation
    tools have; 1 if it may, and 0 if it does not."""
    words = {word(column, value) for value in values} - {""}
    left_out = set(filter(is_left_out, words))
    unknown = [one for one in words - left_out if not _KEPT.fullmatch(one)]
    if not left_out or (unknown and not _REVIEW.search(column.lower())):
        return 0
    plain = words <= {"accept", "reject"} or words & {"submitted", "validated"}
    sure = plain or any(re.match("ignor|skip|discard", one) for one in words)
    return 2 if sure and not unknown else 1


def is_decision(column: str, values: Collection[str]) -> bool:
    """True if a status may be the answer itself, because rows were accepted and rejected."""
    words = [word(column, value) for value in values]
    return any(one.startswith(("reject", "declin")) for one in words) and any(
        _KEPT.fullmatch(one) for one in words
    )


def is_of_model(name: str) -> bool:
    """True if a column holds what a model suggests, or a draft, rather than what people say."""
    return any(word in name.lower() for word in ("suggest", "predict", "draft"))


def status_of(label: str, columns: Container[str]) -> str:
    """Return the column that says which of a label column's answers count; "" if there is none."""
    names = [f"{label}{STATUS}", f"{label.rpartition('.')[0]}{STATUS}"]
    return next((name for name in names if name in columns), "")


def judge(label: Any, status: Any, column: str, is_label: bool) -> tuple[Any, str]:
    """Return the label of a row, and why the row is left out; "" if it counts. The label is its
    cell, or a list with the answer of each person, and the status the cell of the column `column`,
    or a list with that of each answer. If the status is the label (`is_label`), only rows without a
    decision are left out."""
    statuses, answers = as_list(status), as_list(label)
    of_people = column.endswith(STATUS) and (answers or label in (None, "", []))
    if statuses is None and not of_people:
        said = word(column, status)
        left_out = _UNDECIDED.fullmatch(said) if is_label else is_left_out(said)
        return label, said if left_out else ""
    words = [word(column, one) for one in statuses or ()]
    given = [
        answer for answer, said in zip_longest(answers or (), words, fillvalue="")
        if answer not in (None, "") and not is_left_out(said)
    ]  # fmt: skip
    if given:
        agreed = _agreed(given)
        return agreed, "" if agreed is not None else DISAGREEMENT
    return None, next(filter(is_left_out, words), UNANSWERED)


def as_list(cell: Any) -> list[Any] | None:
    """Read a cell as a list, also one that a program has written, perhaps of lists; None if it is
    none."""
    said = read_cell(cell)
    if not isinstance(said, list) and isinstance(cell, str) and cell.startswith("[["):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            said = ast.literal_eval(cell)
    return cell if isinstance(cell, list) else said if isinstance(said, list) else None


def _agreed(answers: Sequence[Any]) -> Any:
    """Return the answer that more than half of some people gave; of lists of labels, the labels
    that more than half gave. None if there is none."""
    counts = Counter(json.dumps(answer, default=str) for answer in answers)
    most, count = counts.most_common(1)[0]
    if 2 * count > len(answers):
        return json.loads(most)
    if all(not isinstance(answer, list) or len(answer) == 1 for answer in answers):
        return None
    labels = Counter(label for answer in answers for label in dict.fromkeys(map(str, answer)))
    return [label for label, count in labels.items() if 2 * count > len(answers)] or None


def remarks(column: str, lines: Mapping[str, Sequence[int]]) -> list[Finding]:
    """Remark on the rows that were left out: reason -> their lines."""
    rejected = {said: own for said, own in lines.items() if said not in LOST}
    words = ", ".join(f"{said} ({len(own):,})" for said, own in rejected.items())
    titles = {
        "review": _(
            "Rows that did not pass review in {column!r}: {words}", column=column, words=words
        ),
        UNANSWERED: _("Rows that nobody has labelled"),
        DISAGREEMENT: _("Rows for which no label was given by more than half of the people"),
    }
    answers = {"review": [Remedy("status_column", NO_COLUMN, _("Use them too"))]}
    every = {**lines, "review": sorted(chain.from_iterable(rejected.values()))}
    return [
        remark(kind, title, _("They are left out."), every[kind], answers.get(kind, ()))
        for kind, title in titles.items()
        if every.get(kind)
    ]
