"""JSON as a table: one object a line, or a single value in any of the layouts of pandas.

Objects within a row are cells of columns of their own. `{"data": {"text": ...}, "annotations":
[{"result": ...}]}` has the columns `text` and, of the answers of people, `annotations.NAME` and
`annotations.status`: a list each, with an answer and a status of each person.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from finetune import disk
from finetune.data import headers, review, table
from finetune.data.table import OnBadRow, ReadOptions, Rows
from finetune.data.text_tables import TextTable
from finetune.errors import DataError
from finetune.messages import message as _

MAX_JSON = 128 * 2**20  # characters of a JSON file, which is held in memory; JSONL has no limit
MAX_JSON_VALUES = 2**22  # values of a JSON file, about; each takes up to 100 bytes
_KEYED_ROWS = 1_000  # objects whose keys are the columns
_BLANK = "\ufeff \t\r\n"
_LISTS = ("data", "rows", "records", "examples", "items")  # keys of a list of rows
_OUTER = {"data", "fields", "inputs"}  # objects whose keys are columns by themselves
_ANSWERS = ("value", "label", "labels", "answer", "choice", "choices", "class", "category",
            "classname")  # fmt: skip
_DEEPEST = 5  # objects within each other
_SPAN = {"start", "end", "start_offset"}  # of a part of a text
_STATUSES = ("status", "answer", "state")


class JsonTable(TextTable):
    """JSON objects as rows, one a line or all in one value; the keys of the first ones are the
    columns. Rows may also be lists, of which the first may name the columns."""

    def __init__(self, path: Path, name: str, options: ReadOptions) -> None:
        super().__init__(path, name, options)
        self._names: list[str] = []  # of the columns, for rows that are lists
        self._repeats = headers.Repeats(())
        self._above = 0
        self._items = self._parse_whole()
        first = list(islice(self._values(lambda line, reason: None), _KEYED_ROWS))
        lists = [value for _line, value in first if _is_list_of_cells(value)]
        if lists and not self._names:  # neither are there keys beside them
            header_rows = [[table.cell_text(cell) for cell in row] for row in lists]
            header = headers.find_header(header_rows, options.header)
            self._name_columns(header.names(header_rows))
            self._names, self._above = self.columns, header.rows
            if header.named:
                self._repeats = headers.Repeats(header_rows[header.above])
            self.remarks += headers.remarks(self.name, header.above + 1, header, self.columns)
        rows = list(islice(self.rows(lambda line, reason: None), _KEYED_ROWS))
        cells: dict[str, list[Any]] = {}
        for _line, record in rows:
            inner = record.cells if isinstance(record, Record) else record
            self.inner |= inner.keys() - record.keys()
            for key, cell in inner.items():
                cells.setdefault(key, []).extend([] if cell is None else [cell])
        outer = {name.rpartition(".")[0] for name in cells}  # empty in some rows
        cells = {name: own for name, own in cells.items() if name not in outer or any(own)}
        self.columns = list(cells)
        self.nested = [key for key, own in cells.items() if own and all(map(_is_nested, own))]
        if not self.columns:
            raise DataError(
                "{name} has no line that is a JSON object.",
                "Write {example} a line, or [{example}, ...].",
                name=name,
                example='{"sentence1": ..., "sentence2": ..., "label": ...}',
            )

    def _parse_whole(self) -> list[Any] | None:
        """Parse a file that is one value into rows; None if it has a value on each line."""
        with self._open() as file:
            text = file.read(2**16)
            if not text.lstrip(_BLANK).startswith(("[", "{")):
                return None
            values_of_lines = 0
            for _line, first in islice(self._lines(), _KEYED_ROWS):
                with contextlib.suppress(ValueError):
                    parsed = disk.parse_json(first.strip(_BLANK))
                    values_of_lines += isinstance(parsed, (dict, list))
            if values_of_lines > 1:
                return None
            text += file.read(MAX_JSON)
        if len(text) > MAX_JSON or sum(map(text.count, "[{,")) > MAX_JSON_VALUES:
            raise DataError(
                "{name} has more JSON than is held in memory: at most {mebibytes} MiB and "
                "{max_json_values:,} values.",
                "Save it as JSONL, CSV or Parquet.",
                name=self.name,
                mebibytes=MAX_JSON // 2**20,
                max_json_values=MAX_JSON_VALUES,
            )
        try:
            value = disk.parse_json(text)
        except ValueError as error:
            if text.lstrip(_BLANK).startswith("{"):
                return None  # lines, which may be broken
            raise DataError(
                "{name} is not JSON: {error}.", "Upload it again.", name=self.name, error=error
            ) from error
        return value if isinstance(value, list) else self._rows_of_object(value)

    def _rows_of_object(self, value: dict[str, Any]) -> list[Any]:
        """The rows of a file that is one object: a list within it, or one of pandas' layouts."""
        names = value.get("columns")
        if isinstance(names, list) and isinstance(value.get("data"), list):  # split
            self._names = [str(name) for name in names]
            return list(value["data"])
        lists = {
            key: rows
            for key, rows in value.items()
            if isinstance(rows, list) and rows
            and all(isinstance(row, dict) or _is_list_of_cells(row) for row in rows[:10])
        }  # fmt: skip
        if chosen := next((key for key in _LISTS if key in lists), None) or (
            next(iter(lists)) if len(lists) == 1 else None
        ):
            schema, rows = value.get("schema"), list(lists[chosen])
            if isinstance(schema, dict) and schema.get("primaryKey") == ["index"]:  # table
                for row in rows:
                    if isinstance(row, dict):
                        row.pop("index", None)
            return rows
        parts = list(value.values())
        if parts and all(isinstance(part, list) for part in parts):
            if len({len(part) for part in parts}) == 1:  # a list a column
                return [dict(zip(value, cells, strict=True)) for cells in zip(*parts, strict=True)]
        elif parts and all(isinstance(part, dict) for part in parts):
            inner = list(dict.fromkeys(key for part in parts for key in part))
            # The keys outside are the columns, or those within.
            inside, outside = (all(key.isdigit() for key in keys) for keys in (inner, value))
            if inside if inside != outside else len(value) <= len(inner):
                return [{name: value[name].get(key) for name in value} for key in inner]
            return parts
        return [value]

    def _values(self, on_bad_row: OnBadRow) -> Iterator[tuple[int, Any]]:
        if self._items is not None:
            yield from enumerate(self._items, 1)
            return
        for number, line in self._lines(on_bad_row):
            if text := line.strip(_BLANK):
                try:
                    yield number, disk.parse_json(text)
                except ValueError as error:
                    on_bad_row(number, _("is not JSON: {error}", error=error))

    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        skip = self._above
        for line, value in self._values(on_bad_row):
            if self._names and _is_list_of_cells(value):
                if skip or [*map(table.cell_text, value)] in self._repeats:
                    skip = max(0, skip - 1)
                    continue
                if len(value) != len(self._names):
                    reason = _(
                        "has {count} fields where the first line has {width}",
                        count=len(value),
                        width=len(self._names),
                    )
                    on_bad_row(line, reason)
                    continue
                value = dict(zip(self._names, value, strict=True))
            if not isinstance(value, dict):
                on_bad_row(line, _("is not a JSON object"))
                continue
            if any(map(_has_objects, value.values())):
                value = Record(value)
            record = value if columns is None else {name: value.get(name) for name in columns}
            cells = record.cells if isinstance(record, Record) else record
            if any(map(table.is_too_long, cells.values())):
                on_bad_row(line, table.TOO_LONG)
            else:
                yield line, record


