"""The machine: writable folders, accelerators, a Hugging Face Space, safe logs."""
