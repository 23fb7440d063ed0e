"""Options, prices and limits shared by engines with billed machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from finetune.engines import spending
from finetune.engines.base import Engine, EngineOptions, EngineSpec, Shown, write_spec
from finetune.errors import JobError
from finetune.messages import message as _
from finetune.runs.run import Run


@dataclass(frozen=True)
class Machine:
    """A kind of machine, and its price in US dollars an hour."""

    name: str
    label: str
    price: float


class BilledOptions(EngineOptions):
    """Options of a billed engine."""

    flavor: Annotated[str, Shown(_("Machine"))] = ""
    """The kind of machine."""
    minutes: Annotated[int, Shown(_("Minutes at most"))] = Field(30, ge=1, le=7 * 24 * 60)
    """The job is ended after so many minutes, whatever it is doing."""
    price: float = Field(default=0.0, ge=0)
    """US dollars an hour, as they were shown; a job whose price is another by now is not begun."""
    dollars_a_run: Annotated[float, Shown(_("Dollars a run at most"))] = Field(1.0, ge=0)
    """What the run may cost at most, all its attempts together."""
    dollars_a_day: Annotated[float, Shown(_("Dollars a day at most"))] = Field(5.0, ge=0)
    """What all your jobs of 24 hours may cost at most."""

    @property
    def most(self) -> float:
        """Cost in US dollars of a job that uses all its minutes."""
        return self.price * self.minutes / 60


class BilledEngine(Engine):
    """An engine whose runs cost money. Its `submit` calls `reserve` before anything is billed. It
    notes an attempt's cost in `spending`."""

    is_billed = True
    Options: ClassVar[type[EngineOptions]] = BilledOptions
    usual_machine: ClassVar[str] = ""
    """What the page's form begins with, if it is offered."""

    def machines(self) -> list[Machine]:
        """Return the available machines, cheapest first."""
        raise NotImplementedError

    def price(self, spec: EngineSpec) -> float:
        machines = self.machines()
        for machine in machines:
            if machine.name == spec.machine:
                return machine.price
        raise JobError(
            "{engine}: there is no machine {flavor!r}.",
            "Choose one of: {flavors}.",
            engine=self.label,
            flavor=spec.machine,
            flavors=", ".join(machine.name for machine in machines),
        )

    def reserve(self, run: Run, spec: EngineSpec) -> None:
        """Note the maximum cost of the attempt.

        Raises:
            JobError: if that exceeds a limit, or the price differs from the one shown.
        """
        options, price = self.options(spec), self.price(spec)
        if abs(price - options.price) > 1e-6:
            # The next question shows the present price.
            shown = {**spec.options, "price": price}
            write_spec(run, spec.model_copy(update={"options": shown}))
            raise JobError(
                "{flavor} costs ${price:.2f} an hour, and was shown at ${shown:.2f}.",
                "Look at the new price and start again.",
                flavor=options.flavor,
                price=price,
                shown=options.price,
            )
        limits = options.dollars_a_run, options.dollars_a_day
        spending.reserve(run, spec.attempt, options.most, *limits)

    @classmethod
    def options(cls, spec: EngineSpec) -> BilledOptions:
        """Return the options of a spec."""
        options = cls.Options(**spec.options)
        assert isinstance(options, BilledOptions)
        return options
