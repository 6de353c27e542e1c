"""Open files that a user names, without blocking on a named pipe or a device."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from mdir_hf.errors import InputError


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        InputError: If the path is not a regular file, or cannot be read.
    """
    subject = str(path)
    try:
        # O_NONBLOCK: opening a named pipe must not block; it is rejected below.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
        mode = os.fstat(descriptor).st_mode
    except OSError as exc:
        raise InputError(f"cannot be read: {exc.strerror}", subject=subject) from exc
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        why = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "it is not a regular file; save it to a file first"
        raise InputError(f"cannot be read: {why}", subject=subject)
    return os.fdopen(descriptor, "rb")
