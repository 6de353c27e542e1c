"""The paper's layer maps: a SOLAR-like deepened copy, a pruned copy and an unrelated model, by MDIR and by CKA.

The deepened copy has the first three quarters of the base's layers, followed by the last three quarters, as SOLAR-10.7B
has Mistral's. The pruned copy has fewer layers, channels and neurons. Both copies were trained further. CKA compares
hidden states of last tokens after every layer, as REEF does. Both methods name the base layer that each layer comes
from.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.paper.models import BASE, QWEN3, built, pruned_layers, upscaled_layers
from benchmarks.paper.output import draw_maps, experiment, layers_log10_p, log_shades, p_text, table
from benchmarks.peers.inference import encode, loaded, statements
from benchmarks.peers.reads import Reads
from benchmarks.peers.reef import linear_cka
from benchmarks.runner import Row
from mdir_hf import HomologyChecker

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_STATEMENTS, N_TOKENS = 200, 48


def measure() -> tuple[Row, dict[str, Figure]]:
    """Draw two maps for each of three pairs."""
    n_layers = QWEN3.n_layers
    origins: dict[str, tuple[int, ...] | None] = {
        "upscaled": upscaled_layers(n_layers),
        "pruned": pruned_layers(n_layers),
        "seed3-code": None,
    }
    base = built(BASE)
    states = hidden_states(base)
    data: Row = {}
    figures = {}
    for name, truth in origins.items():
        candidate = built(name)
        report = HomologyChecker.from_pretrained(base, use_caches=False).compare(
            candidate, level="layers", progress=False
        )
        assert report.layers is not None
        mdir = np.array(report.layers.matrix)
        candidate_states = hidden_states(candidate)
        cka = np.array([[linear_cka(x, y) for y in candidate_states] for x in states])
        named = {j: i for i, j, _ in report.layers.matches}
        by_mdir = [named.get(j) for j in range(mdir.shape[1])]
        by_cka = [int(i) for i in cka.argmax(axis=0)]
        data[name] = {
            "origins": None if truth is None else list(truth),
            "mdir": by_mdir,
            "cka": by_cka,
            "log10_p": round(layers_log10_p(report.layers), 1),
            "verdict": report.verdict.value,
            "mdir_matrix": mdir.round(1).tolist(),
            "cka_matrix": cka.round(3).tolist(),
        }
        figures[name] = draw_maps(
            f"{name}: layers of the base down, its own across",
            "left: log10(1 - log10 p) of MDIR; right: CKA of hidden states",
            [("MDIR", log_shades(mdir), 4.0), ("CKA", cka, 1.0)],
            axes_names=("layer", "layer of the base"),
        )
    return data, figures


def section_of(data: Row) -> str:
    """Format the results as a section of Markdown."""
    rows = [
        [
            name,
            row["verdict"],
            p_text(row["log10_p"]),
            _right(row["mdir"], row["origins"]),
            _right(row["cka"], row["origins"]),
            f"{np.max(row['cka_matrix'], axis=0).mean():.2f}",
        ]
        for name, row in data.items()
    ]
    return (
        "## Layer maps (the paper's figures 2 and 8)\n\n"
        + table(
            "candidate | verdict | p of the map | origins named by MDIR | origins by the largest CKA | "
            "largest CKA, mean",
            rows,
        )
        + "\n\nMDIR names no origin without evidence. CKA always has a largest entry, even between strangers.\n\n"
        + "\n".join(f"![Layer maps of {name}](../benchmarks/results/paper-layer-maps-{name}.png)" for name in data)
    )


@torch.no_grad()
def hidden_states(folder: Path) -> list[npt.NDArray[np.float64] | torch.Tensor]:
    """Return hidden states after each layer at the last token, L tensors (N_STATEMENTS, n), float64."""
    with loaded(folder, Reads()) as (model, tokenizer):
        ids, lengths = encode(tokenizer, statements()[:N_STATEMENTS], n_tokens=N_TOKENS)
        states = model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[1:]
    return [state[torch.arange(len(ids)), lengths - 1].double() for state in states]


def _right(named: list[int | None], truth: list[int] | None) -> str:
    if truth is None:
        return f"{sum(i is not None for i in named)} named, none right"
    return f"{sum(i == j for i, j in zip(named, truth, strict=True))} of {len(truth)} right"


LAYER_MAPS = experiment("layer-maps", "figures 2 and 8 of the paper: deepened and pruned copies, also by CKA", measure)
