"""Where the command line writes. Names of strangers are in most of it; a terminal would obey what stands in them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from mdir_hf.errors import InputError
from mdir_hf.names import visible_text


def say(text: str) -> None:
    """Write an answer to standard output, at once.

    Raises:
        InputError: If it cannot be written: the disk is full, for example.
    """
    with _writing():
        sys.stdout.write(visible_text(text, keeps_lines=True))
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
    """Write what is no answer to standard error."""
    sys.stderr.write(visible_text(text, keeps_lines=True))


def leave_output() -> None:
    """Point standard output elsewhere; else the interpreter tries again, and complains, while it closes."""
    with contextlib.suppress(OSError, ValueError):  # what stands in its place in a program may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as exc:
        leave_output()
        raise InputError(f"cannot write to standard output: {exc.strerror}") from exc
