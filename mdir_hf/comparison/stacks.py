"""Compare stacks with stacks, and experts with experts.

Stacks are compared using a few neurons, paired by number. Experts are compared as sets; a dense layer counts as a set
of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mdir_hf.comparison.layer_weights import RoleReader, n_channels_of
from mdir_hf.comparison.neuron_sample import FEWEST_NEURONS, RUN, NeuronSample, spread, take_neurons, take_pair
from mdir_hf.comparison.neurons import STEPS, count_neurons
from mdir_hf.errors import AnatomyError, CheckpointError, UnsupportedFormatError
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.neuron_numbers import log_p_own_numbers, sample_neurons
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.significance import LN10, log_cost_of_look
from mdir_hf.model.comparable import Comparable, PlacedTensors
from mdir_hf.model.inventory.records import LANGUAGE, ModelView
from mdir_hf.model.roles import Role, StoredWeight
from mdir_hf.report import ExpertName, LayerPair, SettledBy, Verdict
from mdir_hf.report.parts import ExpertOrigin, StackPair
from mdir_hf.thresholds import LEAST_EXPERT_Z, MOST_EXPERT_PAIRS

EXPERTS_PLACE = len(STEPS) + 1
"""Position of the first comparison of experts among all comparisons, after the steps by number."""

EXPERT_LAYERS = 2
"""Number of layers per model whose experts are compared."""

LOOKS_AT_EXPERTS = 2 * EXPERT_LAYERS**2
"""Maximum number of comparisons of experts: one for each pair of layers, with two sets of residual-basis maps."""

NOMINATING_ROWS = 8
"""Number of rows of up per expert used to nominate pairs of experts. At width 2,048, copies
with noise three times as strong as their weights have a mean cosine of 0.3; the best of 65,000 unrelated pairs has
0.04."""


@dataclass(frozen=True)
class ExpertSet(ModelView):
    """The MLPs of one layer, each treated as a layer.

    Attributes:
        layer: Number of the layer in the checkpoint.
        names: Name of each MLP, in the order of ``anatomy.layers``.
    """

    layer: int
    names: tuple[ExpertName, ...]


def has_mixture(models: Sequence[PlacedTensors]) -> bool:
    """Return whether any layer of any model has experts."""
    return any(layer.experts for model in models for layer in model.anatomy.layers)


def mlp_parts(model: PlacedTensors, position: int) -> list[tuple[ExpertName, dict[Role, StoredWeight]]]:
    """Return all MLPs of a layer (dense, routed and shared) with their names."""
    layer = model.anatomy.layers[position]
    mlps: list[tuple[ExpertName, Mapping[Role, StoredWeight]]] = [
        (None, layer.parts),
        *enumerate(layer.experts),
        *(("shared", parts) for parts in layer.shared_experts),
    ]
    return [
        (name, {role: parts[role] for role in (Role.GATE, Role.UP, Role.DOWN) if role in parts})
        for name, parts in mlps
        if Role.UP in parts
    ]


def expert_sets(model: PlacedTensors) -> tuple[ExpertSet, ...]:
    """Return the MLPs of the first and the last mixture layer, or of the first and the last layer if all are dense."""
    layers = model.anatomy.layers
    places = [place for place, layer in enumerate(layers) if layer.experts] or list(range(len(layers)))
    sets = (expert_set(model, place) for place in spread(places, EXPERT_LAYERS))
    return tuple(experts for experts in sets if experts.names)


def expert_set(model: PlacedTensors, place: int) -> ExpertSet:
    """Return the MLPs of the layer at a position; the single MLP of a dense layer has no name."""
    layer = model.anatomy.layers[place]
    mlps: list[tuple[ExpertName, dict[Role, StoredWeight]]] = []
    for name, parts in mlp_parts(model, place):
        norm = Role.SHARED_NORM if name == "shared" and Role.SHARED_NORM in layer.parts else Role.MLP_NORM
        mlps.append((name, {**parts, **({Role.MLP_NORM: layer.parts[norm]} if norm in layer.parts else {})}))
    layers = tuple(replace(layer, parts=mlp, experts=(), shared_experts=()) for _, mlp in mlps)
    names = tuple(name for name, _ in mlps)
    anatomy = replace(model.anatomy, layers=layers)
    return ExpertSet(name_of_experts(layer.index), model.label, model.tensors, anatomy, layer.index, names)


def compare_expert_sets(
    reference: PlacedTensors,
    candidate: PlacedTensors,
    residual_maps: Sequence[ResidualBasisMap],
    *,
    alpha: float,
    seed: int,
    is_fresh: bool,
    is_second: bool = False,
    device: str = "cpu",
) -> tuple[StackPair, ...]:
    """Compare the experts of two models as sets; return a record for each compared pair of layers.

    The result is empty if neither model is a mixture. p is corrected for all pairs of experts. Unless the sample is
    fresh, no verdict is ``homologous``. ``is_second`` marks a second call with other maps, which spends its own share
    of alpha.
    """
    if not has_mixture((reference, candidate)):
        return ()
    pairs: list[StackPair] = []
    first_place = EXPERTS_PLACE + (EXPERT_LAYERS**2 if is_second else 0)
    for reference_set in expert_sets(reference):
        for candidate_set in expert_sets(candidate):
            sets = _Sets(reference_set, candidate_set, alpha, seed, device, first_place + len(pairs))
            try:
                nominated = sets.nominated(residual_maps)
                matches = [] if nominated is None else sets.matches(nominated)
            except (AnatomyError, CheckpointError, UnsupportedFormatError):
                continue  # the ledger lists these experts as not compared
            if nominated is not None:
                pairs.append(sets.record(matches, is_fresh=is_fresh))
    return tuple(pairs)


def name_of_experts(layer: int) -> str:
    """Return the name that reports use for a layer's experts."""
    return f"experts of layer {layer}"


