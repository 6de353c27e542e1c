"""A command in a terminal of its own: a pseudo-terminal of some columns, and Ctrl-C when something was written."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import mdir_hf

# A process started from a job in the background ignores Ctrl-C, and so do its children unless they ask for it.
HEEDING_CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from mdir_hf.cli import main
raise SystemExit(main())
"""
DEADLINE_S = 120.0


@dataclass(frozen=True)
class Shown:
    """What a terminal was sent, with its escape sequences, and the exit status."""

    text: str
    status: int


def in_terminal(
    *words: str, columns: int = 100, stop_at: str | None = None, before: str = "", **environment: str
) -> Shown:
    """Run a command in a terminal.

    Args:
        words: The command line.
        columns: Width of the terminal.
        stop_at: Press Ctrl-C once this was written.
        before: Python that is run first.
        environment: Added to that of this process, without what it says of colour and width.
    """
    import fcntl
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    own = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    own |= {"PYTHONPATH": str(Path(mdir_hf.__file__).parents[1])}  # the package under test, wherever a test has gone
    process = subprocess.Popen(
        [sys.executable, "-c", before + HEEDING_CTRL_C, *words],
        env={**own, "TERM": "xterm", **environment}, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    sent = bytearray()
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            try:
                piece = os.read(master, 1 << 16)
            except OSError:  # what Linux says where the other end is closed
                break
            sent += piece
            if stop_at is not None and stop_at.encode() in sent:
                process.send_signal(signal.SIGINT)
                stop_at = None
    process.kill()
    status = process.wait()
    os.close(master)
    return Shown(sent.decode().replace("\r\n", "\n"), status)
