"""The command line: one module a command, each with a `main`."""

__all__ = ["check", "deploy", "evaluate", "export", "predict", "search", "train"]
