"""What a click on Train will cost, in words: an `Estimate` as HTML. All text escaped."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from finetune import arguments, config
from finetune.config import RunConfig
from finetune.environment import devices
from finetune.jobs.cost import Estimate, Memory, Steps, Time, Uncut
from finetune.ui.i18n import gettext
from finetune.ui.run_view import duration

# The command stays unfolded when the form is changed.
SCRIPT = """
let open = false;
element.addEventListener('toggle', (event) => {
  if (event.target.matches('.ft-command')) open = event.target.open;
}, true);
watch('value', () => {
  const command = element.querySelector('.ft-command');
  if (command && command.open !== open) command.open = open;
});
"""
_TIGHT = 0.8  # of a machine's memory, from which on it is said that it may not be enough
_MUCH_CUT = 0.05


@dataclass(frozen=True)
class GridCost:
    """Several runs of one click.

    Args:
        runs: how many.
        seconds: all of them take; None where one is unknown.
    """

    runs: int
    seconds: float | None


def costs(
    found: Estimate,
    chosen: RunConfig,
    together: GridCost | None = None,
    files: Mapping[str, str] | None = None,
    runs: str = "",
) -> str:
    """The consequences of pressing Train, a line each, values that are seldom right, and the
    command that does the same.

    Args:
        together: where one click queues several runs.
        files: split -> a person's own file, where the pairs are some.
        runs: the folder of runs, for the command; empty where it need not be told.
    """
    facts = [
        _fact(gettext("Steps"), *_steps(found.steps, chosen)),
        _fact(gettext("Time"), *_time(found.time, together, found.steps is None)),
        _fact(gettext("Memory"), *_memory(found.memory, found.parameters)),
        _fact(gettext("Length"), *_cut(found, chosen)),
    ]
    label = html.escape(gettext("What a click on Train will take"))
    listed = f'<dl class="ft-costs" aria-label="{label}">{"".join(facts)}</dl>'
    return listed + _unusual(chosen) + ("" if together else _command(chosen, files, runs))


def cost_placeholder(found: Estimate, chosen: RunConfig) -> str:
    """The place that they will take, with nothing to see or to hear."""
    return f'<div style="visibility:hidden" aria-hidden="true">{costs(found, chosen)}</div>'


def _command(chosen: RunConfig, files: Mapping[str, str] | None, runs: str) -> str:
    said = html.escape(gettext("The same from a terminal"))
    line = html.escape(arguments.command(chosen, files, runs))
    return (
        f'<details class="ft-command"><summary>{said}</summary>'
        f'<pre tabindex="0" aria-label="{said}"><code>{line}</code></pre></details>'
    )


def _unusual(chosen: RunConfig) -> str:
    """Values that are allowed and seldom meant."""
    found = []
    for name, knob in config.knobs().items():
        value = getattr(chosen, name)
        if knob.usual and not knob.usual[0] <= value <= knob.usual[1]:
            low, high = knob.usual
            told = {"name": name, "value": value, "low": low, "high": high}
            found.append(gettext("{name} is {value:g}; {low:g} to {high:g} is usual.", **told))
    return f'<p class="ft-said ft-warn">{html.escape(" ".join(found))}</p>' if found else ""


def _fact(name: str, value: str, more: str, warns: bool = False) -> str:
    kind = ' class="ft-tight"' if warns else ""
    mark = '<span aria-hidden="true">\u26a0 </span>' if warns else ""
    return (
        f"<div{kind}><dt>{html.escape(name)}</dt><dd><b>{mark}{html.escape(value)}</b> "
        f"<span>{html.escape(more)}</span></dd></div>"
    )


def _steps(steps: Steps | None, chosen: RunConfig) -> tuple[str, str]:
    if steps is None:
        if chosen.max_steps > 0:
            return f"{chosen.max_steps:,}", gettext("as max_steps says.")
        more = gettext("How many pairs there are is known once they are examined under Data.")
        return _unknown(), more
    pairs, total = f"{steps.pairs:,}", f"{steps.total:,}"
    if steps.about:
        pairs = gettext("about {amount}", amount=pairs)
    made = gettext("{pairs} pairs, {steps:,} steps an epoch", pairs=pairs, steps=steps.per_epoch)
    if chosen.max_steps > 0:
        text = gettext("{made}: {n:.2g} epochs, as max_steps says.", made=made, n=steps.epochs)
        return total, text
    text = gettext("{made}, {n} epochs.", made=made, n=chosen.num_train_epochs)
    if chosen.num_train_epochs == 1:
        text = gettext("{made}, 1 epoch.", made=made)
    if chosen.early_stopping_patience:
        text += " " + gettext("Early stopping may end it sooner.")
    return gettext("about {amount}", amount=total) if steps.about else total, text


def _time(time: Time | None, together: GridCost | None, stepless: bool) -> tuple[str, str]:
    if time is None:
        if stepless:
            return _unknown(), gettext("until the pairs are counted: examine them under Data.")
        return _unknown(), gettext("until the first steps: no run here was like this one.")
    value = gettext("about {amount}", amount=duration(time.seconds))
    if not time.same_pairs:
        value = gettext("roughly {amount}", amount=_round(time.seconds))
    if together is not None:
        whole = duration(together.seconds) if together.seconds is not None else _unknown()
        value = gettext("{one}; all {n} runs {whole}", one=value, n=together.runs, whole=whole)
    told = {"rate": time.rate, "run": time.run, "device": time.device}
    if time.same_pairs:
        text = gettext(
            "at the {rate:,.0f} samples/s of {run}, on the same pairs, {device}.", **told
        )
    elif time.tokens is not None:
        there, here = time.tokens
        text = gettext(
            "from the {rate:,.0f} samples/s of {run}, whose examples had about {there:.0f} tokens "
            "where these have {here:.0f}; {device}.",
            there=there, here=here, **told,
        )  # fmt: skip
    else:
        text = gettext(
            "from the {rate:,.0f} samples/s of {run} on other pairs, perhaps longer or shorter "
            "ones; {device}.",
            **told,
        )
    return value, text


def _round(seconds: float) -> str:
    """A duration that is not known to the second: `10 s`, `2 min`, `1 h 30 min`."""
    if seconds < 50:
        return duration(max(5, 5 * round(seconds / 5)))
    if seconds < 3570:
        return f"{max(1, round(seconds / 60))} min"
    return duration(600 * round(seconds / 600))


def _memory(memory: Memory | None, parameters: int | None) -> tuple[str, str, bool]:
    known = _count(parameters) if parameters else ""
    if memory is None:
        missing = gettext("The checkpoint is not on this disk yet.")
        if known:
            missing = gettext(
                "{parameters}; how its layers are made is not known.", parameters=known
            )
        return _unknown(), missing, False
    value, tight = gettext("about {amount}", amount=_size(memory.total)), False
    if not devices.list_accelerators():
        whole = psutil.virtual_memory().total
        tight = memory.total > _TIGHT * whole
        value = gettext(
            "about {size} of {whole} here", size=_size(memory.total), whole=_size(whole)
        )
    text = gettext(
        "{parameters}: weights {weights}, activations {activations}.",
        parameters=known,
        weights=_size(memory.weights),
        activations=_size(memory.activations),
    )
    if tight:
        text += " " + gettext("Lower the batch size or max_length.")
    return value, text, tight


def _cut(found: Estimate, chosen: RunConfig) -> tuple[str, str, bool]:
    cut, max_length = found.cut, chosen.max_length
    if cut is None:
        return _unknown(), _why_uncut(found.uncut, chosen.checkpoint), False
    if not cut.share and cut.about:
        told = {"max_length": max_length, "n": cut.longest}
        text = gettext(
            "max_length is {max_length}, the longest of a sample has {n:,} tokens.", **told
        )
        return gettext("hardly anything is cut"), text, False
    if not cut.share:
        told = {"max_length": max_length, "n": cut.longest}
        text = gettext("max_length is {max_length}, the longest has {n:,} tokens.", **told)
        return gettext("nothing is cut"), text, False
    share = f"{cut.share:.0%}" if cut.share >= 0.01 else gettext("less than 1%")
    if cut.about:
        share = gettext("about {amount}", amount=share)
    said = gettext("max_length {max_length} cuts {share} of the pairs", max_length=max_length,
               share=share)  # fmt: skip
    return said, gettext("The longest has {n:,} tokens.", n=cut.longest), cut.share > _MUCH_CUT


def _why_uncut(why: Uncut, checkpoint: str) -> str:
    """Why it is not known how many pairs are cut, and what to press."""
    if why == "asked":
        return gettext("A part of the pairs is measured now.")
    if why == "checkpoint":
        return gettext(
            "The tokenizer of {checkpoint} is not on this disk: press Examine under Data to fetch "
            "it and measure.",
            checkpoint=checkpoint,
        )
    if why == "tokenizer":
        return gettext(
            "The tokenizer of {checkpoint} is not quick to use: press Examine under Data to "
            "measure.",
            checkpoint=checkpoint,
        )
    return gettext("Examine the pairs under Data to see how many max_length cuts.")


def _unknown() -> str:
    return gettext("unknown")


def _size(count: int) -> str:
    """`840 MB`, `1.4 GB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _count(number: int) -> str:
    """`23 million parameters`, `1.5 billion parameters`."""
    if number >= 1e9:
        return gettext("{n:.1f} billion parameters", n=number / 1e9)
    if number >= 1e6:
        return gettext("{n:.0f} million parameters", n=number / 1e6)
    return gettext("{n:,} parameters", n=number)
