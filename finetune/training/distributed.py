"""The processes of a run: their number, this one's role, and how they are started.

`accelerate launch` starts them. Imports no torch, because it is used before any heavy import.
"""

from __future__ import annotations

import os

from finetune import owners
from finetune.config import RunConfig
from finetune.errors import ConfigError, first_line
from finetune.messages import message as _


def is_single_process() -> bool:
    """True if this run has a single process."""
    return "WORLD_SIZE" not in os.environ  # set by torch's launcher


def is_main_process() -> bool:
    """True if this is the process that writes."""
    return os.environ.get("RANK", "0") == "0"


def check_accelerate_config(config: RunConfig) -> None:
    """Check that the Accelerate configuration file can be used, if one is named."""
    problem, name = "", config.accelerate_config
    if name and not owners.policy().owner_asks:
        problem = _("cannot be named here, where the files are not the visitors'; leave it empty")
    elif name and not os.path.isfile(name):
        problem = _("is {name!r}, and there is no such file", name=name)
    elif name:
        from accelerate.commands.config.config_args import load_config_from_file

        try:
            load_config_from_file(name)
        except Exception as error:  # errors of YAML, JSON, or of a value unknown to Accelerate
            problem = _(
                "is {name!r}, which `accelerate config` has not written: {reason}",
                name=name,
                reason=first_line(error).rstrip("."),
            )
    if problem:
        raise ConfigError({"accelerate_config": problem})


def is_lost_rank_error(error: BaseException) -> bool:
    """True if an error means that another process of the run has gone."""
    words = ("closed by peer", "reset by peer", "connection refused", "remote process exited")
    is_network = type(error).__name__.startswith("Dist")
    is_network = is_network or any(word in str(error).lower() for word in words)
    return is_network and not is_single_process()
