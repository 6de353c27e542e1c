"""A process with all imports done. Its children run one program each, and are killed or fail at a given point.

``python -m tests.faults.nursery MODELS REPORT`` reads lines of JSON, each a list of jobs to run concurrently, and
answers each line with their exit statuses. A point is the moment before or after a system call with an effect, such as
a write, a rename, a new folder or sent bytes. Python reports every call of a C function to a profiler, so points need
no help from the system.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import json
import os
import posix
import signal
import sys
import tempfile
import threading
import traceback
from _socket import socket as CSocket
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

FILE_CALLS = {"write", "writelines", "flush", "close", "truncate", "__exit__"}
SYSTEM_CALLS = {
    *("open", "write", "rename", "replace", "link", "symlink", "unlink", "remove", "mkdir", "rmdir", "truncate"),
    *("ftruncate", "fsync", "chmod", "utime", "close"),
}
SENDS = {"send", "sendall", "sendto", "sendmsg"}
MAY_CHANGE_SOMETHING = FILE_CALLS | SYSTEM_CALLS | SENDS
"""Only calls with these names are checked further; there are a hundred others for each of them."""
NEED_ROOM = {"write", "mkdir", "link", "symlink", "fsync", "rename", "replace"}


class Points:
    """Counts the points of a program.

    Args:
        at: The point of the fault, from 1; None for no fault.
        fault: ``kill`` kills the process as the system does when memory is short; ``full`` reports a full disk once.
    """

    def __init__(self, at: int | None, fault: str) -> None:
        self.n = 0
        self._at, self._fault = at, fault

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        """Handle a call that the profiler reports."""
        if event not in ("c_call", "c_return") or called.__name__ not in MAY_CHANGE_SOMETHING:
            return
        if not self._changes_something(called):
            return
        self.n += 1
        if self.n == self._at:
            if self._fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _changes_something(self, called: Any) -> bool:
        name, owner = called.__name__, getattr(called, "__self__", None)
        if owner is posix:
            return name in (SYSTEM_CALLS if self._fault == "kill" else NEED_ROOM)
        if isinstance(owner, io.IOBase):
            is_file = name in FILE_CALLS and not isinstance(owner, io.BytesIO | io.StringIO)
            return is_file and not {"w", "a", "x", "+"}.isdisjoint(str(getattr(owner, "mode", "w")))
        return self._fault == "kill" and isinstance(owner, CSocket) and name in SENDS


def without_pictures() -> None:
    """Replace drawing by a stub: it takes seconds, and the content of a picture does not matter here."""
    from matplotlib.figure import Figure

    from mdir_hf.render import figures, folder

    def draw(*_: object, dark: bool = False, **__: object) -> Figure:
        return Figure(label=f"dark: {dark}")

    def draw_some(*_: object, dark: bool = False) -> dict[str, Figure]:
        return {name: draw(dark=dark) for name in ("embedding", "layers")}

    def drawn(figure: Figure, kind: str) -> bytes:
        return f"{figure.get_label()} as {kind}".encode() * 1000

    figures.draw_survey_matrix = figures.draw_dendrogram = draw  # type: ignore[assignment]
    folder.draw_figures = draw_some  # type: ignore[assignment]
    figures.figure_bytes = folder.figure_bytes = drawn  # type: ignore[assignment]
    folder.svg_img = lambda figure, light, dark: f"<img alt={str(figure.get_label())!r}>"  # type: ignore[assignment]


def run(arguments: list[str]) -> int:
    """Run a command, save a report (which no command does), or write files carelessly; return the exit status."""
    from mdir_hf import HomologyReport, MdirError
    from mdir_hf.cli.main import main
    from mdir_hf.render.folder import save_report

    if arguments[0] == "write carelessly":
        folder = Path(arguments[1])
        folder.mkdir(exist_ok=True)
        for name in ("first", "second", "third"):
            (folder / name).write_text(name)
        return 0
    if arguments[0] != "save":
        return main(arguments)
    try:
        save_report(HomologyReport.from_json(Path(arguments[1]).read_text()), Path(arguments[2]))
    except MdirError:
        return 1
    return 0


def do(job: dict[str, Any]) -> int:
    """Run one program, and return its exit status."""
    os.environ.update(job["environment"])
    points = Points(job["at"], job["fault"])
    said = Path(job["said"])
    remarks = io.StringIO()  # a failed write to standard error is not tested here
    with said.open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(remarks):
        if job["fault"]:
            # Python 3.11.2 of Debian 12 may crash if it collects garbage while threads are profiled.
            gc.disable()
            threading.setprofile(points)
            sys.setprofile(points)
        try:
            status = run(job["arguments"])
        except SystemExit as exc:
            status = int(exc.code or 0)
        except BaseException:
            traceback.print_exc()
            status = 99
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            out.write(remarks.getvalue())
    said.with_suffix(".points").write_text(str(points.n))
    return status


def start(job: dict[str, Any], work: Callable[[dict[str, Any]], int] = do) -> int:
    """Run a job in a child; return its process ID."""
    pid = os.fork()
    if pid == 0:
        status = 98
        with contextlib.suppress(BaseException):
            status = work(job)
        os._exit(status)
    return pid


def warm(models: Path, report: Path) -> None:
    """Run each program once, with files on this disk.

    The children inherit all imports, compiled code and caches, which saves more than half of their time.
    """
    import matplotlib as mpl
    from tqdm import tqdm

    from mdir_hf.lineage.publishing import publish  # noqa: F401
    from mdir_hf.reconstruction import write

    mpl.use("Agg")
    tqdm.monitor_interval = 0  # a fork would lose its thread
    without_pictures()
    write.SPARE_DISK = 0  # the tests fill small disks
    names = [str(folder) for folder in sorted(models.iterdir())]
    silence = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(silence),
        contextlib.redirect_stderr(silence),
    ):
        run(["compare", *names[:2], "--quiet"])
        run(["survey", *names, "--tokens", "256", "--quiet", "--output", f"{folder}/survey"])
        run(["align", names[0], names[1], "--output", f"{folder}/aligned"])
        run(["index", "build", *names, "--output", f"{folder}/bases.index"])
        run(["card", str(report), "--output", f"{folder}/badge"])
        run(["save", str(report), f"{folder}/saved"])
    assert threading.active_count() == 1, f"a process with threads must not be forked: {threading.enumerate()}"


def serve() -> None:
    """Run jobs from standard input."""
    warm(*map(Path, sys.argv[1:]))
    for line in sys.stdin:
        children = [start(job) for job in json.loads(line)]
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        sys.stdout.write(json.dumps(ended) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
