"""Read whole matrices and run the paper's algorithms on them, for level ``paper``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from mdir_hf.comparison import caveats
from mdir_hf.comparison.layer_weights import layers_with, read_role, standing_for
from mdir_hf.comparison.measurements import Measurements
from mdir_hf.comparison.reading import FiniteRows
from mdir_hf.comparison.tokens import common_tokens, matrix_pair
from mdir_hf.method.embedding import block_rows
from mdir_hf.method.layer_order import classify_layers
from mdir_hf.method.paper import P_0, algorithm_1, algorithm_2, algorithm_3
from mdir_hf.method.significance import LN10
from mdir_hf.model.comparable import PlacedTensors, matrix_spec
from mdir_hf.model.roles import Role
from mdir_hf.report import (
    AncestorLayer,
    LayerPair,
    LayerPattern,
    LayersResult,
    ModuleResult,
    ModuleRole,
    PrintedAlgorithm1,
    ResidualMap,
)

ROLES = (Role.Q, Role.K, Role.V, Role.UP)
"""Projections that Algorithm 3 compares."""


def run_algorithms(measurements: Measurements) -> Measurements:
    """Run Algorithms 1 to 3 as printed, on all rows, and add their results to the measurements.

    Algorithm 3 is run on the best partner of each candidate layer, if Algorithm 2 finds one. Reads all rows of common
    tokens, the values of all layers, and the queries, keys, values and up of matched layers. Takes O(L L' D^3) time.
    """
    named_pair = matrix_pair(*measurements.models)
    common = None if named_pair is None else common_tokens(*measurements.models)[0]
    if common is None or not len(common):
        return replace(measurements, notes=(*measurements.notes, caveats.NO_ROWS_FOR_PAPER))
    match, u = algorithm_1(_blocks(measurements))
    axes = [matrix.result.axes_stand_out for matrix in measurements.matrices.values()]
    n_candidate, n_reference = u.shape
    printed = PrintedAlgorithm1(
        common_tokens=len(common),
        trace=match.trace,
        rank=match.rank,
        width=min(u.shape),
        log10_p=min(0.0, match.log_p) / LN10 if n_reference == n_candidate else None,
        axes_stand_out=axes[0] if axes else None,
    )
    measurements = replace(measurements, printed=printed)
    reference, candidate = measurements.tensors
    widths = (reference.anatomy.hidden_size, candidate.anatomy.hidden_size)
    places = layers_with(reference, Role.V), layers_with(candidate, Role.V)
    if widths != (n_reference, n_candidate) or not all(places):
        return replace(measurements, notes=(*measurements.notes, caveats.NO_LAYERS_FOR_PAPER))
    log_p = algorithm_2(
        [_matrix(reference, place, Role.V) for place in places[0]],
        (_matrix(candidate, place, Role.V) for place in places[1]),
        u,
    )
    best = log_p.argmin(axis=0)
    matches = tuple(
        AncestorLayer(places[0][i], place, float(log_p[i, j]) / LN10)
        for j, (i, place) in enumerate(zip(best.tolist(), places[1], strict=True))
        if log_p[i, j] < P_0
    )
    depths = [len(model.anatomy.layers) for model in measurements.tensors]
    pattern = classify_layers([(m.reference, m.candidate) for m in matches], depths[0], depths[1])
    layers = LayersResult(
        method="algorithm 2",
        role=ModuleRole.V,
        residual_map=ResidualMap.PERMUTATION if match.log_p < P_0 else ResidualMap.ROTATION,
        fitted_on="embeddings",
        pattern=LayerPattern(pattern),
        matches=matches,
        reference_layers=places[0],
        candidate_layers=places[1],
        matrix=tuple(map(tuple, (log_p / LN10).tolist())),
    )
    modules = tuple(_modules(measurements, layers, u, log_n_layers=math.log(max(1, len(places[0])))))
    return replace(measurements, layers=layers, modules=modules)


def _modules(
    measurements: Measurements, layers: LayersResult, u: torch.Tensor, *, log_n_layers: float
) -> Iterator[ModuleResult]:
    for source, place, _ in layers.matches:
        sides = [
            {role.value: _matrix(model, at, role) for role in ROLES if role in model.anatomy.layers[at].parts}
            for model, at in zip(measurements.tensors, (source, place), strict=True)
        ]
        for name, match in algorithm_3(sides[0], sides[1], u).items():
            yield ModuleResult(
                layer=LayerPair(source, place),
                role=ModuleRole(name),
                trace=match.trace,
                normalized_trace=match.trace / max(1, match.rank),
                log10_p=min(0.0, match.log_p + log_n_layers) / LN10,
            )


def _blocks(measurements: Measurements) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Read the rows of all common tokens, block by block."""
    named_pair = matrix_pair(*measurements.models)
    assert named_pair is not None
    specs = [matrix_spec(model, part) for model, part in zip(measurements.models, named_pair[1], strict=True)]
    common = common_tokens(*measurements.models)[0].within(specs[0].shape[0], specs[1].shape[0])
    readers = [FiniteRows(model) for model in measurements.models]
    n_rows = block_rows(max(spec.shape[1] for spec in specs))
    for start in range(0, len(common), n_rows):
        at = np.arange(start, min(start + n_rows, len(common)))
        yield (
            readers[0].read_rows(specs[0].name, common.reference_rows[at]),
            readers[1].read_rows(specs[1].name, common.candidate_rows[at]),
        )


def _matrix(model: PlacedTensors, place: int, role: Role) -> torch.Tensor:
    """Read a projection as the paper's X, ``(n, D)``."""
    layer = model.anatomy.layers[place]
    return read_role(model, layer, standing_for(layer, role) or role).double().T
