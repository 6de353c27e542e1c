"""Write to standard output and standard error, including the partial results of a stopped command."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from textwrap import fill
from typing import TextIO, TypeVar

from mdir_hf.errors import ByteBudgetError, InputError
from mdir_hf.names import visible_text

NARROWEST = 40
"""Minimum width of wrapped text, in columns."""


class Ink(str, Enum):
    """Text styles for a terminal, as SGR parameters."""

    HOMOLOGOUS = "1;34"
    NO_EVIDENCE = "1"
    INCONCLUSIVE = "1;33"
    ERROR = "1;31"


class _Heard:
    """Verbosity of the current command, set by each run of ``main``."""

    remarks = True


def hear(*, remarks: bool) -> None:
    """Set whether :func:`remark` prints."""
    _Heard.remarks = remarks


def say(text: str, *, is_prose: bool = False, ink: Ink | None = None) -> None:
    """Write a result to standard output and flush it.

    If ``is_prose`` is true, long lines may be wrapped. ``ink`` is the style of the first paragraph.

    Raises:
        InputError: If writing fails.
    """
    text = visible_text(text, keeps_lines=True)
    if is_prose:
        text = _set(text, width_of(sys.stdout))
    first, blank, remaining_text = text.partition("\n\n") if ink is not None else ("", "", text)
    with _writing():
        sys.stdout.write(_inked(first, ink, sys.stdout) + blank + remaining_text)
        sys.stdout.flush()


def say_bytes(content: bytes) -> None:
    """Write bytes to standard output unchanged and flush it."""
    with _writing():
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def remark(text: str) -> None:
    """Write a message to standard error, unless ``--quiet`` is set."""
    if _Heard.remarks:
        _to_stderr(_set(visible_text(text, keeps_lines=True), width_of(sys.stderr)))


def complain(text: str, *, label: str = "mdir-hf: error:") -> None:
    """Write one line to standard error that explains why a result is missing or partial."""
    text = _set(f"{label} {visible_text(text)}", width_of(sys.stderr))
    _to_stderr(_inked(label, Ink.ERROR, sys.stderr) + text.removeprefix(label) + "\n")


def width_of(stream: TextIO) -> int | None:
    """Return the width of a terminal in columns, or None if the stream is not a terminal."""
    if not stream.isatty():
        return None
    columns = 0
    if not os.environ.get("COLUMNS"):  # otherwise, the standard library uses it
        with contextlib.suppress(OSError, ValueError):
            columns = os.get_terminal_size(stream.fileno()).columns
    return max(NARROWEST, columns or shutil.get_terminal_size().columns)


def has_colour(stream: TextIO) -> bool:
    """Return whether to use colour, according to NO_COLOR, FORCE_COLOR and the terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def leave_output() -> None:
    """Redirect standard output so that flushing it at exit cannot fail."""
    with contextlib.suppress(OSError, ValueError):  # standard output may have been replaced by an object without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _inked(text: str, ink: Ink | None, stream: TextIO) -> str:
    return f"\x1b[{ink.value}m{text}\x1b[0m" if ink is not None and has_colour(stream) else text


def _set(text: str, width: int | None) -> str:
    """Wrap lines that are too wide for the terminal, without splitting names."""
    if width is None:
        return text
    lines = text.split("\n")
    return "\n".join(line if len(line) <= width else _broken(line, width) for line in lines)


def _broken(line: str, width: int) -> str:
    """Wrap a line below its text: behind a label that spaces set apart, or behind the branches of a tree."""
    branches = re.match(r"[ │├└─]*", line)[0].replace("├─", "│ ").replace("└─", "  ")  # type: ignore[index]
    label = re.match(r" +\S+(?: \S+)* {2,}(?=\S)", line)
    hanging = " " * label.end() if label is not None and label.end() < width // 3 else f"{branches}  "
    return fill(line, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)


def _to_stderr(text: str) -> None:
    if "tqdm" not in sys.modules:
        sys.stderr.write(text)
        return
    from tqdm import tqdm

    with tqdm.external_write_mode(file=sys.stderr):  # clears a progress bar and redraws it below the text
        sys.stderr.write(text)


@contextmanager
def loading() -> Iterator[None]:
    """Show on a terminal that torch is being imported, which takes seconds."""
    is_shown = (
        _Heard.remarks
        and not _has_torch()
        and sys.stderr.isatty()
        and os.environ.get("TERM") != "dumb"
        and os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS", "").upper() not in ("1", "ON", "YES", "TRUE")
    )
    if is_shown:
        _to_stderr("loading torch …")
        sys.stderr.flush()
    try:
        yield
    finally:
        if is_shown:
            _to_stderr("\r\x1b[K")


def _has_torch() -> bool:
    return "torch" in sys.modules


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as exc:
        leave_output()
        raise InputError(f"cannot write to standard output: {exc.strerror}") from exc


T = TypeVar("T")

LABEL = "mdir-hf: stopped:"


@contextmanager
def shown_if_stopped(show: Callable[[T], None]) -> Iterator[Callable[[T], None]]:
    """Yield a function that stores the latest results, which are shown if the block stops early."""
    latest: list[T] = []

    def keep(so_far: T) -> None:
        latest[:] = [so_far]

    try:
        yield keep
    except (KeyboardInterrupt, ByteBudgetError) as exc:
        if latest:
            show(latest[0])
            complain("the results so far are above; this is not the whole answer", label=LABEL)
        elif isinstance(exc, KeyboardInterrupt):  # a budget error has its own message
            complain("there are no results yet", label=LABEL)
        raise