def _is_list_of_cells(value: Any) -> bool:
    """True for a list of at least two texts, numbers and nulls."""
    return isinstance(value, list) and len(value) > 1 and not any(map(_is_nested, value))


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)


class Record(dict[str, Any]):
    """An object of a file as it is. `get` finds the cells of the objects within it, too."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.cells: dict[str, Any] = {}  # by the names of their columns
        for key, value in values.items():
            for name, cell in _cells(key, value):
                if name == key or name not in values:
                    self.cells.setdefault(name, cell)
                elif cell != values[name]:
                    self.cells[f"{key}.{name}"] = cell

    def get(self, name: str, default: Any = None) -> Any:
        return self.cells.get(name, default)


def _has_objects(cell: Any) -> bool:
    """True for an object, and for a list with one."""
    return any(isinstance(one, dict) for one in (cell if isinstance(cell, list) else [cell]))


def _cells(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and not _is_cell(value) and depth < _DEEPEST:
        for key, inner in value.items():
            own = key if name in _OUTER else name if key in ("value", "values") else f"{name}.{key}"
            yield from _cells(own, inner, depth + 1)
    elif answers := _people(name, value):
        for question in dict.fromkeys(key for answer, _status in answers for key in answer):
            own = f"{name}.{question}" if question else name
            yield own, [answer.get(question) for answer, _status in answers]
        yield f"{name}{review.STATUS}", [status for _answer, status in answers]
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
    if not isinstance(value, list) or review.is_of_model(name):
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
