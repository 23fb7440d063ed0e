"""The search space: hyperparameters with ranges or choices of values."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from finetune.config import RunConfig, hyperparameters
from finetune.errors import ConfigError
from finetune.hyperparameter import Choices, Range
from finetune.messages import message as _

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Space = dict[str, Range | Choices]  # field of `RunConfig` -> its range or choices
DEFAULT = ("learning_rate", "num_train_epochs", "per_device_train_batch_size", "warmup_ratio")


def searchable() -> Space:
    """Return every searchable field, with its default range or choices."""
    return {name: field.search for name, field in hyperparameters().items() if field.search}


def default_space() -> Space:
    """Return the fields that matter in most runs."""
    return {name: searchable()[name] for name in DEFAULT}


def read_space(texts: Mapping[str, str]) -> Space:
    """Parse a space: field -> `1e-5..3e-4`, `8, 16, 32`, or empty for its usual range. ConfigError
    names every field that cannot be searched, and every invalid range."""
    space: Space = {}
    problems: dict[str, str] = {}
    for name, text in texts.items():
        if name not in searchable():
            known = ", ".join(searchable())
            problems[name] = _("cannot be searched; choose among {known}", known=known)
            continue
        try:
            space[name] = _read(name, text) if text.strip() else searchable()[name]
        except ConfigError as error:
            problems |= error.problems
    if not texts:
        problems["space"] = _("is empty; choose at least one hyperparameter to search")
    if problems:
        raise ConfigError(problems)
    return space


def check_space(space: Space, config: RunConfig) -> None:
    """Raise ConfigError if a value that may be drawn cannot be trained with, or has no effect."""
    idle = {
        "num_train_epochs": ("max_steps", config.max_steps > 0),
        "warmup_ratio": ("warmup_steps", config.warmup_steps > 0),
        "lora_r": ("use_lora", not config.use_lora),
    }
    for name, drawn in space.items():
        decides, is_idle = idle.get(name, ("", False))
        if is_idle:
            problem = _(
                "changes nothing while {name} is {value}; leave it out of the search",
                name=decides, value=getattr(config, decides),
            )  # fmt: skip
            raise ConfigError({name: problem})
        for value in (drawn.low, drawn.high) if isinstance(drawn, Range) else drawn:
            config.changed(**{name: value})


def _read(name: str, text: str) -> Range | Choices:
    if ".." in text:
        if hyperparameters()[name].kind is str:
            raise ConfigError({name: _("has no range: give values with commas between")})
        low, high = (_value(name, part) for part in text.split("..", 1))
        if low in (words := hyperparameters()[name].words):
            problem = _(
                "{value:g} means {word} and is no amount: begin the range above it",
                value=low, word=words[low],
            )  # fmt: skip
            raise ConfigError({name: problem})
        if not low < high:
            problem = _("{text!r} is no range: its end must be above its beginning", text=text)
            raise ConfigError({name: problem})
        usual = searchable()[name]
        return Range(low, high, isinstance(usual, Range) and usual.log and low > 0)
    values = [_value(name, part) for part in text.split(",") if part.strip()]
    if len(set(values)) < 2:
        problem = _("{text!r} leaves nothing to search: give a range or several values", text=text)
        raise ConfigError({name: problem})
    return tuple(dict.fromkeys(values))


def _value(name: str, text: str) -> Any:
    """Return a value of a field, checked as the form checks it."""
    return getattr(RunConfig().changed(**{name: text.strip()}), name)


def outside(space: Space, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values of a trial or a configuration that a search does not draw."""

    def draws(drawn: Range | Choices, value: Any) -> bool:
        return drawn.low <= value <= drawn.high if isinstance(drawn, Range) else value in drawn

    return {name: values[name] for name, drawn in space.items() if not draws(drawn, values[name])}


def around(space: Space, config: RunConfig) -> Space:
    """Move each usual range that leaves out the configuration's value: from half of it to one and a
    half, or the usual values and this one. Ranges that a person gave stay."""
    moved = dict(space)
    for name, value in outside(space, config.to_dict()).items():
        drawn = space[name]
        if drawn != searchable()[name]:
            continue
        if not isinstance(drawn, Range):
            moved[name] = tuple(sorted({*drawn, value}))
        elif value > 0:
            field = hyperparameters()[name]
            rounded = math.ceil if field.kind is int else float
            high = min(rounded(1.5 * value), field.high or math.inf)
            moved[name] = Range(rounded(value / 2), high, drawn.log)
    return moved


def describe_outside(space: Space, values: Mapping[str, Any]) -> str:
    """Describe values outside the space and the values drawn instead: `lora_r 4 (8, 16)`."""
    return ", ".join(f"{name} {value} ({describe(space[name])})" for name, value in values.items())


def describe(drawn: Range | Choices) -> str:
    """Format a range or values as `read_space` reads them."""
    if isinstance(drawn, Range):
        return f"{drawn.low:g}..{drawn.high:g}"
    return ", ".join(map(str, drawn))


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return the space as Optuna distributions."""
    from optuna import distributions as kinds

    made: dict[str, BaseDistribution] = {}
    for name, drawn in space.items():
        if not isinstance(drawn, Range):
            made[name] = kinds.CategoricalDistribution(drawn)
        elif hyperparameters()[name].kind is int:
            made[name] = kinds.IntDistribution(int(drawn.low), int(drawn.high), drawn.log)
        else:
            made[name] = kinds.FloatDistribution(drawn.low, drawn.high, drawn.log)
    return made


def number_problem(value: object, least: int, most: float = math.inf, whole: bool = False) -> str:
    """Return why a value is not a valid number; empty if it is one. True and false are rejected."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        what = _("a whole number") if whole else _("a number")
        return _("is {value}, and must be {what}", value=reprlib.repr(value), what=what)
    if most < math.inf and not least <= value <= most:
        return _(
            "is {value}, and must be from {least} to {most}", value=value, least=least, most=most
        )
    if not least <= value < math.inf:
        return _("is {value:g}, and must be {least} or more", value=value, least=least)
    return ""


@dataclass(frozen=True)
class Budget:
    """Budget of a search. 0 removes a limit; at least one must be set."""

    trials: int = 20  # complete or pruned runs
    minutes: float = 0.0  # of training, over all trials, after which no trial begins

    def __post_init__(self) -> None:
        problems = {
            name: problem
            for name, value in vars(self).items()
            if (problem := number_problem(value, 0, whole=name == "trials"))
        }
        if not problems and not any(vars(self).values()):
            problems["trials"] = _("is 0: give a number of trials or minutes")
        if problems:
            raise ConfigError(problems)
