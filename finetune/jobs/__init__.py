"""Background processes: the queue, the scheduler, the workers and each kind of job."""
