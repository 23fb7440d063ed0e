"""Pairs of any source, checked and split. `root` is everywhere the folder of `RunStore.root`."""

__all__ = [
    "catalog",
    "check_report",
    "checkpoint_catalog",
    "checkpoint_files",
    "checkpoints",
    "checks",
    "columns",
    "csv_cells",
    "dataset_cache",
    "hub_access",
    "model_cache",
    "needed_files",
    "review",
    "splits",
    "symmetry",
    "table",
    "table_formats",
    "token_lengths",
    "tokenizer_fit",
    "truncation",
]
