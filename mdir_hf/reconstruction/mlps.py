"""Reconstruct the parts of layers outside attention: norm gains, MLP neurons and experts."""

from __future__ import annotations

import numpy as np
import torch

from mdir_hf.comparison.layer_weights import read_role
from mdir_hf.method.assignment import best_assignment
from mdir_hf.method.gauge import fold_gain
from mdir_hf.method.neuron_maps import fit_neurons
from mdir_hf.method.neurons import MlpWeights, unit_rows
from mdir_hf.method.stream_map import StreamMap
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Layer, Role, StoredWeight, WeightPart, read_experts, read_part
from mdir_hf.reconstruction.records import ExpertsMap, MlpMap, NormGains, RowMap

MOVED_FROM = 0.25
"""Relative difference between two gains above which the candidate's gain is treated as rescaled, not trained."""

SMALLEST_GAIN = 1e-3
"""Gains up to this share of the median are too small to divide by; the aligned gain is then 1."""


def norm_role(layer: Layer, role: Role, *, is_shared: bool = False) -> Role:
    """Return the role of the norm whose output a weight reads."""
    if is_shared and Role.SHARED_NORM in layer.parts:
        return Role.SHARED_NORM
    return Role.MLP_NORM if role in (Role.UP, Role.GATE, Role.ROUTER) else Role.ATTENTION_NORM


def bias_name(model: PlacedTensors, part: StoredWeight) -> str | None:
    """Return the name of a weight's bias, or None."""
    name = part.tensor.removesuffix(".weight") + ".bias"
    return name if part.tensor.endswith(".weight") and name in frozenset(model.tensors.names()) else None


