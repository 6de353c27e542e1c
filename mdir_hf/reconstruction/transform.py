"""Applies a reconstruction to single weights of the candidate, towards the reference or back.

Every function takes a weight of the candidate as it is used, ``(d_out, d_in)`` or a vector, and returns the weight that
takes its place. Together they change no logit: what a map does to one matrix, its contragredient undoes in the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.row_map import RowMap, full_order
from mdir_hf.model.roles import Layer, Role
from mdir_hf.reconstruction.norms import norm_role
from mdir_hf.reconstruction.records import ExpertsMap, MlpMap, NormGains, ReconstructedLayer, Reconstruction


@dataclass(frozen=True, slots=True, eq=False)
class StreamTransform:
    """The residual side of every weight: channels, signs, rotation and scale.

    Attributes:
        reconstruction: The transformation.
        is_inverse: Whether it leads from the reference's basis back to the candidate's.
    """

    reconstruction: Reconstruction
    is_inverse: bool = False

    @property
    def scale(self) -> float:
        """Factor on weights that write to the stream."""
        scale = self.reconstruction.stream.scale
        return scale if self.is_inverse else 1.0 / scale

    def columns(self, rows: torch.Tensor) -> torch.Tensor:
        """Turn the channels of ``(k, n)`` rows."""
        outer = self.reconstruction.stream.outer
        if outer.kind == "identity":
            return rows
        if outer.matrix is not None:
            u = outer.matrix.to(rows)
            return rows @ (u if self.is_inverse else u.T)
        order, signs = _channel_order(outer)
        if self.is_inverse:
            back = order.argsort()
            return (rows * signs.to(rows))[:, back]
        return rows[:, order] * signs.to(rows)

    def written(self, weight: torch.Tensor) -> torch.Tensor:
        """Map weights that write to the stream: rows of an embedding, a bias, or W^T of a writer; scaled."""
        rows = weight[None] if weight.ndim == 1 else weight
        mapped = self.columns(rows) * self.scale
        return mapped[0] if weight.ndim == 1 else mapped

    def gain(self, stored: torch.Tensor, gains: NormGains | None, *, times: float = 1.0) -> torch.Tensor:
        """Return the gain, as a factor, that a norm has afterwards."""
        if gains is not None and gains.is_moved:
            target = gains.candidate if self.is_inverse else gains.reference
            assert target is not None
            return target * times
        return self._permuted(stored) * times

    def bias(self, stored: torch.Tensor, gains: NormGains | None) -> torch.Tensor:
        """Return the bias that a norm has afterwards: what its readers see of it stays the same."""
        if gains is not None and gains.is_moved:
            assert gains.candidate is not None and gains.reference is not None
            before, after = gains.candidate, gains.reference
            if self.is_inverse:
                before, after = after, before
            return self.columns((stored / before)[None])[0] * after
        return self.columns(stored[None])[0]

    def read(self, weight: torch.Tensor, gains: NormGains | None) -> torch.Tensor:
        """Map the input side of a weight that reads the stream behind a norm, ``(d_out, n)``."""
        if gains is None or not gains.is_moved:
            return self.columns(weight)
        assert gains.candidate is not None and gains.reference is not None
        before, after = gains.candidate, gains.reference
        if self.is_inverse:
            before, after = after, before
        return self.columns(weight * before.to(weight)) / after.to(weight)

    def _permuted(self, gain: torch.Tensor) -> torch.Tensor:
        """Reorder a gain, which has no sign of its own in a channel that changes its sign."""
        outer = self.reconstruction.stream.outer
        if outer.kind == "identity" or outer.matrix is not None:
            return gain
        order, _ = _channel_order(outer)
        return gain[order.argsort() if self.is_inverse else order]


def _channel_order(outer: ResidualBasisMap) -> tuple[torch.Tensor, torch.Tensor]:
    """Channels of the candidate in the order of their partners, those without one last, and their signs."""
    assert outer.reference is not None and outer.candidate is not None and outer.signs is not None
    order = full_order(outer.reference.numpy(), outer.candidate.numpy(), outer.n_candidate)
    by_channel = torch.ones(outer.n_candidate, dtype=torch.float64)
    by_channel[outer.candidate] = outer.signs.double()
    return torch.from_numpy(order), by_channel[torch.from_numpy(order)]


def rows_of(layer: ReconstructedLayer | None, role: Role, mlp: MlpMap | None) -> RowMap | None:
    """Return the map of the inner side of a weight, towards the reference; None if it stays as it is."""
    if mlp is not None and role in (Role.GATE, Role.UP, Role.DOWN):
        return {Role.GATE: mlp.gate_rows, Role.UP: mlp.up_rows, Role.DOWN: mlp.down_rows}[role]
    attention = None if layer is None else layer.attention
    if attention is None:
        return None
    maps = {Role.Q: "query_rows", Role.K: "key_rows", Role.V: "value_rows", Role.O: "output_rows"}
    found: RowMap | None = getattr(attention, maps[role]) if role in maps else None
    return found


def expert_order(experts: ExpertsMap | None) -> torch.Tensor | None:
    """Return the candidate's routed experts in the order of their origins; None if they stay in their places."""
    if experts is None or len(set(experts.reference.tolist())) < len(experts.reference):
        return None
    order = full_order(experts.reference, experts.candidate, len(experts.mlps))
    return None if RowMap(order).is_identity else torch.from_numpy(order)


def mapped_weight(
    weight: torch.Tensor,
    role: Role,
    *,
    layer: Layer,
    matched: ReconstructedLayer | None,
    mlp: MlpMap | None,
    stream: StreamTransform,
    is_shared: bool = False,
) -> torch.Tensor:
    """Map a weight of a layer on both of its sides.

    Args:
        weight: ``(d_out, d_in)``, float.
        role: Its role.
        layer: The layer of the candidate.
        matched: Its reconstruction; None for a layer without an ancestor, whose inner side stays.
        mlp: The neurons of gate, up and down.
        stream: The residual side.
        is_shared: Whether it belongs to a shared expert.
    """
    inner = rows_of(matched, role, mlp)
    if inner is not None and stream.is_inverse:
        inner = inner.inverse
    if role.writes_stream:
        mapped = stream.written(weight.T)
        return (mapped if inner is None else inner.apply(mapped)).T
    if role.reads_stream:
        gains = None if matched is None else matched.gains.get(norm_role(layer, role, is_shared=is_shared).value)
        mapped = stream.read(weight, gains)
        return mapped if inner is None else inner.apply(mapped)
    return weight if inner is None else inner.apply(weight)
