"""Measure the null of sampled rows on real models, with pairs of layers that cannot match.

    python -m benchmarks.layer_null --strangers FOLDER FOLDER --relatives FOLDER FOLDER ...

For unrelated models, every pair of layers counts, behind the residual-basis maps that a comparison tries. For two
relatives with layers in order, every pair of different layers counts. The script prints the smallest p of a single
pair, and the shares below 1 %.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf import HomologyChecker
from mdir_hf.comparison.projections import analysis
from mdir_hf.comparison.projections.samples import ProjectionReader
from mdir_hf.comparison.projections.tier_one import TierOne
from mdir_hf.method.gauge import ResidualBasisMap


def cells_of(folders: tuple[Path, Path], *, are_relatives: bool) -> npt.NDArray[np.float64]:
    """Compare two models, and return log10 p of all pairs of layers of all projections that cannot match."""
    outcomes: list[TierOne] = []
    compare_in_place = analysis.compare_in_place

    def recorded(reader: ProjectionReader, residual_maps: Sequence[ResidualBasisMap]) -> list[TierOne]:
        cells = compare_in_place(reader, residual_maps)
        outcomes.extend(cells)
        return cells

    analysis.compare_in_place = recorded  # type: ignore[attr-defined]
    try:
        checker = HomologyChecker.from_pretrained(folders[0], use_caches=False)
        checker.compare(folders[1], level="layers", progress=False)
    finally:
        analysis.compare_in_place = compare_in_place  # type: ignore[attr-defined]
    values = []
    for outcome in outcomes:
        for cells in outcome.cells.values():
            log10_p = cells.agreement.log_p / math.log(10.0)
            values.append(log10_p[~np.eye(*log10_p.shape, dtype=bool)] if are_relatives else log10_p.ravel())
    return np.concatenate(values)


def main() -> None:
    """Measure each pair, then all pairs together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strangers", nargs=2, action="append", default=[], type=Path, metavar="FOLDER")
    parser.add_argument("--relatives", nargs=2, action="append", default=[], type=Path, metavar="FOLDER")
    options = parser.parse_args()
    torch.set_num_threads(1)
    every = []
    for pairs, are_relatives in ((options.strangers, False), (options.relatives, True)):
        for folders in pairs:
            every.append(cells_of((folders[0], folders[1]), are_relatives=are_relatives))
            print(folders[1].name, _words(every[-1]), flush=True)
    print("all", _words(np.concatenate(every)))


def _words(log10_p: npt.NDArray[np.float64]) -> str:
    below = float((log10_p < -2.0).mean())
    return f"{log10_p.size} pairs of layers, smallest log10 p {log10_p.min():.2f}, below 1 %: {below:.2%}"


if __name__ == "__main__":
    main()
