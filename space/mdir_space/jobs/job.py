"""A job: its inputs, its limits, and the events that it sends while it runs in its own process.

Jobs read files from strangers. A regular expression that never ends, or a file that unpacks to eleven gigabytes, can
only harm its own process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Generic, TypedDict, TypeVar

from mdir_hf import MdirError, ReadPlan
from mdir_hf.comparison.progress import Progress
from mdir_hf.names import visible_text
from mdir_space.jobs.access import Access

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 0.05
"""Minimum time between two progress events, since bytes may arrive thousands of times a second."""

NICENESS = 5
"""Niceness of jobs, so that the page has priority on the CPU."""

OUT_OF_MEMORY = "the job exceeded the memory limit"
R_co = TypeVar("R_co", covariant=True)


class OutOfMemoryError(MdirError):
    """The job exceeded its memory limit."""


class JobFailedError(Exception):
    """The job raised an unexpected error, whose traceback is in the log of this server."""


@dataclass(frozen=True)
class Interim:
    """An interim result of a running job, of the same type as the final one."""

    result: object


@dataclass(frozen=True)
class Finished:
    """The last event of a job that succeeds."""

    result: object


@dataclass(frozen=True)
class Failed:
    """The last event of a job that fails."""

    error: Exception = field(repr=False)


Event = ReadPlan | Progress | Interim | Finished | Failed
Emit = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class Job(ABC, Generic[R_co]):
    """Work for a visitor. It is pickled, runs in its own process, and sends events.

    Attributes:
        allow_local: Whether folders of this machine may be read.
        n_bytes: Limit on all bytes read, or None.
        memory_bytes: Limit on the planned memory of a comparison, or None.
        cap_bytes: Limit on the memory that the process takes in addition to its memory at startup, or None.
    """

    access: Access
    allow_local: bool = False
    n_bytes: int | None = None
    memory_bytes: int | None = None
    cap_bytes: int | None = None

    @abstractmethod
    def run(self, emit: Emit) -> R_co:
        """Run to completion, sending the plan, progress and interim results."""

    @property
    def read_options(self) -> ReadOptions:
        """Options for reading models. Private models are read without a cache."""
        return ReadOptions(
            token=self.access.token if self.access.token is not None else False,
            allow_local=self.allow_local,
            use_caches=not self.access.is_private,
            public_only=not self.access.is_private,
        )


class ReadOptions(TypedDict):
    """Keyword arguments for reading a model with the package."""

    token: str | bool
    allow_local: bool
    use_caches: bool
    public_only: bool


def run_job(connection: Connection) -> None:
    """Receive a job, run it, send its events, and end the process."""
    lock = threading.Lock()

    def emit(event: Event) -> None:
        with lock:  # progress may come from any thread
            connection.send(event)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the server, which then kills this process
    try:
        job: Job[object] = connection.recv()
        if hasattr(os, "nice"):
            os.nice(NICENESS)
        limit_memory(job.cap_bytes)
        emit(Finished(job.run(emit)))
    except MdirError as exc:
        emit(Failed(exc))
    except MemoryError:
        emit(Failed(OutOfMemoryError(OUT_OF_MEMORY)))
    except (BrokenPipeError, EOFError):
        pass  # the receiver is gone
    except Exception as exc:
        # torch raises RuntimeError if memory runs out.
        if "can't allocate memory" in str(exc) or "not enough memory" in str(exc):
            emit(Failed(OutOfMemoryError(OUT_OF_MEMORY)))
            return
        where = visible_text(traceback.format_exc(), keeps_lines=True)  # it may contain names that strangers chose
        log.error("a job failed with an unexpected error\n%s", where)
        emit(Failed(JobFailedError(type(exc).__name__)))


def throttled(emit: Emit) -> Callable[[Progress], None]:
    """Return a listener that sends every new stage, and progress within a stage at most every 0.05 s."""
    stage, sent = "", 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal stage, sent
        now = time.monotonic()
        if progress.stage != stage or now - sent >= PROGRESS_INTERVAL_S:
            stage, sent = progress.stage, now
            emit(progress)

    return on_progress


def limit_memory(cap_bytes: int | None) -> None:
    """Limit the additional memory that this process may take (Linux only).

    Its present memory (the interpreter, torch) and files mapped for reading are ignored.
    """
    if cap_bytes is None or sys.platform != "linux":
        return
    import resource

    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    limit = int(fields["VmData"].split()[0]) * 1024 + cap_bytes
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
