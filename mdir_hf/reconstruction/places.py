"""Find the role of each checkpoint tensor in the model, and map individual weights.

Weights are ``(d_out, d_in)`` matrices or vectors. Together, the maps preserve all logits, because each map is undone by
the inverse map of the matrix that follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mdir_hf.errors import ReconstructionError
from mdir_hf.method.blocks import IntArray
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Layer, Role, StoredWeight, WeightPart, WeightProduct
from mdir_hf.reconstruction.mlps import bias_name, norm_role
from mdir_hf.reconstruction.records import (
    N_SAMPLED,
    ExpertsMap,
    MlpMap,
    NormGains,
    ReconstructedLayer,
    Reconstruction,
    RowMap,
    full_order,
)

POSITIONS = re.compile(r"(^|\.)(wpe|embed_positions|position_embeddings|position_embedding)\.weight$")
"""Names of learned position embeddings, which are added to the stream."""

BUFFERS = ("inv_freq", "masked_bias", "attn.bias", "attention.bias", "num_batches_tracked")
"""Name endings of buffers that are not weights, such as frequencies and masks."""

PlaceKind = Literal["written", "head", "norm", "norm_bias", "weight", "bias", "kept"]


@dataclass(frozen=True, slots=True, eq=False)
class TensorPlace:
    """One part of a stored tensor that is transformed as a unit.

    Attributes:
        kind: How it is mapped. ``written`` rows are added to the stream; ``kept`` parts do not change.
        layer: Position of its layer; None outside the layers.
        role: Its role; None outside the layers.
        part: Location of its weight in the tensor.
        rows: Its rows in the tensor, after transposing; None for all.
    """

    kind: PlaceKind
    layer: int | None = None
    role: Role | None = None
    expert: int | None = None
    is_shared: bool = False
    part: WeightPart | None = None
    rows: IntArray | None = None

    @classmethod
    def of_part(
        cls,
        kind: PlaceKind,
        part: WeightPart,
        shape: tuple[int, ...],
        layer: int,
        role: Role,
        *,
        expert: int | None = None,
        is_shared: bool = False,
    ) -> TensorPlace:
        """Return the place of a part of a stored tensor with the given shape."""
        rows = None if part.is_whole else part.rows(shape)
        if kind == "bias":
            rows = None if part.is_whole else part.rows_of(shape[0])
        return cls(kind, layer, role, expert, is_shared, part, rows)

    def extract(self, values: torch.Tensor) -> torch.Tensor:
        """Return a copy of the part as a ``(d_out, d_in)`` matrix or a vector."""
        base = self._base(values)
        part = base if self.rows is None else base[torch.from_numpy(self.rows)]
        return part.clone()

    def put(self, values: torch.Tensor, part: torch.Tensor) -> None:
        """Write a mapped part back into the tensor."""
        base = self._base(values)
        if self.rows is None:
            base.copy_(part)
        else:
            base[torch.from_numpy(self.rows)] = part.to(base)

    def _base(self, values: torch.Tensor) -> torch.Tensor:
        part = self.part
        if part is None or self.kind == "bias":
            return values
        shape = tuple(values.shape)
        if part.expert is not None:
            base = values if part.n_experts is None else values.view(part.n_experts, -1, shape[-1])
            base = base[part.expert]
        elif part.joined:
            base = values.view(shape[0], -1)
        else:
            base = values
        return base.T if base.ndim == 2 and part.is_transposed(shape) else base


def plan_places(model: Model) -> dict[str, tuple[TensorPlace, ...]]:
    """Return the parts of each checkpoint tensor that must be transformed, keyed by tensor name.

    Raises:
        ReconstructionError: If a tensor has no known place or is in a format that cannot be written.
    """
    anatomy, tensors = model.anatomy, model.tensors
    names = frozenset(tensors.names())
    places: dict[str, list[TensorPlace]] = {}

    def add(name: str, place: TensorPlace) -> None:
        places.setdefault(name, []).append(place)

    def add_norm(part: StoredWeight, layer: int | None, role: Role | None) -> None:
        if any(place.kind == "norm" for place in places.get(part.tensor, ())):
            return  # attention and the MLP share one norm
        add(part.tensor, TensorPlace("norm", layer, role))
        bias = bias_name(model, part)
        if bias is not None:
            add(bias, TensorPlace("norm_bias", layer, role))

    tables: tuple[tuple[WeightPart | None, PlaceKind], ...] = (
        (anatomy.embedding, "written"),
        (anatomy.unembedding, "head"),
    )
    for table, kind in tables:
        if table is not None:
            add(table.tensor, TensorPlace(kind))
            bias = bias_name(model, table)
            if bias is not None:
                add(bias, TensorPlace("kept"))
    if anatomy.final_norm is not None:
        add_norm(anatomy.final_norm, None, None)
    for at, layer in enumerate(anatomy.layers):
        for role, part in layer.parts.items():
            if role in (Role.Q_NORM, Role.K_NORM):
                add(part.tensor, TensorPlace("kept"))
            elif role.is_norm:
                add_norm(part, at, role)
            else:
                _add_weight(model, add, part, at, role, None, is_shared=False)
        for group, is_shared in ((layer.experts, False), (layer.shared_experts, True)):
            for number, parts in enumerate(group):
                for role, part in parts.items():
                    _add_weight(model, add, part, at, role, number, is_shared=is_shared)
    for name in sorted(names - places.keys()):
        if POSITIONS.search(name):
            add(name, TensorPlace("written"))
        elif name.endswith(BUFFERS) or "rotary_emb." in name:
            places[name] = []
        else:
            raise ReconstructionError(
                f"tensor {name!r} {tuple(tensors.spec(name).shape)} has no place that is known in the language model, "
                "so it is unknown what a change of basis does to it",
                subject=model.label,
            )
    _check_whole(model, places)
    return {
        name: tuple(place for place in tensor_places if place.kind != "kept") for name, tensor_places in places.items()
    }


def _add_weight(
    model: Model,
    add: Callable[[str, TensorPlace], None],
    part: StoredWeight,
    at: int,
    role: Role,
    expert: int | None,
    *,
    is_shared: bool,
) -> None:
    if isinstance(part, WeightProduct) or part.per_head or part.first_half or role is Role.KV_LATENT:
        raise ReconstructionError(
            f"{' x '.join(repr(name) for name in part.tensors)} (role {role.value}) is stored in a way that is not "
            "written: as factors of a product, or as a stack of heads",
            subject=model.label,
        )
    shape = tuple(model.tensors.spec(part.tensor).shape)
    add(part.tensor, TensorPlace.of_part("weight", part, shape, at, role, expert=expert, is_shared=is_shared))
    bias = bias_name(model, part)
    if bias is None:
        return
    bias_shape = tuple(model.tensors.spec(bias).shape)
    if len(bias_shape) != 1 or part.expert is not None:
        raise ReconstructionError(f"the bias {bias!r} {bias_shape} is not a vector of one weight", subject=model.label)
    add(bias, TensorPlace.of_part("bias", part, bias_shape, at, role, expert=expert, is_shared=is_shared))


def _check_whole(model: Model, places: dict[str, list[TensorPlace]]) -> None:
    """Reject fused tensors in which some rows have no role."""
    for name, tensor_places in places.items():
        rows_of_places = [place.rows for place in tensor_places if place.rows is not None]
        if not rows_of_places or any(place.rows is None for place in tensor_places):
            continue
        place = tensor_places[0]
        shape = tuple(model.tensors.spec(name).shape)
        if place.part is not None and place.part.expert is not None:
            continue
        n_rows = shape[0]
        if place.kind == "weight" and place.part is not None and place.part.is_transposed(shape):
            n_rows = shape[-1]
        if len(np.unique(np.concatenate(rows_of_places))) != n_rows:
            raise ReconstructionError(
                f"some rows of tensor {name!r} {shape} have no role that is known", subject=model.label
            )


@dataclass(frozen=True, slots=True, eq=False)
class StreamTransform:
    """Transformation of the residual side of every weight: channels, signs, rotation and scale.

    With ``is_inverse``, it maps back to the candidate's basis.
    """

    reconstruction: Reconstruction
    is_inverse: bool = False

    @property
    def scale(self) -> float:
        """Factor for weights that write to the stream."""
        scale = self.reconstruction.stream.scale
        return scale if self.is_inverse else 1.0 / scale

    def columns(self, rows: torch.Tensor) -> torch.Tensor:
        """Transform the channels of ``(k, n)`` rows."""
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
        """Map and scale weights that write to the stream: rows of an embedding, a bias, or W^T."""
        rows = weight[None] if weight.ndim == 1 else weight
        mapped = self.columns(rows) * self.scale
        return mapped[0] if weight.ndim == 1 else mapped

    def gain(self, stored: torch.Tensor, gains: NormGains | None, *, times: float = 1.0) -> torch.Tensor:
        """Return a norm's gain after the transformation, as a factor."""
        if gains is not None and gains.is_moved:
            target = gains.candidate if self.is_inverse else gains.reference
            assert target is not None
            return target * times
        return self._permuted(stored) * times

    def bias(self, stored: torch.Tensor, gains: NormGains | None) -> torch.Tensor:
        """Return the aligned norm's bias, which preserves the input of the weights that follow."""
        if gains is not None and gains.is_moved:
            assert gains.candidate is not None and gains.reference is not None
            before, after = gains.candidate, gains.reference
            if self.is_inverse:
                before, after = after, before
            return self.columns((stored / before)[None])[0] * after
        return self.columns(stored[None])[0]

    def read(self, weight: torch.Tensor, gains: NormGains | None) -> torch.Tensor:
        """Map the input side of a weight ``(d_out, n)`` that reads the stream after a norm."""
        if gains is None or not gains.is_moved:
            return self.columns(weight)
        assert gains.candidate is not None and gains.reference is not None
        before, after = gains.candidate, gains.reference
        if self.is_inverse:
            before, after = after, before
        return self.columns(weight * before.to(weight)) / after.to(weight)

    def return_error(self, rows: torch.Tensor, mapped: torch.Tensor, gains: NormGains | None, *, writes: bool) -> float:
        """Map a few rows back, and return ``|back - rows|_F / |rows|_F``.

        ``writes`` and ``gains`` say which map was used: :meth:`written`, or :meth:`read`. Gains are compared folded in,
        because a gain of 0 hides a column from the model and cannot be divided by.
        """
        step = max(1, len(rows) // N_SAMPLED)
        rows, mapped = rows[::step].double(), mapped[::step].double()
        back = StreamTransform(self.reconstruction, not self.is_inverse)
        if writes:
            mapped = mapped * back.scale
        elif gains is not None and gains.is_moved:
            assert gains.candidate is not None and gains.reference is not None
            before, after = gains.candidate, gains.reference
            if self.is_inverse:
                before, after = after, before
            rows, mapped = rows * before, mapped * after
        returned = back.columns(mapped)
        return float((returned - rows).norm() / rows.norm().clamp(min=torch.finfo(rows.dtype).tiny))

    def _permuted(self, gain: torch.Tensor) -> torch.Tensor:
        """Reorder a gain, ignoring signs."""
        outer = self.reconstruction.stream.outer
        if outer.kind == "identity" or outer.matrix is not None:
            return gain
        order, _ = _channel_order(outer)
        return gain[order.argsort() if self.is_inverse else order]


def _channel_order(outer: ResidualBasisMap) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the candidate's channels, with matched channels first and in their partners' order, and the signs."""
    assert outer.reference is not None and outer.candidate is not None and outer.signs is not None
    order = full_order(outer.reference.numpy(), outer.candidate.numpy(), outer.n_candidate)
    by_channel = torch.ones(outer.n_candidate, dtype=torch.float64)
    by_channel[outer.candidate] = outer.signs.double()
    return torch.from_numpy(order), by_channel[torch.from_numpy(order)]


def rows_of(layer: ReconstructedLayer | None, role: Role, mlp: MlpMap | None) -> RowMap | None:
    """Return the map for the head or neuron side of a weight, or None."""
    if mlp is not None and role in (Role.GATE, Role.UP, Role.DOWN):
        return {Role.GATE: mlp.gate_rows, Role.UP: mlp.up_rows, Role.DOWN: mlp.down_rows}[role]
    attention = None if layer is None else layer.attention
    if attention is None:
        return None
    maps = {Role.Q: "query_rows", Role.K: "key_rows", Role.V: "value_rows", Role.O: "output_rows"}
    row_map: RowMap | None = getattr(attention, maps[role]) if role in maps else None
    return row_map


def expert_order(experts: ExpertsMap | None) -> torch.Tensor | None:
    """Return the candidate's routed experts in the order of their origins, or None."""
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
) -> tuple[torch.Tensor, float]:
    """Map both sides of a layer's floating-point ``(d_out, d_in)`` weight.

    ``matched`` is None if the layer has no partner; the head or neuron side is then unchanged.

    Returns:
        The mapped weight, and the relative error of a sample of it that was mapped back.
    """
    inner = rows_of(matched, role, mlp)
    if inner is not None and stream.is_inverse:
        inner = inner.inverse
    gains, error, mapped = None, 0.0, weight.T if role.writes_stream else weight
    if role.writes_stream or role.reads_stream:
        if role.reads_stream and matched is not None:
            gains = matched.gains.get(norm_role(layer, role, is_shared=is_shared).value)
        rows = mapped
        mapped = stream.written(rows) if role.writes_stream else stream.read(rows, gains)
        error = stream.return_error(rows, mapped, gains, writes=role.writes_stream)
    if inner is not None:
        rows = mapped
        mapped = inner.apply(rows)
        error += inner.return_error(rows, mapped)
    return (mapped.T if role.writes_stream else mapped), error
