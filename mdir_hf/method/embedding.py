"""Algorithm 1 of the paper as a sequence of looks: few tokens first, all of them last.

Every look is a valid test on the rows it has, whichever they are, as long as their choice did not depend on the
weights; the looks are combined so that stopping at the first significant one stays valid (docs/method/rows.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from mdir_hf.method.matching import TRIMS, IntArray, Matching, best_matching, matching_in_order, quick_matching
from mdir_hf.method.numbering import NumberAgreement, numbering_of
from mdir_hf.method.polar import (
    FLOAT64_CHANNELS,
    PolarFactor,
    RowFactors,
    polar_factor,
    polar_factor_of_rows,
    row_factors,
    whitened_core,
    whitened_polar_factor,
    whitener,
)
from mdir_hf.method.products import cross_product
from mdir_hf.method.rows import PairedRows, RowStandard, pair_rows
from mdir_hf.method.significance import log_cost_of_look, log_p_looks

VIEWS = ("centred", "whitened")
TESTS_PER_MATRIX = 3 * len(VIEWS)
"""Each view is tested for a permutation, for a signed permutation, and for the channels in their own order."""

FEW_ROWS = 1024
"""Up to this many rows (or channels) a look goes through the rows' own thin SVD, in float64, over all channels."""

SCREEN_CHANNELS = 256
"""Beyond it a look tests this many channels of the reference, drawn by seed, against all of the candidate."""

BLOCK_ROWS, FEWEST_BLOCK_ROWS, BLOCK_VALUES = 4096, 512, 1 << 23
"""Rows multiplied at a time, however the stream is cut: long enough for a matrix product at full speed, and fewer of
wide models, whose blocks would take more memory than anything else (32 MiB in float32)."""

