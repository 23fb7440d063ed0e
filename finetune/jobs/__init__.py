"""Background processes: the queue, the scheduler, the workers and each kind of job."""

__all__ = [
    "check",
    "compare",
    "cost",
    "evaluate",
    "export",
    "models",
    "predict",
    "probe",
    "push",
    "run_table",
    "scheduler",
    "service",
    "terminal",
    "tokens",
    "train",
    "workers",
]
