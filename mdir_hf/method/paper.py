"""MDIR's Algorithm 1 as it is printed: all common tokens, rows as they are stored, p by the paper's formula.

The verdict does not rest on it. The paper's p assumes independent Gaussian entries in one embedding, and full rank
(appendix "Uniform Distribution across Haar Measure").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch

from mdir_hf.method.matching import best_matching
from mdir_hf.method.polar import FLOAT64_CHANNELS, polar_factor
from mdir_hf.method.significance import LN10
from mdir_hf.processor import all_cores
from mdir_hf.report import PrintedAlgorithm1


class PrintedAlgorithm:
    """Adds up the raw cross product of paired rows, then runs Algorithm 1 on it."""

    def __init__(self, widths: tuple[int, int], *, device: str = "cpu") -> None:
        dtype = torch.float64 if max(widths) <= FLOAT64_CHANNELS else torch.float32
        self._cross = torch.zeros(widths, dtype=dtype, device=device)
        self._n_rows = 0

    def watching(
        self, blocks: Iterable[tuple[torch.Tensor, torch.Tensor]]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield blocks of paired rows as they come, and add up their products."""
        for x, y in blocks:
            operations = 2.0 * len(x) * self._cross.numel()
            with all_cores(operations, self._cross.device):
                self._cross += x.to(self._cross).T @ y.to(self._cross)
            self._n_rows += len(x)
            yield x, y

    def result(self, *, axes_stand_out: bool | None) -> PrintedAlgorithm1:
        """Run Algorithm 1 on all rows so far. Cost O(n^3).

        Args:
            axes_stand_out: Whether the axes of both embeddings stand out; None if unknown.
        """
        factor = polar_factor(self._cross)
        matching = best_matching(factor.matrix, signed=False)
        assert matching is not None  # it is solved for unless a level is given
        n, n_other = factor.matrix.shape
        log_p = math.lgamma(n + 1) - max(0.0, matching.trace) ** 2 / 2
        return PrintedAlgorithm1(
            common_tokens=self._n_rows,
            trace=matching.trace,
            rank=factor.rank,
            width=min(n, n_other),
            log10_p=min(0.0, log_p) / LN10 if n == n_other else None,  # the paper does not say what d is otherwise
            axes_stand_out=axes_stand_out,
        )
