"""A run on disk: its folder, its events, and the state they add up to."""

__all__ = [
    "events",
    "grids",
    "job_folder",
    "names",
    "pair_index",
    "queue",
    "run",
    "store",
    "summary",
]
