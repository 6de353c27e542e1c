"""Translate the Hub client's exceptions, whose messages may contain secret URLs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from urllib.parse import urlsplit

from huggingface_hub.errors import HfHubHTTPError

from mdir_hf.errors import (
    FileMissingError,
    GatedRepositoryError,
    HubError,
    InputError,
    InvalidReferenceError,
    MdirError,
    OfflineError,
    RateLimitedError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    ServerError,
)
from mdir_hf.model.hub.retry import is_transport_error, requested_wait_s

_BAD_TOKEN = "Invalid credentials in Authorization header"  # X-Error-Message from the Hub, as matched by its client
_CLOSED = "Access to this resource is disabled."  # also an X-Error-Message
_LOG_IN = "log in with `hf auth login`, set HF_TOKEN, or pass token="

_Message = tuple[type[MdirError], str]
"""An exception class and a message template. Fields: ``file``; ``of`` (" for 'file'" or empty); ``held`` (the quoted
file or "this repository"); ``revision``; ``name`` (the repository without its revision); and template-specific fields.
"""

_NO_FILE: _Message = (FileMissingError, "there is no file {file!r} at this commit")
_NO_REVISION: _Message = (
    RevisionNotFoundError,
    "there is no branch, tag or commit {revision!r}; see the history on the repository's page",
)
_NO_REPOSITORY: _Message = (
    RepositoryNotFoundError,
    "there is no such repository, or it is private, or gated and you are not logged in; the Hub does not say "
    f"which. Check the spelling (no local folder has this name either), and {_LOG_IN} if it is not public",
)
_WRONG_TOKEN: _Message = (
    RepositoryNotFoundError,
    f"the Hub does not accept this token (401: wrong, expired or revoked); {_LOG_IN}, or pass token=False",
)
_GATED: _Message = (
    GatedRepositoryError,
    "the repository is gated and this token has not been granted access; request it on {name}'s page",
)
_GATED_WITHOUT_TOKEN: _Message = (
    GatedRepositoryError,
    f"the repository is gated and no token was sent; request access on {{name}}'s page, then {_LOG_IN}",
)
_NOT_CACHED: _Message = (
    OfflineError,
    "network access is off, and the cache does not hold {held}; unset HF_HUB_OFFLINE "
    "and local_files_only (--local-files-only), or download it first with `hf download`",
)
_NO_CONNECTION: _Message = (
    ServerError,
    "{host} {failed}{of}; check the connection, HF_ENDPOINT and any proxy, or use downloaded files with "
    "local_files_only (--local-files-only)",
)
_NO_CONNECTION_YET: _Message = (
    ServerError,
    "{host} {failed}: check the connection and HF_ENDPOINT, put ./ before a local folder, or use downloaded files with "
    "local_files_only (--local-files-only)",
)
"""Used for a model's first request, because its name may be a mistyped local folder."""
_NO_DISK: _Message = (
    HubError,
    "cannot write to the Hub's cache: {reason}{of}; free some space, or set HF_HOME or cache_dir",
)
_NO_ID: _Message = (InvalidReferenceError, "the Hub client does not accept this as a repository id")
_NO_TOKEN: _Message = (RepositoryNotFoundError, f"a token is required, but none is stored; {_LOG_IN}")
_INVALID_TOKEN: _Message = (
    InputError,
    "the token contains invalid characters; check HF_TOKEN, the token stored by `hf auth login`, or token=",
)
_DISABLED: _Message = (
    GatedRepositoryError,
    "the Hub has disabled access to this repository; no token can read it",
)
_NOT_FROM_THE_HUB: _Message = (
    ServerError,
    "the response{of} is not one that the Hub sends ({kind} in its client); it may come from a proxy or a login "
    "page: check HF_ENDPOINT and any proxy",
)
_UNEXPECTED: _Message = (HubError, "the Hub client failed unexpectedly ({kind}){of}")

_BY_CODE: dict[str, _Message] = {  # X-Error-Code
    "RevisionNotFound": _NO_REVISION,
    "EntryNotFound": _NO_FILE,
    "RepoNotFound": _NO_REPOSITORY,
    "GatedRepo": _GATED,
}
_BY_STATUS: dict[int, _Message] = {
    401: _NO_REPOSITORY,
    403: (
        GatedRepositoryError,
        "the Hub rejected this token (403); use a token from an account that has access (`hf auth login`, HF_TOKEN or "
        "token=)",
    ),
    404: (FileMissingError, "the Hub has nothing at this URL (404){of}"),
    429: (
        RateLimitedError,
        "the Hub still answers 429 (too many requests){of}; try again {wait}, or log in to get a higher limit",
    ),
}
_OTHER_STATUS: _Message = (ServerError, "the server still returned {status}{of} after all retries; try again later")

# Keyed by name, because the 1.x client lacks some of these. If the value is a string, the error depends on the
# response; the string is the X-Error-Code to assume if the response has none. All other errors, such as errors of
# downloads, inference or jobs, are unexpected: the client is asked for neither.
_TRANSLATIONS: dict[str, _Message | str] = {
    "HfHubHTTPError": "",
    "BadRequestError": "",
    "RepositoryNotFoundError": "",
    "GatedRepoError": "GatedRepo",
    "DisabledRepoError": _DISABLED,
    "RevisionNotFoundError": _NO_REVISION,
    "EntryNotFoundError": _NO_FILE,
    "RemoteEntryNotFoundError": _NO_FILE,
    "OfflineModeIsEnabled": _NOT_CACHED,
    "HFValidationError": _NO_ID,
    "LocalTokenNotFoundError": _NO_TOKEN,
    "OIDCError": _NO_TOKEN,
    "DeviceCodeError": _NO_TOKEN,
}


