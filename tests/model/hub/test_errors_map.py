import inspect

import huggingface_hub.errors
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from mdir_hf import errors
from mdir_hf.model.hub.errors_map import hub_errors, of_status, translate
from tests.loopback.faults import Fault

CLASSES = [
    kind
    for _, kind in inspect.getmembers(huggingface_hub.errors, inspect.isclass)
    if kind.__module__ == "huggingface_hub.errors" and issubclass(kind, BaseException)
]


class FakeResponse:
    """A response of the Hub without a body."""

    status_code = 418
    request = None

    def __init__(self):
        self.headers = {}


def instance(kind):
    exc = kind.__new__(kind)
    if isinstance(exc, HfHubHTTPError):
        exc.response = FakeResponse()
    return exc


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_exception_of_the_client_becomes_one_of_ours(kind):
    translated = translate(instance(kind), subject="owner/name")
    assert isinstance(translated, errors.MdirError)
    assert str(translated).startswith("owner/name: ")


def test_a_gated_repository_is_not_reported_as_a_missing_one():
    exc = instance(huggingface_hub.errors.GatedRepoError)
    assert isinstance(exc, huggingface_hub.errors.RepositoryNotFoundError)
    assert type(translate(exc, subject="o/n")) is errors.GatedRepositoryError


@pytest.mark.parametrize("bug", [TypeError("bug"), KeyError("bug"), ValueError("bug"), AssertionError("bug")])
def test_a_bug_is_not_reported_as_a_hub_error(bug):
    with pytest.raises(type(bug)) as caught, hub_errors("o/n"):
        raise bug
    assert caught.value is bug


def test_an_interrupt_is_not_translated():
    with pytest.raises(KeyboardInterrupt), hub_errors("o/n"):
        raise KeyboardInterrupt


def test_the_clients_exception_is_kept_as_the_cause():
    exc = huggingface_hub.errors.HFValidationError("no")
    with pytest.raises(errors.InvalidReferenceError) as caught, hub_errors("o/n"):
        raise exc
    assert caught.value.__cause__ is exc


def test_a_full_disk_names_the_cache_and_the_way_out():
    translated = translate(OSError(28, "No space left on device"), subject="o/n", file="config.json")
    assert type(translated) is errors.HubError
    assert "cannot write to the Hub's cache: No space left on device for 'config.json'" in str(translated)


@pytest.mark.parametrize(
    ("status", "headers", "kind", "says"),
    [
        (401, {}, errors.RepositoryNotFoundError, "private, or gated.*hf auth login"),
        (
            401,
            {"x-error-message": "Invalid credentials in Authorization header"},
            errors.RepositoryNotFoundError,
            "token",
        ),
        (401, {"x-error-code": "GatedRepo"}, errors.GatedRepositoryError, "no token was sent"),
        (403, {"x-error-code": "GatedRepo"}, errors.GatedRepositoryError, "not been granted"),
        (403, {}, errors.GatedRepositoryError, r"rejected this token \(403\)"),
        (404, {"x-error-code": "RepoNotFound"}, errors.RepositoryNotFoundError, "no such repository"),
        (404, {"x-error-code": "RevisionNotFound"}, errors.RevisionNotFoundError, "'v1'"),
        (404, {"x-error-code": "EntryNotFound"}, errors.FileMissingError, "'f.json'"),
        (404, {}, errors.FileMissingError, "404"),
        (429, {"retry-after": "9"}, errors.RateLimitedError, "in 10 s"),
        (429, {}, errors.RateLimitedError, "in a few minutes"),
        (500, {}, errors.ServerError, "500"),
        (418, {}, errors.ServerError, "418"),
    ],
)
def test_a_status_becomes_the_error_that_says_what_to_do(status, headers, kind, says):
    error = of_status(status, headers=headers, subject="o/n", file="f.json", revision="v1")
    assert type(error) is kind
    with pytest.raises(kind, match=says):
        raise error


# Exceptions of the installed client's HTTP library, raised by the library rather than imported.


def provoked(hub, fault):
    hub.faults.append(fault)
    with pytest.raises(Exception) as caught:  # the class depends on the client's version
        HfApi(endpoint=hub.endpoint).model_info("o/n", timeout=0.1)
    return caught.value


def test_no_message_holds_an_address_or_a_token(loopback_hub, model_folder):
    loopback_hub.add_repository("owner/secret", model_folder, private=True)
    for status in (400, 401, 403, 404, 416, 429, 500):
        exc = provoked(loopback_hub, Fault("status", status=status, headers={"X-Error-Message": "see http://x/?sig=1"}))
        said = str(translate(exc, subject="o/n"))
        assert "http" not in said
        assert "sig=1" not in said
