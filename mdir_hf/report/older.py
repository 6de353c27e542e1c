"""Upgrades reports of older schemas before they are checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

_PARTS = {"screen": "embedding", "embedding": "embedding", "unembedding": "unembedding", "body": "layers"}
"""The part of a report with the p of the step that settled it."""


def upgraded(body: Any) -> Any:  # noqa: ANN401 - parsed JSON from an untrusted source
    """Upgrade a report of schema 1, 2 or 3 to schema 4; return anything else unchanged, for the check to refuse."""
    while isinstance(body, dict) and (step := _STEPS.get(str(body.get("schema")))):
        body = step(body)
    return body


def _second(body: dict[str, Any]) -> dict[str, Any]:
    missing = {"log10_p_not_accepted": None, "excludes": None}
    new: dict[str, Any] = {**body, "schema": "mdir-hf/report/2", **missing, **_headline(body)}
    layers = body.get("layers")
    if isinstance(layers, dict) and isinstance(layers.get("matrix"), list):
        matrix = layers["matrix"]
        n_columns = len(matrix[0]) if matrix and isinstance(matrix[0], list) else 0
        new["layers"] = {
            "fitted_on": None if layers.get("outer") == "identity" else "embeddings",
            "reference_layers": list(range(len(matrix))),
            "candidate_layers": list(range(n_columns)),
            **layers,
        }
    return new


def _headline(body: dict[str, Any]) -> dict[str, Any]:
    """Replace the headline of schema 1, the smallest p of all, by the p that the verdict rests on."""
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


def _third(body: dict[str, Any]) -> dict[str, Any]:
    """Rename fields to one term for each concept: layers, residual map, off-match."""
    new = {"neurons": None, **body, "schema": "mdir-hf/report/3"}
    for key in ("level", "settled_by"):
        if new.get(key) == "body":
            new[key] = "layers"
    for key, renamed in _RENAMED_IN_3.items():
        part = new.get(key)
        if isinstance(part, dict):
            new[key] = {**_ADDED_IN_3[key], **{renamed.get(name, name): value for name, value in part.items()}}
            if key != "layers" and isinstance(part.get("numbering"), dict):
                new[key]["numbering"] = {"certain_share": 0.0, **part["numbering"]}
    if isinstance(new.get("seconds"), dict):
        new["seconds"] = {"layers" if name == "body" else name: value for name, value in new["seconds"].items()}
    return new


_RENAMED_IN_3 = {
    "embedding": {"stray_channels": "off_match_channels"},
    "unembedding": {"stray_channels": "off_match_channels"},
    "layers": {"outer": "residual_map", "stray_share": "off_match_share"},
}

_OF_MATRIX = {
    "settled_by": None,
    "widths": [0, 0],
    "channels": 0,
    "in_order_tested": True,
    "rows_are_equal": False,
    "channel_numbers_mean_something": False,
}
_ADDED_IN_3: dict[str, dict[str, Any]] = {
    "embedding": _OF_MATRIX,
    "unembedding": _OF_MATRIX,
    "layers": {"is_supported": True},
}


def _fourth(body: dict[str, Any]) -> dict[str, Any]:
    """Set a p that is no bound to null; older reports had no ledger and covered only language models."""
    missing = {"sample_seed": None, "parts": None, "coverage": None}
    new: dict[str, Any] = {**missing, **body, "schema": "mdir-hf/report/4"}
    if new.get("assumption") == "calibration" and new.get("verdict") == "homologous":
        new["log10_p"] = None
    for key in ("embedding", "unembedding"):
        if isinstance(new.get(key), dict):
            new[key] = {"cosine": None, **new[key]}
    if isinstance(new.get("neurons"), dict):
        new["neurons"] = {"own_number_by_down": None, "idle": [], "is_searched": False, **new["neurons"]}
    return new


_STEPS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "mdir-hf/report/1": _second,
    "mdir-hf/report/2": _third,
    "mdir-hf/report/3": _fourth,
}
