"""Map the layers from sampled rows, and choose between this map and one from whole matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from mdir_hf.comparison import caveats
from mdir_hf.comparison.exclusion import layers_noise
from mdir_hf.comparison.layer_weights import RoleReader, why_not_compared
from mdir_hf.comparison.layers import LayerQuestion, analyse_matches, compare_layers, is_accepted
from mdir_hf.comparison.measurements import Measurements
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.projections.analysis import (
    LayerAnalysis,
    add_experts,
    analyse_layers,
    compare_layers_in_place,
    search_moved_rows,
)
from mdir_hf.comparison.projections.samples import MAPPED_ROLES
from mdir_hf.comparison.projections.tier_one import N_TIERS, Pair
from mdir_hf.comparison.residual_maps import Attempt, attempts
from mdir_hf.comparison.results import LayersEvidence
from mdir_hf.comparison.row_screen import REPRESENTATIVES, representatives
from mdir_hf.comparison.witness import are_layers_invariant
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.layer_map import LayerMap, map_of_cells, with_matches
from mdir_hf.method.map_evidence import N_PLACEBOS, TESTS_PER_MAP, log_p_of_map, weigh_matches
from mdir_hf.method.row_agreement import compare_rows
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role

SAME_LAYER_SHARE = 0.5
"""Two layers count as the same if at least this share of a projection's sampled rows was kept."""


Tell = Callable[[Measurements, str], None]
"""Callback that sends listeners an interim report, with a sentence about the remaining steps."""


def with_layer_map(
    measurements: Measurements, models: tuple[PlacedTensors, PlacedTensors], watch: Watch, tell: Tell
) -> Measurements:
    """Map the layers of two models and add the result to the measurements.

    At levels that analyse all layers, the map is first made from sampled rows. Whole matrices are used if that leaves
    most layers unmatched, and always at level ``full``. Weights are read from ``models``.

    Raises:
        AnatomyError: If the layers of a model cannot be identified.
        UnsupportedFormatError: If the layers cannot be read.
    """
    settings = measurements.settings
    level, maps = settings.level, measurements.maps_of_embeddings
    roles = representatives(*models, every=level.tests_whole_layers)
    are_matched = any(matrix.matching is not None for matrix in measurements.matrices.values())
    map_attempts = attempts(*models, maps, roles, settings, are_matched=are_matched)
    log_alpha = math.log(settings.alpha) - measurements.log_cost_of_layers
    why = why_not_compared(*models, roles)
    measurements = replace(measurements, caveats_of_layers=why, layers_are_unreadable=bool(why))
    question = LayerQuestion(*models, settings, log_alpha, on_part=watch.part, neuron_seed=measurements.sample_seed)

    by_rows: LayersEvidence | None = None
    if level.analyses_all_layers:
        projections, by_rows = map_by_rows(question, maps, map_attempts)
        if projections is not None:
            add_experts(projections)
        measurements = replace(measurements, projections=projections)
        if by_rows is not None and by_rows.has_most_layers and not level.tests_whole_layers:
            return _with_layers(measurements, by_rows, log_alpha)
        if projections is not None:
            question = replace(question, supports=partial(supports, projections, log_alpha=log_alpha))

    def on_found(layers: LayersEvidence, n_left: int) -> None:
        tell(replace(measurements, layers=layers), caveats.of_layers_not_analysed(n_left))

    layers = compare_layers(replace(question, on_found=on_found), map_attempts)
    if by_rows is not None and not (
        layers is not None
        and is_accepted(layers, log_alpha, settings)
        and len(layers.layer_map.matches) >= len(by_rows.layer_map.matches)
    ):
        layers = by_rows
    if layers is None:
        # A model without layers was compared as a whole.
        are_unreadable = all(model.anatomy.layers for model in models)
        sentences = why or (caveats.UNRELATED_STREAMS,)
        return replace(measurements, caveats_of_layers=sentences, layers_are_unreadable=are_unreadable)
    if layers.is_empty:
        return replace(
            measurements, caveats_of_layers=(*why, _of_zeros(measurements, layers)), layers_are_unreadable=True
        )
    if level.analyses_all_layers and is_accepted(layers, log_alpha, settings):
        analysis = measurements.projections
        if analysis is None or len(analysis.counterparts) < len(layers.pairs):
            counterparts = {candidate: reference for reference, candidate in layers.pairs}
            measurements = replace(
                measurements, projections=projections_of(measurements, (layers.residual_map,), counterparts)
            )
        if settings.layers and layers is not by_rows:
            layers = analyse_matches(question, layers)
    return _with_layers(measurements, layers, log_alpha)


def projections_of(
    measurements: Measurements, residual_maps: Sequence[ResidualBasisMap], counterparts: Mapping[int, int] = {}
) -> LayerAnalysis | None:
    """Run tiers 1 and 2 on all layers; see :func:`analyse_layers`."""
    settings = measurements.settings
    return analyse_layers(
        *measurements.models, residual_maps, seed=settings.seed, device=settings.device, counterparts=counterparts
    )


