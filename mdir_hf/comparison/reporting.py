"""From what a comparison found to the report that says so."""

from __future__ import annotations

import math
from dataclasses import replace

from mdir_hf._version import __version__
from mdir_hf.comparison.body import BodyEvidence
from mdir_hf.comparison.decision import Decision
from mdir_hf.comparison.exclusion import exclusion
from mdir_hf.comparison.findings import Findings
from mdir_hf.comparison.mixtures import ExpertOrigins
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.settings import Settings
from mdir_hf.method.matching import Matching
from mdir_hf.method.modules import ModuleEvidence
from mdir_hf.method.neurons import NeuronMatching
from mdir_hf.method.significance import LN10
from mdir_hf.model.comparable import Comparable
from mdir_hf.report import (
    AncestorLayer,
    ExpertOrigin,
    ExpertsFound,
    HeadsFound,
    HomologyReport,
    LayerPair,
    LayerPattern,
    LayerRole,
    LayersReport,
    ModuleReport,
    ModuleRole,
    ModuleTest,
    NeuronsFound,
    ReportArrays,
    ResidualMap,
    RowsFound,
    SettledBy,
    Transformation,
    Verdict,
)


def make_report(
    reference: Comparable, candidate: Comparable, found: Findings, settings: Settings, watch: Watch
) -> HomologyReport:
    """Put together what a comparison found.

    Args:
        reference: One model.
        candidate: The other.
        found: What was found.
        settings: What was asked for.
        watch: Counted bytes and seconds.
    """
    matrices, body, decision = found.matrices.outcomes, found.layers.body, found.decision
    reports = {name: outcome.report for name, outcome in matrices.items()}
    turned = body is not None and body.outer.kind == "rotation" and body.outer.fitted_on == "embeddings"
    if decision.settled_by == SettledBy.BODY and turned:
        reports["embedding"] = replace(reports["embedding"], transformation=Transformation.ROTATION)
    return HomologyReport(
        verdict=decision.verdict,
        reason=decision.reason,
        log10_p=headline(decision, settings.alpha),
        alpha=settings.alpha,
        tests=found.matrices.n_tests + found.layers.n_tests,
        level=settings.level,
        settled_by=decision.settled_by,
        reference=reference.summary(),
        candidate=candidate.summary(),
        embedding=reports.get("embedding"),
        unembedding=reports.get("unembedding"),
        layers=None if body is None else layers_report(body, settings.alpha, is_accepted=decision.accepts_layers),
        modules=modules_report(body) if body is not None and body.modules and decision.accepts_layers else None,
        caveats=(*found.caveats, *decision.caveats),
        io=watch.io.result(reference.tensors.n_bytes + candidate.tensors.n_bytes),
        seconds=watch.seconds,
        seed=settings.seed,
        version=__version__,
        assumption=decision.assumption,
        log10_p_not_accepted=None if decision.log_p_not_accepted is None else decision.log_p_not_accepted / LN10,
        excludes=exclusion(found.matrices, found.layers, alpha=settings.alpha)
        if decision.verdict is Verdict.NO_EVIDENCE
        else None,
        arrays=ReportArrays(**{name: outcome.arrays for name, outcome in matrices.items()}),
    )


def headline(decision: Decision, alpha: float) -> float:
    """The headline: rounding does not carry it over the level of significance."""
    log10_alpha, log10_p = math.log10(alpha), min(0.0, decision.log_p) / LN10
    if decision.verdict is Verdict.HOMOLOGOUS:
        return min(log10_p, math.nextafter(log10_alpha, -math.inf))
    return max(log10_p, log10_alpha)


def layers_report(evidence: BodyEvidence, alpha: float, *, is_accepted: bool) -> LayersReport:
    """The part ``layers`` of a report; a map that was not accepted has no matches there."""
    mine, other = evidence.positions
    layer_map = evidence.layer_map
    matches = layer_map.matches if is_accepted else ()
    is_told = is_accepted or layer_map.pattern == "sampled"
    pattern = LayerPattern(layer_map.pattern) if is_told else LayerPattern.NONE
    if not matches and evidence.log_p < math.log(alpha):
        pattern = LayerPattern.NEIGHBOURS if is_accepted else LayerPattern.NOT_ACCEPTED
    return LayersReport(
        role=LayerRole(evidence.role.value),
        outer=ResidualMap(evidence.outer.kind),
        fitted_on=evidence.outer.fitted_on if evidence.outer.is_fitted else None,
        pattern=pattern,
        matches=tuple(AncestorLayer(mine[m.reference], other[m.candidate], m.log_p / LN10) for m in matches),
        log10_p=evidence.log_p / LN10,
        log10_p_fisher=layer_map.log_p_fisher / LN10,
        related_layers_at_least=layer_map.n_related if is_accepted else 0,
        stray_share=evidence.off_match_share,
        placebo_log10_p=evidence.placebo_log_p / LN10,
        reference_layers=mine,
        candidate_layers=other,
        matrix=tuple(map(tuple, (layer_map.log_p / LN10).tolist())),
        null=evidence.outer.null,
    )


def modules_report(evidence: BodyEvidence) -> tuple[ModuleReport, ...]:
    """The part ``modules`` of a report, Algorithm 3 on matched layers; p is corrected for these tests."""
    log_n = math.log(max(1, len(evidence.modules) + len(evidence.experts)))
    by_role = tuple(
        ModuleReport(
            layer=LayerPair(i, j),
            role=ModuleRole(found.role),
            test=ModuleTest(found.test),
            trace=found.statistic,
            normalized_trace=found.normalized,
            log10_p=min(0.0, found.log_p + log_n) / LN10,
            scale=found.scale,
            found=_found(found),
        )
        for i, j, found in evidence.modules
    )
    return by_role + tuple(experts_report(origins, log_n_tests=log_n) for origins in evidence.experts)


def _found(evidence: ModuleEvidence) -> RowsFound | NeuronsFound | HeadsFound | None:
    """Say in data what inner transformation a test found: which heads, how many signs, whether anything moved."""
    transformation = evidence.transformation
    if isinstance(transformation, Matching):
        return RowsFound(moves=not transformation.is_identity, negative=transformation.n_negative)
    if transformation is None:
        return None
    pairs = tuple(zip(transformation.reference.tolist(), transformation.candidate.tolist(), strict=True))
    if isinstance(transformation, NeuronMatching):
        return NeuronsFound(moved_neurons=sum(i != j for i, j in pairs), matched_neurons=len(pairs))
    return HeadsFound(heads=pairs, residual=transformation.residual)


def experts_report(origins: ExpertOrigins, *, log_n_tests: float) -> ModuleReport:
    """What is said of the experts of one matched pair of layers; its trace is that of the most significant pair.

    Args:
        origins: What was found in one layer.
        log_n_tests: Natural log of the number of tests to correct for, past the pairs of experts.
    """
    found = origins.found
    log10_p = [min(0.0, p + log_n_tests) / LN10 for p in found.log_p]
    best = min(range(len(log10_p)), key=log10_p.__getitem__)
    traced = list(zip(origins.candidate, found.origins, log10_p, strict=True))
    return ModuleReport(
        layer=LayerPair(*origins.layer),
        role=ModuleRole.EXPERTS,
        test=ModuleTest.NEURONS,
        trace=found.matchings[best].trace,
        normalized_trace=found.matchings[best].normalized_trace,
        log10_p=log10_p[best],
        scale=None,
        found=ExpertsFound(
            experts=tuple(ExpertOrigin(name, origins.reference[i], p) for name, i, p in traced if i is not None),
            without_origin=tuple(name for name, i, _ in traced if i is None),
        ),
    )
