"""A process that has everything imported and does nothing but have children: each starts at once, and can be ended.

Importing torch takes seconds and a fork takes milliseconds. The server itself is not forked: it has threads.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
from multiprocessing.connection import Connection

ORDER = struct.Struct("=cQ")
START, END = b"S", b"E"
"""Orders to a nursery, with the child's number: start one, which is given a pipe, or end it."""

REAP_S = 0.25


def serve(descriptor: int) -> None:
    """Take orders from a socket until it is closed; then end all children.

    Args:
        descriptor: Of the socket.
    """
    from huggingface_hub import get_session

    from mdir_space import comparison  # noqa: F401 - what most children do; it imports torch
    from mdir_space.work import do_one

    get_session()  # imports what the client needs; it connects to nothing, and each child opens a session of its own

    control = socket.socket(fileno=descriptor)
    children: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control], [], [], REAP_S)
        for number, pid in list(children.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del children[number]
        if not ready:
            continue
        order, descriptors, _, _ = socket.recv_fds(control, ORDER.size, 1)
        if not order:
            break
        what, number = ORDER.unpack(order)
        if what == END:
            if number in children:  # not yet waited for, so that the number of its process is no other's
                os.kill(children[number], signal.SIGKILL)
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            status = 1
            with contextlib.suppress(BaseException):
                do_one(Connection(descriptors[0]))
                status = 0
            os._exit(status)
        os.close(descriptors[0])
        children[number] = pid
    for pid in children.values():
        os.kill(pid, signal.SIGKILL)
