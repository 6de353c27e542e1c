"""Compare the layers of two models with Algorithms 2 and 3, keeping one layer of each model in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from mdir_hf.comparison.decide import doubts_of_layers
from mdir_hf.comparison.layer_weights import (
    Representative,
    RoleReader,
    inner_rows,
    layer_weights,
    layers_with,
    read_mixer,
    representatives_of,
    stored_n_bytes,
)
from mdir_hf.comparison.mixtures import ExpertOrigins, is_mixture, trace_experts
from mdir_hf.comparison.reading import ReadOnce, of_unread_weight
from mdir_hf.comparison.remaining_layers import with_remaining_layers
from mdir_hf.comparison.residual_maps import FITTED_ON, FITTED_ROLE, Attempt
from mdir_hf.comparison.results import LayersEvidence, layers_result
from mdir_hf.comparison.row_screen import LAST, chosen_layers, spread, worth_reading
from mdir_hf.comparison.settings import Settings
from mdir_hf.errors import AnatomyError, MdirError, UnsupportedFormatError
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.layer_map import LayerMap, log_p_of_layers, map_layers, silent_map, with_matches
from mdir_hf.method.map_evidence import (
    TESTS_PER_MAP,
    Carry,
    log_p_of_map,
    log_p_of_placebos,
    weigh_matches,
)
from mdir_hf.method.modules import PROJECTIONS, ModuleEvidence, Projection, analyse_layer, analyse_mixer
from mdir_hf.method.polar import FLOAT64_CHANNELS
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role

MANY_ROWS = 1024
"""Projections with more rows than this are not tested in sampled layers, because a polar factor takes cubic time. If
all attention projections have more rows, only the narrowest is tested."""

TOO_MANY_ROWS = 8192
"""Projections with more rows than this are never tested in sampled layers, because the polar factor takes minutes.
Projections of latent attention have up to 16384 rows."""

NARROWEST: tuple[Projection, ...] = ("k", "v", "q", "o")
"""Attention projections, narrowest first."""

MANY_NEURONS = 2048
"""Like :data:`MANY_ROWS`, but for MLPs, whose three matrices are tested as one."""

MLP: tuple[Projection, ...] = ("gate", "up", "down")

WHOLE_MAP_BYTES = 512 << 20
"""If a map of a few layers is significant, all layers are mapped, provided that both models' matrices together take at
most this many bytes."""

SAME_NEURONS = 0.5
"""Two layers count as the same if the trace of their neurons reaches this share of its maximum. Neighbouring layers of
MiniLM reach 0.2."""

SAMPLED_LAYERS = 3
"""Number of matched layers that are analysed at levels below ``full``."""

MOST_LEFT_OUT = 24
"""Maximum number of unreadable weights that a comparison of layers skips before failing."""

OnPart = Callable[[str, int, int], None]
"""Callback that receives ``layers`` or ``modules``, the number of finished parts, and the maximum number."""

Supports = Callable[[LayersEvidence], bool]
"""Function that returns whether the neurons of all matched layers in a map are known to agree."""


def compare_layers(question: LayerQuestion, attempts: Sequence[Attempt]) -> LayersEvidence | None:
    """Map the layers of two models, trying each residual-basis map with each matrix that can represent a layer.

    All maps in ``attempts`` count as tests. Unless the level requires all layers, only a few layers of the shallower
    model are compared. Wide matrices are read only if sampled rows match.

    Returns:
        An accepted map, preferably one that gives every candidate layer an ancestor. If no map is accepted, the most
        significant one; None if there are no layers to compare.
    """
    models = [ReadOnce(question.reference), ReadOnce(question.candidate)]
    question = replace(question, n_maps=sum(len(attempt.roles) for attempt in attempts))
    left_out: list[str] = []
    first: MdirError | None = None
    while True:
        try:
            layers = _compare_layers(question.between(*models), attempts)
        except (AnatomyError, UnsupportedFormatError) as exc:
            first = first or exc
            side = next((at for at, model in enumerate(models) if model.failed and model.failed[1] is exc), None)
            if side is None or len(left_out) >= MOST_LEFT_OUT:
                raise first from exc
            assert models[side].failed is not None
            tensors = models[side].failed[0]  # type: ignore[index]
            left_out.append(of_unread_weight(models[side].label, tensors, exc.message))
            models[side] = models[side].without(models[side].with_alike(tensors))
            continue
        if layers is None and first is not None:
            raise first
        return layers if layers is None else replace(layers, not_compared=tuple(left_out))


def is_accepted(layers: LayersEvidence, log_alpha: float, settings: Settings) -> bool:
    """Return whether a layer map is significant and there is no reason to doubt it."""
    return layers.log_p < log_alpha and not doubts_of_layers(layers_result(layers, settings.alpha))


def _compare_layers(question: LayerQuestion, attempts: Sequence[Attempt]) -> LayersEvidence | None:
    """Map the layers of two models; raise an error at the first unreadable weight."""
    reference, candidate, settings = question.reference, question.candidate, question.settings
    log_alpha, n_done = question.log_alpha, 0
    not_significant: list[LayersEvidence] = []
    doubtful_layers: list[LayersEvidence] = []
    maps_and_roles: list[tuple[ResidualBasisMap, tuple[Role, ...]]] = []
    for attempt in attempts:
        residual_map = attempt.make(question.readers)
        if residual_map is None:
            continue
        maps_and_roles.append((residual_map, attempt.roles))
        significant: list[LayersEvidence] = []
        for role in attempt.roles:
            if role in LAST or not question.is_in_both(role):
                continue
            evidence = question.maps([residual_map], role)[0]
            n_done += 1
            if question.on_part is not None:
                question.on_part("layers", n_done, question.n_maps)
            if evidence.log_p >= log_alpha:
                not_significant.append(evidence)
                continue
            significant.append(evidence)
            if len(evidence.layer_map.matches) == evidence.layer_map.log_p.shape[1]:
                break
        # Do not read most of the weights just to add a few layers to an accepted map.
        if significant:
            layers = question.concluded(max(significant, key=lambda e: len(e.layer_map.matches)))
            doubtful_layers.append(layers)
            if is_accepted(layers, log_alpha, settings):
                return with_remaining_layers(layers, reference, candidate, settings, log_alpha=log_alpha)
    for role in LAST:
        behind = [residual_map for residual_map, roles in maps_and_roles if role in roles and question.is_in_both(role)]
        for evidence in question.maps(behind, role) if behind else ():
            if evidence.log_p >= log_alpha:
                not_significant.append(evidence)
                continue
            layers = question.concluded(evidence)
            doubtful_layers.append(layers)
            if is_accepted(layers, log_alpha, settings):
                return with_remaining_layers(layers, reference, candidate, settings, log_alpha=log_alpha)
    return min(doubtful_layers or not_significant, key=lambda e: (e.log_p, e.is_empty), default=None)


def analyse_matches(question: LayerQuestion, layers: LayersEvidence) -> LayersEvidence:
    """Run Algorithm 3 on matched layers of a map built from sampled rows.

    This tests the layers named in the settings and traces experts in a few layers. After a rotation, it also tests
    those few layers, unless neurons already support the map.
    """
    matches = layers.pairs
    sampled_pairs = [matches[at] for at in spread(range(len(matches)), SAMPLED_LAYERS)] if matches else []
    modules: tuple[tuple[int, int, ModuleEvidence], ...] = ()
    for pair in matches:
        is_named = pair[1] in question.settings.layers
        needs_support = layers.residual_map.kind == "rotation" and not layers.neurons_support
        if is_named or (pair in sampled_pairs and needs_support):
            tests = question.modules(pair, layers.residual_map, is_sample=not is_named)
            modules += tuple((*pair, module) for module in tests)
    return replace(layers, modules=modules, experts=question.experts(sampled_pairs, layers.residual_map, len(modules)))


@dataclass(frozen=True)
class LayerQuestion:
    """The two models whose layers are compared, and the options.

    Attributes:
        log_alpha: Natural log of the significance level left for the layers.
        n_maps: Maximum number of maps tried; every p is corrected for it.
        on_part: Receives the stage, the number of finished maps or, later, pairs of layers, and the total.
        on_found: Called with a significant map and the number of pairs that remain to be analysed, before each pair.
        supports: Returns whether neurons of all matched layers agree, so that whole layers need not be tested.
        neuron_seed: Seed for sampling neurons of wide MLPs.
    """

    reference: PlacedTensors
    candidate: PlacedTensors
    settings: Settings
    log_alpha: float
    n_maps: int = 1
    on_part: OnPart | None = None
    on_found: Callable[[LayersEvidence, int], None] | None = None
    supports: Supports | None = None
    neuron_seed: int = 0
    _readers: dict[Role, tuple[RoleReader, RoleReader]] = field(default_factory=dict, init=False)

    def between(self, reference: PlacedTensors, candidate: PlacedTensors) -> LayerQuestion:
        """Return a copy of the question with other models."""
        return replace(self, reference=reference, candidate=candidate)

    def is_in_both(self, role: Role) -> bool:
        """Return whether both models have the role or its fallback."""
        return all(layers_with(model, role) for model in (self.reference, self.candidate))

    def readers(self, role: Role) -> tuple[RoleReader, RoleReader]:
        """Return the readers of a role, which all maps share."""
        if role not in self._readers:
            every = self.settings.level.tests_whole_layers
            reference_places, candidate_places = chosen_layers(self.reference, self.candidate, role, every=every)
            self._readers[role] = (
                RoleReader(self.reference, role, reference_places),
                RoleReader(self.candidate, role, candidate_places),
            )
        return self._readers[role]

    def maps(
        self, residual_maps: Sequence[ResidualBasisMap], role: Role, *, is_screened: bool = False
    ) -> list[LayersEvidence]:
        """Map the layers once per residual-basis map, using matrices of one role and reading each layer only once."""
        readers = self.readers(role)
        is_open = [True] * len(residual_maps)
        if not (is_screened or self.settings.level.tests_whole_layers):
            is_open = worth_reading(readers, residual_maps, self.settings, neuron_seed=self.neuron_seed)
        layer_maps = iter(
            map_layers(
                [
                    (representatives_of(readers[0], residual_map.carry_in), representatives_of(readers[1]))
                    for residual_map, is_worth_it in zip(residual_maps, is_open, strict=True)
                    if is_worth_it
                ],
                log_alpha=self.log_alpha,
                refine="undecided",
                n_tests=self.n_maps,
                seed=self.settings.seed,
                device=self.settings.device,
            )
        )
        return [
            self._evidence(residual_map, role, next(layer_maps) if is_worth_it else self._silent(readers))
            for residual_map, is_worth_it in zip(residual_maps, is_open, strict=True)
        ]

    def _silent(self, readers: tuple[RoleReader, RoleReader]) -> LayerMap:
        return silent_map(*(len(reader.positions) for reader in readers), n_tests=self.n_maps)

    def _evidence(self, residual_map: ResidualBasisMap, role: Role, layer_map: LayerMap) -> LayersEvidence:
        reference_reader, candidate_reader = self.readers(role)
        is_part = any(
            len(reader.positions) < len(layers_with(reader.model, role))
            for reader in (reference_reader, candidate_reader)
        )
        if is_part:
            layer_map = replace(layer_map, pattern="sampled")
        # A rotation fitted on tokens also aligns token features that the last layers of unrelated models learn.
        is_rotation = residual_map.kind == "rotation"
        return LayersEvidence(
            log_p=log_p_of_map(layer_map, any_part=not is_rotation),
            residual_map=residual_map,
            role=role,
            layer_map=layer_map,
            positions=(reference_reader.positions, candidate_reader.positions),
            off_match_share=0.0,
            modules=(),
            n_tests=self.n_maps * TESTS_PER_MAP,
            n_empty=(len(reference_reader.empty), len(candidate_reader.empty)),
        )

    def completed(self, sampled: LayersEvidence) -> LayersEvidence:
        """Extend a map of some layers to all layers if reading their matrices is affordable.

        The decision depends on sizes alone, so p needs no correction.
        """
        role, models = sampled.role, (self.reference, self.candidate)
        every = chosen_layers(*models, role, every=True)
        if every == sampled.positions:
            return sampled
        layers = [(model, place) for model in models for place in layers_with(model, role)]
        if sum(stored_n_bytes(model, place, role) for model, place in layers) > WHOLE_MAP_BYTES:
            return sampled
        for reader, positions in zip(self.readers(role), every, strict=True):
            reader.positions = positions
        return self.maps([sampled.residual_map], role, is_screened=True)[0]

    def concluded(self, sampled: LayersEvidence) -> LayersEvidence:
        """Add placebo tests and the analysis of matched layers to a significant map."""
        evidence = self.completed(sampled)
        if evidence.log_p >= self.log_alpha:
            return evidence

        def layers(carry: Carry) -> tuple[list[Representative], list[Representative]]:
            reference_reader, candidate_reader = self.readers(evidence.role)
            return representatives_of(reference_reader, carry), representatives_of(candidate_reader)

        reference, candidate = layers(evidence.residual_map.carry_in)

        def log_p_with_itself(i: int, j: int) -> float:
            sides = (reference[i].load().to(self.settings.device), candidate[j].load().to(self.settings.device))
            return max(log_p_of_layers(layer, layer) for layer in sides)

        def neurons_agree(i: int, j: int) -> bool:
            pair = (evidence.positions[0][i], evidence.positions[1][j])
            tests = (test for test in self.modules(pair, evidence.residual_map) if test.test == "neurons")
            return any(test.normalized >= SAME_NEURONS for test in tests)

        weighed = weigh_matches(
            evidence.layer_map, self.log_alpha, log_p_with_itself=log_p_with_itself, neurons_agree=neurons_agree
        )
        layer_map = with_matches(evidence.layer_map, weighed.certain)
        evidence = replace(evidence, layer_map=layer_map, off_match_share=weighed.off_match_share)
        placebo_log_p = log_p_of_placebos(
            layers,
            evidence.residual_map,
            log_alpha=self.log_alpha,
            seed=self.settings.seed,
            device=self.settings.device,
        )
        is_supported = self.supports is not None and self.supports(evidence)
        evidence = replace(evidence, placebo_log_p=placebo_log_p, neurons_support=is_supported)
        analysed = self._analysed(evidence)
        modules: tuple[tuple[int, int, ModuleEvidence], ...] = ()
        for n_done, (i, j) in enumerate(analysed):
            if self.on_part is not None:
                self.on_part("modules", n_done, len(analysed))
            # After a rotation, a map is accepted only with some analysed layers.
            if self.on_found is not None and (evidence.residual_map.kind != "rotation" or n_done >= SAMPLED_LAYERS):
                self.on_found(replace(evidence, modules=modules), len(analysed) - n_done)
            modules += tuple((i, j, module) for module in self.modules((i, j), evidence.residual_map))
        return replace(evidence, modules=modules, experts=self.experts(analysed, evidence.residual_map, len(modules)))

    def experts(
        self, pairs: Sequence[tuple[int, int]], residual_map: ResidualBasisMap, n_modules: int
    ) -> tuple[ExpertOrigins, ...]:
        """Trace the experts in matched layers of mixtures."""
        mixed = [(i, j) for i, j in pairs if is_mixture(self.reference, i) or is_mixture(self.candidate, j)]
        level = self.log_alpha - math.log(max(1, n_modules + len(mixed)))
        traced = [trace_experts(self.reference, self.candidate, pair, residual_map, log_alpha=level) for pair in mixed]
        return tuple(origins for origins in traced if origins is not None)

    def _analysed(self, evidence: LayersEvidence) -> list[tuple[int, int]]:
        matches = evidence.pairs
        if self.settings.level.tests_whole_layers:
            return matches
        if evidence.neurons_support:
            return []
        return [matches[at] for at in spread(range(len(matches)), SAMPLED_LAYERS)]

    def modules(
        self, pair: tuple[int, int], residual_map: ResidualBasisMap, *, is_sample: bool | None = None
    ) -> list[ModuleEvidence]:
        """Run Algorithm 3 on a pair of layers, or only its quick tests if ``is_sample``."""
        if is_sample is None:
            is_sample = not self.settings.level.tests_whole_layers
        fitted = (FITTED_ROLE.value,) if residual_map.fitted_on == FITTED_ON else ()
        roles = tuple(role for role in PROJECTIONS if role not in fitted)
        if is_sample:
            roles = self._narrow_roles(pair, roles)
        left_out = frozenset(Role(role) for role in set(PROJECTIONS) - set(roles))
        first, second = (
            layer_weights(model, position, without=left_out, cached_weights=self._cached_weights(side, position))
            for side, (model, position) in enumerate(zip((self.reference, self.candidate), pair, strict=True))
        )
        dtype = torch.float32 if residual_map.n_candidate > FLOAT64_CHANNELS else torch.float64
        evidence = analyse_layer(first, second, residual_map, roles=roles, log_alpha=self.log_alpha, dtype=dtype)
        reference_mixer = read_mixer(self.reference, pair[0], dtype)
        candidate_mixer = read_mixer(self.candidate, pair[1], dtype)
        if reference_mixer is None or candidate_mixer is None:
            return evidence
        if is_sample and max(len(reference_mixer.up), len(candidate_mixer.up)) > MANY_NEURONS:
            return evidence
        return [*evidence, analyse_mixer(reference_mixer, candidate_mixer, residual_map)]

    def _cached_weights(self, side: int, position: int) -> dict[Role, torch.Tensor]:
        return dict(
            role_and_matrix
            for readers in self._readers.values()
            if (role_and_matrix := readers[side].cached_matrix(position)) is not None
        )

    def _narrow_roles(self, pair: tuple[int, int], roles: Sequence[Projection]) -> tuple[Projection, ...]:
        """Return the roles that are quick to test, including at least one attention projection if affordable."""

        def has_at_most(most: int, role: Projection) -> bool:
            places = zip((self.reference, self.candidate), pair, strict=True)
            rows = (inner_rows(model, position, Role(role)) for model, position in places)
            return all(n_rows is not None and n_rows <= most for n_rows in rows)

        narrow = {role for role in roles if has_at_most(MANY_NEURONS if role in MLP else MANY_ROWS, role)}
        if not narrow & set(NARROWEST):
            wide = (role for role in NARROWEST if role in roles and has_at_most(TOO_MANY_ROWS, role))
            narrow |= set(islice(wide, 1))
        return tuple(role for role in roles if role in narrow)
