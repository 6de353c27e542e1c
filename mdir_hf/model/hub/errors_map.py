"""Maps the exceptions of the Hub client to those of this package.

Messages are written here from scratch: the client's own hold full addresses, and an address on the CDN is a secret.
"""

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
    ShortReadError,
)
from mdir_hf.model.hub.retry import asked_wait_s, is_transport_error

_BAD_TOKEN = "Invalid credentials in Authorization header"  # X-Error-Message of the Hub, as its client matches it
_CLOSED = "Access to this resource is disabled."  # likewise
_LOG_IN = "log in with `hf auth login`, set HF_TOKEN, or pass token="

_Said = tuple[type[MdirError], str]
"""What is raised and said. Fields of the text: ``file``; ``of``, " for 'file'" or nothing; ``held``, the file or "this
repository"; ``revision``; ``name``, the repository without its revision; and those of one entry alone."""

_NO_FILE: _Said = (FileMissingError, "there is no file {file!r} at this commit")
_NO_REVISION: _Said = (
    RevisionNotFoundError,
    "there is no branch, tag or commit {revision!r}; see the history on the page of the repository",
)
_NO_REPOSITORY: _Said = (
    RepositoryNotFoundError,
    "there is no such repository, or it is private, or gated and you are not logged in; the Hub does not say "
    f"which. Check the spelling (no local folder has this name either), and {_LOG_IN} if it is not public",
)
_WRONG_TOKEN: _Said = (
    RepositoryNotFoundError,
    f"the Hub does not accept this token (401: wrong, expired or revoked); {_LOG_IN}, or pass token=False",
)
_GATED: _Said = (
    GatedRepositoryError,
    "the repository is gated and this token has not been granted access; ask for it at the page of {name}",
)
_GATED_FOR_ANYBODY: _Said = (
    GatedRepositoryError,
    f"the repository is gated and no token was sent; ask for access at the page of {{name}}, then {_LOG_IN}",
)
_NOT_CACHED: _Said = (
    OfflineError,
    "the network may not be used, and the cache does not hold {held!r}; unset HF_HUB_OFFLINE "
    "and local_files_only, or download it first with `hf download`",
)
_NO_CONNECTION: _Said = (
    ServerError,
    "{host} {failed}{of}; check the connection, HF_ENDPOINT and any proxy. local_files_only uses what was downloaded",
)
_NAME_NOT_ASKED: _Said = (
    ServerError,
    "{host} {failed}: either there is no connection (or HF_ENDPOINT is wrong), or a folder of this machine was meant "
    "and its name is mistyped. local_files_only uses what was downloaded",
)
"""Of the first question about a model: nothing has shown yet that its name is one of the Hub's."""
_NO_DISK: _Said = (
    HubError,
    "cannot write to the Hub's cache: {reason}{of}; free some space, or set HF_HOME or cache_dir",
)
_SHORT: _Said = (ShortReadError, "the download ended early{of}; try again, with force_download=True")
_NO_METADATA: _Said = (
    ServerError,
    "the answer{of} has no commit, ETag or size in its headers; a login page of the network may have answered instead: "
    "check HF_ENDPOINT and any proxy",
)
_NO_ID: _Said = (InvalidReferenceError, "the Hub client does not take this for a repository id")
_DAMAGED: _Said = (
    HubError,
    "the Hub's cache on this disk is damaged; remove this repository from it with `hf cache`",
)
_NO_TOKEN: _Said = (RepositoryNotFoundError, f"a token is asked for and none is stored; {_LOG_IN}")
_NO_TOKEN_AT_ALL: _Said = (
    InputError,
    "the token holds characters that no token has; check HF_TOKEN, what `hf auth login` stored, or token=",
)
_DISABLED: _Said = (
    GatedRepositoryError,
    "the Hub has disabled access to this repository; no token can read it",
)
_NOT_OF_THE_HUB: _Said = (
    ServerError,
    "the answer{of} is not what the Hub answers ({kind} in its client); a proxy or a login page may have answered "
    "instead: check HF_ENDPOINT and any proxy",
)
_UNEXPECTED: _Said = (HubError, "the Hub client failed in a way not expected here ({kind}){of}")

