"""Analyse the projections of all layers and build the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mdir_hf.comparison.keys import FITTED_ON
from mdir_hf.comparison.neuron_sample import spread
from mdir_hf.comparison.projections.expert_rows import ExpertCells, compare_experts
from mdir_hf.comparison.projections.findings import Finding, FoundMaps
from mdir_hf.comparison.projections.records import Records
from mdir_hf.comparison.projections.samples import (
    ATTENTION_ROLES,
    PROJECTION_ROLES,
    ProjectionReader,
)
from mdir_hf.comparison.projections.tier_one import Pair, TierOne, compare_in_place, compare_own_places
from mdir_hf.comparison.projections.tier_two_heads import HeadCells, HeadSearch
from mdir_hf.comparison.projections.tier_two_neurons import NeuronSearch
from mdir_hf.comparison.reading import ReadOnce, read_closely
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.model.comparable import Comparable
from mdir_hf.model.roles import Role
from mdir_hf.report import LayerMaps, LayerPair, LayerTable, ModuleRole, ResidualMap, without_history


@dataclass(frozen=True, eq=False)
class LayerAnalysis:
    """The results of tiers 1 and 2.

    Attributes:
        tier_one: Results of tier 1 under the best residual-basis map.
        counterparts: Maps each candidate layer with an agreeing projection to its reference layer.
        log_n_tests: Natural log of the number of tests for which each p is corrected.
    """

    tier_one: TierOne
    counterparts: dict[int, int]
    findings: dict[Pair, dict[Role, Finding]]
    maps: dict[Pair, FoundMaps]
    reader: ProjectionReader
    log_n_tests: float
    by_heads: dict[Role, HeadCells] = field(default_factory=dict)
    experts: dict[Pair, ExpertCells] = field(default_factory=dict)

    @property
    def pairs(self) -> list[Pair]:
        """Each candidate layer with its counterpart or, failing that, the reference layer at the same depth."""
        models = self.reader.models
        depths = [len(model.anatomy.layers) for model in models]
        return [(self.counterparts.get(j, at_same_depth(j, depths[0], depths[1])), j) for j in range(depths[1])]

    @property
    def n_found(self) -> int:
        """Number of projections with a finding."""
        return self.tier_one.n_named + sum(len(findings) for findings in self.findings.values())

    @cached_property
    def table(self) -> LayerTable:
        """The report's table of projections, assuming that neurons agree."""
        residual_map = self.tier_one.residual_map
        records = Records(self.reader, self.tier_one, self.findings, self.log_n_tests, self.experts)
        results = records.results(self.pairs)
        open_layers = self.tier_one.rivalled()
        if not self.tier_one.n_named:
            # All rows moved, so a layer without a counterpart may be a copy that no search reached.
            open_layers |= set(range(len(self.reader.models[1].anatomy.layers)))
        open_layers -= self.counterparts.keys()
        return LayerTable(
            residual_map=ResidualMap(residual_map.kind),
            fitted_on=residual_map.fitted_on if residual_map.is_fitted else None,
            is_confirmed=True,
            tests=round(math.exp(self.log_n_tests)),
            results=tuple(
                without_history(result) if result.layer.candidate in open_layers else result for result in results
            ),
        )

    def layer_maps(self) -> tuple[LayerMaps, ...]:
        """Return the maps of heads and neurons inside each pair of layers, as arrays."""
        return tuple(
            LayerMaps(
                LayerPair(*pair),
                heads={ModuleRole(role.value): heads for role, heads in maps.heads.items()},
                turns={ModuleRole(role.value): turns.float().cpu().numpy() for role, turns in maps.turns.items()},
                neurons=maps.neurons,
            )
            for pair, maps in self.maps.items()
            if maps.heads or maps.turns or maps.neurons is not None
        )


OnPart = Callable[[str, int, int], None]
"""Callback that receives ``layers``, the number of layer pairs searched, and the maximum number."""

PROBED_LAYERS = 4
"""If no layers agree in place, only this many are searched for moved rows, each against the layer in the same position.
The others are searched only if one of these has moved rows."""

LEAST_SHARE_FOUND = 0.5
"""Layers in the same position become counterparts if a search explains at least this share of a projection's rows."""

FITTED = "the residual-basis map was fitted on the keys"


def at_same_depth(place: int, n_reference: int, n_candidate: int) -> int:
    """Return the reference layer at the same relative depth as a candidate layer."""
    return min(n_reference - 1, round(place * (n_reference - 1) / max(1, n_candidate - 1)))


def analyse_layers(
    reference: Comparable | ReadOnce,
    candidate: Comparable | ReadOnce,
    residual_maps: Sequence[ResidualBasisMap],
    *,
    seed: int = 0,
    device: str = "cpu",
    counterparts: Mapping[int, int] = {},
) -> LayerAnalysis | None:
    """Run tiers 1 and 2 on all layers under the residual-basis map with the most agreement.

    If no row agrees in place under any map, the first map under which tier 2 finds moved rows is used. All maps count
    as tests. ``counterparts`` maps candidate layers to known reference layers; tier 1 overrides it. Return None if
    there are no layers or no maps.
    """
    analyses = _in_place(reference, candidate, residual_maps, seed=seed, device=device, counterparts=counterparts)
    for analysis in analyses:
        search_moved_rows(analysis)
        if analysis.n_found:
            break
    else:
        if not analyses:
            return None
        analysis = analyses[0]
    add_experts(analysis)
    return analysis


