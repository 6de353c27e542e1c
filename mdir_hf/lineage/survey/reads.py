"""Plans the reads of a survey: bytes of each model, and what finding nothing would exclude."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from mdir_hf.comparison.plan import make_plan
from mdir_hf.lineage.fingerprints.fingerprint import tokens_with_rows
from mdir_hf.lineage.fingerprints.sample import choose_tokens
from mdir_hf.lineage.survey.planning import open_models
from mdir_hf.lineage.survey.requests import PlannedRequests, planned_requests
from mdir_hf.lineage.survey.run import SurveyPlan, check_plan
from mdir_hf.model.files import TensorSpec
from mdir_hf.model.hub import IoLedger
from mdir_hf.report import Level

FEWEST_COMMON = 16
"""Pairs with fewer tokens in common are not told apart by their rows, and count as blind."""


@dataclass(frozen=True, slots=True)
class SurveyReads:
    """What a survey reads.

    Attributes:
        n_rows: Rows read of every model that can be opened, by name.
        n_bytes: Bytes of them and of its neurons, likewise; gaps between rows not counted.
        failures: Models that cannot be opened, with the reason.
        n_pairs: Pairs that are compared.
        n_blind: Those of them that share too few tokens to find anything by their embeddings.
        requests: What is asked of the Hub for those that can be opened.
        excluded_noise: In each of the other pairs a copy under noise of up to this strength would be found, in units
            of the weights' root mean square, the channels in any order. None where there is no such pair.
        layers: Whether models without a relative are compared in full afterwards; what that reads is not in these.
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
    """Say what a survey would read, without reading weights.

    Args:
        plan: What it is asked to do.

    Raises:
        InputError: If the plan cannot be used, or no model can be opened.

    Cost: config, header and tokenizer of every model; O(pairs) sets of tokens.
    """
    check_plan(plan)
    opened, failures = open_models(plan.names, plan.reading, IoLedger())
    sample = choose_tokens([one.vocabulary for one in opened.values() if one.vocabulary], plan.n_tokens, seed=plan.seed)
    specs = {name: one.embedding for name, one in opened.items() if one.embedding is not None}
    tokens = {
        name: frozenset(tokens_with_rows(one.vocabulary, specs[name].shape[0], sample) if one.vocabulary else ())
        for name, one in opened.items()
    }
    # More rows exclude more, so that the pair of some widths with the fewest common tokens stands for all of them.
    fewest: dict[frozenset[int], tuple[int, TensorSpec, TensorSpec]] = {}
    n_blind = 0
    for first, second in combinations(opened, 2):
        n_common = len(tokens[first] & tokens[second])
        if n_common < FEWEST_COMMON:
            n_blind += 1
            continue
        widths = frozenset((specs[first].shape[1], specs[second].shape[1]))
        if widths not in fewest or n_common < fewest[widths][0]:
            fewest[widths] = (n_common, specs[first], specs[second])
    noises = [
        make_plan(
            mine, other, common_tokens=n_common, bytes_of_weights=0, level=Level.SCREEN, alpha=plan.alpha_of_pair
        ).excluded_noise
        for n_common, mine, other in fewest.values()
    ]
    n_rows = {name: len(found) for name, found in tokens.items()}
    return SurveyReads(
        n_rows=n_rows,
        n_bytes={
            name: (n and n * (specs[name].n_bytes // specs[name].shape[0])) + opened[name].n_bytes_of_neurons
            for name, n in n_rows.items()
        },
        failures=failures,
        n_pairs=math.comb(len(opened), 2),
        n_blind=n_blind,
        requests=planned_requests(plan.reading, for_tokens=opened, for_rows=opened),
        excluded_noise=min(noises, default=None),
        layers=plan.layers,
    )
