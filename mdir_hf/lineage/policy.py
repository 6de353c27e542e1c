"""The policy of ``verify``: which statements must hold, and the exit status if one does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mdir_hf.errors import ByteBudgetError, FileMissingError, HubError, RepositoryNotFoundError, RevisionNotFoundError
from mdir_hf.report.terms import Term

EXIT_UNREAD = 1
EXIT_FAILED = 3


class Condition(Term):
    """A condition that ``--require`` names."""

    PINS = "pins", "every model has a commit"
    DIGESTS = "digests", "the files have the stated digests"
    BASES = "bases", "every base is confirmed by the weights"
    RELATIONS = "relations", "a quantised model is confirmed to be one"


class NotCompared(Term):
    """Why a stated base was not compared."""

    NOT_MEASURED = "not_measured"
    NOT_READ = "not_read", "the Hub could not be read"
    OWN_BASE = "own_base", "the model itself"
    BY_CONSTRUCTION = "by_construction", "an adapter on this base"


@dataclass(frozen=True, slots=True)
class Failure:
    """A statement that does not hold, or that could not be checked.

    Attributes:
        is_unread: Whether the Hub could not be read, so that the statement may hold.
    """

    condition: Condition
    statement: str
    is_unread: bool = False

    def __str__(self) -> str:
        return f"{self.condition}: {self.statement}"


def exit_status(failures: Sequence[Failure]) -> int:
    """Return 0 without failures, 1 if something could not be read, else 3."""
    if any(failure.is_unread for failure in failures):
        return EXIT_UNREAD
    return EXIT_FAILED if failures else 0


def is_unread(exc: BaseException) -> bool:
    """Return whether an error means that the Hub could not be read, and not that something is missing there."""
    is_answer = isinstance(exc, (RepositoryNotFoundError, RevisionNotFoundError, FileMissingError, ByteBudgetError))
    return isinstance(exc, HubError) and not is_answer
