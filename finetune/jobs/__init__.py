"""Background processes: the queue, the scheduler, the workers, the engines and each kind of job."""

__all__ = [
    "check", "cost", "engines", "evaluate", "export", "predict", "push", "run_table", "scheduler",
    "search", "service", "train",
]  # fmt: skip
