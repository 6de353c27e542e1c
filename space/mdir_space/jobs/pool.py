"""Run each job in its own process, and end the process when the job is stopped, times out or is done.

Python's fork server imports torch once, which takes seconds, and then forks a process for each job in milliseconds. The
server itself cannot be forked because it has threads.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar, cast

from mdir_hf import MdirError, ReadPlan
from mdir_hf.comparison.progress import Progress
from mdir_hf.errors import ByteBudgetError, GatedRepositoryError, RepositoryNotFoundError, StoppedError
from mdir_space.jobs.access import Access
from mdir_space.jobs.job import Event, Failed, Finished, Interim, Job, OutOfMemoryError, run_job
from mdir_space.jobs.memory import trim_heaps
from mdir_space.jobs.progress import TotalProgress

R = TypeVar("R")

PRELOADED = ["mdir_space.jobs.preload"]
POLL_S = 0.05
"""Longest delay until a stop or timeout takes effect."""

OPENING_BYTES = 512 << 20
"""Memory for headers, vocabularies and the Hub client, which plans do not include."""

EXIT_S = 5.0
"""Longest time to wait for a killed process to end."""


class JobTimeoutError(StoppedError):
    """The job exceeded its time limit."""


LIMIT_ERRORS = (ByteBudgetError, JobTimeoutError, OutOfMemoryError)
"""Errors after which interim results remain valid."""


def memory_cap(memory_bytes: int | None) -> int | None:
    """Return the memory limit of a process, given the limit of its plan; None for no limit."""
    return None if memory_bytes is None else memory_bytes + OPENING_BYTES


class ProcessPool:
    """Starts a process for each job. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")

    def warm_up(self) -> None:
        """Start the fork server, which imports the modules that jobs need."""
        if sys.platform != "linux":
            return
        from multiprocessing import forkserver

        with self._lock, _python_path():
            self._context.set_forkserver_preload(PRELOADED)
            forkserver.ensure_running()

    @contextmanager
    def running(self, job: Job[object]) -> Iterator[Connection]:
        """Run a job during the ``with`` block, then kill its process.

        Yields:
            The pipe with the events of the job, which closes when the process ends.
        """
        near, far = self._context.Pipe()
        try:
            process = self._start(far)
        except (EOFError, OSError):  # the fork server was killed; start another one
            time.sleep(POLL_S)
            process = self._start(far)
        far.close()
        try:
            with contextlib.suppress(BrokenPipeError):  # the reading end reports it
                near.send(job)
            yield near
        finally:
            process.kill()
            process.join(EXIT_S)
            near.close()
            trim_heaps()

    def _start(self, pipe: Connection) -> BaseProcess:
        self.warm_up()
        process: BaseProcess = self._context.Process(target=run_job, args=(pipe,), daemon=True)  # type: ignore[attr-defined]
        with self._lock, _python_path():  # restarts a fork server that was killed a moment ago
            process.start()
        return process


class JobRun(Generic[R]):
    """One run of a job. ``job_for`` returns the job, given how the models may be read.

    ``own_token`` is the visitor's token. It is used only if the job turns out to need it, for example for the gated
    base of a public adapter.

    Attributes:
        plan: The plan of the job, once the job has sent it.
        progress: Progress within the current stage.
        total: Progress of the whole job.
    """

    def __init__(
        self,
        access: Access,
        job_for: Callable[[Access], Job[R]],
        pool: ProcessPool,
        *,
        timeout_s: float | None = None,
        own_token: str | None = None,
    ) -> None:
        self.access = access
        self.plan: ReadPlan | None = None
        self.progress = Progress("opening", 0)
        self.total = TotalProgress()
        self.interim: R | None = None
        self._job_for, self._pool = job_for, pool
        self._timeout_s, self._own_token = timeout_s, own_token
        self._is_stopped = threading.Event()
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start of the job."""
        return time.monotonic() - self._started

    def stop(self) -> None:
        """Kill the process."""
        self._is_stopped.set()

    def run(self) -> R:
        """Run the job to completion, blocking.

        Raises:
            StoppedError: After :meth:`stop`.
            JobTimeoutError: If the job exceeds its time limit.
            OutOfMemoryError: If the job exceeds its memory limit, or its process is killed from outside.
            MdirError: If the job fails.
        """
        self._started = time.monotonic()
        try:
            return self._run_once()
        except (GatedRepositoryError, RepositoryNotFoundError):
            if self.access.is_private or self._own_token is None:
                raise
            self.access = replace(self.access, token=self._own_token, is_private=True, is_shared=False)
            return self._run_once()

    def _run_once(self) -> R:
        self._check()
        with self._pool.running(self._job_for(self.access)) as pipe:
            while True:
                event = self._next_event(pipe)
                if isinstance(event, Finished):
                    return cast("R", event.result)
                if isinstance(event, Failed):
                    raise event.error
                if event is not None:
                    self._update(event)
                self._check()

    def _next_event(self, pipe: Connection) -> Event | None:
        try:
            return cast("Event", pipe.recv()) if pipe.poll(POLL_S) else None
        except (EOFError, OSError) as exc:
            self._check()
            raise OutOfMemoryError("its process was killed, most likely because memory ran out") from exc

    def _update(self, event: Event) -> None:
        self.total.update(event)
        if isinstance(event, ReadPlan):
            self.plan = event
        elif isinstance(event, Progress):
            self.progress = event
        elif isinstance(event, Interim):
            self.interim = cast("R", event.result)

    def _check(self) -> None:
        if self._is_stopped.is_set():
            raise StoppedError("stopped by the visitor")
        if self._timeout_s is not None and self.seconds > self._timeout_s:
            raise JobTimeoutError(f"stopped after {self.seconds:.0f} s")


def hit_limit(exc: MdirError) -> bool:
    """Return whether a job ended because of a limit, so that its interim result is still valid."""
    return isinstance(exc, LIMIT_ERRORS)


@contextmanager
def _python_path() -> Iterator[None]:
    """Set PYTHONPATH inside the block, because the fork server has another import path before Python 3.14."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
