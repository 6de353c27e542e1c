"""Writes to standard output and standard error, with control characters of foreign names written out."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from enum import Enum
from textwrap import fill
from typing import TextIO

from mdir_hf.errors import InputError
from mdir_hf.names import visible_text

NARROWEST = 40
"""Columns that text is set into at least."""


class Ink(str, Enum):
    """How a terminal shows what should stand out: parameters of the escape sequence SGR."""

    HOMOLOGOUS = "1;34"
    NO_EVIDENCE = "1"
    INCONCLUSIVE = "1;33"
    ERROR = "1;31"


class _Heard:
    """What of a command is to be heard; each run of ``main`` says it anew."""

    remarks = True


def hear(*, remarks: bool) -> None:
    """Say whether :func:`remark` is heard from now on."""
    _Heard.remarks = remarks


def say(text: str, *, is_prose: bool = False, ink: Ink | None = None) -> None:
    """Write an answer to standard output, at once.

    Args:
        text: The answer.
        is_prose: Whether a terminal may break its lines.
        ink: How its first paragraph is shown.

    Raises:
        InputError: If it cannot be written: the disk is full, for example.
    """
    text = visible_text(text, keeps_lines=True)
    if is_prose:
        text = _set(text, width_of(sys.stdout))
    first, blank, rest = text.partition("\n\n") if ink is not None else ("", "", text)
    with _writing():
        sys.stdout.write(_inked(first, ink, sys.stdout) + blank + rest)
        sys.stdout.flush()


def say_bytes(content: bytes) -> None:
    """Write a file to standard output as it is, at once.

    Raises:
        InputError: As :func:`say`.
    """
    with _writing():
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def remark(text: str) -> None:
    """Write a message to standard error, unless the command is quiet."""
    if _Heard.remarks:
        _to_stderr(_set(visible_text(text, keeps_lines=True), width_of(sys.stderr)))


def complain(text: str, *, label: str = "mdir-hf: error:") -> None:
    """Write on standard error why there is no answer, or not the whole of it, in one line.

    Args:
        text: Why.
        label: Who says it, and what it is.
    """
    text = _set(f"{label} {visible_text(text)}", width_of(sys.stderr))
    _to_stderr(_inked(label, Ink.ERROR, sys.stderr) + text.removeprefix(label) + "\n")


def width_of(stream: TextIO) -> int | None:
    """Columns of a terminal, ``COLUMNS`` before what it says itself; None where it is not a terminal."""
    if not stream.isatty():
        return None
    columns = 0
    if not os.environ.get("COLUMNS"):  # else the standard library takes its word
        with contextlib.suppress(OSError, ValueError):
            columns = os.get_terminal_size(stream.fileno()).columns
    return max(NARROWEST, columns or shutil.get_terminal_size().columns)


def has_colour(stream: TextIO) -> bool:
    """Tell whether to write in colour: never with NO_COLOR, always with FORCE_COLOR, else on terminals that can."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def leave_output() -> None:
    """Point standard output elsewhere; else the interpreter tries again, and complains, while it closes."""
    with contextlib.suppress(OSError, ValueError):  # what stands in its place in a program may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _inked(text: str, ink: Ink | None, stream: TextIO) -> str:
    return f"\x1b[{ink.value}m{text}\x1b[0m" if ink is not None and has_colour(stream) else text


def _set(text: str, width: int | None) -> str:
    """Break lines that are wider than a terminal; what follows hangs two columns deeper. Names stay whole."""
    if width is None:
        return text
    lines = text.split("\n")
    return "\n".join(line if len(line) <= width else _broken(line, width) for line in lines)


def _broken(line: str, width: int) -> str:
    hanging = " " * (len(line) - len(line.lstrip()) + 2)
    return fill(line, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)


def _to_stderr(text: str) -> None:
    if "tqdm" not in sys.modules:
        sys.stderr.write(text)
        return
    from tqdm import tqdm

    with tqdm.external_write_mode(file=sys.stderr):  # clears a bar, and draws it again below the text
        sys.stderr.write(text)


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as exc:
        leave_output()
        raise InputError(f"cannot write to standard output: {exc.strerror}") from exc
