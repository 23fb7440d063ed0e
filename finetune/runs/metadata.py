"""What belongs to a run beside its configuration: whose it is, its group, and what is said of it.

Knows no file. Name, tags and note are a person's to change; the rest is set once.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from finetune import json_files
from finetune.errors import ConfigError

MOST = {"name": 120, "tags": 200, "note": 5000}  # characters, of all tags together


@dataclass(frozen=True, kw_only=True)
class RunMetadata:
    """The facts of `about.json`.

    Args:
        owner: whose run it is; empty on one's own machine.
        group: shared by the runs that repeat one configuration with other seeds; else empty.
        created: seconds since the epoch.
        pairs: what the person calls the files of an upload it is trained on.
        number: counts the runs that would have the same title, from 1.
        name: what the person calls it; empty for what its configuration says.
        tags: words to find it by.
        note: anything.
    """

    owner: str = ""
    group: str = ""
    created: float = 0.0
    pairs: str = ""
    number: int = 1
    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""

    def check(self) -> RunMetadata:
        """These facts, if a person's words are not too long.

        Raises:
            ConfigError: naming those that are.
        """
        sizes = {"name": len(self.name), "tags": sum(map(len, self.tags)), "note": len(self.note)}
        problems = {
            what: f"has {size:,} characters; at most {MOST[what]:,} are kept"
            for what, size in sizes.items()
            if size > MOST[what]
        }
        if problems:
            raise ConfigError(problems)
        return self

    def to_json(self) -> str:
        """The text of `about.json`."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> RunMetadata:
        """What can be read; where nothing can, a run that is nobody's and has no name.

        Never raises: a damaged file must not keep a person from their run on their own machine.
        """
        try:
            known = json_files.parse(text)
            kept: dict[str, Any] = {
                name: _typed(name, known[name]) for name in _FIELDS if name in known
            }
            return cls(**kept)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return cls()


_FIELDS = tuple(field.name for field in dataclasses.fields(RunMetadata))


def _typed(name: str, value: object) -> object:
    if name == "tags" and isinstance(value, list):
        return tuple(str(one) for one in value)
    if name == "created" and isinstance(value, (int, float)):
        return float(value)
    if name == "number" and isinstance(value, int):
        return value
    if name not in ("tags", "created", "number") and isinstance(value, str):
        return value
    raise TypeError(name)


def parse_tags(text: str) -> tuple[str, ...]:
    """The tags of a line: words with commas between, each once."""
    words = (" ".join(word.split()) for word in text.split(","))
    return tuple(dict.fromkeys(word for word in words if word))
