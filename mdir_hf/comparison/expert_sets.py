"""Compares the experts of two mixtures as sets: every expert of some layers of one with every expert of the other.

A few rows of up of each expert nominate pairs. The second witness then decides on each nominated pair, as it does on
layers. A dense layer counts as a set of one, so an expert that was made from a dense MLP is found as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mdir_hf.comparison.layer_weights import RoleReader
from mdir_hf.comparison.neuron_sample import (
    DOWN_CHANNELS,
    FEWEST_TESTED,
    FITTED_ROWS,
    SampleDesign,
    take_neurons,
)
from mdir_hf.comparison.neurons import LOOKS_AT_NEURONS, PLACE, compare_neurons
from mdir_hf.comparison.row_screen import spread
from mdir_hf.errors import AnatomyError, CheckpointError, UnsupportedFormatError
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.neuron_numbers import log_p_own_numbers, sample_neurons
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.significance import LN10, log_cost_of_look
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.files import TensorSource
from mdir_hf.model.roles import Anatomy, Layer, Part, Role
from mdir_hf.report import ExpertName, LayerPair, Verdict
from mdir_hf.report.parts import ExpertOrigin
from mdir_hf.report.stacks import StackPair

EXPERTS_PLACE = PLACE + LOOKS_AT_NEURONS
"""Place of the looks at experts among the looks of a comparison; those at neurons of layers come before."""

MOST_EXPERT_LOOKS = 4
"""Pairs of layers whose experts are compared at most."""

EXPERT_LAYERS = 2
"""Layers of each mixture whose experts are read."""

NOMINATING_ROWS = 8
"""Rows of up of each expert that nominate, in two runs. At width 2,048, copies under noise of three times their weights
have a mean cosine of 0.3, and the best of 65,000 pairs of strangers has 0.04."""

LEAST_NOMINATING_Z = 5.0
"""Pairs whose mean cosine is this many deviations above that of all pairs are nominated."""

MOST_NOMINATED = 8
"""Nominated pairs that the witness looks at, the most similar first."""

_MLP_ROLES = (Role.GATE, Role.UP, Role.DOWN)


@dataclass(frozen=True)
class ExpertSet:
    """The MLPs of one layer, each in place of a layer. Implements :class:`~mdir_hf.model.comparable.PlacedTensors`.

    Attributes:
        layer: Number of the layer in the checkpoint.
        names: Name of each MLP, in the order of ``anatomy.layers``.
        label: As of the model.
        tensors: Those of the model.
        anatomy: Anatomy whose layers are the MLPs of that layer.
    """

    layer: int
    names: tuple[ExpertName, ...]
    label: str
    tensors: TensorSource
    anatomy: Anatomy


def has_experts(model: PlacedTensors) -> bool:
    """Whether any layer of a model is a mixture of experts."""
    return any(layer.experts for layer in model.anatomy.layers)


def expert_sets(model: PlacedTensors) -> tuple[ExpertSet, ...]:
    """Return the MLPs of some layers of a model: the first and the last mixture, or dense layers at those places."""
    layers = [layer for layer in model.anatomy.layers if layer.experts] or list(model.anatomy.layers)
    chosen = [layers[place] for place in spread(range(len(layers)), EXPERT_LAYERS)] if layers else []
    sets = (_expert_set(model, layer) for layer in chosen)
    return tuple(each for each in sets if each.names)


def _expert_set(model: PlacedTensors, layer: Layer) -> ExpertSet:
    mlps: list[tuple[ExpertName, dict[Role, Part]]] = []
    named = [(None, layer.parts), *enumerate(layer.experts), *(("shared", parts) for parts in layer.shared_experts)]
    for name, parts in named:
        if Role.UP not in parts or Role.DOWN not in parts:
            continue
        mlp = {role: parts[role] for role in _MLP_ROLES if role in parts}
        norm = Role.SHARED_NORM if name == "shared" and Role.SHARED_NORM in layer.parts else Role.MLP_NORM
        if norm in layer.parts:
            mlp[Role.MLP_NORM] = layer.parts[norm]
        mlps.append((name, mlp))  # type: ignore[arg-type]
    layers = tuple(replace(layer, parts=mlp, experts=(), shared_experts=()) for _, mlp in mlps)
    names = tuple(name for name, _ in mlps)
    return ExpertSet(layer.index, names, model.label, model.tensors, replace(model.anatomy, layers=layers))


def compare_expert_sets(
    reference: PlacedTensors,
    candidate: PlacedTensors,
    residual_maps: Sequence[ResidualBasisMap],
    *,
    alpha: float,
    seed: int,
    is_fresh: bool,
    device: str = "cpu",
) -> tuple[StackPair, ...]:
    """Compare the experts of two models as sets.

    Args:
        reference: One model.
        candidate: The other.
        residual_maps: Maps of the reference's basis into the candidate's, behind which rows are compared.
        alpha: Level of significance of the whole comparison.
        seed: Seed of the neurons that are read.
        is_fresh: Whether the seed was drawn from the entropy of the system; a chosen sample accuses no expert.
        device: torch device of the matrix products.

    Returns:
        One record for each pair of layers whose experts were compared; none if neither model is a mixture. p is
        corrected for all pairs of experts, nominated or not. Cost: :data:`NOMINATING_ROWS` rows of up of each expert of
        two layers of each model, and the neurons of nominated experts.
    """
    if not (has_experts(reference) or has_experts(candidate)):
        return ()
    pairs: list[StackPair] = []
    place = EXPERTS_PLACE
    for mine in expert_sets(reference):
        for theirs in expert_sets(candidate):
            try:
                pair = _compare_sets(mine, theirs, residual_maps, alpha, seed, is_fresh, device, place)
            except (AnatomyError, CheckpointError, UnsupportedFormatError):
                continue  # the ledger says that these experts were not compared
            if pair is not None:
                pairs.append(pair)
                place += 1
    return tuple(pairs)


def name_of_experts(layer: int) -> str:
    """Name of the experts of a layer, as in a report."""
    return f"experts of layer {layer}"


def _compare_sets(
    reference: ExpertSet,
    candidate: ExpertSet,
    residual_maps: Sequence[ResidualBasisMap],
    alpha: float,
    seed: int,
    is_fresh: bool,
    device: str,
    place: int,
) -> StackPair | None:
    nominated = _nominate(reference, candidate, residual_maps, seed, device)
    if nominated is None:
        return None
    found = _ask(reference, candidate, nominated, alpha, seed, device, place) if nominated else []
    n_pairs = len(reference.names) * len(candidate.names)
    cost = math.log(n_pairs) + log_cost_of_look(place)
    origins = [
        ExpertOrigin(candidate.names[j], reference.names[i], min(0.0, log_p_own_numbers(n_own) + cost) / LN10)
        for i, j, n_own in found
    ]
    origins = [origin for origin in origins if origin.log10_p < math.log10(alpha)]
    related = Verdict.HOMOLOGOUS if is_fresh else Verdict.INCONCLUSIVE
    return StackPair(
        reference=name_of_experts(reference.layer),
        candidate=name_of_experts(candidate.layer),
        verdict=related if origins else Verdict.NO_EVIDENCE,
        log10_p=min((origin.log10_p for origin in origins), default=0.0),
        layers=(LayerPair(reference.layer, candidate.layer),) if origins else (),
        experts=tuple(sorted(origins, key=lambda origin: str(origin.candidate))),
    )


def _nominate(
    reference: ExpertSet,
    candidate: ExpertSet,
    residual_maps: Sequence[ResidualBasisMap],
    seed: int,
    device: str,
) -> list[tuple[int, int]] | None:
    """Return pairs of experts whose rows at the same numbers are alike; None if the two sets cannot be compared."""
    readers = [RoleReader(each, Role.UP) for each in (reference, candidate)]
    n_neurons = [{reader.n_channels(place) for place in reader.positions} for reader in readers]
    common = n_neurons[0] & n_neurons[1]
    if not common or max(common) < 2 * FEWEST_TESTED:
        return None
    n = max(common)
    numbers = torch.from_numpy(np.sort(sample_neurons(n, NOMINATING_ROWS, run=4, seed=seed)))
    places = [[place for place in reader.positions if reader.n_channels(place) == n] for reader in readers]
    rows = [
        torch.stack([reader.read(place, numbers).float() for place in of_size])
        for reader, of_size in zip(readers, places, strict=True)
    ]
    best: torch.Tensor | None = None
    for residual_map in residual_maps:
        carried = unit_rows(residual_map.carry_in(rows[0].flatten(0, 1)).to(device)).reshape(*rows[0].shape[:2], -1)
        cosines = torch.einsum("ikd,jkd->ij", carried, unit_rows(rows[1].flatten(0, 1).to(device)).reshape_as(rows[1]))
        best = cosines if best is None else torch.maximum(best, cosines)
    if best is None:
        return None
    likeness = (best / len(numbers)).cpu()
    # Strangers have a mean cosine of about 1 / sqrt(rows x width) around that of their common directions.
    deviation = 1.0 / math.sqrt(len(numbers) * rows[1].shape[2])
    level = float(likeness.median()) if likeness.numel() > 4 else 0.0
    cells = (likeness > max(level, 0.0) + LEAST_NOMINATING_Z * deviation).nonzero().tolist()
    ranked = sorted(cells, key=lambda cell: -float(likeness[cell[0], cell[1]]))[:MOST_NOMINATED]
    return [(places[0][i], places[1][j]) for i, j in ranked]


def _ask(
    reference: ExpertSet,
    candidate: ExpertSet,
    nominated: Sequence[tuple[int, int]],
    alpha: float,
    seed: int,
    device: str,
    place: int,
) -> list[tuple[int, int, int]]:
    """Ask the second witness of nominated pairs of experts; return those that match, with their own numbers."""
    found: list[tuple[int, int, int]] = []
    for n_down_channels in (DOWN_CHANNELS, None):
        left = [pair for pair in nominated if pair not in {(i, j) for i, j, _ in found}]
        samples = [
            take_neurons(
                model,
                SampleDesign(
                    seed=seed,
                    n_fitted_rows=FITTED_ROWS,
                    places=tuple(dict.fromkeys(pair[side] for pair in left)),
                    n_down_channels=n_down_channels,
                ),
            )
            for side, model in enumerate((reference, candidate))
        ]
        if not left or samples[0] is None or samples[1] is None:
            break
        counts = compare_neurons(samples[0], samples[1], alpha=alpha, device=device, place=place)
        if counts is None or counts.own_number_by_down is None:
            break
        for i, j in left:
            if (i, j) in {(match.reference, match.candidate) for match in counts.matches}:
                at = counts.reference_layers.index(i), counts.candidate_layers.index(j)
                found.append((i, j, counts.own_number[at[0]][at[1]]))
    return found