@contextmanager
def hub_errors(subject: str, *, file: str | None = None, revision: str | None = None) -> Iterator[None]:
    """Translate the Hub client's exceptions and let other exceptions pass through.

    Raises:
        MdirError: With the client's exception as its cause.
    """
    try:
        yield
    except MdirError:
        raise
    except Exception as exc:
        translated = translate(exc, subject=subject, file=file, revision=revision)
        if translated is None:
            raise
        raise translated from exc


def translate(
    exc: BaseException, *, subject: str, file: str | None = None, revision: str | None = None
) -> MdirError | None:
    """Return this package's exception for one from the Hub client, or None if it has no translation."""

    def translated(message: _Message, **fields: object) -> MdirError:
        return _error(message, subject, file, revision, **fields)

    for kind in type(exc).__mro__:
        if kind.__module__ != "huggingface_hub.errors" or kind.__name__ not in _TRANSLATIONS:
            continue
        entry = _TRANSLATIONS[kind.__name__]
        if isinstance(entry, str):
            assert isinstance(exc, HfHubHTTPError)
            headers = {"x-error-code": entry} | {key.lower(): value for key, value in exc.response.headers.items()}
            return of_status(exc.response.status_code, headers=headers, subject=subject, file=file, revision=revision)
        return translated(entry, kind=type(exc).__name__)
    if type(exc).__module__ == "huggingface_hub.errors":
        return translated(_UNEXPECTED, kind=type(exc).__name__)
    if (isinstance(exc, UnicodeEncodeError) and _is_of_the_client(exc)) or _is_of_a_header(exc):
        return translated(_INVALID_TOKEN)  # the token is the only header with free text
    no_connection = _NO_CONNECTION if file or not revision else _NO_CONNECTION_YET
    if is_transport_error(exc):
        return translated(no_connection, **_connection(exc))
    if isinstance(exc, (ConnectionError, TimeoutError)):
        return translated(no_connection, **_connection(exc))
    if isinstance(exc, OSError) and exc.errno is not None:
        return translated(_NO_DISK, reason=exc.strerror)
    if (isinstance(exc, _OF_PARSING) and _is_of_the_client(exc)) or _is_of_http(exc):
        return translated(_NOT_FROM_THE_HUB, kind=type(exc).__name__)
    if isinstance(exc, RuntimeError) and _is_of_the_client(exc):  # everything that hf_xet raises
        return translated(_UNEXPECTED, kind=type(exc).__name__)
    return None


def of_status(
    status: int, *, headers: Mapping[str, str], subject: str, file: str | None = None, revision: str | None = None
) -> MdirError:
    """Return the exception for an HTTP error status; header names must be lower-case."""
    message = _BY_CODE.get(headers.get("x-error-code", ""), _BY_STATUS.get(status, _OTHER_STATUS))
    if status == 401 and message is _GATED:
        message = _GATED_WITHOUT_TOKEN
    elif status == 401 and headers.get("x-error-message") == _BAD_TOKEN:
        message = _WRONG_TOKEN
    elif headers.get("x-error-message") == _CLOSED:
        message = _DISABLED
    wait_s = requested_wait_s(headers)
    wait = f"in {wait_s:.0f} s" if wait_s is not None else "in a few minutes"
    return _error(message, subject, file, revision, status=status, wait=wait)


def _error(message: _Message, subject: str, file: str | None, revision: str | None, **fields: object) -> MdirError:
    kind, text = message
    fields |= {"file": file, "of": f" for {file!r}" if file else "", "held": f"{file!r}" if file else "this repository"}
    return kind(text.format(revision=revision or "main", name=subject.split("@")[0], **fields), subject=subject)


_OF_PARSING = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""Built-in exceptions that the client raises when it cannot parse a response."""
_HTTP = ("httpx", "httpx2")
_CLIENT = ("huggingface_hub", *_HTTP, "hf_xet")


def _is_of_the_client(exc: BaseException) -> bool:
    frames: TracebackType | None = exc.__traceback__
    while frames is not None:
        if str(frames.tb_frame.f_globals.get("__name__")).split(".")[0] in _CLIENT:
            return True
        frames = frames.tb_next
    return False


def _is_of_http(exc: BaseException) -> bool:
    return type(exc).__module__.split(".")[0] in _HTTP and not isinstance(exc, RuntimeError)


def _is_of_a_header(exc: BaseException) -> bool:
    return is_transport_error(exc) and any(kind.__name__ == "LocalProtocolError" for kind in type(exc).__mro__)


def _connection(exc: BaseException) -> dict[str, str]:
    request = getattr(exc, "_request", None)
    host = urlsplit(str(request.url)).hostname if request is not None else None
    timed_out = any(kind.__name__ in ("TimeoutException", "TimeoutError") for kind in type(exc).__mro__)
    failed = "did not answer in time" if timed_out else f"could not be reached ({type(exc).__name__})"
    return {"host": host or "the Hub", "failed": failed}
