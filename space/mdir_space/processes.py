"""Processes that work for visitors, seen from the server: started, listened to, and ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Protocol

from mdir_space.nursery import END, ORDER, START
from mdir_space.work import Event, Task, do_one


class LostError(Exception):
    """A process ended before its work was done."""


class Process(Protocol):
    """Somebody at work, at the other end of a pipe."""

    def hear(self, timeout_s: float) -> Event | None:
        """Return the next thing told; None: nothing was told for so long.

        Raises:
            LostError: If the process has ended and nothing more will come.
        """


class Processes:
    """Starts processes. On Linux they are children of one that has everything imported (a nursery). Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nursery: Nursery | None = None

    def warm_up(self) -> None:
        """Begin to import what processes need; the first of them is quicker then."""
        if sys.platform == "linux":
            with self._lock:
                self._running()

    @contextmanager
    def working_on(self, job: Task[object]) -> Iterator[Process]:
        """Have a process work on a job while the block runs; at its end the process is ended, whatever it does."""
        if sys.platform == "linux":
            with self._lock:
                nursery = self._running()
                connection, number = nursery.start()
            end: Callable[[], None] = partial(nursery.end, number)
        else:
            context = multiprocessing.get_context("spawn")
            connection, far = context.Pipe()
            process = context.Process(target=do_one, args=(far,), daemon=True)
            process.start()
            far.close()
            end = process.kill
        try:
            with contextlib.suppress(BrokenPipeError):  # it says so when it is listened to
                connection.send(job)
            yield _Listened(connection)
        finally:
            end()
            connection.close()

    def _running(self) -> Nursery:
        if self._nursery is None or not self._nursery.is_alive:
            self._nursery = Nursery()
        return self._nursery


class _Listened:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def hear(self, timeout_s: float) -> Event | None:
        try:
            if not self._connection.poll(timeout_s):
                return None
            event: Event = self._connection.recv()
        except (EOFError, OSError) as exc:
            raise LostError("the process has ended") from exc
        return event


class Nursery:
    """The server's end of :mod:`mdir_space.nursery`. It ends with this object, and with the server."""

    def __init__(self) -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = "import sys; from mdir_space.nursery import serve; serve(int(sys.argv[1]))"
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-c", script, str(far.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for the server
            )
        self._control = near
        self._n_started = 0
        self._finalizer = weakref.finalize(self, _close, near, self._process)

    @property
    def is_alive(self) -> bool:
        """Whether it can have children."""
        return self._process.poll() is None

    def start(self) -> tuple[Connection, int]:
        """Start a child; return the pipe to it, and its number."""
        near, far = multiprocessing.Pipe()
        self._n_started += 1
        with far:
            socket.send_fds(self._control, [ORDER.pack(START, self._n_started)], [far.fileno()])
        return near, self._n_started

    def end(self, number: int) -> None:
        """End a child; one that has ended is not missed."""
        with contextlib.suppress(OSError):
            self._control.send(ORDER.pack(END, number))


def _close(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:  # it was still importing
        process.kill()
        process.wait()
