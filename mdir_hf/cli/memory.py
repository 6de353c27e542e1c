"""Makes the C library return freed memory to the system while a command runs."""

from __future__ import annotations

import ctypes
from contextlib import suppress

LARGE_N_BYTES = 16 << 20
"""Blocks of at least this size are worth a system call when they are allocated and when they are freed."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


def keep_no_freed_blocks() -> None:
    """Make glibc return large blocks at once; does nothing with another C library.

    By default, glibc learns from the first large block to retain blocks of that size, up to 32 MiB, and twice as much
    for every thread. After fifteen threads had read an embedding this was half a gigabyte (measured). Only for whole
    processes: a library must not change the memory management of its host.
    """
    with suppress(AttributeError, OSError, TypeError):  # no such function, or no C library of this name
        c_library = ctypes.CDLL(None)
        c_library.mallopt(_M_MMAP_THRESHOLD, LARGE_N_BYTES)
        c_library.mallopt(_M_TRIM_THRESHOLD, LARGE_N_BYTES)
