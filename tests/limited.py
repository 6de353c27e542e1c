"""Run commands of ``mdir-hf`` in processes with limited memory and time, and return the outcome of each.

One interpreter imports everything, runs a few commands and forks a child for each further command, so that a child
costs only its own work.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_GROWTH_BYTES = 1 << 30
"""Address space that a command may take in addition to the imports."""

MAX_CPU_S = 60
"""Processor time after which a command is killed; each takes at most a few seconds."""


@dataclass(frozen=True)
class Ending:
    """Outcome of a command.

    Attributes:
        status: Exit status, or the negative number of the signal that killed it.
        out: Standard output.
        err: Standard error.
    """

    status: int
    out: str
    err: str


def run_limited(commands: Sequence[Sequence[str]], folder: Path, *, first: Sequence[Sequence[str]]) -> list[Ending]:
    """Run each command line of ``mdir-hf`` separately.

    Args:
        commands: The command lines.
        folder: Folder for their output.
        first: Command lines that run first and without limits, so that the others share their imports and computations.
            The first one must succeed.
    """
    folder.mkdir()
    asked = folder / "commands.json"
    asked.write_text(json.dumps([[list(command) for command in each] for each in (first, commands)]))
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "HF_HOME": str(folder / "hf")}
    subprocess.run([sys.executable, __file__, str(asked)], check=True, env=environment, cwd=folder)
    return [Ending(**json.loads((folder / f"{n}.json").read_text())) for n in range(len(commands))]


def _main(asked: Path) -> None:
    from mdir_hf.cli import main

    first, commands = json.loads(asked.read_text())
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        statuses = [main(command) for command in first]
    assert statuses[0] == 0
    for number, command in enumerate(commands):
        out, err = (asked.with_name(f"{number}.{name}") for name in ("out", "err"))
        child = os.fork()
        if child == 0:
            _run(command, out, err)
        _, status = os.waitpid(child, 0)
        ending = Ending(
            status=os.waitstatus_to_exitcode(status),
            out=out.read_text(errors="replace"),
            err=err.read_text(errors="replace"),
        )
        asked.with_name(f"{number}.json").write_text(json.dumps(vars(ending)))


def _run(command: Sequence[str], out: Path, err: Path) -> None:
    import resource

    from mdir_hf.cli import main

    status = 250
    try:
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT), 2)
        allowed = _address_space_bytes() + MAX_GROWTH_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
        status = main(command)
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else 251
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
