"""Write a finished survey as a dataset: tables of models and pairs with declared columns, and a card.

It can be read with ``datasets.load_dataset(folder, "pairs")``, and shown by the Hub's viewer if the folder is the root
of a dataset repository.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from mdir_hf.lineage.survey.results import SurveyReport

CARD = "README.md"
MODELS = "models.jsonl"
PAIRS = "pairs.jsonl"

TITLE = "# Weight ancestry of many models"

Features = Mapping[str, str | Mapping[str, str]]

MODEL_FEATURES: Features = {
    "model": "string",
    "repo": "string",
    "revision": "string",
    "commit": "string",
    "architecture": "string",
    "hidden_size": "int64",
    "layers": "int64",
    "vocabulary": "int64",
    "quantization": "string",
    "group": "int64",
    "group_size": "int64",
    "declared_bases": {"list": "string"},
    "bytes_read": "int64",
    "error": "string",
}
"""Columns of the table of models; ``group`` is 0 for the largest group."""

PAIR_FEATURES: Features = {
    "reference": "string",
    "candidate": "string",
    "reference_commit": "string",
    "candidate_commit": "string",
    "verdict": "string",
    "reason": "string",
    "log10_p": "float64",
    "p_is_bound": "bool",
    "common_tokens": "int64",
    "transformation": "string",
    "by_neurons": "bool",
    "layers_compared": "bool",
    "is_declared": "bool",
    "error": "string",
}
"""Columns of the table of pairs. ``is_declared``: whether the card of one model names the other; missing if cards were
not read."""


def dataset_files(report: SurveyReport) -> dict[str, bytes]:
    """Return a survey as the files of a dataset: its card and two JSON Lines tables.

    Args:
        report: The survey.
    """
    tables = {MODELS: list(_models(report)), PAIRS: list(_pairs(report))}
    lines = {name: "".join(_line(row) for row in rows).encode() for name, rows in tables.items()}
    return {CARD: _card(report, {name: len(rows) for name, rows in tables.items()}).encode(), **lines}


def is_ours(card: Path) -> bool:
    """Return whether a card may be written: there is none, or it was written by an earlier run."""
    try:
        return TITLE in card.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return True


def _models(report: SurveyReport) -> Iterator[dict[str, object]]:
    place = {name: at for at, group in enumerate(report.groups()) for name in group}
    size = {name: len(group) for group in report.groups() for name in group}
    for name in report.names:
        model = report.models.get(name)
        if model is None:
            continue
        summary = {} if model.model is None else {key: getattr(model.model, key) for key in _SUMMARY}
        values = summary | {
            "model": name,
            "group": place[name] if model.error is None else None,
            "group_size": size[name] if model.error is None else None,
            "declared_bases": None if model.declared_bases is None else list(model.declared_bases),
            "bytes_read": model.bytes_read,
            "error": model.error,
        }
        yield {key: values.get(key) for key in MODEL_FEATURES}


def _pairs(report: SurveyReport) -> Iterator[dict[str, object]]:
    for (first, second), pair in report.pairs.items():
        models = {side: report.models.get(name) for side, name in (("reference", first), ("candidate", second))}
        declared = {name: report.models[name].declared_bases for name in (first, second) if name in report.models}
        values: dict[str, object] = {key: getattr(pair, key) for key in PAIR_FEATURES if hasattr(pair, key)}
        for side, model in models.items():
            values[f"{side}_commit"] = None if model is None or model.model is None else model.model.commit
        if all(bases is not None for bases in declared.values()):
            values["is_declared"] = second in (declared.get(first) or ()) or first in (declared.get(second) or ())
        yield {key: values.get(key) for key in PAIR_FEATURES}


_SUMMARY = {
    "repo", "revision", "commit", "architecture", "hidden_size", "layers", "vocabulary", "quantization",
}  # fmt: skip


def _line(row: Mapping[str, object]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _card(report: SurveyReport, n_rows: Mapping[str, int]) -> str:
    tables = {"pairs": (PAIRS, PAIR_FEATURES), "models": (MODELS, MODEL_FEATURES)}
    front: dict[str, Any] = {
        "tags": ["weight-ancestry", "mdir-hf"],
        "configs": [
            {"config_name": name, "data_files": file, **({"default": True} if name == "pairs" else {})}
            for name, (file, _) in tables.items()
        ],
        "dataset_info": [
            {"config_name": name, "features": [_feature(key, kind) for key, kind in features.items()]}
            for name, (_, features) in tables.items()
        ],
    }
    alpha, version = report.settings.get("alpha"), report.settings.get("version", "")
    return "\n".join(
        [
            "---",
            yaml.safe_dump(front, sort_keys=False).rstrip(),
            "---",
            TITLE,
            "",
            f"{len(report.readable())} models, each compared with each by mdir-hf {version}; alpha = {alpha} for all "
            "pairs together.",
            "",
            f"- `pairs` ({n_rows[PAIRS]:,} rows): the verdict on two models, and log10 of p for this pair alone. "
            "If `p_is_bound` is false, p measures the agreement and is not a bound on a probability.",
            f"- `models` ({n_rows[MODELS]:,} rows): the model behind each name, and its group of relatives.",
            "",
            "`homologous` says that the weights are not independent, with p below alpha. It does not say which model "
            "came first. `no_evidence` says that the relation was not found by embeddings or a few neurons, nor by "
            "layers if `layers_compared` is true.",
            "",
            "The same results as one object of JSON are in `survey.json`.",
            "",
        ]
    )


def _feature(name: str, kind: str | Mapping[str, str]) -> dict[str, object]:
    return {"name": name, **({"dtype": kind} if isinstance(kind, str) else kind)}
