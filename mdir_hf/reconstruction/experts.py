"""Reconstructs mixtures: which expert is which, and the neurons of each."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from mdir_hf.comparison.layer_weights import read_role
from mdir_hf.method.gauge import fold_gain
from mdir_hf.method.neuron_maps import fit_neurons
from mdir_hf.method.neurons import MlpWeights, unit_rows
from mdir_hf.method.stream_map import StreamMap
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role, WeightPart, read_experts
from mdir_hf.reconstruction.mlps import carried_mlp, mlp_residuals
from mdir_hf.reconstruction.records import ExpertsMap, MlpMap

_ROLES = (Role.GATE, Role.UP, Role.DOWN)

N_PROBES = 64
"""Neurons of an expert that tell which expert it is."""


def fit_experts(
    reference: PlacedTensors,
    candidate: PlacedTensors,
    pair: tuple[int, int],
    stream: StreamMap,
    residuals: dict[str, float],
    *,
    seed: int,
) -> ExpertsMap | None:
    """Match the experts of two layers, and the neurons of each; adds their residuals.

    Args:
        reference: One model.
        candidate: The other.
        pair: Positions of the layers.
        stream: The map of residual channels.
        residuals: Gets ``experts.gate``, ``experts.up`` and ``experts.down``: the largest of all experts.
        seed: Seed of random projections.

    Returns:
        The map; None if the reference's layer has no MLP. The experts of both layers are in memory.
    """
    mine = _mlps(reference, pair[0], routed=True) or _mlps(reference, pair[0], routed=None)
    others = _mlps(candidate, pair[1], routed=True)
    if not mine or not others:
        return None
    carried = [carried_mlp(mlp, stream) for mlp in mine]
    likeness = np.array([[_likeness(x, y) for y in others] for x in carried])
    if len(mine) >= len(others):
        rows, columns = linear_sum_assignment(likeness, maximize=True)
    else:  # several experts come from one
        rows, columns = likeness.argmax(axis=0), np.arange(len(others))
    order = np.argsort(columns)
    origin = {int(columns[at]): int(rows[at]) for at in order}
    maps = [MlpMap(fit_neurons(carried[origin[j]], y, seed=seed), len(y.up)) for j, y in enumerate(others)]

    def note(found: MlpMap, x: MlpWeights, y: MlpWeights, name: str) -> None:
        for role, value in mlp_residuals(found, x, y).items():
            key = f"{name}.{role}"
            residuals[key] = max(value, residuals.get(key, 0.0))

    for j, found in enumerate(maps):
        note(found, carried[origin[j]], others[j], "experts")
    shared = []
    for x, y in zip(_mlps(reference, pair[0], routed=False), _mlps(candidate, pair[1], routed=False), strict=False):
        with_stream = carried_mlp(x, stream)
        shared.append(MlpMap(fit_neurons(with_stream, y, seed=seed), len(y.up)))
        note(shared[-1], with_stream, y, "shared_experts")
    reference_experts = np.array([origin[j] for j in sorted(origin)], dtype=np.int64)
    return ExpertsMap(reference_experts, np.array(sorted(origin), dtype=np.int64), tuple(maps), tuple(shared))


def _mlps(model: PlacedTensors, position: int, *, routed: bool | None) -> list[MlpWeights]:
    """Routed experts, shared ones (False) or the dense MLP (None) of a layer, gains folded in, float64."""
    layer = model.anatomy.layers[position]
    parts = {True: layer.experts, False: layer.shared_experts, None: (layer.parts,)}[routed]
    is_own = routed is False and Role.SHARED_NORM in layer.parts
    norm = Role.SHARED_NORM if is_own else Role.MLP_NORM
    gain = read_role(model, layer, norm) if norm in layer.parts else None
    wanted = [
        {role: part for role, part in each.items() if role in _ROLES and isinstance(part, WeightPart)} for each in parts
    ]

    def folded(weight: torch.Tensor) -> torch.Tensor:
        return fold_gain(weight.double(), gain, plus_one=model.anatomy.norms_add_one)

    return [
        MlpWeights(
            folded(read[Role.UP]), read[Role.DOWN].double(), folded(read[Role.GATE]) if Role.GATE in read else None
        )
        for read in read_experts(model.tensors, [each for each in wanted if Role.UP in each and Role.DOWN in each])
    ]


def _likeness(x: MlpWeights, y: MlpWeights) -> float:
    """Mean over some neurons of one expert of their best cosine among the neurons of the other."""
    step = max(1, len(y.up) // N_PROBES)
    score = (unit_rows(y.up[::step]) @ unit_rows(x.up).T).abs()
    return float(score.amax(dim=1).mean())
