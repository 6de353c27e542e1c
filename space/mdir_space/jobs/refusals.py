"""Turn errors of the package, and limits of this server, into messages to visitors."""

from __future__ import annotations

from mdir_hf import MdirError
from mdir_hf.errors import ByteBudgetError, GatedRepositoryError, MemoryBudgetError, SeveralModelsError
from mdir_space.jobs.access import Access, sentence
from mdir_space.jobs.estimate import duration_text
from mdir_space.jobs.job import OutOfMemoryError
from mdir_space.jobs.question import RefusedError


def timeout_refusal(seconds: float, *, what: str = "The comparison", is_lighter: bool = False) -> RefusedError:
    """Return the message about a timeout; for the arguments, see :func:`refusal_of`."""
    way_out = "Level auto takes less time; on your own machine" if is_lighter else "On your own machine"
    return RefusedError(
        f"{what} was stopped after {duration_text(seconds)}, the time limit here. {way_out} there is no limit.",
        runs_locally=True,
    )


def refusal_of(
    exc: MdirError, access: Access | None = None, *, what: str = "The comparison", is_lighter: bool = False
) -> RefusedError:
    """Convert an error of the package into a message to the visitor.

    ``access``, if given, is used to list the files of a repository with several models. ``what`` is the name of the
    job. ``is_lighter`` says that level auto would read less.
    """
    if isinstance(exc, ByteBudgetError):
        less = "Level auto reads less; on" if is_lighter else "On"
        return RefusedError(
            f"{what} would exceed the limit of bytes here. {less} your own machine there is no limit.",
            runs_locally=True,
        )
    if isinstance(exc, OutOfMemoryError):
        return RefusedError(
            f"{what} was stopped because it exceeded the memory limit here. On your own machine there is no limit.",
            runs_locally=True,
        )
    if isinstance(exc, MemoryBudgetError):
        return RefusedError(f"{what} does not fit on this machine: {exc.message}.", runs_locally=True)
    if isinstance(exc, GatedRepositoryError):
        which = exc.subject or "The model"
        if access is not None and access.is_with_rights:
            return RefusedError(
                f"{which} is gated, and your account has not been granted access to it. Request access on its page, "
                "then try again."
            )
        return RefusedError(
            f"{which} is gated or disabled, and was read without an account. Sign in with an account that has been "
            "granted access."
        )
    if isinstance(exc, SeveralModelsError) and access is not None:
        return RefusedError(sentence(exc), choices=access.files_of(exc))
    return RefusedError(sentence(exc))
