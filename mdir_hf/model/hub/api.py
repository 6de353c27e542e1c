"""Sends requests to the Hub's JSON API.

The client's ``HfApi`` is not used because it waits as long as a server says, reads responses of any length, and passes
on parser errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from mdir_hf.budgets import HUB_ANSWER, json_weight
from mdir_hf.errors import MdirError, ServerError
from mdir_hf.model.hub.connection import MOVED, drain, get, pieces, secured
from mdir_hf.model.hub.errors_map import hub_errors, of_status
from mdir_hf.model.hub.retry import MOST_UNCONNECTED, RETRIED_STATUSES, Patience, is_transient, is_unconnected

_MOST_MOVES = 4


class RefusalError(Exception):
    """An error status from the Hub with its text; the cause of the error that :func:`ask` raises.

    Attributes:
        status: The HTTP status.
        text: Text of the response. It comes from a server, so it must not be shown to users.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status)
        self.status = status
        self.text = text


def ask(
    url: str,
    *,
    label: str,
    endpoint: str,
    token: str | bool | None,
    revision: str | None = None,
    before_each: Callable[[], None] = lambda: None,
) -> tuple[Any, str | None]:
    """Send a GET request to the Hub's API, following redirects.

    Args:
        url: URL with the query.
        label: Name of the subject in error messages.
        endpoint: Base URL of the Hub.
        token: Token, as in the Hub client.
        revision: The requested revision, for error messages.
        before_each: Called before every request, for counting.

    Returns:
        The decoded JSON, unchecked, and the URL of the next page or None.

    Raises:
        HubError: If the Hub refuses (with a :class:`RefusalError` as the cause), is unreachable, or does not return
            JSON.
    """
    patience = Patience()
    n_moves = n_unconnected = 0
    with hub_errors(label, revision=revision):
        while True:
            before_each()
            failure: MdirError | None = None
            cause: Exception | None = None
            refusal: RefusalError | None = None
            headers: Mapping[str, str] = {}
            try:
                with get(url, endpoint=endpoint, token=token) as response:
                    status, headers = response.status_code, response.headers
                    if status == 200:
                        content = _parsed(_whole(response, label), label)
                        return content, response.links.get("next", {}).get("url")
                    body = drain(response, subject=label)
                    if status in MOVED and "location" in headers and n_moves < _MOST_MOVES:
                        n_moves += 1
                        url = secured(url, headers["location"], subject=label)
                        continue
                lowered = {key.lower(): value for key, value in headers.items()}
                failure = of_status(status, headers=lowered, subject=label, revision=revision)
                refusal = RefusalError(status, f"{lowered.get('x-error-message', '')} {body.decode(errors='replace')}")
                if status not in RETRIED_STATUSES:
                    raise failure from refusal
            except MdirError:
                raise
            except Exception as exc:
                if not is_transient(exc):
                    raise
                cause = exc
                n_unconnected += is_unconnected(exc)
            if n_unconnected == MOST_UNCONNECTED or not patience.failed(headers, cause=cause):
                if failure is not None:
                    raise failure from refusal
                raise cause or ServerError("the Hub did not answer", subject=label)


def no_answer(label: str, why: str) -> ServerError:
    """Return the error for a response that cannot come from the Hub."""
    return ServerError(f"the response is not from the Hub: {why}; check HF_ENDPOINT and any proxy", subject=label)


def _whole(response: Any, label: str) -> bytes:  # noqa: ANN401 - a response from httpx or httpx2
    content = bytearray()
    for piece in pieces(response, subject=label, decoded=True):
        content += piece
        if len(content) > HUB_ANSWER.n_bytes:
            raise no_answer(label, f"it is longer than {HUB_ANSWER.n_bytes:,} bytes")
    return bytes(content)


def _parsed(content: bytes, label: str) -> Any:  # noqa: ANN401 - any JSON value
    excess = HUB_ANSWER.excess(n_items=json_weight(content), of="values")
    if excess is not None:
        raise no_answer(label, f"it {excess}")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as exc:
        is_page = content.lstrip()[:1] == b"<"
        what = "a web page, perhaps to log in to the network" if is_page else "not JSON"
        raise no_answer(label, f"it is {what}") from exc
