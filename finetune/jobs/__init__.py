"""Background processes: the queue, the scheduler, the workers and each kind of job."""

__all__ = [
    "check",
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
    "train",
    "workers",
]
