"""Finish a survey: read the bases that cards declare, and save everything to a folder.

The folder can be loaded with ``datasets.load_dataset(folder, "pairs")`` and shown by the Hub's viewer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from mdir_hf.comparison.progress import Progress, progress_bar
from mdir_hf.errors import MdirError
from mdir_hf.lineage.cards.declared import declared_in
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.lineage.survey.drawing import draw_survey, family_distances
from mdir_hf.lineage.survey.results import NOT_NOMINATED, ModelResult, SurveyReport
from mdir_hf.model.open import Reading
from mdir_hf.render.model_words import ledger_sentences
from mdir_hf.render.projection_words import drift_text
from mdir_hf.writing import write_together

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
"""Columns of the table of models. ``group`` is 0 for the largest group."""

PAIR_FEATURES: Features = {
    "reference": "string",
    "candidate": "string",
    "reference_commit": "string",
    "candidate_commit": "string",
    "verdict": "string",
    "reason": "string",
    "log10_p": "float64",
    "settled_by": "string",
    "agreement": "string",
    "common_tokens": "int64",
    "transformation": "string",
    "layers_compared": "bool",
    "layers_agreeing": "int64",
    "mean_cosine": "float64",
    "is_declared": "bool",
    "error": "string",
}
"""Columns of the table of pairs. ``is_declared`` (whether either card names the other model) is missing if cards were
not read. ``layers_agreeing`` and ``mean_cosine`` (how many layers agree, and how well) are missing if layers were not
compared."""


def dataset_files(report: SurveyReport) -> dict[str, bytes]:
    """Return the files of a dataset of the survey's results: its card and two JSON Lines tables."""
    tables = {MODELS: list(_models(report)), PAIRS: list(_pairs(report))}
    lines = {name: "".join(_line(row) for row in rows).encode() for name, rows in tables.items()}
    return {CARD: _card(report, {name: len(rows) for name, rows in tables.items()}).encode(), **lines}


def is_ours(card: Path) -> bool:
    """Return whether a card may be overwritten, because it does not exist or was written by this package."""
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
        declared_by = {name: report.models[name].declared_bases for name in (first, second) if name in report.models}
        values: dict[str, object] = {key: getattr(pair, key) for key in PAIR_FEATURES if hasattr(pair, key)}
        if pair.layer_drift is not None:
            cosines = [layer.cosine for layer in pair.layer_drift if layer.cosine is not None]
            values |= {"layers_agreeing": len(cosines), "mean_cosine": sum(cosines) / len(cosines) if cosines else None}
        for side, model in models.items():
            values[f"{side}_commit"] = None if model is None or model.model is None else model.model.commit
        if all(bases is not None for bases in declared_by.values()):
            values["is_declared"] = second in (declared_by.get(first) or ()) or first in (declared_by.get(second) or ())
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
            f"{report.progress_text} by mdir-hf {version}; alpha = {alpha} for all pairs together.",
            "",
            f"- `pairs` ({n_rows[PAIRS]:,} rows): the verdict on two models, the step that settled it, and log10 "
            "of p of this step. If partners of neurons were searched for, p is missing, and `agreement` says how many "
            "match.",
            f"- `models` ({n_rows[MODELS]:,} rows): the model behind each name, and its group of relatives.",
            "",
            "`homologous` says that neurons of one model are copies of neurons of the other. It does not say which "
            "model came first. `no_evidence` says that no relation was found by neurons of four layers, nor by the "
            "full comparison if `layers_compared` is true. Pairs without a row were not compared.",
            "",
            "The same results as one object of JSON are in `survey.json`.",
            "",
        ]
    )


def _feature(name: str, kind: str | Mapping[str, str]) -> dict[str, object]:
    return {"name": name, **({"dtype": kind} if isinstance(kind, str) else kind)}


READERS = 8


def add_declared(report: SurveyReport, reading: Reading, *, progress: bool = False) -> SurveyReport:
    """Add the base models that each model's card declares, or None if the card cannot be read."""
    names = report.readable()
    models = dict(report.models)

    def declared(name: str) -> ModelResult:
        result = report.models[name]
        try:
            return replace(result, declared_bases=declared_in(reading.open(name)).base_models)
        except MdirError:
            return replace(result, declared_bases=None)

    with progress_bar(is_wanted=progress) as tell, ThreadPoolExecutor(READERS) as pool:
        for n_done, result in enumerate(pool.map(declared, names), start=1):
            models[result.name] = result
            tell(Progress("cards", 0, None, n_done, len(names)))
    return replace(report, models=models)


