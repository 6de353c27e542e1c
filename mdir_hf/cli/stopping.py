"""Prints the results so far when Ctrl-C or the byte cap stops a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from mdir_hf.cli.output import complain
from mdir_hf.errors import ByteBudgetError

T = TypeVar("T")

LABEL = "mdir-hf: stopped:"


@contextmanager
def shown_if_stopped(show: Callable[[T], None]) -> Iterator[Callable[[T], None]]:
    """Yield a function that stores the latest results, and show them if the block is stopped.

    The exception is raised again, so that the exit status marks the answer as incomplete.

    Args:
        show: Called with the latest results if the block is stopped.
    """
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
