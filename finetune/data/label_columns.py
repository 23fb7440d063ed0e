"""Label columns that are nested, or stand for several columns."""

from __future__ import annotations

from collections.abc import Container

from finetune.messages import message as _

# Why a column can be no sentence.
NESTED = _("is nested: it holds lists or objects, which only labels can be")
BETWEEN = " | "  # names of columns, as one label column


def parts_of(label: str, columns: Container[str]) -> list[str]:
    """Return the columns that a label column stands for, such as `toxic | insult`; none if it is a
    column itself, or names one that does not exist."""
    parts = [part.strip() for part in label.split(BETWEEN.strip())]
    several = label not in columns and len(parts) > 1
    return parts if several and all(part in columns for part in parts) else []
