"""Reports of older schemas, brought up to date before they are checked."""

from __future__ import annotations

from typing import Any

OLDEST = "mdir-hf/report/1"


def upgraded(body: Any) -> Any:  # noqa: ANN401 - parsed JSON, whatever somebody wrote
    """Bring a report of schema 1 to schema 2; anything else is returned as it is, for the check to refuse."""
    if not isinstance(body, dict) or body.get("schema") != OLDEST:
        return body
    new: dict[str, Any] = {**body, "schema": "mdir-hf/report/2"}
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
