"""Run Algorithm 1 of the paper as a sequence of tests, called looks, on a growing number of tokens.

Each look is a valid test (docs/method/rows.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from mdir_hf.method.matching import TRIMS, IntArray, Matching, best_matching, matching_in_order, quick_matching
from mdir_hf.method.neuron_numbers import numbering_of
from mdir_hf.method.polar import (
    FLOAT64_CHANNELS,
    PolarFactor,
    RowFactors,
    cross_product,
    polar_factor,
    polar_factor_of_rows,
    row_factors,
    whitened_core,
    whitened_polar_factor,
    whitener,
)
from mdir_hf.method.rows import PairedRows, RowStandard, pair_rows
from mdir_hf.method.significance import LN10, log_cost_of_look, log_p_looks
from mdir_hf.report import LookResult, NumberingResult

VIEWS = ("centred", "whitened")
TESTS_PER_MATRIX = 3 * len(VIEWS)
"""Number of tests per matrix: a permutation, a signed permutation, and unchanged channel order, for each view."""

FEW_ROWS = 1024
"""With at most this many rows or channels, a look uses all channels and the thin SVD of the rows, in float64."""

SCREEN_CHANNELS = 256
"""Number of random reference channels that larger looks test against all candidate channels."""

BLOCK_ROWS, FEWEST_BLOCK_ROWS, BLOCK_VALUES = 4096, 512, 1 << 23
"""Maximum and minimum number of rows, and maximum number of values, multiplied at a time: enough for fast matrix
products, but at most 32 MiB in float32 unless rows are very wide."""

PRODUCT_CHANNELS = 2048
"""Number of reference channels multiplied at a time, to save memory: a whole product is as large as the running sum."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """The result of one look. p-values are natural logs, corrected for other tests but not for other looks.

    Attributes:
        number: Position among the looks, starting at 1.
        n_rows: Number of tokens used.
        rank: Rank of the polar factor.
        view: View of the rows, from ``VIEWS``, that gave this result.
        on_factor: Matching of rows of U to candidate channels; None if no matching could be significant.
        channels: Reference channel of each row of U, ascending; None means all.
        log_n_tests: Natural log of the number of tests for which each p is corrected.
    """

    number: int
    n_rows: int
    rank: int
    view: str
    on_factor: Matching | None
    channels: IntArray | None
    log_n_tests: float
    numbering: NumberingResult | None = None

    @property
    def matching(self) -> Matching | None:
        """Matching between channels of the reference and the candidate."""
        if self.on_factor is None or self.channels is None:
            return self.on_factor
        return self.on_factor.of_channels(self.channels)

    @property
    def log_p(self) -> float:
        """Natural log of p for the trace, or 0 if there is no matching."""
        return 0.0 if self.on_factor is None else self._corrected(self.on_factor.log_p)

    @property
    def log_p_trimmed(self) -> dict[str, float]:
        """Natural log of p without the best n/16, n/4 and n/2 channels."""
        trimmed = dict.fromkeys(TRIMS, 0.0) if self.on_factor is None else self.on_factor.log_p_trimmed
        return {name: self._corrected(log_p) for name, log_p in trimmed.items()}

    @property
    def log_p_robust(self) -> float:
        """Natural log of a p-value that a few strongly matching channels cannot make small."""
        return 0.0 if self.on_factor is None else self._corrected(self.on_factor.log_p_robust)

    @property
    def log_p_signs(self) -> float | None:
        """Natural log of the sign test's p if channels are matched in their own order, else None."""
        signs = None if self.on_factor is None else self.on_factor.log_p_signs
        return None if signs is None else self._corrected(signs)

    @property
    def result(self) -> LookResult:
        """This look in the form used by reports."""
        return LookResult(self.n_rows, self.corrected_log_p / LN10)

    @property
    def corrected_log_p(self) -> float:
        """Natural log of p for the trace, corrected for other looks."""
        return min(0.0, self.log_p + self.log_cost)

    @property
    def log_cost(self) -> float:
        """Correction of p for other looks, in nats: ln s(s+1) for look s."""
        return log_cost_of_look(self.number)

    def _corrected(self, log_p: float) -> float:
        return min(0.0, log_p + self.log_n_tests)


