"""Plan a survey's reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mdir_hf.lineage.fingerprints.fingerprint import tokens_with_rows
from mdir_hf.lineage.survey.planning import PlannedRequests, choose_tokens, open_models, planned_requests
from mdir_hf.lineage.survey.run import SurveyPlan, check_plan
from mdir_hf.model.hub import IoLedger


@dataclass(frozen=True, slots=True)
class SurveyReads:
    """The data that a survey reads.

    Attributes:
        n_rows: Number of rows to read, keyed by model.
        n_bytes: Size of rows and neurons in bytes, excluding gaps between them, keyed by model.
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
            name: (n and n * (specs[name].n_bytes // specs[name].shape[0])) + opened_models[name].n_bytes_of_neurons
            for name, n in n_rows.items()
        },
        failures=failures,
        n_pairs=math.comb(len(opened_models), 2),
        requests=planned_requests(plan.reading, for_tokens=opened_models, for_rows=opened_models),
        layers=plan.layers,
    )
