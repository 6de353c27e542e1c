"""Compare every pair of real models with the checker, and describe the models."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.real.pairs import Pair, pairs
from benchmarks.real.sources import SOURCES, unpacked
from benchmarks.real.stored import equal_to_base, stored
from benchmarks.real.workshop import Model, built, models
from benchmarks.runner import Benchmark, Case
from mdir_hf import HomologyChecker, MdirError

if TYPE_CHECKING:
    from mdir_hf import HomologyReport
    from mdir_hf.report import NeuronNumbers

ALPHA = 1e-10


def judge(pair: Pair) -> dict[str, Any]:
    """Open a pair anew and return the checker's result, a line of ``real-pairs.jsonl``."""
    folders = [str(built(model)) for model in (pair.a, pair.b)]
    cpu, wall = time.process_time(), time.perf_counter()
    row: dict[str, Any] = {
        "a": pair.a.name,
        "b": pair.b.name,
        "level": "auto",
        "kind": pair.kind,
        "related": pair.is_related,
    }
    try:
        checker = HomologyChecker.from_pretrained(folders[0], use_caches=False, alpha=ALPHA)
        row |= numbers(checker.compare(folders[1], progress=False))
    except MdirError as exc:
        row |= {"verdict": "error", "error": str(exc).replace(folders[0], pair.a.name).replace(folders[1], pair.b.name)}
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {**row, "cpu_s": round(cpu, 1), "wall_s": round(wall, 1)}


def numbers(report: HomologyReport) -> dict[str, Any]:
    """Return the stored fields of a report."""
    body = report.to_dict()
    row = {
        key: body[key]
        for key in (
            "verdict",
            "reason",
            "log10_p",
            "assumption",
            "excludes",
            "settled_by",
            "agreement",
            "tests",
        )
    }
    row |= {
        "bytes_read": body["io"]["bytes_read"],
        "bytes_of_weights": body["io"]["bytes_of_weights"],
        "embedding": None if body["embedding"] is None else _matrix(body["embedding"]),
        "unembedding": None if body["unembedding"] is None else _matrix(body["unembedding"]),
        "neurons": None if report.neurons is None else _neurons(report.neurons),
        "layers": None if body["layers"] is None else _layers(body["layers"]),
    }
    return row


def _matrix(matrix: dict[str, Any]) -> dict[str, Any]:
    row = {
        "common_tokens": matrix["common_tokens"],
        "rows_used": matrix["rows_used"],
        "transformation": matrix["transformation"],
        "log10_p": matrix["log10_p"],
        "strength": matrix["normalized_trace"],
        "cosine": matrix["cosine"],
        "matched_channels": matrix["matched_channels"],
        "is_significant": matrix["is_significant"],
        "axes_z": list(matrix["axes_z"]),
    }
    return {key: _rounded(value) for key, value in row.items()}


def _neurons(neurons: NeuronNumbers) -> dict[str, Any]:
    return {
        "step": neurons.step.value,
        "log10_p": None if neurons.log10_p is None else round(neurons.log10_p, 4),
        "tested": neurons.tested,
        "fitted": neurons.fitted,
        "most_own": max(map(max, neurons.own_number)),
        "most_certain": max(map(max, neurons.certain)),
        "n_pairs": len(neurons.reference_layers) * len(neurons.candidate_layers),
        "n_matched": len(neurons.matches),
    }


def _layers(layers: dict[str, Any]) -> dict[str, Any]:
    row = {
        "n_matched": len(layers["matches"]),
        "n_layers": len(layers["candidate_layers"]),
        "pattern": layers["pattern"],
        "role": layers["role"],
        "residual_map": layers["residual_map"],
        "fitted_on": layers["fitted_on"],
    }
    return {key: _rounded(value) for key, value in row.items()}


def describe(model: Model) -> dict[str, Any]:
    """Describe a built model in a line of ``real-models.jsonl``."""
    folder = built(model)
    row = {"model": model.name, **stored(folder)}
    if model.member == "base":
        source = SOURCES[model.base]
        if source.is_onnx:
            done = f"{source.read_from}, read back as F32"
            bits = round(8 * (unpacked(source) / source.file).stat().st_size / row["n_parameters"], 2)
        else:
            done = f"{source.read_from}, read back as BF16" if source.in_parts else "as its packages hold it"
            bits = stored(unpacked(source))["bits_per_weight"]
        return {**row, "done": done, "bits_per_weight_in_packages": bits}
    made = json.loads((folder / "made.json").read_text(encoding="utf-8"))
    return {**row, **equal_to_base(folder, built(Model(model.base))), **made}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [_rounded(each) for each in value] if isinstance(value, list) else value


REAL_MODELS = Benchmark(
    "real-models",
    "sizes and types of real models, and of models made from them; fetches packages with models, 45 GB in all",
    ("model",),
    lambda: (Case((model.name,), partial(describe, model)) for model in models()),
)
REAL_PAIRS = Benchmark(
    "real-pairs",
    "verdicts on pairs of real models and models made from them",
    ("a", "b", "level"),
    lambda: (Case((pair.a.name, pair.b.name, "auto"), partial(judge, pair)) for pair in pairs()),
)
