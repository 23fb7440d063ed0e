"""Where a run is carried out: on this machine, as a Hugging Face Job, or on a Ray cluster."""

__all__ = [
    "arguments",
    "attempt",
    "base",
    "frames",
    "hub_jobs",
    "mailbox",
    "options",
    "ray_files",
    "registry",
    "spending",
]