def block_rows(width: int) -> int:
    """Return how many rows to read and multiply at a time for a model of this width."""
    return max(FEWEST_BLOCK_ROWS, min(BLOCK_ROWS, BLOCK_VALUES // max(1, width)))


class EmbeddingTest:
    """A test of two matrices with tokens as rows and residual channels as columns.

    Args:
        log_alpha: Natural log of the significance level, fixed in advance.
        n_tests: Number of tests for which every p is corrected.
        must_be_robust: Whether a look is inconclusive if its result depends on only a few channels.
        own_order: Whether to also test channels in their own order; p is corrected for this test either way.

    :attr:`polar` is the polar factor of the last look, and :attr:`polar_of_all_channels` is the last polar factor that
    covers all reference channels.
    """

    def __init__(
        self,
        *,
        log_alpha: float,
        n_tests: int = TESTS_PER_MATRIX,
        seed: int = 0,
        device: str = "cpu",
        must_be_robust: bool = True,
        own_order: bool = True,
    ) -> None:
        self.log_alpha = log_alpha
        self.n_tests = n_tests
        self.looks: list[Look] = []
        self.polar: torch.Tensor | None = None
        self.polar_of_all_channels: torch.Tensor | None = None
        self._sample: tuple[torch.Tensor, torch.Tensor, torch.dtype] | None = None
        self._standard: RowStandard | None = None
        self._factors: tuple[RowFactors, RowFactors] | None = None
        self._generator = torch.Generator().manual_seed(seed)
        self._device = torch.device(device)
        self._must_be_robust = must_be_robust
        self._own_order = own_order

    @property
    def rows(self) -> PairedRows | None:
        """Centred, normalised rows of the last :meth:`screen`, recomputed on each access; None before the first one."""
        if self._sample is None:
            return None
        reference, candidate, dtype = self._sample
        return pair_rows(reference.to(self._device), candidate.to(self._device), dtype=dtype)

    @property
    def row_factors(self) -> tuple[RowFactors, RowFactors] | None:
        """Factors of both models' :attr:`rows`, or None if they were not kept."""
        return self._factors

    @property
    def log_p(self) -> float:
        """Natural log of p over all looks so far, at most 0."""
        return log_p_looks([look.log_p for look in self.looks])

    @property
    def is_significant(self) -> bool:
        """Whether any look is significant and, if ``must_be_robust``, does not depend on a few channels."""
        return any(self._decisive(look) + look.log_cost < self.log_alpha for look in self.looks)

    def best_look(self) -> Look:
        """Return the look with the smallest corrected p, or the last look if every p is 1."""
        corrected = [look.corrected_log_p for look in self.looks]
        best = int(np.argmin(corrected))
        return self.looks[best] if corrected[best] < 0.0 else self.looks[-1]

    def screen(self, reference: torch.Tensor, candidate: torch.Tensor, *, is_last: bool = False) -> Look:
        """Run one look on all raw rows read so far, for the same tokens in both models.

        If ``is_last``, report a matching even if it cannot be significant.
        """
        widths = (reference.shape[1], candidate.shape[1])
        is_few = len(reference) <= FEW_ROWS or max(widths) <= FEW_ROWS
        dtype = torch.float64 if is_few else torch.float32
        self._sample = (reference, candidate, dtype)
        rows = self.rows
        assert rows is not None
        self._standard = rows.standard
        n_rows = len(rows.reference)
        factors: Iterator[tuple[str, PolarFactor]]
        channels: IntArray | None = None
        self._factors = None
        if n_rows < 2:
            factors = iter((("centred", PolarFactor(torch.zeros(widths, dtype=torch.float64), 0)),))
        elif is_few:
            x, y = row_factors(rows.reference), row_factors(rows.candidate)
            if max(widths) <= FLOAT64_CHANNELS:
                self._factors = x, y
            factors = ((view, polar_factor_of_rows(x, y, whitened=view == "whitened")) for view in VIEWS)
        else:
            drawn = torch.randperm(widths[0], generator=self._generator)[:SCREEN_CHANNELS].sort().values
            channels = drawn.numpy()
            cross = cross_product(rows.reference[:, drawn.to(self._device)], rows.candidate)
            factors = iter((("centred", polar_factor(cross)),))
        return self._record(n_rows, factors, channels=channels, is_last=is_last)

    def full(self, blocks: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Look:
        """Run the last look, on all common rows, streamed in blocks.

        Each block is a pair of raw rows, ``(b, n_reference)`` and ``(b, n_candidate)``; they must include the rows of
        the last :meth:`screen`, which supplies means and whitening. Takes O(r n^2 + n^3) time for r rows, and O(n^2)
        memory.

        Raises:
            RuntimeError: If no screen has been run.
        """
        if self._standard is None or self._sample is None:
            raise RuntimeError("full() needs the means of a screen; call screen() first")
        widths = (self._sample[0].shape[1], self._sample[1].shape[1])
        dtype = torch.float64 if max(widths) <= FLOAT64_CHANNELS else torch.float32
        cross = torch.zeros(widths, dtype=dtype, device=self._device)
        n_rows = self._add_products(cross, blocks, self._standard)

        factors = self._factors_of_all(cross)
        del cross  # the largest object; the generator now has the only reference, and releases it
        return self._record(n_rows, factors, channels=None, is_last=True, is_optimum_wanted=True)

    def _factors_of_all(self, cross: torch.Tensor) -> Iterator[tuple[str, PolarFactor]]:
        yield "centred", polar_factor(cross)
        sample = self.rows
        if sample is None or len(sample.reference) < 2:
            return
        y = whitener(sample.candidate)
        rows = sample.reference
        del sample
        x = whitener(rows)
        del rows
        core = whitened_core(cross, x, y)
        del cross
        yield "whitened", whitened_polar_factor(core, x, y)

    def _add_products(
        self,
        cross: torch.Tensor,
        blocks: Iterable[tuple[torch.Tensor, torch.Tensor]],
        standard: RowStandard,
    ) -> int:
        n_rows = 0
        for reference, candidate in _regrouped(blocks, block_rows(max(cross.shape))):
            block = pair_rows(reference.to(self._device), candidate.to(self._device), like=standard, dtype=cross.dtype)
            for start in range(0, len(cross), PRODUCT_CHANNELS):
                channels = slice(start, start + PRODUCT_CHANNELS)
                cross[channels] += cross_product(block.reference[:, channels], block.candidate)
            n_rows += len(block.reference)
        return n_rows

    def _record(
        self,
        n_rows: int,
        factors: Iterator[tuple[str, PolarFactor]],
        *,
        channels: IntArray | None,
        is_last: bool,
        is_optimum_wanted: bool = False,
    ) -> Look:
        """Test views and kinds of matching until one is conclusive; p is corrected for all of them."""
        number, log_n_tests = len(self.looks) + 1, math.log(self.n_tests)
        best: Look | None = None
        for view, factor in factors:
            is_any_wanted = is_last and view == VIEWS[0]
            for matching in self._matchings(
                factor.matrix, channels, is_any_wanted=is_any_wanted, is_optimum_wanted=is_optimum_wanted
            ):
                look = Look(number, n_rows, factor.rank, view, matching, channels, log_n_tests)
                if best is None or self._settles(look) or look.log_p < best.log_p:
                    best, self.polar = look, factor.matrix
                if self._settles(best):
                    break
            if best is not None and self._settles(best):
                break
        assert best is not None  # every view yields at least one matching or None
        if channels is None:
            self.polar_of_all_channels = self.polar
        if self.polar is not None:
            numbering = numbering_of(self.polar, best.matching, channels, n_tests=self.n_tests, log_cost=best.log_cost)
            best = replace(best, numbering=numbering)
        self.looks.append(best)
        return best

    def _settles(self, look: Look) -> bool:
        return self._decisive(look) < self.log_alpha

    def _decisive(self, result: Look | Matching) -> float:
        return max(result.log_p, result.log_p_robust) if self._must_be_robust else result.log_p

    def _matchings(
        self, polar: torch.Tensor, channels: IntArray | None, *, is_any_wanted: bool, is_optimum_wanted: bool
    ) -> Iterator[Matching | None]:
        """Yield significant greedy matchings, the matching by channel number, and the best matchings."""
        level = self.log_alpha - math.log(self.n_tests)
        for signed in (False, True):
            quick = quick_matching(polar, signed=signed, log_alpha=level, must_be_robust=self._must_be_robust)
            if quick is not None:
                yield best_matching(polar, signed=signed) if is_optimum_wanted else quick
        in_order = None
        if self._own_order and self._sample is not None and self._sample[0].shape[1] == self._sample[1].shape[1]:
            in_order = matching_in_order(polar, channels)
            if self._decisive(in_order) < level:
                yield in_order
        for signed in (False, True):
            log_alpha = None if is_any_wanted and not signed else self.log_alpha
            matching = best_matching(polar, signed=signed, log_alpha=log_alpha)
            yield matching
            if matching is not None and bool(matching.is_significant.all()):
                return  # every channel is individually significant: other matchings cannot add evidence
        if in_order is not None:
            yield in_order


def matched_scale(reference: torch.Tensor, candidate: torch.Tensor, matching: Matching) -> float:
    """Fit the factor s in ``E' ~ s E P`` by least squares to raw rows of the same tokens.

    Noise in the reference biases the factor; noise in the candidate does not.
    """
    x = reference.double()[:, torch.from_numpy(matching.reference)]
    y = candidate.double()[:, torch.from_numpy(matching.candidate)]
    signs = torch.from_numpy(matching.signs).double()
    return float(((x * y).sum(dim=0) * signs).sum() / (x * x).sum())


def _regrouped(
    blocks: Iterable[tuple[torch.Tensor, torch.Tensor]], n_rows: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
    n_waiting = 0
    for reference, candidate in blocks:
        if len(reference) != len(candidate):
            raise ValueError(
                f"a block pairs {len(reference)} rows of the reference with {len(candidate)} of the candidate; "
                "both must hold the same tokens in the same order"
            )
        start = 0
        while start < len(reference):
            stop = min(len(reference), start + n_rows - n_waiting)
            waiting.append((reference[start:stop], candidate[start:stop]))
            n_waiting += stop - start
            start = stop
            if n_waiting == n_rows:
                yield _joined(waiting)
                waiting, n_waiting = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    if len(parts) == 1:
        return parts[0]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
