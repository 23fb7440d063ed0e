"""How a field of `RunConfig` is described, read from text and checked."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin


@dataclass(frozen=True)
class Between:
    """The bounds of a number, both allowed.

    Args:
        usual: between which values nearly all runs lie; values beyond are remarked on, not refused.
    """

    low: float
    high: float
    usual: tuple[float, float] | None = None


@dataclass(frozen=True)
class Knob:
    """One hyperparameter.

    Args:
        help: one line: what it does and when to change it.
        group: the part of the form it belongs to.
        kind: bool, int, float or str.
        choices: the values allowed, for a text.
        low, high, usual: as for `Between`, for a number.
    """

    help: str
    group: str
    kind: type
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    usual: tuple[float, float] | None = None

    def read(self, value: Any) -> Any:
        """A value as a form or a file gives it, as the field's type: a number may come as text.

        Raises:
            ValueError: saying what it must be.
        """
        if self.kind is bool:
            words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
            if (word := str(value).strip().lower()) in words:
                return words[word]
            raise ValueError(f"must be true or false, got {_shorten(value)}")
        if self.kind is str:
            if isinstance(value, str):
                return value.strip()
            raise ValueError(f"must be a text, got {_shorten(value)}")
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ValueError
            number = float(value)
            if self.kind is float:
                return number
            if not number.is_integer():
                raise ValueError
            return int(number)
        except (ValueError, OverflowError):
            noun = "a whole number" if self.kind is int else "a number"
            raise ValueError(f"must be {noun}, got {_shorten(value)}") from None

    def problem(self, value: Any) -> str:
        """What is wrong with a value of the field's type; empty where it is allowed."""
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}, got {_shorten(value)}"
        if isinstance(value, str) and (len(value) > 300 or not value.isprintable()):
            return f"must be printable text of at most 300 characters, got {_shorten(value)}"
        if self.low is None or self.high is None:
            return ""
        if not math.isfinite(value):
            return f"must be a finite number, got {_shorten(value)}"
        if value < self.low:
            return f"must be at least {self.low:g}, got {value:g}"
        return f"must be at most {self.high:g}, got {value:g}" if value > self.high else ""


def hyperparameter(default: Any, help: str, group: str) -> Any:
    """A dataclass field that carries its help and its group."""
    return dataclasses.field(default=default, metadata={"help": help, "group": group})


def describe_field(field: dataclasses.Field[Any], annotation: Any) -> Knob:
    """The `Knob` of a field; its bounds and choices are in its annotation."""
    kind, details = annotation, {}
    if get_origin(annotation) is Annotated:
        kind, bounds = get_args(annotation)
        details = dataclasses.asdict(bounds)
    elif get_origin(annotation) is Literal:
        kind, details = str, {"choices": get_args(annotation)}
    return Knob(kind=kind, **field.metadata, **details)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
