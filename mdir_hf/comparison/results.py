"""Convert evidence about layers to report results, and natural logs to log10."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mdir_hf.comparison.decide import layers_support
from mdir_hf.comparison.mixtures import ExpertOrigins
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.layer_map import LayerMap
from mdir_hf.method.map_evidence import log_p_of_all_layers
from mdir_hf.method.matching import Matching
from mdir_hf.method.modules import ModuleEvidence
from mdir_hf.method.neurons import NeuronMatching
from mdir_hf.method.significance import LN10
from mdir_hf.model.roles import Role
from mdir_hf.report import (
    AncestorLayer,
    ExpertOrigin,
    ExpertsFound,
    HeadsFound,
    LayerPair,
    LayerPattern,
    LayerRole,
    LayersResult,
    ModuleResult,
    ModuleRole,
    ModuleTest,
    NeuronsFound,
    ResidualMap,
    RowsFound,
)


@dataclass(frozen=True, slots=True)
class LayersEvidence:
    """Evidence about the layers.

    Attributes:
        log_p: Natural log of the map's p, corrected for ``n_tests``.
        positions: Positions of both models' mapped layers in ``anatomy.layers``.
        off_match_share: Share of the layer pairs outside the map that are significant.
        placebo_log_p: Natural log of the smallest p of any pair of layers after shuffling channels.
        modules: Results of Algorithm 3 on matched layers, as (reference layer, candidate layer, evidence).
        neurons_support: Whether sampled neurons of every matched layer agree.
        n_empty: Number of all-zero layers in the reference and in the candidate.
        noise: Strongest noise, in units of the weights' RMS, at which a copy would have been found.
        are_invariant: See :func:`~mdir_hf.comparison.witness.are_layers_invariant`; False if not tested.
    """

    log_p: float
    residual_map: ResidualBasisMap
    role: Role
    layer_map: LayerMap
    positions: tuple[tuple[int, ...], tuple[int, ...]]
    off_match_share: float
    modules: tuple[tuple[int, int, ModuleEvidence], ...]
    n_tests: int
    placebo_log_p: float = 0.0
    experts: tuple[ExpertOrigins, ...] = ()
    n_empty: tuple[int, int] = (0, 0)
    not_compared: tuple[str, ...] = ()
    neurons_support: bool = False
    noise: float = 0.0
    are_invariant: bool = False

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Matched layers: positions in ``anatomy.layers`` of both models."""
        reference, candidate = self.positions
        return [(reference[match.reference], candidate[match.candidate]) for match in self.layer_map.matches]

    @property
    def is_complete(self) -> bool:
        """Whether every candidate layer on the map has a partner."""
        return len(self.layer_map.matches) == len(self.positions[1])

    @property
    def has_most_layers(self) -> bool:
        """Whether at least half of the candidate's layers have a partner."""
        return 2 * len(self.layer_map.matches) >= len(self.positions[1])

    @property
    def has_tests(self) -> bool:
        """Whether parts of matched layers were tested."""
        return bool(self.modules or self.experts)

    @property
    def is_empty(self) -> bool:
        """Whether most layers of either model are all zeros."""
        return any(2 * n > len(places) for n, places in zip(self.n_empty, self.positions, strict=True))


def layers_result(evidence: LayersEvidence, alpha: float, *, log_cost: float = 0.0) -> LayersResult:
    """Return the layers' result; ``log_cost`` is the natural log of the factor that corrects p for earlier looks."""
    layer_map, (reference, candidate) = evidence.layer_map, evidence.positions
    residual_map = evidence.residual_map
    return LayersResult(
        role=LayerRole(evidence.role.value),
        residual_map=ResidualMap(residual_map.kind),
        fitted_on=residual_map.fitted_on if residual_map.is_fitted else None,
        pattern=LayerPattern(layer_map.pattern),
        matches=tuple(
            AncestorLayer(reference[m.reference], candidate[m.candidate], m.log_p / LN10) for m in layer_map.matches
        ),
        log10_p=min(0.0, evidence.log_p + log_cost) / LN10,
        log10_p_fisher=min(0.0, log_p_of_all_layers(layer_map) + log_cost) / LN10,
        related_layers_at_least=layer_map.n_related,
        off_match_share=evidence.off_match_share,
        placebo_log10_p=evidence.placebo_log_p / LN10,
        reference_layers=reference,
        candidate_layers=candidate,
        matrix=tuple(map(tuple, (layer_map.log_p / LN10).tolist())),
        null=residual_map.null,
        is_supported=evidence.neurons_support or layers_support(evidence.modules, residual_map.kind, math.log(alpha)),
    )


def shown_layers(layers: LayersResult, alpha: float, *, is_accepted: bool) -> LayersResult:
    """Return the result without matches if the map was not accepted."""
    is_significant = layers.log10_p < math.log10(alpha)
    if is_accepted:
        none_certain = is_significant and not layers.matches
        return replace(layers, pattern=LayerPattern.NEIGHBOURS) if none_certain else layers
    pattern: LayerPattern = layers.pattern if layers.pattern is LayerPattern.SAMPLED else LayerPattern.NONE
    if is_significant:
        pattern = LayerPattern.NOT_ACCEPTED
    return replace(layers, matches=(), pattern=pattern, related_layers_at_least=0)


def module_results(evidence: LayersEvidence) -> tuple[ModuleResult, ...]:
    """Return the ``modules`` part of a report: results of Algorithm 3 on matched layers."""
    log_n = math.log(max(1, len(evidence.modules) + len(evidence.experts)))
    by_role = tuple(
        ModuleResult(
            layer=LayerPair(i, j),
            role=ModuleRole(module.role),
            test=ModuleTest(module.test),
            trace=module.statistic,
            normalized_trace=module.normalized,
            log10_p=min(0.0, module.log_p + log_n) / LN10,
            scale=module.scale,
            found=_finding(module),
        )
        for i, j, module in evidence.modules
    )
    return by_role + tuple(experts_result(origins, log_n_tests=log_n) for origins in evidence.experts)


def _finding(evidence: ModuleEvidence) -> RowsFound | NeuronsFound | HeadsFound | None:
    transformation = evidence.transformation
    if isinstance(transformation, Matching):
        return RowsFound(moves=not transformation.is_identity, negative=transformation.n_negative)
    if transformation is None:
        return None
    pairs = tuple(zip(transformation.reference.tolist(), transformation.candidate.tolist(), strict=True))
    if isinstance(transformation, NeuronMatching):
        return NeuronsFound(moved_neurons=sum(i != j for i, j in pairs), matched_neurons=len(pairs))
    return HeadsFound(heads=pairs, residual=transformation.residual)


def experts_result(origins: ExpertOrigins, *, log_n_tests: float) -> ModuleResult:
    """Return the result for the experts of one pair of layers."""
    expert_map = origins.expert_map
    log10_p = [min(0.0, p + log_n_tests) / LN10 for p in expert_map.log_p]
    best = min(range(len(log10_p)), key=log10_p.__getitem__)
    traced = list(zip(origins.candidate, expert_map.origins, log10_p, strict=True))
    return ModuleResult(
        layer=LayerPair(*origins.layer),
        role=ModuleRole.EXPERTS,
        test=ModuleTest.NEURONS,
        trace=expert_map.matchings[best].trace,
        normalized_trace=expert_map.matchings[best].normalized_trace,
        log10_p=log10_p[best],
        scale=None,
        found=ExpertsFound(
            experts=tuple(ExpertOrigin(name, origins.reference[i], p) for name, i, p in traced if i is not None),
            without_origin=tuple(name for name, i, _ in traced if i is None),
        ),
    )
