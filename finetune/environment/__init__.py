"""The machine: folders that can be written, accelerators, a Hugging Face Space."""
