"""Plan a survey's reads, and compute the largest noise at which it would find a copy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from mdir_hf.comparison.exclusion import noise_of_plan
from mdir_hf.comparison.plan import make_plan
from mdir_hf.comparison.settings import Settings
from mdir_hf.lineage.fingerprints.fingerprint import tokens_with_rows
from mdir_hf.lineage.survey.planning import PlannedRequests, choose_tokens, open_models, planned_requests
from mdir_hf.lineage.survey.run import SurveyPlan, check_plan
from mdir_hf.model.files import TensorSpec
from mdir_hf.model.hub import IoLedger
from mdir_hf.report import Level

FEWEST_COMMON = 16
"""Pairs with fewer common tokens than this are blind: their rows cannot show a relation."""


@dataclass(frozen=True, slots=True)
class SurveyReads:
    """The data that a survey reads.

    Attributes:
        n_rows: Number of rows to read, keyed by model.
        n_bytes: Size of rows and neurons in bytes, excluding gaps between them, keyed by model.
        n_blind: Number of pairs with fewer than :data:`FEWEST_COMMON` common tokens.
        excluded_noise: Largest noise, in units of the weights' RMS, at which a copy with permuted channels would be
            found in every pair that is not blind; None if all pairs are blind.
        layers: Whether full comparisons follow; their reads are not included.
    """

    n_rows: Mapping[str, int]
    n_bytes: Mapping[str, int]
    failures: Mapping[str, str]
    n_pairs: int
    n_blind: int
    requests: PlannedRequests
    excluded_noise: float | None
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
    # More rows rule out more noise, so for each pair of widths, only the models with the fewest common tokens matter.
    fewest: dict[frozenset[int], tuple[int, TensorSpec, TensorSpec]] = {}
    n_blind = 0
    for first, second in combinations(opened_models, 2):
        n_common = len(tokens[first] & tokens[second])
        if n_common < FEWEST_COMMON:
            n_blind += 1
            continue
        widths = frozenset((specs[first].shape[1], specs[second].shape[1]))
        if widths not in fewest or n_common < fewest[widths][0]:
            fewest[widths] = (n_common, specs[first], specs[second])
    settings = Settings(level=Level.SCREEN, alpha=plan.alpha_of_pair)
    noises = [
        noise_of_plan(
            make_plan(first, second, common_tokens=n_common, bytes_of_weights=0, settings=settings), plan.alpha_of_pair
        )
        for n_common, first, second in fewest.values()
    ]
    n_rows = {name: len(common) for name, common in tokens.items()}
    return SurveyReads(
        n_rows=n_rows,
        n_bytes={
            name: (n and n * (specs[name].n_bytes // specs[name].shape[0])) + opened_models[name].n_bytes_of_neurons
            for name, n in n_rows.items()
        },
        failures=failures,
        n_pairs=math.comb(len(opened_models), 2),
        n_blind=n_blind,
        requests=planned_requests(plan.reading, for_tokens=opened_models, for_rows=opened_models),
        excluded_noise=min(noises, default=None),
        layers=plan.layers,
    )
