"""Objects within the rows of a JSON file, as cells of columns of their own.

`{"data": {"text": ...}, "annotations": [{"result": ...}]}` has the columns `text` and, of the
answers of people, `annotations.NAME` and `annotations.status`: a list each, with an answer and a
status of each person.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from finetune.data.review import STATUS

_OUTER = {"data", "fields", "inputs"}  # objects whose keys are columns by themselves
_ANSWERS = ("value", "label", "labels", "answer", "choice", "choices", "class", "category",
            "classname")  # fmt: skip
_DEEPEST = 5  # objects within each other
_SPAN = {"start", "end", "start_offset"}  # of a part of a text
_STATUSES = ("status", "answer", "state")


class Record(dict[str, Any]):
    """An object of a file as it is. `get` finds the cells of the objects within it, too."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.cells = cells_of(values)

    def get(self, name: str, default: Any = None) -> Any:
        return self.cells.get(name, default)


def is_nested(record: Mapping[str, Any]) -> bool:
    """True if an object has others within it."""
    return any(
        isinstance(cell, dict)
        or (isinstance(cell, list) and any(isinstance(one, dict) for one in cell))
        for cell in record.values()
    )


def cells_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of an object and of those within it, by the names of their columns."""
    cells: dict[str, Any] = {}
    for key, value in record.items():
        for name, cell in _cells(key, value):
            if name == key or name not in record:
                cells.setdefault(name, cell)
            elif cell != record[name]:
                cells[f"{key}.{name}"] = cell
    return cells


def _cells(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and not _is_cell(value) and depth < _DEEPEST:
        for key, inner in value.items():
            own = key if name in _OUTER else name if key in ("value", "values") else f"{name}.{key}"
            yield from _cells(own, inner, depth + 1)
    elif answers := _people(name, value):
        for question in dict.fromkeys(key for answer, _status in answers for key in answer):
            own = f"{name}.{question}" if question else name
            yield own, [answer.get(question) for answer, _status in answers]
        yield f"{name}{STATUS}", [status for _answer, status in answers]
    else:
        yield name, value


def _is_cell(value: Mapping[str, Any]) -> bool:
    """True for an object that says what one label is, or which ones there are."""
    cells = [*value.values()]
    if len(cells) == 1 and isinstance(cells[0], list):  # such as {"choices": [...]}
        return not any(isinstance(cell, dict | list) for cell in cells[0])
    return not any(isinstance(cell, str | dict | list) for cell in cells)


def _people(name: str, value: Any) -> list[tuple[dict[str, Any], str]]:
    """Return the answers of each person in a list of objects, by their questions, and if they
    count. Empty if these are no answers of people, such as predictions of a model."""
    if not isinstance(value, list) or is_of_model(name):
        return []
    people = []
    for one in value:
        if not isinstance(one, dict) or one.keys() & {*_SPAN, "score"}:
            return []
        answers = _answers_of(one)
        if answers is None:
            return []
        cancelled = one.get("was_cancelled") or one.get("skipped")
        given = (str(one[key]) for key in _STATUSES if isinstance(one.get(key), str))
        people.append((answers, "skipped" if cancelled else next(given, "given")))
    return people


def _answers_of(one: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a person answered, by question; the only one is called "". None if the object
    holds no answer."""
    if isinstance(results := one.get("result"), list):
        named = [
            row for row in results if isinstance(row, dict) and isinstance(row.get("value"), dict)
        ]
        return {
            str(row.get("from_name", "")): row["value"].get(row.get("type"))
            for row in named
            if not row["value"].keys() & _SPAN
        }
    if isinstance(values := one.get("values"), dict):
        return {
            key: cell.get("value") if isinstance(cell, dict) else cell
            for key, cell in values.items()
        }
    return next(({"": one[key]} for key in _ANSWERS if key in one), None)


def is_of_model(name: str) -> bool:
    """True if a column holds what a model suggests, or a draft, rather than what people say."""
    return any(word in name.lower() for word in ("suggest", "predict", "draft"))
