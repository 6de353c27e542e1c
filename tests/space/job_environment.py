"""Runs jobs in the environment of the test that sends them: all tests of a process share one fork server."""

import importlib
import os

from mdir_space.jobs.job import run_job


class RunJobInThisEnvironment:
    """Runs a job in the environment of the moment when it is sent: all tests share one fork server."""

    def __reduce__(self):
        return _run_in, (dict(os.environ),)

    def __call__(self, connection):
        run_job(connection)  # where there is no fork server


def _run_in(environment):
    os.environ.clear()
    os.environ.update(environment)
    from huggingface_hub import constants

    importlib.reload(constants)  # the client reads the environment when it is imported
    return run_job