def _with_layers(measurements: Measurements, layers: LayersEvidence, log_alpha: float) -> Measurements:
    are_invariant = are_layers_invariant(*measurements.models, layers, seed=measurements.settings.seed)
    unread = () if measurements.projections is None else measurements.projections.reader.unread
    sentences = dict.fromkeys((*measurements.caveats_of_layers, *layers.not_compared, *unread))
    noise = layers_noise(
        *measurements.models,
        layers.role,
        layers.positions,
        n_tests=layers.n_tests,
        log_alpha=log_alpha,
        every=measurements.settings.level.tests_whole_layers,
    )
    layers = replace(layers, noise=noise, are_invariant=are_invariant)
    return replace(measurements, layers=layers, caveats_of_layers=tuple(sentences))


def _of_zeros(measurements: Measurements, layers: LayersEvidence) -> str:
    models = zip(measurements.models, layers.n_empty, layers.positions, strict=True)
    model, n_empty, places = max(models, key=lambda model_and_counts: model_and_counts[1] / len(model_and_counts[2]))
    return caveats.of_empty_layers(layers.role, n_empty, len(places), model.label)


def map_by_rows(
    question: LayerQuestion, from_embeddings: tuple[ResidualBasisMap, ...], map_attempts: Sequence[Attempt]
) -> tuple[LayerAnalysis | None, LayersEvidence | None]:
    """Run tiers 1 and 2, and build a layer map from their findings.

    If maps from the embeddings leave layers without a counterpart, the maps in ``map_attempts`` that are fitted on the
    layers are used, too.

    Returns:
        The analysis with the most findings, and the accepted layer map with the most matches, which may come from
        another analysis.
    """
    reference, candidate = question.reference, question.candidate
    settings, log_alpha = question.settings, question.log_alpha
    best: LayerAnalysis | None = None
    accepted: LayersEvidence | None = None
    readers: dict[Role, tuple[RoleReader, RoleReader]] = {}

    def of_role(role: Role) -> tuple[RoleReader, RoleReader]:
        return readers.setdefault(role, (RoleReader(reference, role), RoleReader(candidate, role)))

    def in_place(residual_maps: Sequence[ResidualBasisMap]) -> LayerAnalysis | None:
        return compare_layers_in_place(reference, candidate, residual_maps, seed=settings.seed, device=settings.device)

    n_layers = len(candidate.anatomy.layers)
    analyses = [analysis for analysis in (in_place(from_embeddings),) if analysis is not None]
    is_searched = bool(analyses) and len(analyses[0].counterparts) < n_layers
    if is_searched:
        # A map of the embeddings may reveal rows that moved within layers. Fitting another map costs more.
        search_moved_rows(analyses[0], question.on_part)
    if not analyses or len(analyses[0].counterparts) < n_layers:
        for attempt in map_attempts[len(from_embeddings) :]:
            fitted = attempt.make(of_role)
            analysis = None if fitted is None else in_place((fitted,))
            analyses += [] if analysis is None else [analysis]
    # Searches cost more than sampled rows, so they begin with the map that has found most.
    for analysis in sorted(analyses, key=lambda analysis: -analysis.n_found):
        if not (is_searched and analysis is analyses[0]):
            search_moved_rows(analysis, question.on_part)
        if best is None or analysis.n_found > best.n_found:
            best = analysis
        layers = found_by_rows(
            analysis, log_alpha=log_alpha, n_maps=max(1, len(map_attempts)), seed=settings.seed, device=settings.device
        )
        if layers is None or layers.log_p >= log_alpha:
            continue
        if not settings.level.tests_whole_layers:
            layers = analyse_matches(question, layers)
        if not is_accepted(layers, log_alpha, settings):
            continue
        if layers.is_complete:
            return analysis, layers
        if accepted is None or len(layers.layer_map.matches) > len(accepted.layer_map.matches):
            accepted = layers
    return best, accepted


def found_by_rows(
    analysis: LayerAnalysis, *, log_alpha: float, n_maps: int, seed: int, device: str
) -> LayersEvidence | None:
    """Make a layer map from the projection with the most matches; return None if no projection was compared.

    All projections and ``n_maps`` residual-basis maps count as tests.
    """
    roles = [role for role in dict.fromkeys((*REPRESENTATIVES, *MAPPED_ROLES)) if role in analysis.tier_one.cells]
    if not roles:
        return None
    n_tests = n_maps * len(MAPPED_ROLES)
    maps = {role: _map(analysis, role, log_alpha=log_alpha, n_tests=n_tests) for role in roles}
    role = max(roles, key=lambda mapped_role: len(maps[mapped_role].matches))  # the first if several have the most
    return _concluded(analysis, role, maps[role], log_alpha=log_alpha, n_tests=n_tests, seed=seed, device=device)


