"""Texts that a page may show in other languages than English.

Errors, findings and other texts of the core are written in English and translated when the page
shows them (`finetune.ui.i18n.gettext`). In between they may be stored in a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator


class Message(str):
    """An English text that remembers its template and values.

    Attributes:
        template: the English text with placeholders, the key of a translation catalogue.
        values: for the placeholders; a value may be a `Message`, too.
    """

    template: str
    values: Mapping[str, object]

    def __new__(cls, template: str, /, **values: object) -> Message:
        for name, value in values.items():
            # Texts of libraries and of the operating system may end in a full stop of their own.
            is_text = isinstance(value, str | Exception) and not isinstance(value, Message)
            if is_text and re.search(rf"\{{{name}\}}\.(\s|$)", template):
                values[name] = str(value).rstrip(".")
        text = super().__new__(cls, template.format(**values) if values else template)
        text.template, text.values = template, values
        return text


def message(template: str, /, **values: object) -> str:
    """Make a `Message`; `pybabel extract` collects the templates of these calls."""
    return Message(template, **values)


def encode(value: Any, within: bool = False) -> Any:
    """Convert a value to JSON that keeps the template and values of each message. `within` another
    message, those without values are kept too, so that they are translated."""
    if isinstance(value, Message) and (value.values or within):
        return {"template": value.template, "values": encode(dict(value.values), True)}
    if isinstance(value, dict):
        return {name: encode(part, within) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [encode(part, within) for part in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def decode(value: Any) -> Any:
    """Restore the value given to `encode`; tuples become lists."""
    match value:
        case list():
            return [decode(part) for part in value]
        case {"template": str(template), "values": dict(values)}:
            return Message(template, **decode(values))
        case dict():
            return {name: decode(part) for name, part in value.items()}
    return value


def _decode_text(value: Any) -> str:
    if not isinstance(text := decode(value), str):
        raise ValueError(f"{value!r} is not a text")
    return text


# A field of a pydantic model or dataclass that keeps a message's template and values.
Text = Annotated[str, PlainValidator(_decode_text), PlainSerializer(encode)]
