"""Describe the layers: which layers agree, and how each projection changed."""

from __future__ import annotations

import math
from dataclasses import replace

from mdir_hf.comparison import caveats
from mdir_hf.comparison.keys import compare_heads, map_of_heads
from mdir_hf.comparison.measurements import Measurements
from mdir_hf.comparison.projections.analysis import LayerAnalysis, analyse_layers
from mdir_hf.comparison.projections.samples import MAPPED_ROLES
from mdir_hf.method.layer_order import classify_layers
from mdir_hf.method.significance import LN10
from mdir_hf.report import AncestorLayer, LayerPattern, LayersResult, ModuleRole, ResidualMap, Verdict


def describe_layers(measurements: Measurements) -> Measurements:
    """Compare sampled rows of every projection of every layer (tiers 1 and 2 of docs/method/layers.md).

    The residual-basis map comes from the embeddings or, if they do not agree, from the keys.
    """
    settings = measurements.settings
    if not any(matrix.result.is_significant for matrix in measurements.matrices.values()):
        measurements = _with_map_of_heads(measurements)
    analysis = analyse_layers(
        *measurements.tensors,
        measurements.residual_maps,
        seed=settings.seed,
        device=settings.device,
        counterparts=_known_counterparts(measurements),
    )
    if analysis is None:
        notes = (*measurements.notes, caveats.NO_LAYERS_DESCRIBED)
        return replace(measurements, notes=tuple(dict.fromkeys(notes)))
    notes = tuple(dict.fromkeys((*measurements.notes, *analysis.reader.unread)))
    is_confirmed = measurements.decision.verdict is Verdict.HOMOLOGOUS
    layers = _layers_result(analysis, alpha=settings.alpha, is_confirmed=is_confirmed)
    return replace(measurements, projections=analysis, layers=layers, notes=notes)


def _known_counterparts(measurements: Measurements) -> dict[int, int]:
    """Return the reference layers that match candidate layers by heads or neurons, keyed by candidate layer."""
    of_heads = {} if measurements.heads is None else {place: source for source, place, _ in measurements.heads.pairs}
    matches = [match for neurons in measurements.neurons for match in neurons.matches]
    return {**of_heads, **{match.candidate: match.reference for match in matches}}


def _with_map_of_heads(measurements: Measurements) -> Measurements:
    if measurements.map_of_heads is not None:
        return measurements
    seed, device = measurements.settings.seed, measurements.settings.device
    heads = measurements.heads or compare_heads(measurements.tensors, seed=seed)
    if heads is None or not heads.pairs:
        return replace(measurements, heads=heads)
    pairs = [(i, j) for i, j, _ in heads.pairs]
    return replace(
        measurements, heads=heads, map_of_heads=map_of_heads(measurements.tensors, pairs, seed=seed, device=device)
    )


def _layers_result(analysis: LayerAnalysis, *, alpha: float, is_confirmed: bool) -> LayersResult | None:
    cells_of_roles = {role: cells for role, cells in analysis.tier_one.cells.items() if role in MAPPED_ROLES}
    if not cells_of_roles:
        return None
    role = max(cells_of_roles, key=lambda each: int(cells_of_roles[each].is_named.any(axis=0).sum()))
    cells, residual_map = cells_of_roles[role], analysis.tier_one.residual_map
    reference, candidate = cells.sample.places
    log_p_of = {
        (source, place): _log_p_of_pair(analysis, (source, place)) for place, source in analysis.counterparts.items()
    }
    matches = tuple(
        AncestorLayer(source, place, log_p / LN10)
        for (source, place), log_p in sorted(log_p_of.items(), key=lambda item: item[0][1])
        if is_confirmed and log_p < math.log(alpha)
    )
    n_layers = [len(model.anatomy.layers) for model in analysis.reader.models]
    pattern = classify_layers([(match.reference, match.candidate) for match in matches], n_layers[0], n_layers[1])
    return LayersResult(
        method="sampled rows",
        role=ModuleRole(role.value),
        residual_map=ResidualMap(residual_map.kind),
        fitted_on=residual_map.fitted_on if residual_map.is_fitted else None,
        pattern=LayerPattern(pattern),
        matches=matches,
        reference_layers=reference,
        candidate_layers=candidate,
        matrix=tuple(map(tuple, (cells.log_p / LN10).tolist())),
    )


def _log_p_of_pair(analysis: LayerAnalysis, pair: tuple[int, int]) -> float:
    """Return the smallest ln p of any projection of a pair of layers, corrected for all tests of the table."""
    log_p = [0.0]
    for cells in analysis.tier_one.cells.values():
        cell = cells.at(pair)
        log_p += [] if cell is None else [float(cells.log_p[cell])]
    log_p += [finding.log_p + analysis.log_n_tests for finding in analysis.findings.get(pair, {}).values()]
    return min(log_p)
