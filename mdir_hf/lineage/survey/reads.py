"""Plan what a survey reads, and its requests to the Hub."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from huggingface_hub import get_token

from mdir_hf.lineage.fingerprints.fingerprint import tokens_with_rows
from mdir_hf.lineage.survey.folder import SurveyState
from mdir_hf.lineage.survey.run import SurveyPlan, check_plan
from mdir_hf.lineage.survey.sample import choose_tokens, open_models
from mdir_hf.model.hub import IoLedger, parse_reference
from mdir_hf.model.hub.retry import ANONYMOUS, USER, WINDOW_S
from mdir_hf.model.open import Reading

FILE_REQUESTS = 10
"""Upper bound on requests for a typical model's config, index, tokenizer and headers, including redirects."""
CARD_REQUESTS = 2
"""Requests for a model's card and an adapter's config."""


@dataclass(frozen=True)
class PlannedRequests:
    """Hub requests that a survey sends.

    Attributes:
        n_models: Number of models on the Hub.
        files: Number of file requests, excluding those served by a CDN.
        has_token: Whether a token raises the quota.
    """

    n_models: int
    api: int
    files: int
    has_token: bool

    @property
    def at_least_s(self) -> float:
        """Minimum duration of the requests in seconds, a multiple of the quota window."""
        quotas = USER if self.has_token else ANONYMOUS
        n_windows = max(self.api / quotas["api"], self.files / quotas["resolvers"])
        return WINDOW_S * max(0, -(-n_windows // 1) - 1)

    def __str__(self) -> str:
        quotas = USER if self.has_token else ANONYMOUS
        client = "a user" if self.has_token else "an address without a token"
        long = f"; they take {self.at_least_s / 60:.0f} minutes or more" if self.at_least_s else ""
        return (
            f"{self.n_models} models on the Hub: up to {self.api:,} requests to its API and {self.files:,} for files; "
            f"in five minutes it answers {client} {quotas['api']:,} and {quotas['resolvers']:,}{long}"
        )


def planned_requests(
    reading: Reading, *, for_tokens: Iterable[str] = (), for_rows: Iterable[str] = (), for_cards: Iterable[str] = ()
) -> PlannedRequests:
    """Count the requests needed to open models, for tokens and again for rows, and to read cards."""
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


def requests_of(
    plan: SurveyPlan, state: SurveyState, *, only_sample: bool = False, with_cards: bool = False
) -> PlannedRequests:
    """Plan the Hub requests that a survey still has to send, without the full comparisons.

    If ``only_sample`` is true, plan only the requests of :func:`~mdir_hf.lineage.survey.run.prepare_survey`.
    """
    wanted_names = set(plan.part or plan.names)
    finished_names = {name for name in state.report.readable() if state.has_rows(name)}
    return planned_requests(
        plan.reading,
        for_tokens=plan.names if state.sample is None else (),
        for_rows=() if only_sample else wanted_names - finished_names,
        for_cards=wanted_names if with_cards else (),
    )


@dataclass(frozen=True, slots=True)
class SurveyReads:
    """The data that a survey reads.

    Attributes:
        n_rows: Number of rows to read, keyed by model.
        n_bytes: Size of rows, neurons and heads in bytes, excluding gaps between them, keyed by model.
        layers: Whether full comparisons follow; their reads are not included.
    """

    n_rows: Mapping[str, int]
    n_bytes: Mapping[str, int]
    failures: Mapping[str, str]
    n_pairs: int
    requests: PlannedRequests
    layers: bool = False


def plan_reads(plan: SurveyPlan) -> SurveyReads:
    """Plan a survey's reads without reading weights.

    Reads the config, headers and tokenizer of every model.

    Raises:
        InputError: If the plan is invalid, or no model can be opened.
    """
    check_plan(plan)
    opened_models, failures = open_models(plan.names, plan.reading, IoLedger())
    sample = choose_tokens(
        [model.vocabulary for model in opened_models.values() if model.vocabulary], plan.n_tokens, seed=plan.seed
    )
    specs = {name: model.embedding for name, model in opened_models.items() if model.embedding is not None}
    tokens = {
        name: frozenset(tokens_with_rows(model.vocabulary, specs[name].shape[0], sample) if model.vocabulary else ())
        for name, model in opened_models.items()
    }
    n_rows = {name: len(common) for name, common in tokens.items()}
    return SurveyReads(
        n_rows=n_rows,
        n_bytes={
            name: (n and n * (specs[name].n_bytes // specs[name].shape[0])) + opened_models[name].n_bytes_of_layers
            for name, n in n_rows.items()
        },
        failures=failures,
        n_pairs=math.comb(len(opened_models), 2),
        requests=planned_requests(plan.reading, for_tokens=opened_models, for_rows=opened_models),
        layers=plan.layers,
    )
