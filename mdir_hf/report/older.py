"""Reports of older schemas, brought up to date before they are checked."""

from __future__ import annotations

import math
from typing import Any

OLDEST = "mdir-hf/report/1"

_PARTS = {"screen": "embedding", "embedding": "embedding", "unembedding": "unembedding", "body": "layers"}
"""The part of a report that holds the p of the step that settled it."""


def upgraded(body: Any) -> Any:  # noqa: ANN401 - parsed JSON, whatever somebody wrote
    """Bring a report of schema 1 to schema 2; anything else is returned as it is, for the check to refuse."""
    if not isinstance(body, dict) or body.get("schema") != OLDEST:
        return body
    missing = {"log10_p_not_accepted": None, "excludes": None}
    new: dict[str, Any] = {**body, "schema": "mdir-hf/report/2", **missing, **_headline(body)}
    layers = body.get("layers")
    if isinstance(layers, dict) and isinstance(layers.get("matrix"), list):
        matrix = layers["matrix"]
        n_columns = len(matrix[0]) if matrix and isinstance(matrix[0], list) else 0
        outer = layers.get("outer")
        new["layers"] = {
            "fitted_on": None if outer == "identity" else "embeddings",
            "reference_layers": list(range(len(matrix))),
            "candidate_layers": list(range(n_columns)),
            **layers,
        }
    return new


def _headline(body: dict[str, Any]) -> dict[str, Any]:
    """The headline of schema 1 was the smallest p of all, accepted or not; now it is what the verdict rests on."""
    log10_p, alpha = body.get("log10_p"), body.get("alpha")
    if not isinstance(log10_p, float) or not isinstance(alpha, float) or not 0.0 < alpha < 1.0:
        return {}
    if body.get("verdict") != "homologous":
        return {"log10_p": 0.0, "log10_p_not_accepted": log10_p} if log10_p < math.log10(alpha) else {}
    part = body.get(_PARTS.get(str(body.get("settled_by")), ""))
    rests_on = part.get("log10_p") if isinstance(part, dict) else None
    if not isinstance(rests_on, float) or not log10_p < rests_on < math.log10(alpha):
        return {}
    return {"log10_p": rests_on}
