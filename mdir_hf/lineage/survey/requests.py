"""Estimate a survey's Hub requests, and compare them with the quota."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from huggingface_hub import get_token

from mdir_hf.model.hub import parse_reference
from mdir_hf.model.hub.retry import ANONYMOUS, USER, WINDOW_S
from mdir_hf.model.open import Reading

FILE_REQUESTS = 10
"""Upper bound per model of usual size: config, index, tokenizer and headers, some with a redirect."""
CARD_REQUESTS = 2
"""Requests for a model's card and an adapter's config."""


@dataclass(frozen=True)
class PlannedRequests:
    """Hub requests of a survey.

    Attributes:
        n_models: Models on the Hub.
        files: File requests, without those served by a CDN.
        has_token: Whether a token raises the quota.
    """

    n_models: int
    api: int
    files: int
    has_token: bool

    @property
    def at_least_s(self) -> float:
        """Minimum duration in seconds, by full quota windows."""
        quotas = USER if self.has_token else ANONYMOUS
        n_windows = max(self.api / quotas["api"], self.files / quotas["resolvers"])
        return WINDOW_S * max(0, -(-n_windows // 1) - 1)

    def __str__(self) -> str:
        quotas = USER if self.has_token else ANONYMOUS
        client = "a user" if self.has_token else "an address without a token"
        long = f"; they are spread over {self.at_least_s / 60:.0f} minutes or more" if self.at_least_s else ""
        return (
            f"{self.n_models} models on the Hub: up to {self.api:,} requests to its API and {self.files:,} for files; "
            f"in five minutes it answers {client} {quotas['api']:,} and {quotas['resolvers']:,}{long}"
        )


def planned_requests(
    reading: Reading, *, for_tokens: Iterable[str] = (), for_rows: Iterable[str] = (), for_cards: Iterable[str] = ()
) -> PlannedRequests:
    """Plan the requests for opening models and reading cards.

    Raises:
        InvalidReferenceError: If a name is not a valid model reference.
    """
    is_online = not reading.local_files_only
    tokens, rows, cards = (
        {name for name in names if is_online and parse_reference(name).repo_id is not None}
        for names in (for_tokens, for_rows, for_cards)
    )
    has_token = isinstance(reading.token, str) or (reading.token is not False and get_token() is not None)
    return PlannedRequests(
        n_models=len(tokens | rows | cards),
        api=len(tokens) + len(rows) + len(cards),
        files=FILE_REQUESTS * len(tokens | rows) + CARD_REQUESTS * len(cards),
        has_token=has_token,
    )