_FIGURES = {
    "matrix.svg": "Matrix of all pairs: the more a cell stands out, the more agrees",
    "dendrogram.svg": "Dendrogram of each group of relatives",
}


def save_survey(
    report: SurveyReport, folder: Path, *, rows: Callable[[str], Fingerprint | None] = lambda name: None
) -> tuple[Path, ...]:
    """Write ``survey.json``, ``survey.md``, a dataset, and light and dark figures as SVG and PNG.

    ``rows`` returns the stored rows of a model, from which distances of relatives are measured. A ``README.md`` from
    another source is left unchanged; all other files are replaced together. Figures need matplotlib.

    Raises:
        InputError: If the folder cannot be written.
    """
    contents = {"survey.json": (report.to_json() + "\n").encode(), **dataset_files(report)}
    if find_spec("matplotlib") is not None:
        from mdir_hf.render.figures import figure_bytes

        families = family_distances(report, rows)
        for dark, suffix in ((False, ""), (True, "-dark")):
            for name, figure in draw_survey(report, families, dark=dark).items():
                contents |= {f"{name}{suffix}.{kind}": figure_bytes(figure, kind) for kind in ("svg", "png")}
    contents["survey.md"] = _markdown(report, contents).encode()
    if not is_ours(folder / CARD):
        del contents[CARD]
    return write_together(folder, contents)


def _markdown(report: SurveyReport, written_names: Collection[str]) -> str:
    # Names are user input; a code block prevents them from being read as markup.
    groups = "\n".join(", ".join(group) for group in report.groups() if len(group) > 1) or "none"
    alone = "\n".join(report.without_relatives())
    so_far = "" if report.is_complete else " so far"
    commands = "\n".join(f"mdir-hf compare {quote(a)} {quote(b)}" for a, b in report.layers_to_compare())
    parts = [
        "# Weight ancestry of many models",
        f"{report.progress_text}; alpha = {report.settings['alpha']:g} for all of "
        "them together. A group is joined by chains of pairs with shared weight ancestry. It does not say which model "
        "came first.",
        *(f"![{what}]({name})" for name, what in _FIGURES.items() if name in written_names),
        f"## Groups{so_far}",
        _block(groups),
        f"## No relative found{so_far}",
        _block(alone or "none"),
    ]
    if report.is_complete and report.n_not_compared:
        parts.append(f"{report.n_not_compared:,} pairs: {NOT_NOMINATED}.")
    if commands:
        parts += [
            "These pairs were not compared in full. `mdir-hf survey` with `--layers` compares them, or these commands "
            "do:",
            _block(commands),
        ]
    layer_lines = [
        "; ".join((f"{a}, {b}: {drift_text(pair.layer_drift)}", *ledger_sentences((a, b), pair.ledger or ("", ""))))
        for (a, b), pair in report.pairs.items()
        if pair.layer_drift
    ]
    if layer_lines:
        parts += ["## Layers of relatives", _block("\n".join(layer_lines))]
    contradictions = report.contradictions()
    if contradictions:
        lines = [
            f"{middle}: related to {a} and to {b}; {a} ~ {b}: {report.not_found(a, b)}"
            for a, middle, b in contradictions
        ]
        parts += ["## Worth a look", _block("\n".join(lines))]
    if any(model.declared_bases is not None for model in report.models.values()):
        parts += ["## Declared and measured", _block("\n".join(_declared(report)))]
    failures = [f"{name}: {model.error}" for name, model in report.models.items() if model.error]
    failures += [f"{a}, {b}: {pair.error}" for (a, b), pair in report.pairs.items() if pair.error]
    if failures:
        parts += ["## Could not be read or compared", _block("\n".join(failures))]
    return "\n\n".join(parts) + "\n"


def _declared(report: SurveyReport) -> list[str]:
    lines, unsupported = [], set(report.unsupported())
    for name in report.readable():
        for base in report.models[name].declared_bases or ():
            if base in report.models:
                is_found = report.is_related(name, base) or (name, base) not in unsupported
                result_text = "shared ancestry found" if is_found else report.not_found(name, base)
            else:
                result_text = "not in this survey"
            lines.append(f"{name} declares {base}: {result_text}")
    lines += [f"{a} and {b}: shared ancestry found, declared by neither" for a, b in report.undeclared()]
    return lines or ["no card declares a base model, and no pair is related"]


def _block(text: str) -> str:
    return f"```\n{text.replace('```', '` ` `')}\n```"
