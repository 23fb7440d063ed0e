"""The machine: folders that can be written, accelerators, a Hugging Face Space, safe logs."""

__all__ = ["caches", "child_process", "devices", "hub_connection", "logs", "project", "space"]
