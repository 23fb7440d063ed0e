"""What belongs to a run beside its configuration: its group, name, tags and note."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from finetune.errors import ConfigError
from finetune.messages import message as _

_LIMITS = {"name": 120, "tags": 200, "note": 5000}  # characters, of all tags together


class RunMetadata(BaseModel, frozen=True, defer_build=True):
    """The contents of `about.json`.

    Args:
        group: shared by the runs that repeat one configuration with other seeds; else empty.
        created: seconds since the epoch.
        pairs: what the person calls the files of an upload it is trained on.
        number: counts the runs that would have the same title, from 1.
        name: what the person calls it; empty for what its configuration says.
    """

    group: str = ""
    created: float = 0.0
    pairs: str = ""
    number: int = 1
    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""

    def check(self) -> RunMetadata:
        """Return these facts; raises `ConfigError` where a person's words are too long."""
        sizes = {"name": len(self.name), "tags": sum(map(len, self.tags)), "note": len(self.note)}
        problems = {
            name: _("has {n:,} characters; at most {limit:,} are kept", n=size, limit=_LIMITS[name])
            for name, size in sizes.items()
            if size > _LIMITS[name]
        }
        if problems:
            raise ConfigError(problems)
        return self

    @classmethod
    def from_json(cls, text: str) -> RunMetadata:
        """What a file says; nothing where it is damaged."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return cls()


def parse_tags(text: str) -> tuple[str, ...]:
    """The tags of a line: words with commas between, each once."""
    words = (" ".join(word.split()) for word in text.split(","))
    return tuple(dict.fromkeys(filter(None, words)))
