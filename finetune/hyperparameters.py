"""How a field of `RunConfig` is described, read from text and checked."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from finetune.messages import message as _

_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


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
    """One hyperparameter."""

    help: str  # one line: what it does and when to change it
    group: str  # the part of the form it belongs to
    kind: type  # bool, int, float or str
    choices: tuple[str, ...] = ()  # the values allowed, for a text
    low: float | None = None  # as for `Between`, for a number
    high: float | None = None
    usual: tuple[float, float] | None = None

    def read(self, value: Any) -> Any:
        """A value as a form or a file gives it, as the field's type: a number may come as text.

        Raises:
            ValueError: saying what it must be.
        """
        word = str(value).strip()
        if self.kind is bool and word.lower() in _BOOLEANS:
            return _BOOLEANS[word.lower()]
        if self.kind is str and isinstance(value, str):
            return word
        if self.kind in (int, float) and type(value) in (int, float, str):
            with contextlib.suppress(ValueError, OverflowError):
                number = float(value)
                if self.kind is float or number.is_integer():
                    return self.kind(number)
        raise ValueError(f"must be {_NOUNS[self.kind]}, got {_shorten(value)}")

    def problem(self, value: Any) -> str:
        """What is wrong with a value of the field's type; empty where it is allowed."""
        got = _shorten(value)
        if self.choices and value not in self.choices:
            choices = ", ".join(self.choices)
            return _("must be one of {choices}, got {value}", choices=choices, value=got)
        if isinstance(value, str) and (len(value) > 300 or not value.isprintable()):
            return _("must be printable text of at most 300 characters, got {value}", value=got)
        if self.low is None or self.high is None:
            return ""
        if not math.isfinite(value):
            return _("must be a finite number, got {value}", value=got)
        if value < self.low:
            return _("must be at least {bound:g}, got {value:g}", bound=self.low, value=value)
        if value > self.high:
            return _("must be at most {bound:g}, got {value:g}", bound=self.high, value=value)
        return ""


def hyperparameter(default: Any, group: str) -> Any:
    """A dataclass field that carries its group."""
    return dataclasses.field(default=default, metadata={"group": group})


def describe_field(field: dataclasses.Field[Any], annotation: Any, help: str) -> Knob:
    """The `Knob` of a field; its bounds and choices are in its annotation."""
    kind, details = annotation, {}
    if get_origin(annotation) is Annotated:
        kind, bounds = get_args(annotation)
        details = dataclasses.asdict(bounds)
    elif get_origin(annotation) is Literal:
        kind, details = str, {"choices": get_args(annotation)}
    return Knob(help, field.metadata["group"], kind, **details)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
