"""Run commands in a pseudo-terminal of a given width, and press Ctrl-C when they print a given text."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mdir_hf

CHILDREN = """
import json, os, signal, sys, traceback
from mdir_hf import HomologyChecker, survey  # with all that these import
from mdir_hf.cli import main
for line in sys.stdin:
    terminal, words, before, environment, folder = json.loads(line)
    has_terminal, opens_terminal = os.pipe()
    child = os.fork()
    if child:
        os.close(opens_terminal)
        os.read(has_terminal, 1)
        os.close(has_terminal)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    status = 1
    try:
        os.setsid()  # so that the terminal that is opened next becomes its own
        for number in range(3):
            os.dup2(os.open(terminal, os.O_RDWR), number)
        os.close(opens_terminal)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        # A process started from a job in the background ignores Ctrl-C, and so do its children unless they ask for it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        exec(before, {"__name__": "__main__"})
        status = main(words)
    except SystemExit as exc:
        status = int(exc.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)
"""
"""Program that runs each command in a forked child with its own terminal, so that torch is imported only once."""
DEADLINE_S = 120.0


@cache
def _parent() -> subprocess.Popen[str]:
    """Start the process of :data:`CHILDREN`, which ends with this one."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILDREN],
        # The package under test, whatever the working directory is.
        env={**os.environ, "PYTHONPATH": str(Path(mdir_hf.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.communicate()  # closes its standard input


@dataclass(frozen=True)
class Shown:
    """Output of a command to a terminal, with escape sequences, and its exit status."""

    text: str
    status: int


def in_terminal(
    *words: str, columns: int = 100, stop_at: str | None = None, before: str = "", **environment: str
) -> Shown:
    """Run a command in a terminal.

    Args:
        words: The command line.
        columns: Width of the terminal.
        stop_at: Press Ctrl-C when this text appears.
        before: Python code that runs first.
        environment: Added to the environment of this process, whose settings of colour and width are dropped.
    """
    import fcntl
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    own = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    job = [os.ttyname(slave), words, before, {**own, "TERM": "xterm", **environment}, str(Path.cwd())]
    parent = _parent()
    parent.stdin.write(json.dumps(job) + "\n")
    parent.stdin.flush()
    child = int(parent.stdout.readline())
    os.close(slave)
    sent = bytearray()
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            try:
                piece = os.read(master, 1 << 16)
            except OSError:  # Linux raises it if the other end is closed
                break
            sent += piece
            if stop_at is not None and stop_at.encode() in sent:
                os.kill(child, signal.SIGINT)
                stop_at = None
    else:
        os.kill(child, signal.SIGKILL)
    status = int(parent.stdout.readline())
    os.close(master)
    return Shown(sent.decode().replace("\r\n", "\n"), status)
