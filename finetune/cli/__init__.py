"""The command line: each command is a function of its name."""

__all__ = ["judge", "prepare", "search", "train", "use"]
