"""The paper's plots of matrices: pruning, upcycling and unrelated models, in embeddings and inside a layer.

The plots show |U| of the embeddings, and of attention V, attention O and MLP up in a layer and its ancestor; the latter
three are carried through the matched channels. Pruning gives oblique lines, because fewer channels cover the same
range; upcycling gives a diagonal; unrelated models give no pattern.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.paper.models import BASE, QWEN3, built, pruned_layers
from benchmarks.paper.output import draw_maps, experiment, p_text, table
from benchmarks.paper.printed_matrix import embedding_of, judged
from benchmarks.peers.weights import optional
from benchmarks.runner import Row
from benchmarks.zoo import build as zoo
from benchmarks.zoo.members import Model as Member
from mdir_hf import HomologyChecker
from mdir_hf.method.matching import Matching, best_matching
from mdir_hf.method.polar import polar_factor, reduce_peaks
from mdir_hf.model.hub import open_repository
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role
from mdir_hf.model.tokens import common_vocabulary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measure() -> tuple[Row, dict[str, Figure]]:
    """Draw four matrices for each of three pairs."""
    base = built(BASE)
    layers_left = pruned_layers(QWEN3.n_layers)
    pairs: dict[str, tuple[Path, Path, int, int]] = {
        "pruned": (base, built("pruned"), layers_left[2], 2),
        "strangers": (base, built("seed3-code"), 1, 1),
    }
    upcycled = (zoo.built(Member("llama", name), zoo.FULL) for name in ("base", "moe-upcycled"))
    pairs["upcycled"] = (*upcycled, 1, 1)
    data: Row = {}
    figures = {}
    for name, (reference, candidate, i, j) in pairs.items():
        traces = _traces(reference, candidate, i, j)
        report = HomologyChecker.from_pretrained(reference, use_caches=False).compare(
            candidate, describes=True, progress=False
        )
        data[name] = {
            "verdict": report.verdict.value,
            "log10_p": round(report.log10_p, 1) if report.log10_p is not None and report.p_is_bound else None,
            "log10_p_printed": judged(*map(embedding_of, (reference, candidate)))["log10_p"],
            "layers": [i, j],
            "normalized_traces": {what: round(trace, 4) for what, (trace, _) in traces.items()},
        }
        figures[name] = draw_maps(
            {
                "pruned": "Pruning: lines, because the remaining channels are in order",
                "upcycled": "Upcycling: diagonals, also for the mean of the experts",
                "strangers": "Strangers: no pattern",
            }[name],
            "square root of |polar factor|",
            [(what, picture, 1.0) for what, (_, picture) in traces.items()],
            side=1.9,
        )
    return data, figures


def section_of(data: Row) -> str:
    """Format the results as a section of Markdown."""
    rows = [
        [
            name,
            row["verdict"],
            "no bound" if row["log10_p"] is None else p_text(row["log10_p"]),
            p_text(row["log10_p_printed"]),
            *(f"{trace:.3f}" for trace in row["normalized_traces"].values()),
        ]
        for name, row in data.items()
    ]
    return (
        "## Matrices (the paper's figures 3 to 5)\n\n"
        + table(
            "pair | verdict | p | p, Algorithm 1 as printed | embedding: trace / rank | V | O | up",
            rows,
        )
        + "\n\n"
        + "\n".join(f"![Polar factors of {name}](../benchmarks/results/paper-matrices-{name}.png)" for name in data)
    )


def _traces(reference: Path, candidate: Path, i: int, j: int) -> dict[str, tuple[float, npt.NDArray[np.floating]]]:
    """Return normalised trace and image of each matrix, averaged over experts."""
    a, b = (Model(open_repository(folder)) for folder in (reference, candidate))
    assert a.vocabulary is not None
    assert b.vocabulary is not None
    common = common_vocabulary(a.vocabulary, b.vocabulary, n_reference_rows=a.n_rows, n_candidate_rows=b.n_rows)
    x, y = (
        model.tensors.read(model.anatomy.embedding.tensor).double()[torch.from_numpy(rows)]
        for model, rows in ((a, common.reference_rows), (b, common.candidate_rows))
    )
    matching, trace, embedding = _factor(x - x.mean(0), y - y.mean(0))
    traces = {"embedding": (trace, embedding)}
    for name, role in (("V", Role.V), ("O", Role.O), ("up", Role.UP)):
        words = f"{name}, layers {i} and {j}"
        w, v = (optional(m, m.anatomy.layers[at], role)[role].double() for m, at in ((a, i), (b, j)))
        if role is Role.O:
            w, v = w.T, v.T  # rows of O are channels
        w, v = w[:, torch.from_numpy(matching.reference)], v[:, torch.from_numpy(matching.candidate)]
        _, trace, picture = _factor(w.T, v.T)
        traces[words] = (trace, picture)
    return traces


def _factor(x: torch.Tensor, y: torch.Tensor) -> tuple[Matching, float, npt.NDArray[np.floating]]:
    """Return the best matching of the polar factor, its trace over the factor's rank (1 for a copy), and its image."""
    factor = polar_factor(x.T @ y)
    matching = best_matching(factor.matrix, signed=False)
    assert matching is not None
    return matching, matching.trace / factor.rank, np.sqrt(np.clip(reduce_peaks(factor.matrix), 0.0, 1.0))


MATRICES = experiment("matrices", "figures 3 to 5 of the paper: pruning, upcycling and strangers", measure)
