"""Run Algorithm 2: find the reference layer that corresponds to each candidate layer.

Each layer is represented by one matrix, V by default. For each of the L x L' pairs of layers (a cell), the polar factor
of ``W W'^T`` is tested for a permutation of output channels. The p-values assume
:data:`~mdir_hf.method.gauge.LEFT_INVARIANCE` of only ONE model. Cells outside the resulting map serve as a control and
must not be significant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.errors import InputError
from mdir_hf.method.layer_order import LayerRun, Pattern, classify_layers, layer_runs, ordered_matching
from mdir_hf.method.matching import best_matching
from mdir_hf.method.polar import cross_product, polar_factor, polar_factor_of_rows, row_factors
from mdir_hf.method.screening import SCREEN_CHANNELS, ScreenedColumn, screen_channels, screen_column
from mdir_hf.method.significance import (
    count_related,
    log_p_by_layer,
    log_p_hommel,
    log_p_of_best,
    log_p_ordered_map,
    log_p_rueger,
)


class StoredLayer(Protocol):
    """A matrix ``(d_out, n)`` that is loaded each time it is requested."""

    @property
    def n_channels(self) -> int:
        """Number of output channels, ``d_out``, known without loading the matrix."""
        ...

    def load(self, channels: torch.Tensor | None = None) -> torch.Tensor:
        """Return the requested output channels as ``(k, n)``; by default, all channels."""
        ...


Layers = Sequence[torch.Tensor | StoredLayer]
"""One matrix ``(d_out, n)`` per layer."""

FLOAT64_CHANNELS = 512
"""Full tests use float64 up to this many output channels, and float32 (three times as fast) above."""

FULL_CHANNELS = 2 * SCREEN_CHANNELS
"""Layers with at most this many output channels are not screened, because the full test costs no more."""

TESTS_PER_CELL = 2
"""Number of tests per cell: one for a permutation and one for a signed permutation."""

CANNOT_COUNT = -1e-9
"""Natural log of a level just below 1. The search skips matchings that cannot reach it."""


Cells = tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]
"""Natural log of p, and whether it comes from the full polar factor, each ``(rows, columns)``."""


@dataclass(frozen=True, slots=True)
class LayerMatch:
    """A candidate layer and its reference partner, numbered from 0.

    ``log_p`` is corrected for all pairs of layers.
    """

    reference: int
    candidate: int
    log_p: float


@dataclass(frozen=True, slots=True, eq=False)
class LayerMap:
    """A map between the layers of two models, and its evidence. p-values are natural logs, at most 0.

    Attributes:
        log_p: ``(L, L')``, p of each cell, corrected for ``tests_per_cell`` only.
        is_full: ``(L, L')``, True if the full polar factor was computed, False if the screen decided.
        tests_per_cell: 2 (permutation and signed permutation), doubled if the screen's bound may be reported.
        multiplicity: Number of tests for which a cell's p must be corrected: L L' times ``n_tests``.
        matches: The best significant partner of each candidate layer, if any.
        ordered: The maximal ordered matching of significant cells, as (reference, candidate) pairs.
        log_p_map: p of the whole map, valid under ANY dependence: Rüger's ``(L / k) p_(k)``, with k half the number of
            layers of the shallower model.
        log_p_any: p of the whole map by Hommel's rule, for maps in which only a few layers are related.
        log_p_fisher: p of Fisher's sum along the best ordered map, corrected for the search; valid only if each layer
            is left-invariant given the others.
        n_related: Lower bound, at confidence 1 - alpha, on the number of layers of the shallower model that are related
            to a layer of the other model.
    """

    log_p: npt.NDArray[np.float64]
    is_full: npt.NDArray[np.bool_]
    tests_per_cell: int
    multiplicity: int
    matches: tuple[LayerMatch, ...]
    ordered: tuple[tuple[int, int], ...]
    pattern: Pattern
    runs: tuple[LayerRun, ...]
    log_p_map: float
    log_p_any: float
    log_p_fisher: float
    n_related: int


def map_layers(
    sides: Sequence[tuple[Layers, Layers]],
    *,
    log_alpha: float,
    refine: Literal["hits", "undecided"] = "hits",
    n_screened: int = SCREEN_CHANNELS,
    n_tests: int = 1,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> list[LayerMap]:
    """Find the reference layer from which each candidate layer descends, computing all maps in lockstep.

    Args:
        sides: Layers of the reference and the candidate, for each map. The reference has L matrices ``(d_out, n)``, ``y
            = W x``, of any output widths, ALREADY mapped to the candidate's residual basis. The candidate has L'
            matrices ``(d_out', n)``.
        log_alpha: Natural log of the significance level, fixed in advance.
        refine: ``hits`` runs the full test on every cell that passes the screen; ``undecided`` skips it if the screen's
            weaker bound is already significant.
        n_screened: Number of output channels screened; 0 tests every cell in full.
        n_tests: Number of tests for which each map is corrected.
        seed: Seed of the screen.
        device: torch device for the computation.

    Returns:
        The maps, in the order of ``sides``. For each map, the screen takes 2 L L' d0 d' n flops, and each full cell O(d
        d' n + d^3) time. Each map needs memory for one layer of each model and a few ``L d0 (n + d')`` floats.

    Raises:
        InputError: If a side has no layers, a layer is not a finite matrix, or residual widths differ.
    """
    searches = []
    for reference, candidate in sides:
        if not len(reference) or not len(candidate):
            raise InputError(f"a layer map needs layers on both sides, got {len(reference)} and {len(candidate)}")
        named_layers = (("reference", reference), ("candidate", candidate))
        reference_side, candidate_side = (_Side(name, layers, torch.device(device)) for name, layers in named_layers)
        # If both are equally wide, the model with more layers is screened; the other model's layers are loaded whole.
        is_swapped = n_screened > 0 and (reference_side.n_channels(0), len(candidate_side)) > (
            candidate_side.n_channels(0),
            len(reference_side),
        )
        rows, columns = (candidate_side, reference_side) if is_swapped else (reference_side, candidate_side)
        searches.append(_CellSearch(rows, columns, is_swapped, log_alpha, refine, n_screened, n_tests, seed))
    cells = [search.empty() for search in searches]
    for _ in zip_longest(*(search.columns_into(*of_it) for search, of_it in zip(searches, cells, strict=True))):
        pass
    return [search.summarise(*of_it) for search, of_it in zip(searches, cells, strict=True)]


@dataclass(frozen=True, slots=True)
class _Side:
    name: str
    layers: Layers
    device: torch.device

    def __len__(self) -> int:
        return len(self.layers)

    def load(self, index: int, width: int | None, channels: torch.Tensor | None = None) -> torch.Tensor:
        source = self.layers[index]
        if not isinstance(source, torch.Tensor):
            layer = source.load(channels)
        elif channels is None or source.ndim != 2:
            layer = source
        else:
            layer = source[channels.to(source.device)]
        layer = layer.to(self.device)
        if layer.dtype != torch.float64:
            layer = layer.float()
        if layer.ndim != 2 or 0 in layer.shape:
            raise InputError(f"layer {index} of the {self.name} is not a matrix (d_out, n): shape {tuple(layer.shape)}")
        if width is not None and layer.shape[1] != width:
            raise InputError(
                f"layer {index} of the {self.name} has residual width {layer.shape[1]}, expected {width}; "
                "carry the reference into the candidate's residual basis first"
            )
        if not bool(torch.isfinite(layer).all()):
            raise InputError(f"layer {index} of the {self.name} holds values that are not finite")
        return layer

    def n_channels(self, index: int) -> int:
        source = self.layers[index]
        if not isinstance(source, torch.Tensor):
            return source.n_channels
        return source.shape[0] if source.ndim else 0


@dataclass(frozen=True, slots=True)
class _CellSearch:
    """One pass over all cells. With screening, rows are the layers of the model with fewer output channels."""

    rows: _Side
    columns: _Side
    is_swapped: bool
    log_alpha: float
    refine: Literal["hits", "undecided"]
    n_screened: int
    n_tests: int
    seed: int

    @property
    def tests_per_cell(self) -> int:
        # In "hits" mode, a cell reports p = 1 or its full p. The screen can only discard evidence and needs no
        # correction.
        return TESTS_PER_CELL * (2 if self.refine == "undecided" else 1)

    @property
    def multiplicity(self) -> int:
        return len(self.rows) * len(self.columns) * self.n_tests

    @property
    def log_alpha_cell(self) -> float:
        return self.log_alpha - math.log(self.multiplicity)

    def empty(self) -> Cells:
        """Return cells to be filled by :meth:`columns_into`."""
        shape = (len(self.rows), len(self.columns))
        return np.zeros(shape), np.zeros(shape, dtype=np.bool_)

    def columns_into(self, log_p: npt.NDArray[np.float64], is_full: npt.NDArray[np.bool_]) -> Iterator[int]:
        """Fill the cells ``(rows, columns)`` in place, yielding after each column."""
        rows = self._screened_rows()
        width: int | None = None if rows is None else rows.shape[2]
        narrow_rows: dict[int, torch.Tensor] = {}
        for j in range(len(self.columns)):
            layer = self.columns.load(j, width)
            width = layer.shape[1]
            undecided = list(range(len(self.rows)))
            if rows is not None and layer.shape[0] > FULL_CHANNELS:
                decided, undecided = self._triage(screen_column(rows, layer, signed=True))
                for i, value in decided.items():
                    log_p[i, j] = value
            for i in undecided:
                partner = narrow_rows[i] if i in narrow_rows else self.rows.load(i, width)
                if len(partner) <= FULL_CHANNELS:
                    narrow_rows[i] = partner
                log_p[i, j] = log_p_of_layers(partner, layer, tests_per_cell=self.tests_per_cell)
                is_full[i, j] = True
            yield j

    def _screened_rows(self) -> torch.Tensor | None:
        """Load the channels to screen from each layer, or return None if screening is off or saves nothing."""
        n_channels = [self.rows.n_channels(i) for i in range(len(self.rows))]
        if self.n_screened == 0 or min(n_channels) <= FULL_CHANNELS:
            return None
        rows: list[torch.Tensor] = []
        width: int | None = None
        for i, n in enumerate(n_channels):
            layer = self.rows.load(i, width, screen_channels(n, self.n_screened, seed=self.seed))
            width = layer.shape[1]
            rows.append(layer[:width].float())
        return torch.stack(rows)

    def _triage(self, column: ScreenedColumn) -> tuple[dict[int, float], list[int]]:
        """Split a screened column into cells with a final p and cells that need the full test."""
        decided: dict[int, float] = {}
        undecided: list[int] = []
        for i in map(int, np.flatnonzero(~column.is_null)):
            bound = 0.0
            if column.is_bulk[i] or self.refine == "undecided":
                bound = _log_p_of_polar(column.polar[i], tests=self.tests_per_cell)
            is_hit = bound < self.log_alpha_cell
            if is_hit and self.refine == "undecided":
                decided[i] = bound
            elif is_hit or not column.is_bulk[i]:
                undecided.append(i)
        return decided, undecided

    def _refine_rivals(self, log_p: npt.NDArray[np.float64], is_full: npt.NDArray[np.bool_]) -> None:
        """Run the full test, in place, on significant cells that share a row or column with another."""
        is_hit = log_p < self.log_alpha_cell
        has_rival = (is_hit.sum(axis=0, keepdims=True) > 1) | (is_hit.sum(axis=1, keepdims=True) > 1)
        for i, j in np.argwhere(is_hit & ~is_full & has_rival):
            pair = (self.rows.load(int(i), None), self.columns.load(int(j), None))
            log_p[i, j] = log_p_of_layers(*pair, tests_per_cell=self.tests_per_cell)
            is_full[i, j] = True

    def summarise(self, log_p: npt.NDArray[np.float64], is_full: npt.NDArray[np.bool_]) -> LayerMap:
        """Build the layer map from completed cells ``(rows, columns)``."""
        self._refine_rivals(log_p, is_full)
        if self.is_swapped:
            log_p, is_full = log_p.T.copy(), is_full.T.copy()
        return map_of_cells(
            log_p,
            is_full,
            log_alpha=self.log_alpha,
            tests_per_cell=self.tests_per_cell,
            n_tests=self.n_tests,
        )


def with_matches(layer_map: LayerMap, matches: Sequence[LayerMatch]) -> LayerMap:
    """Return a copy of the map with different matches."""
    pairs = [(match.reference, match.candidate) for match in matches]
    still_matched = set(pairs)
    return replace(
        layer_map,
        matches=tuple(matches),
        ordered=tuple(pair for pair in layer_map.ordered if pair in still_matched),
        pattern="sampled" if layer_map.pattern == "sampled" else classify_layers(pairs, *layer_map.log_p.shape),
        runs=layer_runs(pairs),
        n_related=min(layer_map.n_related, len(pairs)),
    )


def silent_map(n_reference: int, n_candidate: int, *, n_tests: int = 1) -> LayerMap:
    """Return a map with p = 1 in every cell, for layers that were not compared."""
    shape = (n_reference, n_candidate)
    return map_of_cells(
        np.zeros(shape), np.zeros(shape, dtype=np.bool_), log_alpha=-1.0, tests_per_cell=1, n_tests=n_tests
    )


def map_of_cells(
    log_p: npt.NDArray[np.float64],
    is_full: npt.NDArray[np.bool_],
    *,
    log_alpha: float,
    tests_per_cell: int,
    n_tests: int,
) -> LayerMap:
    """Build the layer map from its cells ``(L, L')``.

    ``log_p`` contains natural logs, corrected for ``tests_per_cell`` only; p-values of the whole map are also corrected
    for ``n_tests``.
    """
    multiplicity = log_p.size * n_tests
    corrected = np.minimum(0.0, log_p + math.log(multiplicity))
    best = log_p.argmin(axis=0)
    matches = tuple(
        LayerMatch(int(i), j, float(corrected[i, j])) for j, i in enumerate(best) if corrected[i, j] < log_alpha
    )
    pairs = [(match.reference, match.candidate) for match in matches]
    ordered = ordered_matching(log_p, math.log(multiplicity) - log_alpha)
    # Fisher's union bound covers any choice among ordered maps, so pairs that are not significant alone may add
    # evidence.
    evidence = ordered_matching(log_p, 1.0)
    fisher = log_p_ordered_map([float(log_p[i, j]) for i, j in evidence], *log_p.shape)
    by_layer = log_p_by_layer(log_p)
    return LayerMap(
        log_p=log_p,
        is_full=is_full,
        tests_per_cell=tests_per_cell,
        multiplicity=multiplicity,
        matches=matches,
        ordered=tuple(ordered),
        pattern=classify_layers(pairs, *log_p.shape),
        runs=layer_runs(pairs),
        log_p_map=log_p_of_best(log_p_rueger(by_layer, (len(by_layer) + 1) // 2), n_tests),
        log_p_any=log_p_of_best(log_p_hommel(by_layer), n_tests),
        log_p_fisher=log_p_of_best(fisher, n_tests),
        n_related=count_related(by_layer, log_alpha - math.log(n_tests)),
    )


def log_p_of_layers(reference: torch.Tensor, candidate: torch.Tensor, *, tests_per_cell: int = TESTS_PER_CELL) -> float:
    """Run the full test on one pair of layers: bound the best matching of the polar factor of ``W W'^T``.

    Both matrices are ``(d_out, n)`` in the same residual basis. Rank-deficient factors are never completed with an
    arbitrary basis. Return the natural log of p, corrected for ``tests_per_cell`` only.
    """
    n_narrow, n_wide = sorted((reference.shape[0], candidate.shape[0]))
    dtype = torch.float64 if n_wide <= FLOAT64_CHANNELS else torch.float32
    rows, columns = reference.to(dtype), candidate.to(dtype)
    if reference.shape[1] < n_narrow:
        polar = polar_factor_of_rows(row_factors(rows.T), row_factors(columns.T), whitened=False).matrix
    else:
        polar = polar_factor(cross_product(rows.T, columns.T)).matrix
    return _log_p_of_polar(polar, tests=tests_per_cell)


def _log_p_of_polar(polar: torch.Tensor, *, tests: int) -> float:
    log_p = 0.0
    for signed in (False, True):
        matching = best_matching(polar, signed=signed, log_alpha=CANNOT_COUNT)
        if matching is not None:
            log_p = min(log_p, matching.log_p)
    return log_p_of_best(log_p, tests)
