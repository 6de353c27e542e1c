"""Finds the place of every tensor of a checkpoint in the function of the model; refuses unknown tensors."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mdir_hf.errors import ReconstructionError
from mdir_hf.method.blocks import IntArray
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Part, Role, WeightPart, WeightProduct
from mdir_hf.reconstruction.norms import bias_name

POSITIONS = re.compile(r"(^|\.)(wpe|embed_positions|position_embeddings|position_embedding)\.weight$")
"""Tables of learnt positions, which are added to the stream."""

BUFFERS = ("inv_freq", "masked_bias", "attn.bias", "attention.bias", "num_batches_tracked")
"""How the names of buffers end that hold no weight: frequencies and masks."""

Kind = Literal["written", "head", "norm", "norm_bias", "weight", "bias", "kept"]


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One part of a stored tensor, as a transformation sees it.

    Attributes:
        kind: ``written``: rows that are added to the stream; ``head``; ``norm`` and ``norm_bias``; ``weight`` and
            ``bias`` of a role; ``kept``: a part that stays as it is.
        layer: Position of its layer; None outside of the layers.
        role: Its role; None outside of the layers.
        expert: Number of its expert.
        is_shared: Whether that is a shared expert.
        part: The stored place of its weight.
        rows: Rows of the tensor, after transposing, that belong to it; None for all.
    """

    kind: Kind
    layer: int | None = None
    role: Role | None = None
    expert: int | None = None
    is_shared: bool = False
    part: WeightPart | None = None
    rows: IntArray | None = None

    @classmethod
    def of_part(
        cls,
        kind: Kind,
        part: WeightPart,
        shape: tuple[int, ...],
        layer: int,
        role: Role,
        *,
        expert: int | None = None,
        is_shared: bool = False,
    ) -> Place:
        """Make the place of a part of a stored tensor of this shape."""
        rows = None if part.is_whole else part.rows(shape)
        if kind == "bias":
            rows = None if part.is_whole else part.layout.rows(shape[0], part.heads)
        return cls(kind, layer, role, expert, is_shared, part, rows)

    def taken(self, values: torch.Tensor) -> torch.Tensor:
        """Return a copy of the part, ``(d_out, d_in)`` or a vector."""
        base = self._base(values)
        taken = base if self.rows is None else base[torch.from_numpy(self.rows)]
        return taken.clone()

    def put(self, values: torch.Tensor, part: torch.Tensor) -> None:
        """Put a mapped part back in place."""
        base = self._base(values)
        if self.rows is None:
            base.copy_(part)
        else:
            base[torch.from_numpy(self.rows)] = part.to(base)

    def _base(self, values: torch.Tensor) -> torch.Tensor:
        """The matrix ``(d_out, d_in)`` that holds the part, as a view."""
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


def plan_places(model: Model) -> dict[str, tuple[Place, ...]]:
    """Find the place of every tensor of a checkpoint.

    Returns:
        The places in each tensor, by its name; none for a tensor that stays as it is.

    Raises:
        ReconstructionError: If there is a tensor whose part in the function is not known, or that is stored in a way
            that is not written.
    """
    anatomy, tensors = model.anatomy, model.tensors
    names = frozenset(tensors.names())
    places: dict[str, list[Place]] = {}

    def add(name: str, place: Place) -> None:
        places.setdefault(name, []).append(place)

    def add_norm(part: Part, layer: int | None, role: Role | None) -> None:
        if any(place.kind == "norm" for place in places.get(part.tensor, ())):
            return  # one norm in front of attention and the MLP
        add(part.tensor, Place("norm", layer, role))
        bias = bias_name(model, part)
        if bias is not None:
            add(bias, Place("norm_bias", layer, role))

    tables: tuple[tuple[WeightPart | None, Kind], ...] = (
        (anatomy.embedding, "written"),
        (anatomy.unembedding, "head"),
    )
    for table, kind in tables:
        if table is not None:
            add(table.tensor, Place(kind))
            bias = bias_name(model, table)
            if bias is not None:
                add(bias, Place("kept"))
    if anatomy.final_norm is not None:
        add_norm(anatomy.final_norm, None, None)
    for at, layer in enumerate(anatomy.layers):
        for role, part in layer.parts.items():
            if role in (Role.Q_NORM, Role.K_NORM):
                add(part.tensor, Place("kept"))
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
            add(name, Place("written"))
        elif name.endswith(BUFFERS) or "rotary_emb." in name:
            places[name] = []
        else:
            raise ReconstructionError(
                f"tensor {name!r} {tuple(tensors.spec(name).shape)} has no place that is known in the language model, "
                "so it is unknown what a change of basis does to it",
                subject=model.label,
            )
    _check_whole(model, places)
    return {name: tuple(place for place in found if place.kind != "kept") for name, found in places.items()}


def _add_weight(
    model: Model,
    add: Callable[[str, Place], None],
    part: Part,
    at: int,
    role: Role,
    expert: int | None,
    *,
    is_shared: bool,
) -> None:
    """Add the places of a weight and its bias."""
    if isinstance(part, WeightProduct) or part.per_head or part.first_half or role is Role.KV_LATENT:
        raise ReconstructionError(
            f"{' x '.join(repr(name) for name in part.tensors)} (role {role.value}) is stored in a way that is not "
            "written: as factors of a product, or as a stack of heads",
            subject=model.label,
        )
    shape = tuple(model.tensors.spec(part.tensor).shape)
    add(part.tensor, Place.of_part("weight", part, shape, at, role, expert=expert, is_shared=is_shared))
    bias = bias_name(model, part)
    if bias is None:
        return
    bias_shape = tuple(model.tensors.spec(bias).shape)
    if len(bias_shape) != 1 or part.expert is not None:
        raise ReconstructionError(f"the bias {bias!r} {bias_shape} is not a vector of one weight", subject=model.label)
    add(bias, Place.of_part("bias", part, bias_shape, at, role, expert=expert, is_shared=is_shared))


def _check_whole(model: Model, places: dict[str, list[Place]]) -> None:
    """Refuse a fused tensor some of whose rows have no role."""
    for name, found in places.items():
        taken = [place.rows for place in found if place.rows is not None]
        if not taken or any(place.rows is None for place in found):
            continue
        place = found[0]
        shape = tuple(model.tensors.spec(name).shape)
        if place.part is not None and place.part.expert is not None:
            continue
        n_rows = shape[0]
        if place.kind == "weight" and place.part is not None and place.part.is_transposed(shape):
            n_rows = shape[-1]
        if len(np.unique(np.concatenate(taken))) != n_rows:
            raise ReconstructionError(
                f"some rows of tensor {name!r} {shape} have no role that is known", subject=model.label
            )
