"""Questions in, results out: who may read what, the queue, the process pool, and the jobs that run in it."""
