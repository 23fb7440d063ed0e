"""Pairs of any source, checked and split. `root` is everywhere the folder of `RunStore.root`."""

__all__ = [
    "catalog",
    "check_report",
    "checkpoints",
    "checks",
    "columns",
    "dataset_cache",
    "hub_access",
    "splits",
    "symmetry",
    "tables",
    "token_lengths",
]
