"""One request to the Hub's API, answered in JSON.

Asked without the client's ``HfApi``: it waits as long as a server says, reads an answer of any length, and passes on
whatever a broken one makes of its own parser.
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
    """An error status of the Hub with its own words: cause of the error that :func:`ask` raises for it.

    Attributes:
        status: The status.
        said: What the answer says; written by a server, for looking at and not for showing.
    """

    def __init__(self, status: int, said: str) -> None:
        super().__init__(status)
        self.status = status
        self.said = said


def ask(
    url: str,
    *,
    label: str,
    endpoint: str,
    token: str | bool | None,
    revision: str | None = None,
    before_each: Callable[[], None] = lambda: None,
) -> tuple[Any, str | None]:
    """Ask the Hub's API, and follow where it sends us on the Hub.

    Args:
        url: The address, with the question.
        label: What an error calls the subject.
        endpoint: Base URL of the Hub.
        token: As the Hub client takes it.
        revision: The revision asked for, for errors.
        before_each: Called before every request, to count them.

    Returns:
        What stands in the answer, whatever it is, and the address of the next page if there is one.

    Raises:
        HubError: If the Hub refuses (then from a :class:`RefusalError`), cannot be asked, or answers no JSON.
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
                        said = _parsed(_whole(response, label), label)
                        return said, response.links.get("next", {}).get("url")
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
    """Make the error for an answer that the Hub would not give."""
    return ServerError(f"the answer is not one of the Hub: {why}; check HF_ENDPOINT and any proxy", subject=label)


def _whole(response: Any, label: str) -> bytes:  # noqa: ANN401 - a response of httpx or of httpx2
    content = bytearray()
    for piece in pieces(response, subject=label, decoded=True):
        content += piece
        if len(content) > HUB_ANSWER.n_bytes:
            raise no_answer(label, f"it is longer than {HUB_ANSWER.n_bytes:,} bytes")
    return bytes(content)


def _parsed(content: bytes, label: str) -> Any:  # noqa: ANN401 - whatever stands in it
    excess = HUB_ANSWER.excess(n_items=json_weight(content), of="values")
    if excess is not None:
        raise no_answer(label, f"it {excess}")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as exc:
        is_page = content.lstrip()[:1] == b"<"
        what = "a web page, perhaps to log in to the network" if is_page else "not JSON"
        raise no_answer(label, f"it is {what}") from exc
