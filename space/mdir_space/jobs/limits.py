"""The limits of this server: time, bytes, memory, and jobs per visitor."""

from __future__ import annotations

import os
from dataclasses import dataclass

PREFIX = "MDIR_SPACE_"


@dataclass(frozen=True)
class Limits:
    """Limits of a comparison and of the queue; None for no limit.

    Attributes:
        seconds: Wall-clock time of one comparison, in seconds.
        n_bytes: Bytes that one comparison may read.
        memory_bytes: Memory that one comparison may use, both as planned and in fact.
        n_running: Number of concurrent comparisons.
        n_waiting: Number of waiting comparisons, and of waiting plans.
        n_per_visitor: Number of running or waiting comparisons per visitor; the same limit applies to plans.
        plan_seconds: Wall-clock time for making a plan, in seconds.
        plan_memory_bytes: Memory for making a plan.
        n_planning: Number of plans made concurrently.
        n_proxies: Number of our own proxies in front of the server. Each adds an address to ``X-Forwarded-For``. If 0,
            that header is ignored.
    """

    seconds: float | None = None
    n_bytes: int | None = None
    memory_bytes: int | None = None
    n_running: int = 2
    n_waiting: int = 100
    n_per_visitor: int | None = None
    plan_seconds: float | None = None
    plan_memory_bytes: int | None = None
    n_planning: int = 2
    n_proxies: int = 0


CPU_BASIC = Limits(
    seconds=600.0,
    n_bytes=4_000_000_000,
    memory_bytes=6_000_000_000,
    n_running=2,
    n_waiting=30,
    n_per_visitor=4,
    plan_seconds=60.0,
    plan_memory_bytes=2_000_000_000,
    n_planning=1,
    n_proxies=1,
)
"""For 2 virtual cores and 16 GB: two comparisons with 6 GB each and a plan with 2 GB leave room for Python, torch and
files."""


def limits_from_environment() -> Limits:
    """Return the limits of a Space on CPU basic, overridden by variables such as ``MDIR_SPACE_SECONDS``.

    A variable's name is ``MDIR_SPACE_`` followed by the attribute in capitals. 0 removes a limit, or selects the
    default if the limit cannot be removed.
    """
    return Limits(
        seconds=_number("SECONDS", CPU_BASIC.seconds),
        n_bytes=_whole("N_BYTES", CPU_BASIC.n_bytes),
        memory_bytes=_whole("MEMORY_BYTES", CPU_BASIC.memory_bytes),
        n_running=_whole("N_RUNNING", CPU_BASIC.n_running) or CPU_BASIC.n_running,
        n_waiting=_whole("N_WAITING", CPU_BASIC.n_waiting) or CPU_BASIC.n_waiting,
        n_per_visitor=_whole("N_PER_VISITOR", CPU_BASIC.n_per_visitor),
        plan_seconds=_number("PLAN_SECONDS", CPU_BASIC.plan_seconds),
        plan_memory_bytes=_whole("PLAN_MEMORY_BYTES", CPU_BASIC.plan_memory_bytes),
        n_planning=_whole("N_PLANNING", CPU_BASIC.n_planning) or CPU_BASIC.n_planning,
        n_proxies=_whole("N_PROXIES", CPU_BASIC.n_proxies) or 0,
    )


def _number(name: str, default: float | None) -> float | None:
    text = os.environ.get(PREFIX + name, "").replace("_", "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError as exc:
        raise ValueError(f"{PREFIX}{name} is {text!r}; expected a number, or 0 for no limit") from exc
    return value if value > 0 else None


def _whole(name: str, default: int | None) -> int | None:
    value = _number(name, default)
    return None if value is None else int(value)
