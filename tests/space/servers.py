"""The Space as a subprocess of tests."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
START_TIMEOUT_S = 180.0


class Server:
    """A running Space.

    Attributes:
        url: Its URL, without a trailing slash.
        lines: Its output so far.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.url = ""
        self._heard: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            self._heard.put(line)
        self._heard.put(None)

    def wait_for(self, word: str) -> str:
        """Return the first line that contains a word."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while (line := self._heard.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
            if word in line:
                return line
        raise AssertionError("the server ended:\n" + "\n".join(self.lines))

    def stop(self) -> int:
        """Stop the server and return its exit status."""
        self.process.terminate()
        status = self.process.wait(30)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@contextmanager
def running(arguments: list[str], environment: Mapping[str, str], home: Path, *, says: str) -> Iterator[Server]:
    """Run a Python program that serves the Space.

    Args:
        arguments: Arguments of the interpreter.
        environment: Added to a minimal environment.
        home: Folder for all caches.
        says: Word in the line that reports readiness.
    """
    bare = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-u", *arguments],
        cwd=home,
        env={
            **bare,
            "HOME": str(home),
            "HF_HOME": str(home / "hf-home"),
            "OMP_NUM_THREADS": "1",
            "GRADIO_ANALYTICS_ENABLED": "False",
            "PYTHONPATH": str(ROOT),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    server = Server(process)
    try:
        server.wait_for(says)
        yield server
    finally:
        server.stop()


@contextmanager
def running_command(options: list[str], environment: Mapping[str, str], home: Path) -> Iterator[Server]:
    """Run ``mdir-hf space`` on a free port."""
    with running(["-m", "mdir_hf", "space", "--port", "0", *options], environment, home, says="Open ") as server:
        line = next(line for line in server.lines if line.startswith("Open "))
        server.url = line.split()[1].rstrip("/")
        yield server


def descendants(pid: int) -> list[int]:
    """Return a process and its descendants."""
    pids = [pid]
    for each in pids:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
                pids += [int(word) for word in task.read_text().split()]
    return pids
