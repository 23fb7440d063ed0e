"""Background processes: the queue, the scheduler, the workers and each kind of job."""

__all__ = [
    "check", "cost", "evaluate", "export", "predict", "push", "run_table", "scheduler", "service",
    "tokens", "train",
]  # fmt: skip
