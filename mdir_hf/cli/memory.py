"""Has the C library return freed memory to the system while a command runs."""

from __future__ import annotations

import ctypes
from contextlib import suppress

LARGE_N_BYTES = 16 << 20
"""From here on a block of memory is worth a call to the system when it is taken, and another when it is freed."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def keep_no_freed_blocks() -> None:
    """Have glibc return large blocks at once; with another C library nothing happens.

    Left to itself it learns from the first large block to keep blocks of that size, up to 32 MiB, and keeps twice as
    much for every thread: after fifteen threads had read an embedding, half a gigabyte (measured). For whole
    processes of ours only: a library leaves its host's memory alone.
    """
    with suppress(AttributeError, OSError, TypeError):  # no such function, or no C library under this name
        c_library = ctypes.CDLL(None)
        c_library.mallopt(_M_MMAP_THRESHOLD, LARGE_N_BYTES)
        c_library.mallopt(_M_TRIM_THRESHOLD, LARGE_N_BYTES)
