"""The machine: writable folders, accelerators, a Hugging Face Space, safe logs."""

__all__ = [
    "caches", "child_process", "confinement", "devices", "hub_connection", "landlock", "logs",
    "pace", "project", "usage",
]  # fmt: skip
