"""Texts that a page may show in another language than English."""

from __future__ import annotations


class Message(str):
    """An English text that remembers how it was made, so that it can be translated later.

    Attributes:
        template: the English text with placeholders, the key of a translation catalogue.
        values: for the placeholders.
    """

    template: str
    values: dict[str, object]

    def __new__(cls, template: str, /, **values: object) -> Message:
        text = super().__new__(cls, template.format(**values) if values else template)
        text.template, text.values = template, values
        return text


def message(template: str, /, **values: object) -> Message:
    """A text for whoever looks at the page; `pybabel extract` collects the templates.

    Args:
        template: the English text, with placeholders as `str.format` takes them.
        values: for the placeholders.
    """
    return Message(template, **values)
