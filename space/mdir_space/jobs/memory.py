"""Keep the memory of the server small although it has dozens of threads."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_M_ARENA_MAX = -8
"""Name of the option in malloc.h of glibc."""


@cache
def _libc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None  # musl has neither


def share_heaps() -> None:
    """Let all threads share two heaps. By default glibc makes more, and each keeps the most that it ever held."""
    if (libc := _libc()) is not None:
        libc.mallopt(_M_ARENA_MAX, 2)


def trim_heaps() -> None:
    """Give unused memory back to the system, which takes some milliseconds."""
    if (libc := _libc()) is not None:
        libc.malloc_trim(0)
