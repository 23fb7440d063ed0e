"""Fills in the texts of `templates/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2


def environment(**options: Any) -> jinja2.Environment:
    """Return the environment of the templates: lines that only hold a tag leave no trace, and an
    unknown name is an error.

    Args:
        options: further ones of jinja2.
    """
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        **options,
    )