def _map(analysis: LayerAnalysis, role: Role, *, log_alpha: float, n_tests: int) -> LayerMap:
    cells = analysis.tier_one.cells[role]
    log_p = cells.agreement.log_p.copy()
    by_heads = analysis.by_heads.get(role)
    if by_heads is not None:
        at = np.ix_(
            [cells.sample.places[0].index(place) for place in by_heads.places[0]],
            [cells.sample.places[1].index(place) for place in by_heads.places[1]],
        )
        log_p[at] = np.minimum(log_p[at], by_heads.log_p)
    for pair, findings in analysis.findings.items():
        cell, finding = cells.at(pair), findings.get(role)
        # Rotations inside heads and searched neurons are also significant between different layers of one model and,
        # after a fitted rotation, sometimes between strangers. They describe a layer but do not count for the map's p.
        is_cell = finding is not None and not finding.is_turned and finding.moved in (None, "heads")
        if cell is not None and finding is not None and is_cell:
            log_p[cell] = min(log_p[cell], finding.log_p)
    log_p = np.minimum(0.0, log_p + math.log(N_TIERS))
    return map_of_cells(
        log_p, np.zeros(log_p.shape, dtype=np.bool_), log_alpha=log_alpha, tests_per_cell=N_TIERS, n_tests=n_tests
    )


def _concluded(
    analysis: LayerAnalysis,
    role: Role,
    layer_map: LayerMap,
    *,
    log_alpha: float,
    n_tests: int,
    seed: int,
    device: str,
) -> LayersEvidence:
    cells, residual_map = analysis.tier_one.cells[role], analysis.tier_one.residual_map
    sample = cells.sample

    def log_p_with_itself(i: int, j: int) -> float:
        rows = (sample.reference[i : i + 1], sample.candidate[j : j + 1])
        return max(float(compare_rows(side, side).log_p[0, 0]) for side in rows)

    def is_same(i: int, j: int) -> bool:
        return analysis.counterparts.get(sample.places[1][j]) == sample.places[0][i] and (
            cells.share_kept((i, j)) >= SAME_LAYER_SHARE
        )

    weighed = weigh_matches(layer_map, log_alpha, log_p_with_itself=log_p_with_itself, neurons_agree=is_same)
    certain = [
        match
        for match in weighed.certain
        if analysis.counterparts.get(sample.places[1][match.candidate]) == sample.places[0][match.reference]
    ]
    layer_map = with_matches(layer_map, certain)
    return LayersEvidence(
        log_p=log_p_of_map(layer_map, any_part=residual_map.kind != "rotation"),
        residual_map=residual_map,
        role=role,
        layer_map=layer_map,
        positions=sample.places,
        off_match_share=weighed.off_match_share,
        modules=(),
        n_tests=n_tests * TESTS_PER_MAP,
        placebo_log_p=_log_p_of_placebos(sample.reference, sample.candidate, seed=seed),
        n_empty=_n_empty(sample.reference, sample.candidate),
        neurons_support=neurons_support(
            analysis, [(sample.places[0][m.reference], sample.places[1][m.candidate]) for m in certain], log_alpha
        ),
    )


def supports(analysis: LayerAnalysis, layers: LayersEvidence, log_alpha: float) -> bool:
    """Return whether sampled rows show that neurons of all matched layers agree under the same residual-basis map."""
    analysis_map, layers_map = analysis.tier_one.residual_map, layers.residual_map
    if (analysis_map.kind, analysis_map.fitted_on) != (layers_map.kind, layers_map.fitted_on):
        return False
    return neurons_support(analysis, layers.pairs, log_alpha)


def neurons_support(analysis: LayerAnalysis, pairs: Sequence[Pair], log_alpha: float) -> bool:
    """Return whether neurons of every pair of layers agree in gate or up, in place or in another order."""

    def agrees(pair: tuple[int, int]) -> bool:
        for role in (Role.GATE, Role.UP):
            finding = analysis.findings.get(pair, {}).get(role)
            if finding is not None and finding.log_p + analysis.log_n_tests < log_alpha:
                return True
            cells = analysis.tier_one.cells.get(role)
            cell = None if cells is None else cells.at(pair)
            if cells is not None and cell is not None and cells.is_named[cell] and cells.log_p[cell] < log_alpha:
                return True
        return False

    return bool(pairs) and all(map(agrees, pairs))


def _log_p_of_placebos(reference: torch.Tensor, candidate: torch.Tensor, *, seed: int) -> float:
    """Return the natural log of the smallest p of all pairs of layers after shuffling columns."""
    generator = torch.Generator().manual_seed(seed)
    width = min(reference.shape[2], candidate.shape[2])
    smallest = 0.0
    for _ in range(N_PLACEBOS):
        shuffled = torch.randperm(width, generator=generator).to(reference.device)
        agreement = compare_rows(reference[..., :width][..., shuffled], candidate[..., :width])
        smallest = min(smallest, float(agreement.log_p.min()) + math.log(agreement.log_p.size * N_PLACEBOS))
    return min(0.0, smallest)


def _n_empty(*sides: torch.Tensor) -> tuple[int, int]:
    counts: Sequence[int] = [int((~rows.flatten(1).any(dim=1)).sum()) for rows in sides]
    return counts[0], counts[1]
