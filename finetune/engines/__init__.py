"""Engines carry out runs. Each engine is one module, listed in `registry`."""

__all__ = ["attempt", "base", "billed", "log_lines", "registry", "run_bucket", "spending"]
