"""Engines carry out runs. Each other engine than this machine is one module, listed in `registry`."""

__all__ = ["attempt", "base", "registry", "run_bucket", "spending", "supervisor"]
