"""What two independently trained models share along their axes, and which statistics that moves.

    python -m benchmarks.real.shared_axes

For pairs of real models, related and not, the trace of the best matching of channels and its p, in several views of the
rows: as they are, whitened, without the leading principal directions of either model, without what a third model says
linearly of the same tokens. Each with and without the best channels, for shares fixed in advance. Also: how alike the
polar factors of two halves of the tokens are, that is, how little a matching found on one half is tested by the other.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.real.bases import base_folder
from benchmarks.real.neuron_signs import Weights
from benchmarks.real.workshop import LARGE, MIDDLE, SMALL, common_ids
from benchmarks.zoo.run import read_lines
from mdir_hf.method.matching import Matching, best_matching
from mdir_hf.method.polar import polar_factor

RESULTS = Path(__file__).parents[1] / "results" / "real-shared-axes.jsonl"
N_TOKENS, N_LEADING = 20_000, 64
NOISES = (1.0, 3.0, 6.0)

View = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def unit(rows: torch.Tensor) -> torch.Tensor:
    """Centred rows of length 1."""
    rows = rows - rows.mean(0)
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)


def whitened(rows: torch.Tensor, third: torch.Tensor) -> torch.Tensor:
    """With every principal direction at the same size."""
    rows = unit(rows)
    energies, directions = torch.linalg.eigh(rows.T @ rows)
    return rows @ (directions * energies.clamp(min=1e-6 * float(energies[-1])).rsqrt()) @ directions.T


def without_leading(rows: torch.Tensor, third: torch.Tensor) -> torch.Tensor:
    """Without the leading principal directions."""
    rows = unit(rows)
    leading = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -N_LEADING:]
    return unit(rows - rows @ leading @ leading.T)


def without_third(rows: torch.Tensor, third: torch.Tensor) -> torch.Tensor:
    """Without what a linear map of a third model's rows explains."""
    basis = torch.linalg.qr(unit(third)).Q
    rows = unit(rows)
    return unit(rows - basis @ (basis.T @ rows))


VIEWS: dict[str, View] = {
    "as they are": lambda rows, third: unit(rows),
    "whitened": whitened,
    f"without {N_LEADING} leading directions": without_leading,
    "without a third model": without_third,
}


def rows_of() -> dict[str, torch.Tensor]:
    """Rows of the three bases on random tokens that all have, float32, by base."""
    folders = {name: base_folder(name) for name in (SMALL, MIDDLE, LARGE)}
    small, middle = common_ids(folders[SMALL], folders[MIDDLE])
    some = torch.randperm(len(small), generator=torch.Generator().manual_seed(0))[:N_TOKENS].sort().values
    # The two Qwens have one vocabulary.
    ids = {SMALL: small[some], MIDDLE: middle[some], LARGE: middle[some]}
    return {name: Weights(folder).embedding()[ids[name]] for name, folder in folders.items()}


def cases(rows: dict[str, torch.Tensor]) -> Iterator[tuple[str, bool, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Name, whether related, rows of two models, and those of a third."""
    yield f"{MIDDLE} | {LARGE}", False, rows[MIDDLE], rows[LARGE], rows[SMALL]
    yield f"{SMALL} | {MIDDLE}", False, rows[SMALL], rows[MIDDLE], rows[LARGE]
    yield f"{SMALL} | {LARGE}", False, rows[SMALL], rows[LARGE], rows[MIDDLE]
    for name, third in ((MIDDLE, SMALL), (SMALL, MIDDLE)):
        own = rows[name]
        generator = torch.Generator().manual_seed(7)
        for size in NOISES:
            noise = size * own.square().mean().sqrt() * torch.randn(own.shape, generator=generator)
            yield f"{name} | noise of {size:g} RMS", True, own, own + noise, rows[third]
        kept = torch.randperm(own.shape[1], generator=generator)[: own.shape[1] // 2]
        yield f"{name} | half of the channels", True, own, own[:, kept], rows[third]


def statistics(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    """The matching of prepared rows, and what it is worth with and without its best channels."""
    matching = best_matching(polar_factor(x.T @ y).matrix, signed=True)
    assert matching is not None
    entries = np.sort(matching.entries)[::-1]
    return {
        "trace": round(matching.trace, 1),
        "n": len(entries),
        "log10_p": _log10(matching.log_p),
        **{f"log10_p without n/{share}": _log10(matching.log_p_trimmed[f"n/{share}"]) for share in (16, 4, 2)},
        "channels significant": int(matching.n_significant),
        "best entries": [round(float(entry), 2) for entry in entries[:4]],
    }


def halves(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    """How a matching found on one half of the tokens does on the other, and how alike the two polar factors are."""
    factors = [polar_factor(x[part::2].T @ y[part::2]).matrix for part in (0, 1)]
    first: Matching | None = best_matching(factors[0], signed=True)
    assert first is not None
    there = factors[1][torch.from_numpy(first.reference), torch.from_numpy(first.candidate)]
    carried = float((there * torch.from_numpy(first.signs)).sum())
    likeness = float((factors[0] * factors[1]).sum() / (factors[0].norm() * factors[1].norm()))
    return {"likeness of halves": round(likeness, 3), "trace": round(first.trace, 1), "carried": round(carried, 1)}


def _log10(log_p: float) -> float:
    return round(log_p / math.log(10.0), 1)


def main() -> None:
    """Print what is missing, keep it, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    arguments = parser.parse_args()
    known = {(row["pair"], row["view"]) for row in read_lines(arguments.results)}
    for name, is_related, x, y, third in cases(rows_of()):
        for view, prepared in VIEWS.items():
            if (name, view) in known:
                continue
            one, other = prepared(x, third), prepared(y, third)
            row = {"pair": name, "related": is_related, "view": view, **statistics(one, other)}
            if view == "as they are":
                row["halves"] = halves(one, other)
            with arguments.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