PRODUCT_CHANNELS = 2048
"""Channels of the reference multiplied at a time: the product of a wide model is as large as the sum it is added to."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """The outcome of one look. Each p is a natural log, corrected for the other tests, not for other looks.

    Attributes:
        number: Its place among the looks of this test, from 1.
        n_rows: Tokens used.
        rank: Rank of the polar factor.
        view: The view that gave the smallest p.
        on_factor: Its matching, of rows of U with channels of the candidate; None where none could be significant.
        channels: Channels of the reference that the rows of U stand for, ascending; None: all of them.
        log_n_tests: Natural log of the number of tests that each p pays for.
        numbering: How the numbers of partners agree; its p is corrected for nothing.
    """

    number: int
    n_rows: int
    rank: int
    view: str
    on_factor: Matching | None
    channels: IntArray | None
    log_n_tests: float
    numbering: NumberAgreement | None = None

    @property
    def matching(self) -> Matching | None:
        """The matching of channels of the reference and of the candidate."""
        if self.on_factor is None or self.channels is None:
            return self.on_factor
        return self.on_factor.of_channels(self.channels)

    @property
    def log_p(self) -> float:
        """Of the trace; 0 without a matching."""
        return 0.0 if self.on_factor is None else self._corrected(self.on_factor.log_p)

    @property
    def log_p_trimmed(self) -> dict[str, float]:
        """The same without the best n/16, n/4, n/2 of the channels."""
        trimmed = dict.fromkeys(TRIMS, 0.0) if self.on_factor is None else self.on_factor.log_p_trimmed
        return {name: self._corrected(log_p) for name, log_p in trimmed.items()}

    @property
    def log_p_robust(self) -> float:
        """The same where few channels cannot carry it: significant where more than some axes are shared."""
        return 0.0 if self.on_factor is None else self._corrected(self.on_factor.log_p_robust)

    @property
    def log_p_signs(self) -> float | None:
        """The same by a sign test, where channels were taken in their own order; else None."""
        signs = None if self.on_factor is None else self.on_factor.log_p_signs
        return None if signs is None else self._corrected(signs)

    @property
    def log_cost(self) -> float:
        """What it costs to stop at this look, in nats: ln s(s+1)."""
        return log_cost_of_look(self.number)

    def _corrected(self, log_p: float) -> float:
        return min(0.0, log_p + self.log_n_tests)


def block_rows(width: int) -> int:
    """How many rows of a model of this width are read and multiplied at a time."""
    return max(FEWEST_BLOCK_ROWS, min(BLOCK_ROWS, BLOCK_VALUES // max(1, width)))


class EmbeddingTest:
    """Tests one pair of matrices whose rows are tokens and whose columns are residual channels.

    Args:
        log_alpha: Natural log of the level fixed in advance.
        n_tests: By how many tests of this comparison every p is multiplied.
        seed: Seed of the channels that a screen of many rows looks at.
        device: Where matrix products and SVDs run.
        must_be_robust: Whether a look that few channels could carry leaves the question open. With next to no rows
            nothing is robust; a search that goes on to more of them asks for p alone.
        own_order: Whether channels are tested in their own order, too. Not where the architecture gives their numbers
            a meaning, which strangers share; the number of tests stays as it is.

    The polar factor kept in :attr:`polar` is that of the last look, for pictures; that in
    :attr:`polar_of_all_channels` of the last look over all channels of the reference, for the layers.
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
        """The rows of the last screen, prepared anew at every call, for a full test needs the room; None before one."""
        if self._sample is None:
            return None
        reference, candidate, dtype = self._sample
        return pair_rows(reference.to(self._device), candidate.to(self._device), dtype=dtype)

    @property
    def row_factors(self) -> tuple[RowFactors, RowFactors] | None:
        """Factors of both models' :attr:`rows`, where they are narrow enough to be kept; else None."""
        return self._factors

    @property
    def log_p(self) -> float:
        """Natural log of p over all looks so far, at most 0."""
        return log_p_looks([look.log_p for look in self.looks])

    @property
    def is_settled(self) -> bool:
        """Whether a look is significant at the level, and stays so without the best half of the channels.

        Significant on few channels only is no reason to stop looking: it may be a handful of shared outlier axes.
        """
        return any(self._decisive(look) + look.log_cost < self.log_alpha for look in self.looks)

    def best_look(self) -> Look:
        """The look that carries the headline p: the one with the smallest corrected p, the last one if none has any."""
        corrected = [min(0.0, look.log_p + look.log_cost) for look in self.looks]
        best = int(np.argmin(corrected))
        return self.looks[best] if corrected[best] < 0.0 else self.looks[-1]

    def screen(self, reference: torch.Tensor, candidate: torch.Tensor, *, is_last: bool = False) -> Look:
        """Look at some rows, all that have been read so far.

        Args:
            reference: ``(r, n_reference)`` raw rows.
            candidate: ``(r, n_candidate)`` raw rows of the same tokens.
            is_last: Whether nothing follows: then a matching is reported even where it cannot be significant.

        Returns:
            The look, also appended to :attr:`looks`. Cost O(r^2 n + r n^2), never O(n^3) for few rows.
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
        """Look at all common rows, streamed in blocks; the last screen's rows give means and whitening.

        Args:
            blocks: Pairs ``(b, n_reference)``, ``(b, n_candidate)`` of raw rows on the same tokens. They must cover
                every row that counts, the screen's included.

        Returns:
            The look. Cost O(|C| n^2 + n^3); memory O(n^2) and one block, whatever the vocabulary.

        Raises:
            RuntimeError: If no screen has run before.
        """
        if self._standard is None or self._sample is None:
            raise RuntimeError("full() needs the means of a screen; call screen() first")
        widths = (self._sample[0].shape[1], self._sample[1].shape[1])
        dtype = torch.float64 if max(widths) <= FLOAT64_CHANNELS else torch.float32
        cross = torch.zeros(widths, dtype=dtype, device=self._device)
        n_rows = self._add_products(cross, blocks, self._standard)

        factors = self._factors_of_all(cross)
        del cross  # the largest thing there is: held by the generator alone, which lets go of it
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
        """Add the products of all blocks to ``cross``, and return the number of their rows."""
        n_rows = 0
        for reference, candidate in _regrouped(blocks, block_rows(max(cross.shape))):
            block = pair_rows(reference.to(self._device), candidate.to(self._device), like=standard, dtype=cross.dtype)
            for start in range(0, len(cross), PRODUCT_CHANNELS):
                some = slice(start, start + PRODUCT_CHANNELS)
                cross[some] += cross_product(block.reference[:, some], block.candidate)
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
        """Test views and gauge groups in turn and stop at the first that settles it; the count is paid in full."""
        number, log_n_tests = len(self.looks) + 1, math.log(self.n_tests)
        best: Look | None = None
        for view, factor in factors:
            is_any_wanted = is_last and view == VIEWS[0]
            for matching in self._matchings(factor.matrix, channels, is_any_wanted, is_optimum_wanted):
                look = Look(number, n_rows, factor.rank, view, matching, channels, log_n_tests)
                if best is None or self._settles(look) or look.log_p < best.log_p:
                    best, self.polar = look, factor.matrix
                if self._settles(best):
                    break
            if best is not None and self._settles(best):
                break
        assert best is not None  # there is always at least one view, and in it one matching or none
        if channels is None:
            self.polar_of_all_channels = self.polar
        if self.polar is not None:
            best = replace(best, numbering=numbering_of(self.polar, best.matching, channels))
        self.looks.append(best)
        return best

    def _settles(self, look: Look) -> bool:
        return self._decisive(look) < self.log_alpha

    def _decisive(self, found: Look | Matching) -> float:
        return max(found.log_p, found.log_p_robust) if self._must_be_robust else found.log_p

    def _matchings(
        self, polar: torch.Tensor, channels: IntArray | None, is_any_wanted: bool, is_optimum_wanted: bool
    ) -> Iterator[Matching | None]:
        """Try what is cheap before what is not: greedy matchings, channels in their own order, assignments.

        Args:
            polar: U.
            channels: Channels of the reference that its rows stand for; None: all.
            is_any_wanted: Whether the best matching without signs is wanted even where it cannot be significant.
            is_optimum_wanted: Whether a greedy matching that is significant gives way to the one of the largest trace.
        """
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
            found = best_matching(polar, signed=signed, log_alpha=log_alpha)
            yield found
            if found is not None and bool(found.is_significant.all()):
                return  # every channel is matched by itself with the sign it has: nothing else adds to that
        if in_order is not None:
            yield in_order


def matched_scale(reference: torch.Tensor, candidate: torch.Tensor, matching: Matching) -> float:
    """Return the factor s of ``E' ~ s E P``, by least squares on some raw rows.

    Args:
        reference: ``(r, n_reference)`` raw rows.
        candidate: ``(r, n_candidate)`` raw rows of the same tokens.
        matching: Which channel of one is which of the other, and with which sign.

    Returns:
        The scale; 1.0 for a plain fine-tune. Noise in the candidate does not bias it, noise in the reference does.
    """
    x = reference.double()[:, torch.from_numpy(matching.reference)]
    y = candidate.double()[:, torch.from_numpy(matching.candidate)]
    signs = torch.from_numpy(matching.signs).double()
    return float(((x * y).sum(dim=0) * signs).sum() / (x * x).sum())


def _regrouped(
    blocks: Iterable[tuple[torch.Tensor, torch.Tensor]], n_rows: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Cut a stream of paired blocks anew, every ``n_rows`` rows, so that how it came does not matter."""
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
