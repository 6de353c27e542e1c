"""What the Hub client raises, said in this package's words.

Messages are written here from scratch: the client's own hold full addresses, and an address on the CDN is a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from huggingface_hub.errors import HfHubHTTPError

from mdir_hf.errors import (
    FileMissingError,
    GatedRepositoryError,
    HubError,
    InvalidReferenceError,
    MdirError,
    OfflineError,
    RateLimitedError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    ServerError,
    ShortReadError,
)
from mdir_hf.hub.retry import asked_wait_s, is_transport_error

_BAD_TOKEN = "Invalid credentials in Authorization header"  # X-Error-Message of the Hub, as its client matches it
_LOG_IN = "log in with `hf auth login`, set HF_TOKEN, or pass token="


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
    for kind in type(exc).__mro__:
        if kind.__module__ == "huggingface_hub.errors" and kind.__name__ in _TRANSLATIONS:
            return _TRANSLATIONS[kind.__name__](exc, subject, file, revision)
    if is_transport_error(exc):
        return _connection(exc, subject, file, revision)
    if exc.__cause__ is not None and isinstance(exc, (ValueError, OSError)):
        # "Force download failed due to the above error": the reason is the cause.
        return translate(exc.__cause__, subject=subject, file=file, revision=revision)
    if isinstance(exc, OSError):
        return _disk(exc, subject, file, revision)
    return None


def of_status(
    status: int, *, headers: dict[str, str], subject: str, file: str | None = None, revision: str | None = None
) -> MdirError:
    """Return our exception for an HTTP error status; ``headers`` has lower-case names."""
    code, said = headers.get("x-error-code", ""), headers.get("x-error-message", "")
    if code == "GatedRepo":
        return _gated_status(status, subject)
    if code == "RevisionNotFound":
        return RevisionNotFoundError(_revision_message(revision), subject=subject)
    if code == "EntryNotFound":
        return FileMissingError(f"there is no file {file!r} at this commit", subject=subject)
    if status == 401 and said == _BAD_TOKEN:
        return RepositoryNotFoundError(
            f"the Hub does not accept this token (401: wrong, expired or revoked); {_LOG_IN}, or pass token=False",
            subject=subject,
        )
    if status == 401 or code == "RepoNotFound":
        return RepositoryNotFoundError(
            "there is no such repository, or it is private, or gated and you are not logged in; the Hub does not say "
            f"which. Check the spelling (no local folder has this name either), and {_LOG_IN} if it is not public",
            subject=subject,
        )
    if status == 403:
        return GatedRepositoryError(
            f"the Hub refuses this token (403); {_LOG_IN} of an account with access", subject=subject
        )
    if status == 404:
        return FileMissingError(f"the Hub has nothing at this place (404){_of(file)}", subject=subject)
    if status == 429:
        wait_s = asked_wait_s(headers)
        wait = f"in {wait_s:.0f} s" if wait_s is not None else "in a few minutes"
        return RateLimitedError(
            f"the Hub still answers 429 (too many requests){_of(file)}; try again {wait}, logged in for a higher limit",
            subject=subject,
        )
    return ServerError(f"the server answered {status}{_of(file)}, after every retry; try again later", subject=subject)


Translation = Callable[[BaseException, str, "str | None", "str | None"], MdirError]


def _http(exc: BaseException, subject: str, file: str | None, revision: str | None) -> MdirError:
    assert isinstance(exc, HfHubHTTPError)
    headers = {key.lower(): value for key, value in exc.response.headers.items()}
    return of_status(exc.response.status_code, headers=headers, subject=subject, file=file, revision=revision)


def _gated(exc: BaseException, subject: str, file: str | None, revision: str | None) -> MdirError:
    assert isinstance(exc, HfHubHTTPError)
    return _gated_status(exc.response.status_code, subject)


def _gated_status(status: int, subject: str) -> MdirError:
    name = subject.split("@")[0]
    if status == 401:
        return GatedRepositoryError(
            f"the repository is gated and no token was sent; ask for access at the page of {name}, then {_LOG_IN}",
            subject=subject,
        )
    return GatedRepositoryError(
        f"the repository is gated and this token has not been granted access; ask for it at the page of {name}",
        subject=subject,
    )


def _disabled(exc: BaseException, subject: str, file: str | None, revision: str | None) -> MdirError:
    return GatedRepositoryError("the Hub has disabled access to this repository; no token can read it", subject=subject)


def _no_revision(exc: BaseException, subject: str, file: str | None, revision: str | None) -> MdirError:
    return RevisionNotFoundError(_revision_message(revision), subject=subject)


def _revision_message(revision: str | None) -> str:
    return f"there is no branch, tag or commit {revision or 'main'!r}; see the history on the page of the repository"


def _no_file(exc: BaseException, subject: str, file: str | None, revision: str | None) -> MdirError:
    return FileMissingError(f"there is no file {file!r} at this commit", subject=subject)


def _not_cached(exc: BaseException, subject: str, file: str | None, revision: str | None) -> MdirError:
    if exc.__cause__ is not None and not isinstance(exc.__cause__, type(exc)):
        # The client says "not in the cache" also when the network failed; the cause knows better.
        translated = translate(exc.__cause__, subject=subject, file=file, revision=revision)
        if translated is not None:
            return translated
    return OfflineError(
        f"the network may not be used, and the cache does not hold {file or 'this repository'!r}; unset HF_HUB_OFFLINE "
        "and local_files_only, or download it first with `hf download`",
        subject=subject,
    )


def _connection(exc: BaseException, subject: str, file: str | None, revision: str | None) -> MdirError:
    request = getattr(exc, "_request", None)
    host = urlsplit(str(request.url)).hostname if request is not None else None
    timed_out = any(kind.__name__ in ("TimeoutException", "TimeoutError") for kind in type(exc).__mro__)
    what = "did not answer in time" if timed_out else f"could not be reached ({type(exc).__name__})"
    return ServerError(
        f"{host or 'the Hub'} {what}{_of(file)}; check the connection (and HF_ENDPOINT), or pass "
        "local_files_only=True to use what is downloaded already",
        subject=subject,
    )


def _disk(exc: OSError, subject: str, file: str | None, revision: str | None) -> MdirError | None:
    if isinstance(exc, (ConnectionError, TimeoutError)):
        return _connection(exc, subject, file, revision)
    if exc.errno is not None:
        return HubError(
            f"cannot write to the Hub's cache: {exc.strerror}{_of(file)}; free some space, or set HF_HOME or cache_dir",
            subject=subject,
        )
    if "Consistency check failed" in str(exc):
        return ShortReadError(
            f"the download ended early{_of(file)}; try again, with force_download=True", subject=subject
        )
    return None


def _metadata(exc: BaseException, subject: str, file: str | None, revision: str | None) -> MdirError:
    return ServerError(
        f"the answer{_of(file)} lacks the headers of a Hub (commit, ETag or size); check HF_ENDPOINT and any proxy",
        subject=subject,
    )


def _reference(exc: BaseException, subject: str, file: str | None, revision: str | None) -> MdirError:
    return InvalidReferenceError("the Hub client does not take this for a repository id", subject=subject)


def _cache(exc: BaseException, subject: str, file: str | None, revision: str | None) -> MdirError:
    return HubError(
        "the Hub's cache on this disk is damaged; remove this repository from it with `hf cache`", subject=subject
    )


def _no_token(exc: BaseException, subject: str, file: str | None, revision: str | None) -> MdirError:
    return RepositoryNotFoundError(f"a token is asked for and none is stored; {_LOG_IN}", subject=subject)


def _xet(exc: BaseException, subject: str, file: str | None, revision: str | None) -> MdirError:
    return ServerError(
        f"the download from Xet storage failed{_of(file)}; try again, or set HF_HUB_DISABLE_XET=1", subject=subject
    )


def _unasked(exc: BaseException, subject: str, file: str | None, revision: str | None) -> MdirError:
    return HubError(
        f"the Hub client failed in a way not expected here ({type(exc).__name__}){_of(file)}", subject=subject
    )


def _of(file: str | None) -> str:
    return f" for {file!r}" if file else ""


# By name, because the 1.x client lacks some of these. Everything the client defines has an entry; a test holds that,
# so that a class added by a later client is looked at by a person.
_TRANSLATIONS: dict[str, Translation] = {
    "HfHubHTTPError": _http,
    "BadRequestError": _http,
    "RepositoryNotFoundError": _http,
    "GatedRepoError": _gated,
    "DisabledRepoError": _disabled,
    "RevisionNotFoundError": _no_revision,
    "RevisionResolutionError": _not_cached,
    "EntryNotFoundError": _no_file,
    "RemoteEntryNotFoundError": _no_file,
    "LocalEntryNotFoundError": _not_cached,
    "IncompleteSnapshotError": _not_cached,
    "OfflineModeIsEnabled": _not_cached,
    "FileMetadataError": _metadata,
    "HFValidationError": _reference,
    "HfUriError": _reference,
    "CacheNotFound": _cache,
    "CorruptedCacheException": _cache,
    "CachedRepoTreeNotFoundError": _not_cached,
    "LocalTokenNotFoundError": _no_token,
    "OIDCError": _no_token,
    "DeviceCodeError": _no_token,
    "XetDownloadError": _xet,
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
    _unasked,
)