_BY_CODE: dict[str, _Said] = {  # X-Error-Code
    "RevisionNotFound": _NO_REVISION,
    "EntryNotFound": _NO_FILE,
    "RepoNotFound": _NO_REPOSITORY,
    "GatedRepo": _GATED,
}
_BY_STATUS: dict[int, _Said] = {
    401: _NO_REPOSITORY,
    403: (GatedRepositoryError, f"the Hub refuses this token (403); {_LOG_IN} of an account with access"),
    404: (FileMissingError, "the Hub has nothing at this place (404){of}"),
    429: (
        RateLimitedError,
        "the Hub still answers 429 (too many requests){of}; try again {wait}, logged in for a higher limit",
    ),
}
_OTHER_STATUS: _Said = (ServerError, "the server answered {status}{of}, after every retry; try again later")

# By name, because the 1.x client lacks some of these. Everything the client defines has an entry; a test holds that,
# so that a class added by a later client is looked at by a person. A string: the answer decides, and this is its
# X-Error-Code where it has none.
_TRANSLATIONS: dict[str, _Said | str] = {
    "HfHubHTTPError": "",
    "BadRequestError": "",
    "RepositoryNotFoundError": "",
    "GatedRepoError": "GatedRepo",
    "DisabledRepoError": _DISABLED,
    "RevisionNotFoundError": _NO_REVISION,
    "RevisionResolutionError": _NOT_CACHED,
    "EntryNotFoundError": _NO_FILE,
    "RemoteEntryNotFoundError": _NO_FILE,
    "LocalEntryNotFoundError": _NOT_CACHED,
    "IncompleteSnapshotError": _NOT_CACHED,
    "OfflineModeIsEnabled": _NOT_CACHED,
    "CachedRepoTreeNotFoundError": _NOT_CACHED,
    "FileMetadataError": _NO_METADATA,
    "HFValidationError": _NO_ID,
    "HfUriError": _NO_ID,
    "CacheNotFound": _DAMAGED,
    "CorruptedCacheException": _DAMAGED,
    "LocalTokenNotFoundError": _NO_TOKEN,
    "OIDCError": _NO_TOKEN,
    "DeviceCodeError": _NO_TOKEN,
    "XetDownloadError": (
        ServerError,
        "the download from Xet storage failed{of}; try again, or set HF_HUB_DISABLE_XET=1",
    ),
}
# Families of calls this package never makes: inference, buckets, jobs, uploads, the command line, sandboxes.
_TRANSLATIONS |= dict.fromkeys(
    [
        *("InferenceTimeoutError", "InferenceEndpointError", "InferenceEndpointTimeoutError"),
        *("TextGenerationError", "ValidationError", "GenerationError", "OverloadedError"),
        *("IncompleteGenerationError", "UnknownError"),
        *("BucketNotFoundError", "BucketBatchError", "JobNotFoundError", "SandboxError", "SandboxCommandError"),
        *("SafetensorsParsingError", "NotASafetensorsRepoError", "DryRunError", "FileDuplicationError"),
        *("DDUFError", "DDUFCorruptedFileError", "DDUFExportError", "DDUFInvalidEntryNameError"),
        *("StrictDataclassError", "StrictDataclassDefinitionError"),
        *("StrictDataclassFieldValidationError", "StrictDataclassClassValidationError"),
        *("CLIError", "ConfirmationError", "CLIExtensionInstallError"),
    ],
    _UNEXPECTED,
)


