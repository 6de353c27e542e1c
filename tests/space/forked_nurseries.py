"""Nurseries of the Space, forked from one process that has everything imported.

The Space starts its nursery as a program, which takes the environment of that moment and some seconds. Each test has an
environment of its own, and so needs a nursery of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys


class ForkedNursery:
    """As much of ``subprocess.Popen`` as the Space asks of its nursery.

    Args:
        descriptor: Of the process, as ``os.pidfd_open`` gives it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def poll(self) -> int | None:
        return 0 if select.select([self._descriptor], [], [], 0)[0] else None

    def wait(self, timeout: float | None = None) -> int:
        if not select.select([self._descriptor], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("nursery", timeout or 0.0)
        return 0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)


class Forking:
    """A process that has everything imported, and starts nurseries."""

    def __init__(self) -> None:
        self._control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.space.forked_nurseries", str(far.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._control.recv(1)

    def popen(self, command: object, *, env: dict[str, str], pass_fds: list[int], **_: object) -> ForkedNursery:
        """Start a nursery as ``mdir_space.processes`` does, with an environment and one end of a socket."""
        socket.send_fds(self._control, [json.dumps(env).encode()], pass_fds)
        _, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        return ForkedNursery(descriptors[0])

    def close(self) -> None:
        """End the process; nurseries end with those who started them."""
        self._control.close()
        self._process.wait()


def _main(descriptor: int) -> None:
    from huggingface_hub import get_session

    from mdir_space import comparison  # noqa: F401 - what a nursery imports, too

    get_session()
    control = socket.socket(fileno=descriptor)
    control.send(b".")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        told, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 1)
        if not told:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            _be_a_nursery(json.loads(told), descriptors[0])
        os.close(descriptors[0])
        process = os.pidfd_open(pid)
        socket.send_fds(control, [b"."], [process])
        os.close(process)


def _be_a_nursery(environment: dict[str, str], descriptor: int) -> None:
    from huggingface_hub import constants

    from mdir_space.nursery import serve

    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(environment)
        importlib.reload(constants)  # what the client reads of the environment, it reads when it is imported
        serve(descriptor)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
