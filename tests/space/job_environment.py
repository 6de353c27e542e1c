"""Run jobs in the environment of the current test, since all tests of a process share one fork server."""

import importlib
import os

from mdir_space.jobs.job import run_job


class RunJobInThisEnvironment:
    """Runs a job in the environment at the time of sending, since all tests share one fork server."""

    def __reduce__(self):
        return _run_in, (dict(os.environ),)

    def __call__(self, connection):
        run_job(connection)  # without a fork server


def _run_in(environment):
    os.environ.clear()
    os.environ.update(environment)
    from huggingface_hub import constants

    importlib.reload(constants)  # the client reads the environment on import
    return run_job
