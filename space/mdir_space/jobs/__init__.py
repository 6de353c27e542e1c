"""From questions to results: access, the queue, the process pool, and the jobs that run in it."""
