"""The layers of two models: which descends from which, and through which inner transformations.

Joins ``anatomy`` (where the weights are) with Algorithms 2 and 3. One layer of each model is in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mdir_hf.anatomy import Role
from mdir_hf.comparison.layers import RoleReader, layer_weights, layers_with, read_mixer, representatives_of
from mdir_hf.comparison.mixtures import ExpertOrigins, has_experts, trace_experts
from mdir_hf.comparison.model import Model
from mdir_hf.comparison.outers import FITTED_ON, FITTED_ROLE, Attempt
from mdir_hf.homology.gauge import OuterTransformation
from mdir_hf.homology.layer_map import LayerMap, map_layers
from mdir_hf.homology.modules import ROLES, LayerWeights, ModuleEvidence, analyse_layer, analyse_mixer
from mdir_hf.homology.modules import Role as ModuleRole
from mdir_hf.homology.polar import FLOAT64_CHANNELS

REPRESENTATIVES = (Role.KV_LATENT, Role.V, Role.K, Role.UP)
"""Matrices that stand for a layer, in the order tried; V first as in the paper, save where latent attention has a
smaller one in front of it that K and V share. Each tried one is counted."""

TESTS_PER_MAP = 2
"""A map is read twice: as a whole (half of the layers related), and for any part of it. Behind a fitted rotation, which
also aligns features that unrelated models learn alike, only the whole map counts."""

SURE_TESTS = ("subspaces", "frequencies", "neurons")
"""Tests of a layer that stayed silent on strangers trained on the same text, behind the fitted rotation."""

N_PLACEBOS = 2
"""A significant map is made again this often, each time with the residual channels of one side shuffled."""

MANY_NEURONS = 4096
"""MLPs of more neurons are left out of sampled layers: their polar factors take minutes, and attention speaks too."""

MANY_ROWS = 8192
"""So are projections of more rows than this over all heads: those of latent attention reach 16384."""

MLP: tuple[ModuleRole, ...] = ("gate", "up", "down")

SAMPLED_LAYERS = 3
"""How many matched layers are analysed in full where the verdict does not need it."""


@dataclass(frozen=True, slots=True)
class BodyEvidence:
    """What the layers say.

    Attributes:
        log_p: Natural log of p of the map, corrected for every map that was to be tried; at most 0.
        outer: The outer transformation that carried the layers.
        role: The representative matrix.
        layer_map: The map.
        stray_share: Share of the cells off the map that are significant.
        placebo_log_p: Smallest natural log of p of a single cell where the residual channels are shuffled; 0 where
            nothing was significant and no placebo was needed.
        modules: Algorithm 3 on matched layers: (reference layer, candidate layer, evidence).
        n_tests: How many tests ``log_p`` was corrected for.
        experts: Origins of the experts of those matched layers where either model is a mixture.
    """

    log_p: float
    outer: OuterTransformation
    role: Role
    layer_map: LayerMap
    stray_share: float
    modules: tuple[tuple[int, int, ModuleEvidence], ...]
    n_tests: int
    placebo_log_p: float = 0.0
    experts: tuple[ExpertOrigins, ...] = ()


def representatives(reference: Model, candidate: Model) -> tuple[Role, ...]:
    """The roles that can stand for a layer, in the order to try them: those that both models have.

    Those that stand for more layers come first (a hybrid has keys, or latents, in few of its layers); MLPs, the largest
    to read, come last whatever they stand for.
    """

    def left_out(role: Role) -> float:
        return max(1.0 - len(layers_with(m, role)) / len(m.anatomy.layers) for m in (reference, candidate))

    present = [role for role in REPRESENTATIVES if all(layers_with(m, role) for m in (reference, candidate))]
    return tuple(sorted(present, key=lambda role: (role is Role.UP, left_out(role))))


def compare_bodies(
    reference: Model,
    candidate: Model,
    tried: Sequence[Attempt],
    *,
    log_alpha: float,
    all_layers: bool,
    seed: int,
    device: str,
) -> BodyEvidence | None:
    """Map the layers of two models, behind each outer transformation and with each representative in turn.

    MLPs come last, behind all outer transformations at once: they are most of the weights, and are read once.

    Args:
        reference: One model.
        candidate: The other.
        tried: Outer transformations to try, and with which representatives; all of them are counted.
        log_alpha: Natural log of the level that is left for the body.
        all_layers: Whether every matched layer is analysed by Algorithm 3, or a few of them.
        seed: Seed of the screened channels.
        device: Where matrix products run.

    Returns:
        The first map that is significant and gives every candidate layer an ancestor; else, of those significant behind
        one outer transformation, the one with most ancestors; else the most significant one. None where the models have
        no layers to compare.

    Cost: reads, once per map, what stands for each layer of the model in which that has more rows and some rows of the
    other's, whole where they may match; MLPs once for all maps; then all weights of the layers analysed.
    """
    n_maps = sum(len(attempt.roles) for attempt in tried)

    def maps(outers: Sequence[OuterTransformation], role: Role) -> list[BodyEvidence]:
        return _maps(reference, candidate, outers, role, log_alpha=log_alpha, n_maps=n_maps, seed=seed, device=device)

    def conclude(found: BodyEvidence) -> BodyEvidence:
        placebo = _placebo_log_p(reference, candidate, found.outer, found.role, log_alpha, seed=seed, device=device)
        found = replace(found, placebo_log_p=placebo)
        return _with_modules(found, reference, candidate, log_alpha=log_alpha, all_layers=all_layers)

    silent: list[BodyEvidence] = []
    behind: list[OuterTransformation] = []
    for attempt in tried:
        outer = attempt.make()
        if outer is None:
            continue
        if Role.UP in attempt.roles:
            behind.append(outer)
        significant: list[BodyEvidence] = []
        for role in attempt.roles:
            if role is Role.UP:
                continue
            (evidence,) = maps([outer], role)
            if evidence.log_p >= log_alpha:
                silent.append(evidence)
                continue
            significant.append(evidence)
            if len(evidence.layer_map.matches) == evidence.layer_map.log_p.shape[1]:
                break
        if significant:  # reading every MLP is not worth a few more layers on the map
            return conclude(max(significant, key=lambda e: len(e.layer_map.matches)))
    for evidence in maps(behind, Role.UP) if behind else ():
        if evidence.log_p < log_alpha:
            return conclude(evidence)
        silent.append(evidence)
    return min(silent, key=lambda e: e.log_p, default=None)


def _maps(
    reference: Model,
    candidate: Model,
    outers: Sequence[OuterTransformation],
    role: Role,
    *,
    log_alpha: float,
    n_maps: int,
    seed: int,
    device: str,
) -> list[BodyEvidence]:
    """Map the layers by one role behind some outer transformations; each layer is read once for all of them."""
    readers = RoleReader(reference, role), RoleReader(candidate, role)
    layer_maps = map_layers(
        [(representatives_of(readers[0], outer.carry_in), representatives_of(readers[1])) for outer in outers],
        log_alpha=log_alpha,
        refine="undecided",
        n_tests=n_maps,
        seed=seed,
        device=device,
    )
    return [_evidence(outer, role, found, log_alpha, n_maps) for outer, found in zip(outers, layer_maps, strict=True)]


def _evidence(
    outer: OuterTransformation, role: Role, layer_map: LayerMap, log_alpha: float, n_maps: int
) -> BodyEvidence:
    partial_log_p = 0.0 if outer.kind == "rotation" else layer_map.log_p_any
    log_p = min(layer_map.log_p_map, partial_log_p) + math.log(TESTS_PER_MAP)
    level = log_alpha - math.log(layer_map.multiplicity)
    is_hit = layer_map.log_p < level
    on_map = sum(bool(is_hit[m.reference, m.candidate]) for m in layer_map.matches)
    n_off = is_hit.size - len(layer_map.matches)
    stray_share = (int(is_hit.sum()) - on_map) / n_off if n_off else 0.0
    return BodyEvidence(min(0.0, log_p), outer, role, layer_map, stray_share, (), n_maps * TESTS_PER_MAP)


def _placebo_log_p(
    reference: Model,
    candidate: Model,
    outer: OuterTransformation,
    role: Role,
    log_alpha: float,
    *,
    seed: int,
    device: str,
) -> float:
    """Map the layers again with the residual channels of the reference shuffled, where nothing can be related.

    Rows with few large entries, in both models, make cosines heavy-tailed and cells of strangers significant; they do
    so in any pairing of the channels (measured: on every such pair, and on no relative).

    Returns:
        Natural log of the smallest p of any cell, not corrected for their number: the bound is so conservative that
        a silent null leaves it at 0.
    """
    generator = torch.Generator().manual_seed(seed)
    smallest = 0.0
    for _ in range(N_PLACEBOS):
        shuffled = torch.randperm(outer.n_candidate, generator=generator)

        def carried(rows: torch.Tensor, shuffled: torch.Tensor = shuffled) -> torch.Tensor:
            return outer.carry_in(rows)[:, shuffled]

        (placebo,) = map_layers(
            [
                (
                    representatives_of(RoleReader(reference, role), carried),
                    representatives_of(RoleReader(candidate, role)),
                )
            ],
            log_alpha=log_alpha,
            refine="undecided",
            seed=seed,
            device=device,
        )
        smallest = min(smallest, float(placebo.log_p.min()))
    return smallest


def _with_modules(
    evidence: BodyEvidence, reference: Model, candidate: Model, *, log_alpha: float, all_layers: bool
) -> BodyEvidence:
    mine, other = layers_with(reference, evidence.role), layers_with(candidate, evidence.role)
    matches = [(mine[m.reference], other[m.candidate]) for m in evidence.layer_map.matches]
    if not all_layers and len(matches) > SAMPLED_LAYERS:
        step = (len(matches) - 1) / (SAMPLED_LAYERS - 1)
        matches = [matches[round(step * i)] for i in range(SAMPLED_LAYERS)]
    modules = tuple(
        (i, j, found)
        for i, j in matches
        for found in _analyse(reference, candidate, (i, j), evidence.outer, log_alpha, is_sample=not all_layers)
    )
    mixed = [(i, j) for i, j in matches if has_experts(reference, i) or has_experts(candidate, j)]
    level = log_alpha - math.log(max(1, len(modules) + len(mixed)))
    traced = (trace_experts(reference, candidate, pair, evidence.outer, log_alpha=level) for pair in mixed)
    return replace(evidence, modules=modules, experts=tuple(origins for origins in traced if origins is not None))


def _analyse(
    reference: Model,
    candidate: Model,
    pair: tuple[int, int],
    outer: OuterTransformation,
    log_alpha: float,
    *,
    is_sample: bool,
) -> list[ModuleEvidence]:
    first, second = layer_weights(reference, pair[0]), layer_weights(candidate, pair[1])
    roles = _narrow_roles(first, second) if is_sample else ROLES
    if outer.fitted_on == FITTED_ON:
        roles = tuple(role for role in roles if role != FITTED_ROLE.value)
    dtype = torch.float32 if outer.n_candidate > FLOAT64_CHANNELS else torch.float64
    evidence = analyse_layer(first, second, outer, roles=roles, log_alpha=log_alpha, dtype=dtype)
    mixer, other = read_mixer(reference, pair[0], dtype), read_mixer(candidate, pair[1], dtype)
    if mixer is None or other is None or (is_sample and max(len(mixer.up), len(other.up)) > MANY_NEURONS):
        return evidence
    return [*evidence, analyse_mixer(mixer, other, outer)]


def _narrow_roles(reference: LayerWeights, candidate: LayerWeights) -> tuple[ModuleRole, ...]:
    """The roles whose tests take seconds."""

    def is_narrow(role: ModuleRole) -> bool:
        most = MANY_NEURONS if role in MLP else MANY_ROWS
        rows = (layer.inner_rows("up" if role in MLP else role) for layer in (reference, candidate))
        return all(weight is None or len(weight) <= most for weight in rows)

    return tuple(role for role in ROLES if is_narrow(role))


def is_supported(evidence: BodyEvidence, log_alpha: float) -> bool:
    """Whether, behind a fitted rotation, every analysed layer speaks in a test that shared features do not reach.

    Behind any other outer transformation nothing was fitted on meaning, and the map stands by itself.
    """
    if evidence.outer.kind != "rotation":
        return True
    level = log_alpha - math.log(max(1, len(evidence.modules)))
    layers = {(i, j) for i, j, _ in evidence.modules}
    sure = {(i, j) for i, j, found in evidence.modules if found.test in SURE_TESTS and found.log_p < level}
    return bool(layers) and sure == layers
