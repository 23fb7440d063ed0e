"""What a person chooses for an engine, as the form and the command line show it."""

from __future__ import annotations

from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from finetune.config import RunConfig, is_whole
from finetune.engines.base import HUB_JOB, LOCAL, RAY, Ticket
from finetune.errors import ConfigError, JobError
from finetune.messages import message as _

IMAGE = "python:3.12"


class _Options(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_other_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false, and as a whole number "1.000": pydantic takes them for 1."""
        whole = cls.model_fields[str(info.field_name)].annotation is int
        if isinstance(value, bool) or (whole and not is_whole(value)):
            what = _("a whole number") if whole else _("a number or a text")
            raise PydanticCustomError("kind", "must be {what}", {"what": what})
        return value


class HubJobOptions(_Options):
    """What a person chooses for a Hugging Face Job."""

    flavor: str = "cpu-upgrade"
    """The kind of machine; `hf jobs hardware` lists them with their prices."""
    minutes: int = Field(default=30, ge=1, le=7 * 24 * 60)
    """The job is ended after so many minutes, whatever it is doing."""
    price: float = Field(default=0.0, ge=0)
    """US dollars an hour, as they were shown; a job whose price is another by now is not begun."""
    namespace: str = ""
    """Whose account pays: your own where empty, or an organisation's."""
    image: str = IMAGE
    """The Docker image, one with Python 3.11 or later."""
    dollars_a_run: float = Field(default=1.0, ge=0)
    """What the run may cost at most, all its attempts together."""
    dollars_a_day: float = Field(default=5.0, ge=0)
    """What all your jobs of 24 hours may cost at most."""

    @property
    def most(self) -> float:
        """US dollars that a job costs which takes all its minutes."""
        return self.price * self.minutes / 60


class RayOptions(_Options):
    """What a person chooses for a Ray cluster."""

    address: str = ""
    """The Ray cluster, as HOST:PORT; that of the environment variable RAY_ADDRESS where empty."""
    nodes: int = Field(1, ge=1, le=64)
    """How many machines of the cluster the run's processes are spread over."""
    max_failures: int = Field(3, ge=0)
    """How often a run whose machine was lost goes on from its last checkpoint on others."""


# Values of fields whose packages are not in requirements.txt.
_NOT_INSTALLED = (
    ("report_to", "trackio"), ("report_to", "wandb"), ("optim", "adamw_bnb_8bit"),
    ("attn_implementation", "flash_attention_2"),
)  # fmt: skip
OPTIONS: dict[str, type[BaseModel]] = {HUB_JOB: HubJobOptions, RAY: RayOptions}


def check_config(config: RunConfig, ticket: Ticket) -> None:
    """See that a ticket's engine can carry out a run of this configuration."""
    if ticket.engine != LOCAL and config.accelerate_config:
        raise JobError(
            "accelerate_config is {file!r}, and no launcher reads it on another engine.",
            "Leave it empty.",
            file=config.accelerate_config,
        )
    if ticket.engine == HUB_JOB:
        problem = _("needs a package that a Hugging Face Job does not install")
        values = config.to_dict()
        if problems := {name: problem for name, value in _NOT_INSTALLED if values[name] == value}:
            raise ConfigError(problems)


def make_ticket(engine: str, values: dict[str, Any]) -> Ticket:
    """The ticket of an engine with these options, and the defaults of those not given.

    Raises:
        ConfigError: naming every one that is wrong.
    """
    if engine not in (LOCAL, *OPTIONS):
        known = ", ".join((LOCAL, *OPTIONS))
        raise ConfigError(
            {"engine": _("is {engine!r}; choose one of: {known}", engine=engine, known=known)}
        )
    if engine == LOCAL:
        unknown = _("is of another engine")
        if values:
            raise ConfigError(dict.fromkeys(values, unknown))
        return Ticket()
    try:
        return Ticket(engine=engine, options=OPTIONS[engine](**values).model_dump())
    except ValidationError as error:
        problems = {}
        for problem in error.errors():
            name, value = str(problem["loc"][0]), problem["input"]
            problems[name] = _("is {value!r}: {reason}", value=value, reason=problem["msg"].lower())
        raise ConfigError(problems) from error