def compare_layers_in_place(
    reference: Comparable | ReadOnce,
    candidate: Comparable | ReadOnce,
    residual_maps: Sequence[ResidualBasisMap],
    *,
    seed: int = 0,
    device: str = "cpu",
    counterparts: Mapping[int, int] = {},
) -> LayerAnalysis | None:
    """Run only tier 1; see :func:`analyse_layers` for the arguments."""
    analyses = _in_place(reference, candidate, residual_maps, seed=seed, device=device, counterparts=counterparts)
    return analyses[0] if analyses else None


def _in_place(
    reference: Comparable | ReadOnce,
    candidate: Comparable | ReadOnce,
    residual_maps: Sequence[ResidualBasisMap],
    *,
    seed: int,
    device: str,
    counterparts: Mapping[int, int],
) -> list[LayerAnalysis]:
    """Run tier 1 under each map; return the results, those with the most agreement first."""
    models = read_closely(reference), read_closely(candidate)
    if not residual_maps or not all(model.anatomy.layers for model in models):
        return []
    fitted = {Role.K: FITTED} if any(residual_map.fitted_on == FITTED_ON for residual_map in residual_maps) else {}
    reader = ProjectionReader(models, seed=seed, device=device, left_out=fitted)
    outcomes = [outcome for outcome in compare_in_place(reader, residual_maps) if outcome.cells]
    return [
        LayerAnalysis(
            outcome,
            {**counterparts, **outcome.counterparts()},
            {},
            {},
            reader,
            next(iter(outcome.cells.values())).log_n_tests,
        )
        for outcome in sorted(outcomes, key=lambda outcome: -outcome.n_named)
    ]


def describe_copies(
    reference: Comparable | ReadOnce, candidate: Comparable | ReadOnce, *, seed: int = 0, device: str = "cpu"
) -> LayerAnalysis | None:
    """Run tier 1 on two models with the same residual basis, starting with layers in the same position.

    Other pairs of layers are compared only if some layers do not match in place. Return None if there are no layers to
    compare.
    """
    models = read_closely(reference), read_closely(candidate)
    identity = ResidualBasisMap.identity(candidate.anatomy.hidden_size)
    reader = ProjectionReader(models, seed=seed, device=device)
    in_place = compare_own_places(reader, identity) if all(model.anatomy.layers for model in models) else None
    if in_place is None:
        analysis = compare_layers_in_place(models[0], models[1], (identity,), seed=seed, device=device)
        if analysis is not None:
            add_experts(analysis)
        return analysis
    log_n = next(iter(in_place.cells.values())).log_n_tests
    analysis = LayerAnalysis(in_place, in_place.counterparts(), {}, {}, reader, log_n)
    add_experts(analysis)
    return analysis


def add_experts(analysis: LayerAnalysis) -> None:
    """Compare the experts of paired layers and add the results to the analysis."""
    for pair in analysis.pairs:
        cells = compare_experts(analysis.reader, analysis.tier_one, pair, analysis.log_n_tests)
        if cells is not None:
            analysis.experts[pair] = cells


def search_moved_rows(analysis: LayerAnalysis, on_part: OnPart | None = None) -> None:
    """Run tier 2 and add its findings to the analysis.

    The search covers known counterparts, then layers in the same position, then counterparts recognised by their heads.
    """
    heads = HeadSearch(analysis.reader, analysis.tier_one, analysis.log_n_tests)
    neurons = NeuronSearch(analysis.reader, analysis.tier_one, analysis.log_n_tests)
    n_layers = [len(model.anatomy.layers) for model in analysis.reader.models]
    for n_done, (place, source) in enumerate(list(analysis.counterparts.items())):
        if on_part is not None:
            on_part("layers", n_done, n_layers[1])
        _search_pair(analysis, heads, neurons, (source, place))
    settled = {*analysis.counterparts, *analysis.tier_one.rivalled()}
    unmatched_layers = [place for place in range(n_layers[1]) if place not in settled]
    # A few layers suffice to recognise strangers; searching all layers would read whole gates and values.
    probed = spread(unmatched_layers, PROBED_LAYERS)
    same_places = (
        (*probed, *(place for place in unmatched_layers if place not in probed)) if n_layers[0] == n_layers[1] else ()
    )
    for n_done, place in enumerate(same_places):
        if n_done == len(probed) and not analysis.counterparts:
            break
        if on_part is not None:
            on_part("layers", n_layers[1] - len(unmatched_layers) + n_done, n_layers[1])
        if _search_pair(analysis, heads, neurons, (place, place)):
            analysis.counterparts[place] = place
    for role in (role for role in (Role.K, Role.V) if role not in analysis.reader.left_out):
        unmatched_layers = [place for place in unmatched_layers if place not in analysis.counterparts]
        cells = heads.heads_of_layers(role, unmatched_layers) if unmatched_layers else None
        if cells is None:
            continue
        analysis.by_heads[role] = cells
        for place, source in heads.counterparts(role, cells).items():
            analysis.counterparts[place] = source
            _search_pair(analysis, heads, neurons, (source, place))


def _search_pair(analysis: LayerAnalysis, heads: HeadSearch, neurons: NeuronSearch, pair: Pair) -> bool:
    """Search one pair of layers for moved rows; return whether enough were found."""
    if pair in analysis.findings:
        return bool(analysis.findings[pair])
    open_roles = [role for role in PROJECTION_ROLES if analysis.tier_one.needs_search(role, pair)]
    maps = FoundMaps()
    findings = heads.attention(pair, [role for role in open_roles if role in ATTENTION_ROLES], maps)
    findings |= neurons.mlp(pair, Role.UP, open_roles, maps)
    findings |= neurons.mlp(pair, Role.SSM_IN, open_roles, FoundMaps())
    analysis.findings[pair], analysis.maps[pair] = findings, maps
    return any(finding.share >= LEAST_SHARE_FOUND for finding in findings.values())