def read_gains(model: PlacedTensors, part: StoredWeight | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Read a norm's gain, as a plain factor, and its bias, in float64."""
    if part is None:
        return None, None
    gain = read_part(model.tensors, part).double()
    name = bias_name(model, part)
    bias = None if name is None else model.tensors.read(name).double()
    return gain + 1.0 if model.anatomy.norms_add_one else gain, bias


def pair_gains(
    reference: tuple[torch.Tensor | None, torch.Tensor | None],
    candidate: tuple[torch.Tensor | None, torch.Tensor | None],
    stream: StreamMap,
    *,
    must_stay: bool = False,
) -> NormGains:
    """Decide whether the aligned norm gets the reference's gain or keeps the candidate's.

    After a rotation, the reference's gain is required; otherwise, it is used if the gains differ a lot. ``must_stay``
    keeps the candidate's gain, for a head that is tied to the embedding.
    """
    (gain, bias), (other_gain, other_bias) = reference, candidate
    usable = None if gain is None else _usable(gain)
    if usable is None and other_gain is not None and stream.outer.kind == "rotation":
        usable = torch.ones_like(other_gain)
    is_moved = False
    if other_gain is not None and not must_stay and usable is not None:
        is_moved = stream.outer.kind == "rotation" or (
            gain is not None
            and stream.outer.n_reference == stream.outer.n_candidate
            and _difference(gain, other_gain, stream) > MOVED_FROM
        )
    return NormGains(usable, other_gain, is_moved, bias, other_bias)


def _usable(gain: torch.Tensor) -> torch.Tensor:
    is_tiny = gain.abs() <= SMALLEST_GAIN * gain.abs().median().clamp(min=torch.finfo(gain.dtype).tiny)
    return torch.where(is_tiny, torch.ones_like(gain), gain)


def _difference(gain: torch.Tensor, candidate_gain: torch.Tensor, stream: StreamMap) -> float:
    back = stream.outer.reversed
    placed = candidate_gain if back.kind == "identity" else back.carry_in(candidate_gain[None].abs())[0].abs()
    return float((placed.abs() - gain.abs()).norm() / gain.norm())


def carried_mlp(mlp: MlpWeights, stream: StreamMap) -> MlpWeights:
    """Map a reference MLP into the candidate's residual stream, including the stream's scale."""
    carried = mlp.carried(stream.outer)
    return MlpWeights(carried.up, carried.down * stream.scale, carried.gate)


def relative_residual(aligned: torch.Tensor, reference: torch.Tensor) -> float:
    """Return ``|W_aligned - W_reference|_F / |W_aligned|_F``."""
    return float((aligned - reference).norm() / aligned.norm().clamp(min=torch.finfo(aligned.dtype).tiny))


def mlp_residuals(mlp_map: MlpMap, first: MlpWeights, second: MlpWeights) -> dict[str, float]:
    """Return the relative residuals of gate, up and down over matched neurons."""
    k, matched = len(mlp_map.neurons.reference), torch.from_numpy(mlp_map.neurons.reference)

    def residual(row_map: RowMap, rows: torch.Tensor, target: torch.Tensor) -> float:
        return relative_residual(row_map.apply(rows)[:k], target[matched])

    residuals = {
        "up": residual(mlp_map.up_rows, second.up, first.up),
        "down": residual(mlp_map.down_rows, second.down.T, first.down.T),
    }
    if first.gate is not None and second.gate is not None:
        residuals["gate"] = residual(mlp_map.gate_rows, second.gate, first.gate)
    return residuals


_ROLES = (Role.GATE, Role.UP, Role.DOWN)

N_PROBES = 64
"""Approximate number of neurons by which an expert is identified."""


def fit_experts(
    reference: PlacedTensors,
    candidate: PlacedTensors,
    pair: tuple[int, int],
    stream: StreamMap,
    residuals: dict[str, float],
    *,
    seed: int,
) -> ExpertsMap | None:
    """Match the experts of two layers, and the neurons of each expert.

    Return None if the reference layer has no MLP or the candidate layer has no routed experts. For each role,
    the largest residual of any expert is added to ``residuals``. All experts are in memory at once.
    """
    references = _mlps(reference, pair[0], routed=True) or _mlps(reference, pair[0], routed=None)
    candidates = _mlps(candidate, pair[1], routed=True)
    if not references or not candidates:
        return None
    carried = [carried_mlp(mlp, stream) for mlp in references]
    likeness = np.array([[_likeness(x, y) for y in candidates] for x in carried])
    if len(references) >= len(candidates):
        rows, columns = best_assignment(likeness)
    else:  # several experts may come from one
        rows, columns = likeness.argmax(axis=0), np.arange(len(candidates))
    order = np.argsort(columns)
    origin = {int(columns[at]): int(rows[at]) for at in order}
    maps = [MlpMap(fit_neurons(carried[origin[j]], y, seed=seed), len(y.up)) for j, y in enumerate(candidates)]

    def note(mlp_map: MlpMap, x: MlpWeights, y: MlpWeights, name: str) -> None:
        for role, value in mlp_residuals(mlp_map, x, y).items():
            key = f"{name}.{role}"
            residuals[key] = max(value, residuals.get(key, 0.0))

    for j, mlp_map in enumerate(maps):
        note(mlp_map, carried[origin[j]], candidates[j], "experts")
    shared = []
    for x, y in zip(_mlps(reference, pair[0], routed=False), _mlps(candidate, pair[1], routed=False), strict=False):
        with_stream = carried_mlp(x, stream)
        shared.append(MlpMap(fit_neurons(with_stream, y, seed=seed), len(y.up)))
        note(shared[-1], with_stream, y, "shared_experts")
    reference_experts = np.array([origin[j] for j in sorted(origin)], dtype=np.int64)
    return ExpertsMap(reference_experts, np.array(sorted(origin), dtype=np.int64), tuple(maps), tuple(shared))


def _mlps(model: PlacedTensors, position: int, *, routed: bool | None) -> list[MlpWeights]:
    """Return a layer's routed experts (True), shared experts (False) or dense MLP (None), in float64."""
    layer = model.anatomy.layers[position]
    parts = {True: layer.experts, False: layer.shared_experts, None: (layer.parts,)}[routed]
    is_own = routed is False and Role.SHARED_NORM in layer.parts
    norm = Role.SHARED_NORM if is_own else Role.MLP_NORM
    gain = read_role(model, layer, norm) if norm in layer.parts else None
    mlps = [
        {role: part for role, part in mlp.items() if role in _ROLES and isinstance(part, WeightPart)} for mlp in parts
    ]

    def folded(weight: torch.Tensor) -> torch.Tensor:
        return fold_gain(weight.double(), gain, plus_one=model.anatomy.norms_add_one)

    return [
        MlpWeights(
            folded(read[Role.UP]), read[Role.DOWN].double(), folded(read[Role.GATE]) if Role.GATE in read else None
        )
        for read in read_experts(model.tensors, [mlp for mlp in mlps if Role.UP in mlp and Role.DOWN in mlp])
    ]


def _likeness(x: MlpWeights, y: MlpWeights) -> float:
    step = max(1, len(y.up) // N_PROBES)
    score = (unit_rows(y.up[::step]) @ unit_rows(x.up).T).abs()
    return float(score.amax(dim=1).mean())