@contextmanager
def hub_errors(subject: str, *, file: str | None = None, revision: str | None = None) -> Iterator[None]:
    """Translate whatever the Hub client raises inside the block; our own errors and bugs pass through.

    Args:
        subject: The repository, as an error should call it.
        file: The file being asked for, if any.
        revision: The revision being asked for, if any.

    Raises:
        MdirError: ``from`` the client's exception.
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
    """Return our exception for one of the Hub client's, or None if it is not one of them.

    The most derived class with an entry decides, so that a gated repository is not reported as a missing one.
    """

    def told(said: _Said, **facts: object) -> MdirError:
        return _error(said, subject, file, revision, **facts)

    def by_cause() -> MdirError | None:
        cause = exc.__cause__
        return None if cause is None else translate(cause, subject=subject, file=file, revision=revision)

    for kind in type(exc).__mro__:
        if kind.__module__ != "huggingface_hub.errors" or kind.__name__ not in _TRANSLATIONS:
            continue
        entry = _TRANSLATIONS[kind.__name__]
        if isinstance(entry, str):
            assert isinstance(exc, HfHubHTTPError)
            headers = {"x-error-code": entry} | {key.lower(): value for key, value in exc.response.headers.items()}
            return of_status(exc.response.status_code, headers=headers, subject=subject, file=file, revision=revision)
        if entry is _NOT_CACHED and not isinstance(exc.__cause__, type(exc)):
            # The client says "not in the cache" also when the network failed; the cause knows better.
            return by_cause() or told(entry)
        return told(entry, kind=type(exc).__name__)
    if (isinstance(exc, UnicodeEncodeError) and _is_of_the_client(exc)) or _is_of_a_header(exc):
        return told(_NO_TOKEN_AT_ALL)  # of all that becomes a header, only the token is free text
    no_connection = _NO_CONNECTION if file or not revision else _NAME_NOT_ASKED
    if is_transport_error(exc):
        return told(no_connection, **_connection(exc))
    if exc.__cause__ is not None and isinstance(exc, (ValueError, OSError)) and (cause := by_cause()) is not None:
        return cause  # "Force download failed due to the above error"
    if isinstance(exc, (ConnectionError, TimeoutError)):
        return told(no_connection, **_connection(exc))
    if isinstance(exc, OSError) and exc.errno is not None:
        return told(_NO_DISK, reason=exc.strerror)
    if isinstance(exc, OSError) and "Consistency check failed" in str(exc):
        return told(_SHORT)
    if (isinstance(exc, _OF_PARSING) and _is_of_the_client(exc)) or _is_of_http(exc):
        return told(_NOT_OF_THE_HUB, kind=type(exc).__name__)
    if isinstance(exc, RuntimeError) and _is_of_the_client(exc):  # all that hf_xet raises
        return told(_UNEXPECTED, kind=type(exc).__name__)
    return None


def of_status(
    status: int, *, headers: Mapping[str, str], subject: str, file: str | None = None, revision: str | None = None
) -> MdirError:
    """Return our exception for an HTTP error status; ``headers`` has lower-case names."""
    said = _BY_CODE.get(headers.get("x-error-code", ""), _BY_STATUS.get(status, _OTHER_STATUS))
    if status == 401 and said is _GATED:
        said = _GATED_FOR_ANYBODY
    elif status == 401 and headers.get("x-error-message") == _BAD_TOKEN:
        said = _WRONG_TOKEN
    elif headers.get("x-error-message") == _CLOSED:
        said = _DISABLED
    wait_s = asked_wait_s(headers)
    wait = f"in {wait_s:.0f} s" if wait_s is not None else "in a few minutes"
    return _error(said, subject, file, revision, status=status, wait=wait)


def _error(said: _Said, subject: str, file: str | None, revision: str | None, **facts: object) -> MdirError:
    kind, text = said
    facts |= {"file": file, "of": f" for {file!r}" if file else "", "held": file or "this repository"}
    return kind(text.format(revision=revision or "main", name=subject.split("@")[0], **facts), subject=subject)


_OF_PARSING = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""What the client's own parsers raise on an answer that they do not expect, without a class of its own."""
_HTTP = ("httpx", "httpx2")
_CLIENT = ("huggingface_hub", *_HTTP, "hf_xet")


def _is_of_the_client(exc: BaseException) -> bool:
    """Tell whether an exception passed through the client: its traceback begins with us, and goes on in there."""
    frames: TracebackType | None = exc.__traceback__
    while frames is not None:
        if str(frames.tb_frame.f_globals.get("__name__")).split(".")[0] in _CLIENT:
            return True
        frames = frames.tb_next
    return False


def _is_of_http(exc: BaseException) -> bool:
    """Tell whether the HTTP library has a class of its own for it, beside those of the transport: for a bad address."""
    return type(exc).__module__.split(".")[0] in _HTTP and not isinstance(exc, RuntimeError)


def _is_of_a_header(exc: BaseException) -> bool:
    return is_transport_error(exc) and any(kind.__name__ == "LocalProtocolError" for kind in type(exc).__mro__)


def _connection(exc: BaseException) -> dict[str, str]:
    request = getattr(exc, "_request", None)
    host = urlsplit(str(request.url)).hostname if request is not None else None
    timed_out = any(kind.__name__ in ("TimeoutException", "TimeoutError") for kind in type(exc).__mro__)
    failed = "did not answer in time" if timed_out else f"could not be reached ({type(exc).__name__})"
    return {"host": host or "the Hub", "failed": failed}
