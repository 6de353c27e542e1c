"""Compare every pair with the checker, and write each result immediately as one line of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.real.pairs import Pair
from benchmarks.real.sources import SOURCES, UnavailableError, unpacked
from benchmarks.real.stored import equal_to_base, stored
from benchmarks.real.workshop import Model, built
from benchmarks.zoo.run import read_lines
from mdir_hf import HomologyChecker, MdirError

if TYPE_CHECKING:
    from mdir_hf import HomologyReport
    from mdir_hf.report import NeuronNumbers

RESULTS = Path(__file__).parents[1] / "results" / "real-pairs.jsonl"
AT_LAYERS = RESULTS.with_name("real-strangers-at-layers.jsonl")
MODELS = RESULTS.with_name("real-models.jsonl")
ALPHA = 1e-10


def judge(pair: Pair, *, level: str = "auto") -> dict[str, Any]:
    """Open a pair anew and return the checker's result, a line of ``real-pairs.jsonl``."""
    folders = [str(built(model)) for model in (pair.a, pair.b)]
    cpu, wall = time.process_time(), time.perf_counter()
    row: dict[str, Any] = {
        "a": pair.a.name,
        "b": pair.b.name,
        "level": level,
        "kind": pair.kind,
        "related": pair.is_related,
    }
    try:
        checker = HomologyChecker.from_pretrained(folders[0], use_caches=False, alpha=ALPHA)
        row |= numbers(checker.compare(folders[1], level=level, progress=False))
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


def judge_all(every: Iterable[Pair], results: Path, *, level: str = "auto", again: bool = False) -> None:
    """Judge pairs without a line, or all; skip pairs with unavailable packages, and print a message."""
    rows = {(row["a"], row["b"], row["level"]): row for row in read_lines(results)}
    for pair in every:
        key = (pair.a.name, pair.b.name, level)
        if key in rows and not again:
            continue
        try:
            row = judge(pair, level=level)
        except UnavailableError as exc:
            print(f"skipped {pair.a.name} | {pair.b.name}: {exc}", flush=True)
            continue
        rows[key] = row
        results.write_text("".join(json.dumps(each) + "\n" for each in rows.values()), encoding="utf-8")
        against = "" if row["verdict"] == ("homologous" if pair.is_related else "no_evidence") else "   <-- look"
        print(
            f"{row['verdict']:13} {row.get('settled_by') or '':10} {log10_p_text(row.get('log10_p')):>8} "
            f"{row['cpu_s']:7.1f} s  "
            f"{pair.a.name} | {pair.b.name}{against}",
            flush=True,
        )


def log10_p_text(log10_p: float | None) -> str:
    """Return log10 p with one decimal; a step that searched for partners has none."""
    return "none" if log10_p is None else f"{log10_p:.1f}"


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