@dataclass(frozen=True)
class _Sets:
    """The experts of one layer of each model; ``look``, the position of this look, sets its share of alpha."""

    reference: ExpertSet
    candidate: ExpertSet
    alpha: float
    seed: int
    device: str
    look: int

    def nominated(self, residual_maps: Sequence[ResidualBasisMap]) -> list[tuple[int, int]] | None:
        """Return pairs of equally large experts with similar rows, or None if no experts are comparable."""
        readers = [RoleReader(stack, Role.UP) for stack in (self.reference, self.candidate)]
        places: list[dict[int, list[int]]] = []
        for reader in readers:
            of_size: dict[int, list[int]] = {}
            for place in reader.positions:
                of_size.setdefault(reader.n_channels(place), []).append(place)
            places.append(of_size)
        sizes = [size for size in sorted(places[0].keys() & places[1].keys()) if size >= FEWEST_NEURONS]
        if not sizes or not residual_maps:
            return None
        scored: list[tuple[float, int, int]] = []
        for size in sizes:
            numbers = torch.from_numpy(np.sort(sample_neurons(size, NOMINATING_ROWS, run=RUN, seed=self.seed)))
            rows = [
                torch.stack([reader.read(place, numbers).float() for place in of_size[size]])
                for reader, of_size in zip(readers, places, strict=True)
            ]
            likeness, of_others = (
                torch.stack([_likeness(one, rows[0], partners, self.device) for one in residual_maps]).amax(dim=0)
                for partners in (rows[1], rows[1].roll(1, dims=1))
            )
            # Mean cosines of strangers spread by about 1 / sqrt(rows x width) around a level set by common directions,
            # which rows with different numbers have, too.
            deviation = 1.0 / math.sqrt(len(numbers) * rows[1].shape[2])
            level = max(0.0, float(of_others.median()))
            for i, j in (likeness > level + LEAST_EXPERT_Z * deviation).nonzero().tolist():
                scored.append((float(likeness[i, j]), places[0][size][i], places[1][size][j]))
        return [(i, j) for _, i, j in sorted(scored, reverse=True)[:MOST_EXPERT_PAIRS]]

    def matches(self, nominated: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
        """Return (reference, candidate, n): nominated pairs that agree, and how many neurons kept their number."""
        matches: list[tuple[int, int, int]] = []
        by_size: dict[int, list[tuple[int, int]]] = {}
        for pair in nominated:
            by_size.setdefault(n_channels_of(self.reference, Role.UP, pair[0]), []).append(pair)
        for pairs in by_size.values():
            matches += self._matches(pairs)
        return matches

    def _matches(self, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
        samples = take_pair((self.reference, self.candidate), seed=self.seed, pairs=pairs)
        if samples is None:
            return []
        counts = count_neurons(
            *samples,
            SettledBy.PARTS,
            alpha=1.0,  # p of each pair of experts is corrected in `record`
            log_cost=0.0,
            device=self.device,
        )
        if counts is None:
            return []
        agreeing = {tuple(match) for match in counts.matches} & set(pairs)
        rows, columns = counts.reference_layers, counts.candidate_layers
        return [(i, j, counts.own_number[rows.index(i)][columns.index(j)]) for i, j in sorted(agreeing)]

    def record(self, matches: Sequence[tuple[int, int, int]], *, is_fresh: bool) -> StackPair:
        """Return the record of this pair of layers, with p corrected for all pairs of experts."""
        cost = math.log(len(self.reference.names) * len(self.candidate.names)) + log_cost_of_look(self.look)
        origins = [
            ExpertOrigin(
                self.candidate.names[j],
                self.reference.names[i],
                min(0.0, log_p_own_numbers(n_own) + cost) / LN10,
            )
            for i, j, n_own in matches
        ]
        origins = [origin for origin in origins if origin.log10_p < math.log10(self.alpha)]
        related = Verdict.HOMOLOGOUS if is_fresh else Verdict.INCONCLUSIVE
        return StackPair(
            reference=name_of_experts(self.reference.layer),
            candidate=name_of_experts(self.candidate.layer),
            verdict=related if origins else Verdict.NO_EVIDENCE,
            log10_p=min((origin.log10_p for origin in origins), default=0.0),
            layers=(LayerPair(self.reference.layer, self.candidate.layer),) if origins else (),
            experts=tuple(sorted(origins, key=lambda origin: str(origin.candidate))),
        )


def _likeness(
    residual_map: ResidualBasisMap, reference: torch.Tensor, candidate: torch.Tensor, device: str
) -> torch.Tensor:
    """Return the mean cosine of each pair of experts, ``(experts, experts')``; rows with the same number are paired."""
    sides = [
        unit_rows(rows.flatten(0, 1).to(device)).reshape(len(rows), -1)
        for rows in (residual_map.carry_in(reference.flatten(0, 1)).reshape(*reference.shape[:2], -1), candidate)
    ]
    return (sides[0] @ sides[1].T).cpu() / reference.shape[1]


FIRST_PLACE = EXPERTS_PLACE + LOOKS_AT_EXPERTS
"""Position of the first pair of stacks among all looks, after the looks at experts."""


def stack_pairs(
    reference: Comparable, candidate: Comparable, *, alpha: float, seed: int, is_fresh: bool, device: str = "cpu"
) -> tuple[StackPair, ...] | None:
    """Compare the stacks of two models with :func:`compare_stacks`.

    Return None if only samples of the models are available or there are no other stacks.
    """
    first, second = (_stacks(model) for model in (reference, candidate))
    if first is None or second is None or max(len(first), len(second)) < 2:
        return None
    return compare_stacks(first, second, alpha=alpha, seed=seed, is_fresh=is_fresh, device=device)


def _stacks(model: Comparable) -> tuple[ModelView, ...] | None:
    """Return a model's stacks, language model first, or None if only a sample of the model is available."""
    others = model.other_stacks
    if others is None or not model.anatomy.layers:
        return others
    return ModelView(LANGUAGE, model.label, model.tensors, model.anatomy), *others


MOST_STACKS = 8
"""Maximum number of stacks per model: the language model, then the largest others. Published models have four or
five."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    view: ModelView
    neurons: NeuronSample

    @property
    def name(self) -> str:
        return self.view.name


def compare_stacks(
    reference: Sequence[ModelView],
    candidate: Sequence[ModelView],
    *,
    alpha: float,
    seed: int,
    is_fresh: bool,
    device: str = "cpu",
) -> tuple[StackPair, ...]:
    """Compare all pairs of stacks except the pair of language models; return a record for each comparable pair.

    Pair number k is tested at alpha / (s (s + 1)) with s = :data:`FIRST_PLACE` + k, so all pairs together use at most
    alpha / FIRST_PLACE. See :func:`compare_expert_sets` for ``is_fresh``.
    """
    if len(reference) < 2 and len(candidate) < 2:
        return ()
    reference_stacks, candidate_stacks = (_sampled(views[:MOST_STACKS], seed) for views in (reference, candidate))
    pairs = []
    place = FIRST_PLACE
    for first in reference_stacks:
        for second in candidate_stacks:
            if first.name == second.name == LANGUAGE:
                continue
            counts = count_neurons(
                first.neurons,
                second.neurons,
                SettledBy.PARTS,
                alpha=alpha,
                log_cost=log_cost_of_look(place),
                device=device,
            )
            place += 1
            if counts is None or counts.log10_p is None:
                continue
            is_related = bool(counts.matches)
            related = Verdict.HOMOLOGOUS if is_fresh else Verdict.INCONCLUSIVE
            pairs.append(
                StackPair(
                    reference=first.name,
                    candidate=second.name,
                    verdict=related if is_related else Verdict.NO_EVIDENCE,
                    log10_p=counts.log10_p,
                    layers=tuple(LayerPair(match.reference, match.candidate) for match in counts.matches),
                    reference_is_loaded=first.view.is_loaded,
                    candidate_is_loaded=second.view.is_loaded,
                )
            )
    return tuple(pairs)


def _sampled(views: Sequence[ModelView], seed: int) -> list[_Sampled]:
    sampled = []
    for view in views:
        try:
            neurons = take_neurons(view, seed=seed)
        except (AnatomyError, CheckpointError):
            continue
        if neurons is not None:
            sampled.append(_Sampled(view, neurons))
    return sampled
