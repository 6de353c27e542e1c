"""The property that every target has: our error or a result, the same twice, and within bounds."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from mdir_hf.errors import MdirError

FINDINGS = Path(__file__).parent / "findings"
"""A folder for each target, with the files that once broke the property; each is read again by every run."""

MOST_BYTES = 256 << 20
"""A file of some kB may make a process grow by this much; a parser that believes a length takes gigabytes."""

MOST_SECONDS = 20.0
"""Processor time. A file takes a few milliseconds, so that only what does not end exceeds this."""


@dataclass(frozen=True)
class Target:
    """One format, or one kind of answer.

    Attributes:
        files: Files like valid ones.
        valid: One that is.
        read: Does with a file what the package does, and returns all that comes of it.
    """

    files: st.SearchStrategy[bytes]
    valid: bytes
    read: Callable[[bytes], object]


def outcome(read: Callable[[bytes], object], data: bytes) -> str:
    """What comes of a file: a result, or an error of ours. Anything else is raised."""
    try:
        return f"result: {read(data)!r}"
    except MdirError as exc:
        return f"{type(exc).__name__}: {exc}"


def check(read: Callable[[bytes], object], data: bytes) -> str:
    """Hold one file to the property, and return its outcome."""
    before, began = _peak_bytes(), time.process_time()
    first = outcome(read, data)
    assert time.process_time() - began < MOST_SECONDS, "takes too long"
    assert _peak_bytes() - before < MOST_BYTES, "takes too much memory"
    assert outcome(read, data) == first, "comes out differently the second time"
    return first


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
