"""The paper's ablation: four models from two seeds and two texts. Seeds relate weights, and texts do not."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.paper.models import built, losses_of
from benchmarks.paper.output import draw_maps, experiment, layers_log10_p, p_text, table
from benchmarks.peers.plain_mdir import PlainMdir, embedding_analysis
from benchmarks.peers.reads import Reads
from benchmarks.runner import Row
from mdir_hf import HomologyChecker, HomologyReport
from mdir_hf.method.paper import orthogonal_part
from mdir_hf.method.polar import reduce_peaks
from mdir_hf.model.roles import Role

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = (("seed2-code", "seed2-prose"), ("seed2-code", "seed3-code"))
"""Pairs in the figure: one seed with two texts, and two seeds with one text."""

LAYER = 1
"""Layer of the panels of V, counted from 0."""

NAMES = ("seed2-code", "seed2-prose", "seed3-code", "seed3-prose")


def measure() -> tuple[Row, dict[str, Figure]]:
    """Compare every pair of the four models."""
    rows, pictures = [], []
    for first, second in combinations(NAMES, 2):
        checker = HomologyChecker.from_pretrained(built(first), use_caches=False)
        embedding = checker.compare(built(second), describes=True, progress=False)
        body = checker.compare(built(second), level="layers", progress=False)
        (seed, kind), (other_seed, other_kind) = first.split("-"), second.split("-")
        rows.append(
            {
                "pair": [first, second],
                "same_seed": seed == other_seed,
                "same_text": kind == other_kind,
                "verdict": body.verdict.value,
                "log10_p_embedding": round(embedding.embedding.log10_p, 1),
                "log10_p_layers": None if body.layers is None else round(layers_log10_p(body.layers), 1),
                "normalized_trace": None
                if embedding.embedding is None or embedding.embedding.normalized_trace is None
                else round(embedding.embedding.normalized_trace, 4),
            }
        )
        if (first, second) in DRAWN:
            pictures.append((f"{first}, {second}\nembedding", _picture(embedding), 1.0))
            pictures.append((f"V of layer {LAYER}", value_picture(built(first), built(second)), 1.0))
    wrong = [row for row in rows if (row["verdict"] == "homologous") != row["same_seed"]]
    losses = {name: {key: round(value, 3) for key, value in losses_of(name).items()} for name in NAMES}
    figure = draw_maps(
        "One seed, two texts: a diagonal. Two seeds, one text: noise",
        "square root of |polar factor|, channel against channel; V behind the match of the embeddings",
        pictures,
        side=1.6,
    )
    return {"rows": rows, "losses": losses, "n_wrong": len(wrong)}, {"embeddings": figure}


def section_of(data: Row) -> str:
    """Format the results as a section of Markdown."""
    shown = [
        [
            " / ".join(row["pair"]),
            "yes" if row["same_seed"] else "no",
            "yes" if row["same_text"] else "no",
            p_text(row["log10_p_embedding"]),
            "—" if row["log10_p_layers"] is None else p_text(row["log10_p_layers"]),
            row["verdict"],
        ]
        for row in data["rows"]
    ]
    return (
        "## Seed and text (the paper's ablation and its figure 6)\n\n"
        + table("pair | same seed | same text and order | p, embeddings | p, layers | verdict", shown)
        + f"\n\n{data['n_wrong']} of {len(data['rows'])} verdicts contradict the seeds. A shared initialisation "
        "counts as shared weights, however the models were trained afterwards.\n\nThe figure shows embeddings and V of "
        f"layer {LAYER}, "
        "like the paper's. V is shown behind U_E of Algorithm 1 as printed; U_E is the orthogonal factor itself if no "
        "permutation is significant.\n\n![Polar factors of embeddings and V: diagonals for one seed and two texts, "
        "noise for two seeds and one text](../benchmarks/results/paper-ablation-embeddings.png)"
    )


def value_picture(first: Path, second: Path) -> np.ndarray:
    """Return the square root of ``|Ortho(V^T U_E^T V')|`` in one layer, by Algorithms 1 and 3 as printed."""
    peer = PlainMdir()
    a, b = (peer.read(folder, Reads()) for folder in (first, second))
    _, u = embedding_analysis(a, b)
    value, other = (weights.layers[LAYER][Role.V].double() for weights in (a, b))
    factor, _ = orthogonal_part((u @ value).T @ other)
    return np.sqrt(np.clip(reduce_peaks(factor), 0.0, 1.0))


def _picture(report: HomologyReport) -> np.ndarray:
    return np.sqrt(np.clip(report.arrays.embedding.polar, 0.0, 1.0))


ABLATION = experiment("ablation", "figure 6 of the paper: two seeds and two texts", measure)
