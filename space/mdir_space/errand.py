"""A job that is done in a process, seen from the server: listened to, and ended when it is told to or is late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar, cast

from mdir_hf import MdirError
from mdir_hf.errors import ByteBudgetError, StoppedError
from mdir_space.processes import LostError, Processes
from mdir_space.work import Done, Event, Failed, OutOfMemoryError, Task

R = TypeVar("R")

LISTEN_S = 0.05
"""How long it takes at most to notice that it was stopped, or that its time is over."""

OPENING_BYTES = 512 << 20
"""What a process may take beside what its plan states: headers, vocabularies, the client of the Hub."""


class OutOfTimeError(StoppedError):
    """The work took longer than it may."""


LIMITS = (ByteBudgetError, OutOfTimeError, OutOfMemoryError)
"""What ends work that was going well."""


def was_going_well(exc: MdirError) -> bool:
    """Tell whether work ended because of a limit, so that what was found before it still holds."""
    return isinstance(exc, LIMITS)


def cap_of(memory_bytes: int | None) -> int | None:
    """Return the most memory that a process may take whose plan may ask for so much; None: unbounded."""
    return None if memory_bytes is None else memory_bytes + OPENING_BYTES


class Errand:
    """Runs jobs, one after the other, until it is stopped.

    Args:
        processes: Where they are done.
        listen: Called with what they tell before their end.
    """

    def __init__(self, processes: Processes, listen: Callable[[Event], None]) -> None:
        self._processes = processes
        self._listen = listen
        self._is_stopped = threading.Event()
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started

    def start(self) -> None:
        """Count the seconds from now on."""
        self._started = time.monotonic()

    def stop(self) -> None:
        """End its process, whatever that is doing."""
        self._is_stopped.set()

    def run(self, job: Task[R], seconds: float | None) -> R:
        """Have a job done; blocks.

        Args:
            job: It.
            seconds: How long it may take from the start; None: for ever.

        Returns:
            What it is for.

        Raises:
            StoppedError: After :meth:`stop`.
            OutOfTimeError: If it took too long.
            OutOfMemoryError: If it took too much memory, or its process was ended from outside.
            MdirError: If it cannot be done.
        """
        self._check(seconds)
        with self._processes.working_on(job) as process:
            while True:
                try:
                    event = process.hear(LISTEN_S)
                except LostError as exc:
                    self._check(seconds)
                    raise OutOfMemoryError("its process was ended, most likely for want of memory") from exc
                if isinstance(event, Done):
                    return cast("R", event.result)
                if isinstance(event, Failed):
                    raise event.error
                if event is not None:
                    self._listen(event)
                self._check(seconds)

    def _check(self, seconds: float | None) -> None:
        if self._is_stopped.is_set():
            raise StoppedError("stopped by the visitor")
        if seconds is not None and self.seconds > seconds:
            raise OutOfTimeError(f"stopped after {self.seconds:.0f} s")
