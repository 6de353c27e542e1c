"""The hierarchy of exceptions raised by this package.

``MdirError``: base class for all of them
 ├── ``InputError`` (ValueError)
 │    ├── ``CompleteOutputError``
 │    ├── ``InvalidReferenceError``
 │    ├── ``MissingExtraError``
 │    └── ``RemoteCodeRefusedError``
 ├── ``HubError`` (OSError)
 │    ├── ``RepositoryNotFoundError``
 │    ├── ``GatedRepositoryError``
 │    ├── ``RevisionNotFoundError``
 │    ├── ``FileMissingError``
 │    ├── ``OfflineError``
 │    ├── ``RateLimitedError``
 │    ├── ``ServerError``
 │    ├── ``RangeIgnoredError``
 │    ├── ``ShortReadError``
 │    ├── ``ByteBudgetError``
 │    └── ``PullRequestError``
 ├── ``CheckpointError`` (ValueError)
 │    ├── ``NoWeightsError``
 │    ├── ``UnsupportedFormatError``
 │    │    └── ``SeveralModelsError``
 │    ├── ``CorruptCheckpointError``
 │    │    └── ``NotFiniteError``
 │    ├── ``UnsafePathError``
 │    ├── ``UnsafePickleError``
 │    └── ``TensorNotFoundError``
 ├── ``AnatomyError`` (ValueError)
 ├── ``VocabularyError`` (ValueError)
 ├── ``CardError`` (ValueError)
 ├── ``ReconstructionError`` (ValueError)
 ├── ``MemoryBudgetError``
 ├── ``StoppedError``
 └── ``WorkersLostError``

"Not enough evidence" is not an error: it is the verdict ``inconclusive`` with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MdirError(Exception):
    """Base class for all errors raised by this package.

    Args:
        message: The failure, the expected and actual values, and the next step.
        subject: Repository (``owner/name@sha``), file or tensor concerned; can be set later with :meth:`about`.

    Attributes:
        tensors: Names of the tensors that could not be read, if the error concerns one weight.
    """

    tensors: tuple[str, ...] = ()

    def __init__(self, message: str, *, subject: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.subject = subject

    def about(self, subject: str) -> MdirError:
        """Set the subject unless it is already set, and return the error."""
        if self.subject is None:
            self.subject = subject
        return self

    def __str__(self) -> str:
        return self.message if self.subject is None else f"{self.subject}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        # By default, an exception is pickled with its args only. Surveys send these errors between processes.
        return (_rebuild, (type(self), self.message, self.subject))


@contextmanager
def naming(subject: str) -> Iterator[None]:
    """Set the subject of errors raised inside the block."""
    try:
        yield
    except MdirError as exc:
        raise exc.about(subject) from exc.__cause__


def _rebuild(kind: type[MdirError], message: str, subject: str | None) -> MdirError:
    return kind(message, subject=subject)


class InputError(MdirError, ValueError):
    """Invalid input."""


class CompleteOutputError(InputError):
    """The output folder already holds the finished result of the same command."""


class InvalidReferenceError(InputError):
    """A model's name is not a repo id, Hub URL, local folder or weight file."""


class MissingExtraError(InputError):
    """A package required by an optional extra is not installed."""


class RemoteCodeRefusedError(InputError):
    """``trust_remote_code`` was passed; this package never runs a repository's code."""


class HubError(MdirError, OSError):
    """A file or response could not be read from the Hub or from disk."""


class RepositoryNotFoundError(HubError):
    """The repository is missing, private, or gated and requested without a token."""


class GatedRepositoryError(HubError):
    """The repository is gated, and the token does not have access to it."""


class RevisionNotFoundError(HubError):
    """The repository has no such branch, tag or commit."""


class FileMissingError(HubError):
    """The repository has no such file at that commit."""


class OfflineError(HubError):
    """The file is not in the cache, and the network may not be used."""


class RateLimitedError(HubError):
    """The Hub returned status 429, even after all retries."""


class ServerError(HubError):
    """The server failed or returned an unusable response, even after all retries."""


class RangeIgnoredError(HubError):
    """The server did not return the requested byte range."""


class ShortReadError(HubError):
    """A read returned fewer bytes than requested."""


class ByteBudgetError(HubError):
    """The next read would exceed the caller's byte limit."""


class PullRequestError(HubError):
    """The pull request cannot be opened."""


class CheckpointError(MdirError, ValueError):
    """The weight files are missing, invalid or not supported."""


class NoWeightsError(CheckpointError):
    """The repository or folder contains no weights."""


class UnsupportedFormatError(CheckpointError):
    """The format or dtype of the weights is not supported."""


class SeveralModelsError(UnsupportedFormatError):
    """Several files could be the model, and none was selected; ``files`` lists their names."""

    def __init__(self, message: str, *, subject: str | None = None, files: tuple[str, ...] = ()) -> None:
        super().__init__(message, subject=subject)
        self.files = files

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_several, (self.message, self.subject, self.files))


def _rebuild_several(message: str, subject: str | None, files: tuple[str, ...]) -> SeveralModelsError:
    return SeveralModelsError(message, subject=subject, files=files)


class CorruptCheckpointError(CheckpointError):
    """The header, index, offsets or values are inconsistent."""


class NotFiniteError(CorruptCheckpointError):
    """A weight contains NaN or infinity; ``rows`` lists the affected rows, and is empty if whole tensors were read."""

    def __init__(self, message: str, *, rows: tuple[int, ...] = (), subject: str | None = None) -> None:
        super().__init__(message, subject=subject)
        self.rows = rows


class UnsafePathError(CheckpointError):
    """A file name in an index points outside the repository."""


class UnsafePickleError(CheckpointError):
    """A pickle refers to an object that weight files do not need. No part of it was executed."""


class TensorNotFoundError(CheckpointError):
    """The checkpoint has no tensor with that name."""


class AnatomyError(MdirError, ValueError):
    """The config or the tensor names do not describe a language model."""


class VocabularyError(MdirError, ValueError):
    """Tokenizer files are missing or unreadable, or do not match the embedding."""


class CardError(MdirError, ValueError):
    """A model card cannot be read, or cannot be edited without changing what its author wrote."""


class ReconstructionError(MdirError, ValueError):
    """The transformation cannot be reconstructed, read from a file, or undone exactly."""


class MemoryBudgetError(MdirError):
    """The comparison would exceed the memory limit."""


class StoppedError(MdirError):
    """A progress listener stopped the comparison by raising an exception."""


class WorkersLostError(MdirError):
    """All workers of a survey died; finished results are kept."""


def one_line(exc: BaseException) -> str:
    """Return the message of an exception on one line, or its class name if the message is empty."""
    return " ".join(str(exc).split()) or type(exc).__name__
