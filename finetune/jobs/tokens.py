"""Hub tokens of runs and searches on other engines, by their ids. They are kept in memory only."""

from __future__ import annotations

_tokens: dict[str, str] = {}


def keep(id: str, token: str) -> None:
    """Keep a token while this process lives; an empty one is not kept."""
    if token:
        _tokens[id] = token


def kept(id: str) -> str:
    """Return the token of a run or a search; empty if none is kept."""
    return _tokens.get(id, "")
