"""What is done for a visitor in a process of its own, under a bound on its memory, and what it tells meanwhile.

Everything here runs on the far side of a pipe. What is read there was written by strangers: a pattern that never ends,
or a file that unfolds to eleven gigabytes, ends with its process and with nothing else.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol, TypedDict, TypeVar

from mdir_hf import MdirError, ReadPlan
from mdir_hf.comparison.progress import Progress
from mdir_hf.names import visible_text
from mdir_space.access import Access

log = logging.getLogger(__name__)

BETWEEN_PROGRESS_S = 0.05
"""Bytes may arrive thousands of times a second, and the page looks ten times."""

NICENESS = 5
"""The page answers first where both want the processor."""


class OutOfMemoryError(MdirError):
    """The work needed more memory than it may have."""


class BrokenWorkError(Exception):
    """The work ended in a way that is not foreseen; what is known stands in this server's log."""


R_co = TypeVar("R_co", covariant=True)


class Task(Protocol[R_co]):
    """What is to be done. It travels to its process, and what it tells travels back."""

    @property
    def cap_bytes(self) -> int | None:
        """Most memory that the process may take on top of what it has when it starts; None: unbounded."""

    def do(self, tell: Tell) -> R_co:
        """Do it, and tell how far it is."""


@dataclass(frozen=True)
class SoFar:
    """What a job that goes on has found, in the form of its result."""

    result: object


@dataclass(frozen=True)
class Done:
    """The end, with what was asked for."""

    result: object


@dataclass(frozen=True)
class Failed:
    """The end, without it."""

    error: Exception = field(repr=False)


Event = ReadPlan | Progress | SoFar | Done | Failed
Tell = Callable[[Event], None]


def do_one(connection: Connection) -> None:
    """Receive a job, do it, and send what is to be told of it; then the process has nothing more to do."""
    lock = threading.Lock()

    def tell(event: Event) -> None:
        with lock:  # progress comes from any thread
            connection.send(event)

    try:
        job: Task[object] = connection.recv()
        if hasattr(os, "nice"):
            os.nice(NICENESS)
        bound_memory(job.cap_bytes)
        tell(Done(job.do(tell)))
    except MdirError as exc:
        tell(Failed(exc))
    except MemoryError:
        tell(Failed(OutOfMemoryError("more memory was needed than one may use")))
    except (BrokenPipeError, EOFError):
        pass  # whoever asked has gone
    except Exception as exc:
        # torch has no class of its own for it.
        if "can't allocate memory" in str(exc) or "not enough memory" in str(exc):
            tell(Failed(OutOfMemoryError("more memory was needed than one may use")))
            return
        where = visible_text(traceback.format_exc(), keeps_lines=True)  # names of strangers may be in it
        log.error("work for a visitor failed in a way that is not foreseen\n%s", where)
        tell(Failed(BrokenWorkError(type(exc).__name__)))


class Rights(TypedDict):
    """With whose rights models are read."""

    token: str | bool
    allow_local: bool
    use_caches: bool
    public_only: bool


def rights_of(access: Access, *, allow_local: bool) -> Rights:
    """Say how models are read: what a visitor's rights open stays with its owner, and is in no cache."""
    return Rights(
        token=access.token if access.token is not None else False,
        allow_local=allow_local,
        use_caches=not access.is_private,
        public_only=not access.is_private,
    )


def paced(tell: Tell) -> Callable[[Progress], None]:
    """Return a listener that tells of progress as often as the page looks, and of every new stage."""
    said, last = "", 0.0

    def progressed(progress: Progress) -> None:
        nonlocal said, last
        now = time.monotonic()
        if progress.stage != said or now - last >= BETWEEN_PROGRESS_S:
            said, last = progress.stage, now
            tell(progress)

    return progressed


def bound_memory(cap_bytes: int | None) -> None:
    """Bound what this process may take from now on, where the system can: Linux.

    What it has now (the interpreter, torch) does not count, and neither do files that are mapped to be read.
    """
    if cap_bytes is None or sys.platform != "linux":
        return
    import resource

    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now = int(fields["VmData"].split()[0]) * 1024
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = now + cap_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
