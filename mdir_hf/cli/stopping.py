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
    """Yield a function that keeps what was found so far, in place of what was found before.

    The exception goes on, so that the exit status tells scripts that this is not the whole answer.

    Args:
        show: Called with what was kept last, if the block is stopped.
    """
    found: list[T] = []

    def keep(so_far: T) -> None:
        found[:] = [so_far]

    try:
        yield keep
    except (KeyboardInterrupt, ByteBudgetError) as exc:
        if found:
            show(found[0])
            complain("what was found until then is above; it is not the whole answer", label=LABEL)
        elif isinstance(exc, KeyboardInterrupt):  # a budget says itself what happened
            complain("nothing was found yet", label=LABEL)
        raise
