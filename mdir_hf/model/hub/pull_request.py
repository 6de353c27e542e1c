"""Open pull requests on the Hub, each with one commit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode

from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError

from mdir_hf.errors import CardError, OfflineError, PullRequestError, ServerError
from mdir_hf.model.hub.connection import RefusalError, ask, no_answer
from mdir_hf.model.hub.endpoint import CALLER, current_endpoint, is_offline
from mdir_hf.model.hub.errors_map import hub_errors
from mdir_hf.model.hub.model_info import model_info

_MEANWHILE = "while its files were being written; run the command again"
_ARE_DISABLED = (
    "discussions and pull requests are disabled for this repository; its owner can enable them in its settings, or add "
    "the files that --output writes"
)
_REFUSALS = {
    403: "this token may not open pull requests here (403); use one with write access, or a fine-grained one with the "
    "right to write discussions",
    412: f"the repository has moved on {_MEANWHILE}",
}


_MOST_OPEN = 100
"""Number of open pull requests whose titles are checked, newest first."""
_FEWEST_ON_A_PAGE = 10
_Kind = Literal["model", "dataset"]


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request that was opened."""

    url: str
    commit: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProposedCommit:
    """A commit to propose.

    Attributes:
        files: File contents, keyed by path.
        title: First line of the commit, and title of the pull request.
        description: Text of the pull request, in Markdown.
        parent: Full SHA of the commit that the files are based on; None to accept any head.
    """

    files: Mapping[str, bytes]
    title: str
    description: str
    parent: str | None = None


def open_pull_request(
    repo: str,
    proposed: ProposedCommit,
    *,
    branch: str = constants.DEFAULT_REVISION,
    token: str | bool | None = None,
    kind: _Kind = "model",
) -> PullRequest:
    """Open a pull request with one commit. Sends about five requests.

    Raises:
        PullRequestError: If the token is missing or lacks permission, discussions are disabled, the branch has new
            commits, a pull request with this title is open, or the files are unchanged.
        CardError: If the Hub rejects the metadata in a README.md.
        HubError: If a request fails.
    """
    if is_offline():
        raise OfflineError("a pull request needs the network, which HF_HUB_OFFLINE forbids", subject=repo)
    if token is False or (not isinstance(token, str) and get_token() is None):
        raise PullRequestError(
            "a pull request needs a token, but there is none; log in with `hf auth login`, set HF_TOKEN or use --token",
            subject=repo,
        )
    endpoint = current_endpoint()
    api = HfApi(endpoint=endpoint, token=token, **CALLER)
    with _write_errors(repo), hub_errors(repo, revision=branch):
        _check_no_duplicate(repo, proposed.title, kind, endpoint=endpoint, token=token)
        head = model_info(repo, revision=branch, label=repo, token=token, with_files=False, kind=kind).commit
        if proposed.parent is not None and head != proposed.parent:
            raise PullRequestError(
                f"the repository moved from {proposed.parent[:7]} to {head[:7]} {_MEANWHILE}", subject=repo
            )
        operations = [CommitOperationAdd(path, content) for path, content in proposed.files.items()]
        with warnings.catch_warnings(record=True) as remarks:
            warnings.simplefilter("always")
            info = api.create_commit(
                repo,
                operations,
                commit_message=proposed.title,
                commit_description=proposed.description,
                revision=branch,
                create_pr=True,
                parent_commit=head,
                repo_type=kind,
            )
    notes = [" ".join(str(remark.message).split()) for remark in remarks if remark.category is UserWarning]
    ignored = [operation.path_in_repo for operation in operations if operation._should_ignore]
    if ignored:
        notes.append(f"left out, because the repository's .gitignore names them: {', '.join(ignored)}")
    if info.pr_url is None:
        raise PullRequestError("no pull request was opened: the repository has these files already", subject=repo)
    return PullRequest(info.pr_url, info.oid, tuple(notes))


def _check_no_duplicate(repo: str, title: str, kind: _Kind, *, endpoint: str, token: str | bool | None) -> None:
    place = f"{endpoint}/{'datasets/' if kind == 'dataset' else ''}{repo}/discussions"
    for number, open_title in _open_pull_requests(repo, kind, endpoint=endpoint, token=token):
        if open_title == title:
            raise PullRequestError(
                f"pull request {number} has the same title and is open; merge or close it first ({place}/{number})",
                subject=repo,
            )


def _open_pull_requests(
    repo: str, kind: _Kind, *, endpoint: str, token: str | bool | None
) -> Iterator[tuple[int, str]]:
    # The client's own function has no timeout, and would request pages forever if the Hub kept returning empty ones.
    n_seen = 0
    for page in range(_MOST_OPEN // _FEWEST_ON_A_PAGE):
        query = urlencode({"type": "pull_request", "status": "open", "p": page})
        response, _ = ask(
            f"{endpoint}/api/{kind}s/{repo}/discussions?{query}", label=repo, endpoint=endpoint, token=token
        )
        is_object = isinstance(response, dict)
        discussions, n_all = (response.get("discussions"), response.get("count")) if is_object else (None, None)
        if not isinstance(discussions, list) or not isinstance(n_all, int):
            raise no_answer(repo, "expected a list of pull requests")
        for entry in discussions[: _MOST_OPEN - n_seen]:
            number, title = (entry.get("num"), entry.get("title")) if isinstance(entry, dict) else (None, None)
            if not isinstance(number, int) or not isinstance(title, str):
                raise no_answer(repo, f"{repr(entry)[:60]} is not a pull request with a number and a title")
            yield number, title
        n_seen += len(discussions)
        if not discussions or n_seen >= min(n_all, _MOST_OPEN):
            return


@contextmanager
def _write_errors(repo: str) -> Iterator[None]:
    try:
        yield
    except (PullRequestError, CardError):
        raise
    except Exception as exc:
        cause = exc.__cause__ if exc.__cause__ is not None else exc
        refusal = _refusal(cause, repo)
        if refusal is None:
            raise
        raise refusal from cause


def _says_disabled(text: str) -> bool:
    words = text.lower()
    return "disabled" in words and ("discussion" in words or "pull request" in words)


def _refusal(exc: BaseException, repo: str) -> PullRequestError | CardError | ServerError | None:
    refused: tuple[int, str] | None = None
    if isinstance(exc, HfHubHTTPError):
        refused = exc.response.status_code, f"{exc.server_message or ''} {exc}"
    elif isinstance(exc, RefusalError):
        refused = exc.status, exc.text
    if refused is not None:
        status, text = refused
        is_disabled = status in (400, 403, 404, 409, 410) and _says_disabled(text)
        why = _ARE_DISABLED if is_disabled else _REFUSALS.get(status)
        return None if why is None else PullRequestError(why, subject=repo)
    if isinstance(exc, ValueError) and "Invalid metadata in README.md" in str(exc):
        reason = " ".join(str(exc).split("\n", 1)[-1].split())
        return CardError(f"the Hub rejects the metadata of this card: {ascii(reason)[1:-1][:300]}", subject=repo)
    if isinstance(exc, ValueError) and type(exc).__name__ == "JSONDecodeError":
        return ServerError("the response of the Hub is not JSON; try again later", subject=repo)
    return None
