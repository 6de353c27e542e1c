"""Every exception of the package, in one tree.

``MdirError``: what a caller catches to catch all of ours
 ├── ``InputError`` (ValueError): invalid input
 │    ├── ``InvalidReferenceError``: neither a repo id, a Hub URL, a folder nor a weight file
 │    ├── ``MissingExtraError``: a package of one of our extras is not installed
 │    └── ``RemoteCodeRefusedError``: somebody asked for ``trust_remote_code``
 ├── ``HubError`` (OSError): the Hub or the local disk did not deliver what was requested
 │    ├── ``RepositoryNotFoundError``: missing, private, or gated and asked anonymously
 │    ├── ``GatedRepositoryError``: exists; this token may not read it
 │    ├── ``RevisionNotFoundError``: no such branch, tag or commit
 │    ├── ``FileMissingError``: no such file at that commit
 │    ├── ``OfflineError``: offline or ``local_files_only``, and not in the cache
 │    ├── ``RateLimitedError``: still 429 after every retry
 │    ├── ``ServerError``: 5xx, or an answer we cannot use, after every retry
 │    ├── ``RangeIgnoredError``: the server sent a whole file for a byte range
 │    ├── ``ShortReadError``: fewer bytes than asked for
 │    ├── ``ByteBudgetError``: the next read would pass the cap on bytes
 │    └── ``PullRequestError``: the Hub, or its present state, does not allow the pull request
 ├── ``CheckpointError`` (ValueError): the weight files are missing, invalid or not supported
 │    ├── ``NoWeightsError``: nothing here holds weights
 │    ├── ``UnsupportedFormatError``: weights, in a format or dtype we do not read
 │    │    └── ``SeveralModelsError``: several files could be the model; has their names
 │    ├── ``CorruptCheckpointError``: header, index, offsets or values contradict each other
 │    │    └── ``NotFiniteError``: a weight holds NaN or infinity; has the rows
 │    ├── ``UnsafePathError``: a file name that leaves the repository
 │    ├── ``UnsafePickleError``: a pickle that names something else than tensors
 │    └── ``TensorNotFoundError``: a name the checkpoint does not hold
 ├── ``AnatomyError`` (ValueError): config or tensor names that do not describe a language model
 ├── ``VocabularyError`` (ValueError): tokenizer files missing, unreadable, or of another model
 ├── ``CardError`` (ValueError): a model card that cannot be read, or not be changed without harm
 ├── ``MemoryBudgetError``: the comparison would not fit
 ├── ``StoppedError``: a progress listener stopped it
 └── ``WorkersLostError``: the workers of a survey are gone

"Not enough evidence" is not an error: it is the verdict ``inconclusive`` with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MdirError(Exception):
    """Base of every error of this package.

    Args:
        message: What failed, on what, expected against got, and what to do next; one paragraph.
        subject: The object the message is about (``owner/name@sha``, a file in it, a tensor).
            It may also be added on the way up, with :meth:`about`.
    """

    def __init__(self, message: str, *, subject: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.subject = subject

    def about(self, subject: str) -> MdirError:
        """Name the object at the place that knows it; the innermost name stays."""
        if self.subject is None:
            self.subject = subject
        return self

    def __str__(self) -> str:
        return self.message if self.subject is None else f"{self.subject}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions pickle through their args; ours carry more than args, and surveys send them between processes.
        return (_rebuild, (type(self), self.message, self.subject))


@contextmanager
def naming(subject: str) -> Iterator[None]:
    """Have every error of ours from inside be about this object, unless it names one already."""
    try:
        yield
    except MdirError as exc:
        raise exc.about(subject) from exc.__cause__


def _rebuild(kind: type[MdirError], message: str, subject: str | None) -> MdirError:
    return kind(message, subject=subject)


class InputError(MdirError, ValueError):
    """Invalid input."""


class InvalidReferenceError(InputError):
    """What names the model is neither a repo id, a Hub URL, a local folder nor a weight file."""


class MissingExtraError(InputError):
    """A package that one of our extras brings is not installed."""


class RemoteCodeRefusedError(InputError):
    """``trust_remote_code`` was passed; this package reads tensors and never runs a repository's code."""


