"""Which engine carries a run out, as flags of the command line."""

from __future__ import annotations

import argparse
import sys

from finetune.engines import spending
from finetune.engines.base import Ticket
from finetune.engines.options import OPTIONS, HubJobOptions, make_ticket
from finetune.engines.registry import LABELS, LOCAL, open_engine
from finetune.errors import JobError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose an engine and what it takes."""
    group = parser.add_argument_group("Where it is carried out")
    group.add_argument("--engine", choices=list(LABELS), help="this machine by default")
    for options in OPTIONS.values():
        for name, field in options.model_fields.items():
            if name != "price":  # which is asked for
                text = f"{field.description} (default: {field.default})"
                group.add_argument(f"--{name}", help=text.replace("%", "%%"))
    group.add_argument("--yes", action="store_true", help="agree to the price without a question")


def ticket_from_arguments(args: argparse.Namespace) -> Ticket | None:
    """The ticket that was asked for, with its price; None where none was.

    Raises:
        ConfigError: naming the options that are wrong.
    """
    if not args.engine or args.engine == LOCAL:
        return Ticket() if args.engine else None
    names = OPTIONS[args.engine].model_fields.keys() - {"price"}
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    ticket = make_ticket(args.engine, given)
    price = open_engine(ticket).price(ticket)
    return make_ticket(args.engine, given | {"price": price}) if price else ticket


def agree(args: argparse.Namespace, ticket: Ticket, search_dollars: float = 0.0) -> None:
    """Ask a person at the terminal whether a job may cost what it may; nothing that is not billed.

    Args:
        search_dollars: what the search may cost of which the job is a trial; 0 where it is none.

    Raises:
        JobError: where the price was not agreed to.
    """
    price = ticket.options.get("price")
    if not price:
        return
    options = HubJobOptions(**ticket.options)
    text = f"{ticket.place}: ${price:.2f} an hour; it stops by itself after {options.minutes} "
    text += f"minutes, at most ${spending.rounded_up(options.most):.2f}"
    if search_dollars:
        text += f", all trials together at most ${spending.rounded_up(search_dollars):.2f}"
    text += "."
    print(text, file=sys.stderr)
    if not args.yes and (not sys.stdin.isatty() or input("Start it? [y/N] ").lower() != "y"):
        raise JobError("The price was not agreed to.", "Answer y, or give --yes.")
