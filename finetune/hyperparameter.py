"""How a hyperparameter is declared, and what is wrong with a value of it, in words for people."""

import re
import reprlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from finetune.messages import message as _
from finetune.metrics.catalog import METRICS, OPTIONAL

FOLDS, MOST_FOLDS = 5, 10  # if offered; at most
_LEAST_RATE = 1e-8  # learning rate
_NOUNS = {
    bool: _("true or false"),
    int: _("a whole number"),
    float: _("a number"),
    str: _("a text"),
}
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)", re.ASCII)
_WORDS = {  # besides a single character
    "delimiter": ("tab", "space"),
    "quote": ("none", "escaped"),
    "label_separator": ("auto", "none", "newline", "tab", "space", "list"),
}
_LONGEST = {"label_column": 3000}  # characters, if not 300: it may name many columns


@dataclass(frozen=True)
class Range:
    """Numbers from which a search draws, uniformly or, with `log`, uniformly in their logarithm."""

    low: float
    high: float
    log: bool = False


Choices = tuple[Any, ...]  # values from which a search draws


@dataclass(frozen=True)
class Hyperparameter:
    """A field of `RunConfig`: its label, help and allowed values."""

    help: str
    kind: type  # bool, int, float or str
    choices: tuple[str, ...]  # the values allowed, for a text
    group: str  # the part of the form it belongs to
    low: float | None  # for a number, like `high`; both are allowed
    high: float | None
    label: str  # in the form; by default the field's name
    usual_range: tuple[float, ...] = ()  # of nearly all runs: others are reported, not refused
    search: Range | Choices = ()  # what a search draws from; empty if it leaves the field alone
    several: bool = False  # a text of several values, with blanks between them
    # Values that are no amounts -> what they mean; in a form the first is an empty box.
    words: Mapping[Any, str] = field(default_factory=dict)

    def refusal_of_kind(self, value: Any) -> str:
        """Refuse a boolean for a number, and a text such as "1.000" for an integer: pydantic reads
        it as 1, some people as a thousand. "" if there is nothing to refuse."""
        wrong = isinstance(value, bool) and self.kind is not bool
        if wrong or (self.kind is int and not is_whole(value)):
            got = str(value).lower() if isinstance(value, bool) else reprlib.repr(value)
            return _("must be {what}, got {value}", what=_NOUNS[self.kind], value=got)
        return ""

    def explain(self, error: Any) -> str:
        """Say what is wrong with a value and what is allowed, from one of pydantic's errors."""
        value, context, got = error["input"], error.get("ctx", {}), reprlib.repr(error["input"])
        match error["type"]:
            case "value_error":  # of our own
                return context["error"].args[0]  # type: ignore[no-any-return]
            case "literal_error":
                choices = ", ".join(self.choices)
                return _("must be one of {choices}, got {value}", choices=choices, value=got)
            case "finite_number":
                return _("must be a finite number, got {value}", value=got)
            case "greater_than_equal":
                low = context["ge"]
                while low < 0 or (self.kind is int and low in self.words):  # that is no amount
                    low += 1
                return _("must be at least {bound:g}, got {value:g}", bound=low, value=float(value))
            case "less_than_equal":
                high = context["le"]
                return _("must be at most {bound:g}, got {value:g}", bound=high, value=float(value))
        if isinstance(value, str) and "," in value and self.kind is float:
            return _(
                "must be a number with a point before its decimals and no commas, got {value}",
                value=got,
            )
        return _("must be {what}, got {value}", what=_NOUNS[self.kind], value=got)


def declare(group: str, default: Any, *bounds: float, **details: Any) -> Any:
    """Declare a field of `RunConfig`. `details` are of its `Hyperparameter`; `bounds` are the
    lowest and the highest value of a number."""
    low, high = bounds or (None, None)
    details |= {"group": group, "low": low, "high": high}
    return Field(default, ge=low, le=high, json_schema_extra=details)


def value_problem(name: str, value: Any, others: Mapping[str, Any]) -> str:
    """Say why a value within its bounds cannot be used; `others` are of the fields before it."""
    match name:
        case "use_lora" if value and others.get("frozen_layers"):
            return _("already freezes the model; set its frozen layers to 0")
        case "dropout" if -1 < value < 0:
            return _("must be from 0 to 0.9, got {dropout:g}", dropout=value)
        case "learning_rate" if 0 < value < _LEAST_RATE:
            return _(
                "must be 0 or at least {least:g}, got {value:g}", least=_LEAST_RATE, value=value
            )
        case "max_steps" if value == 0:
            return _("must be at least 1, got 0; leave it out for no limit")
        case "folds" if value == 1:
            return _("must be from 2 to {most}, got 1", most=MOST_FOLDS)
        case "folds" if value and (clash := _picks_by_folds(others)):
            return _(
                "is {folds}: every row is scored once, nothing is picked; leave {name} out",
                folds=value, name=clash,
            )  # fmt: skip
        case "fold" if value > (folds := others.get("folds", value)):
            return _("is {fold}, and there are {folds} folds", fold=value, folds=folds)
        case "delimiter" | "quote" | "label_separator" if (
            len(value) > 1 and value not in _WORDS[name]
        ):
            return _(
                "must be one character or one of {words}, got {value}",
                words=", ".join(_WORDS[name]), value=reprlib.repr(value),
            )  # fmt: skip
        case "dataset" | "checkpoint" if not value:
            return _("is empty; choose one")
        case "metrics" if wrong := _first_wrong(value, lambda each: each in METRICS or "/" in each):
            return _(
                "must be names out of {names}, folders or owner/name, got {value}",
                names=", ".join(metric.name for metric in OPTIONAL), value=reprlib.repr(wrong),
            )  # fmt: skip
        case "score_cut" if value and not _NUMBER.fullmatch(value):
            return _("must be a number, got {value}", value=reprlib.repr(value))
        case "label_map" if wrong := _first_wrong(value, lambda change: "=" in change[1:]):
            return _(
                "must be changes such as old=new, quoted if they have spaces, got {entry!r}",
                entry=wrong,
            )
    most = _LONGEST.get(name, 300)
    if isinstance(value, str) and (len(value) > most or not value.isprintable()):
        return _(
            "must be printable text of at most {most:,} characters, got {value}",
            most=most, value=reprlib.repr(value),
        )  # fmt: skip
    return ""


def _picks_by_folds(values: Mapping[str, Any]) -> str:
    """The first field that makes a run depend on scores of the rows it holds out; "" if none."""
    picks = {
        "early_stopping_patience": values.get("early_stopping_patience", 0) > 0,
        "lr_scheduler_type": values.get("lr_scheduler_type") == "reduce_lr_on_plateau",
        "max_eval_samples": values.get("max_eval_samples", 0) > 0,
    }
    return next((name for name, found in picks.items() if found), "")


def _first_wrong(text: str, is_right: Callable[[str], bool]) -> str:
    """The first wrong word of a text; "" if none, the text if a quotation mark is not closed."""
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    return next((word for word in words if not is_right(word)), "")


def is_whole(value: object) -> bool:
    """False for a text that is not written as a whole number; other values may be one."""
    return not isinstance(value, str) or re.fullmatch(r"\s*[+-]?\d+\s*", value) is not None