class HubError(MdirError, OSError):
    """The Hub or the local disk did not deliver what was requested."""


class RepositoryNotFoundError(HubError):
    """The repository is missing, private, or gated and asked for without a token; the Hub does not say which."""


class GatedRepositoryError(HubError):
    """The repository exists and its files are gated; this token has not been granted access."""


class RevisionNotFoundError(HubError):
    """The repository has no such branch, tag or commit."""


class FileMissingError(HubError):
    """The repository has no such file at that commit."""


class OfflineError(HubError):
    """The network may not be used, and the cache does not hold the file."""


class RateLimitedError(HubError):
    """The Hub still answered 429 after every retry."""


class ServerError(HubError):
    """The server failed, or answered something that cannot be used, after every retry."""


class RangeIgnoredError(HubError):
    """The server sent something else than the byte range asked for."""


class ShortReadError(HubError):
    """A read ended early: fewer bytes came than were asked for."""


class ByteBudgetError(HubError):
    """The next read would pass the cap on bytes set by the caller."""


class PullRequestError(HubError):
    """A pull request cannot be opened: no token or right, discussions disabled, or the repository has moved on."""


class CheckpointError(MdirError, ValueError):
    """The weight files are missing, invalid or not supported."""


class NoWeightsError(CheckpointError):
    """Nothing in the repository or folder holds weights."""


class UnsupportedFormatError(CheckpointError):
    """There are weights, in a format or dtype this version does not read."""


class SeveralModelsError(UnsupportedFormatError):
    """Several files could be the model, and none was named.

    Args:
        message: As of every error.
        subject: Likewise.
        files: Those files, each of which can be named.
    """

    def __init__(self, message: str, *, subject: str | None = None, files: tuple[str, ...] = ()) -> None:
        super().__init__(message, subject=subject)
        self.files = files

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_several, (self.message, self.subject, self.files))


def _rebuild_several(message: str, subject: str | None, files: tuple[str, ...]) -> SeveralModelsError:
    return SeveralModelsError(message, subject=subject, files=files)


class CorruptCheckpointError(CheckpointError):
    """Header, index, offsets or values contradict each other."""


class NotFiniteError(CorruptCheckpointError):
    """A weight holds NaN or infinity.

    Args:
        message: As for every error of the package.
        rows: Row numbers that do; empty if single rows were not asked for.
        subject: The file.
    """

    def __init__(self, message: str, *, rows: tuple[int, ...] = (), subject: str | None = None) -> None:
        super().__init__(message, subject=subject)
        self.rows = rows


class UnsafePathError(CheckpointError):
    """A file name in an index leaves the repository."""


class UnsafePickleError(CheckpointError):
    """A pickle names, or would run, something that no file of weights needs; nothing of it was run."""


class TensorNotFoundError(CheckpointError):
    """The checkpoint holds no tensor of that name."""


class AnatomyError(MdirError, ValueError):
    """Config or tensor names do not describe a language model we can place."""


class VocabularyError(MdirError, ValueError):
    """Tokenizer files are missing, unreadable, or do not belong to the embedding."""


class CardError(MdirError, ValueError):
    """A model card cannot be read as one, or cannot be changed without changing what its author wrote."""


class MemoryBudgetError(MdirError):
    """The comparison would not fit into the memory allowed."""


class StoppedError(MdirError):
    """The listener of a comparison raised, which stops the comparison."""


class WorkersLostError(MdirError):
    """The workers of a survey are gone; what was computed is kept."""


def one_line(exc: BaseException) -> str:
    """What an exception says, without line breaks; the name of its class if it says nothing."""
    return " ".join(str(exc).split()) or type(exc).__name__
