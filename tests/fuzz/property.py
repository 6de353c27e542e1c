"""The property of every target: a result or an :class:`MdirError`, the same twice, within time and memory limits."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from mdir_hf.errors import MdirError

FINDINGS = Path(__file__).parent / "findings"
"""Contains a folder for each target, with files that once broke the property; every test run reads them again."""

MOST_BYTES = 256 << 20
"""A file of some kB may use this much memory; a parser that trusts a length would allocate gigabytes."""

MOST_SECONDS = 20.0
"""Processor time. A file takes a few milliseconds, so only an endless loop exceeds this."""


@dataclass(frozen=True)
class Target:
    """One format, or one kind of response.

    Attributes:
        files: Strategy for changed valid files.
        valid: A valid file.
        read: Reads a file as the package does, and returns all results.
    """

    files: st.SearchStrategy[bytes]
    valid: bytes
    read: Callable[[bytes], object]


def outcome(read: Callable[[bytes], object], data: bytes) -> str:
    """Return the result or our error for a file; other exceptions propagate."""
    try:
        return f"result: {read(data)!r}"
    except MdirError as exc:
        return f"{type(exc).__name__}: {exc}"


def check(read: Callable[[bytes], object], data: bytes) -> str:
    """Check the property for one file, and return its outcome."""
    before, began = _peak_bytes(), time.process_time()
    first = outcome(read, data)
    assert time.process_time() - began < MOST_SECONDS, "takes too long"
    assert _peak_bytes() - before < MOST_BYTES, "takes too much memory"
    assert outcome(read, data) == first, "the second outcome differs"
    return first


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
