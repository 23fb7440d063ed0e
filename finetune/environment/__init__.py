"""The machine: folders that can be written, accelerators, a Hugging Face Space."""

__all__ = ["caches", "child_process", "devices", "hub_connection", "space"]
