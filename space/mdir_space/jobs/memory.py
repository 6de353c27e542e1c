"""Keep the memory of the server small although it has dozens of threads."""

from __future__ import annotations

import ctypes
import sys

_M_ARENA_MAX = -8
"""Name of the option in malloc.h of glibc."""


def share_heaps() -> None:
    """Let all threads share two heaps. By default glibc makes more, and each keeps the most that it ever held."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # not in musl
            libc.mallopt(_M_ARENA_MAX, 2)
