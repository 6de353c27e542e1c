"""Gains of norms: which norm stands in front of a weight, and whether its gain moves into the weight."""

from __future__ import annotations

import torch

from mdir_hf.method.stream_map import StreamMap
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Layer, Part, Role, read_part
from mdir_hf.reconstruction.records import NormGains

MOVED_FROM = 0.25
"""Relative difference of two gains from which the candidate's counts as rescaled and not as trained."""

SMALLEST_GAIN = 1e-3
"""A gain below this share of the median is not divided by; the aligned gain is then 1."""


def norm_role(layer: Layer, role: Role, *, is_shared: bool = False) -> Role:
    """Return the role of the norm in front of a weight that reads the residual stream."""
    if is_shared and Role.SHARED_NORM in layer.parts:
        return Role.SHARED_NORM
    return Role.MLP_NORM if role in (Role.UP, Role.GATE, Role.ROUTER) else Role.ATTENTION_NORM


def bias_name(model: PlacedTensors, part: Part) -> str | None:
    """Return the name of the bias that lies beside a weight; None without one."""
    name = part.tensor.removesuffix(".weight") + ".bias"
    return name if part.tensor.endswith(".weight") and name in frozenset(model.tensors.names()) else None


def read_gains(model: PlacedTensors, part: Part | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Read the gain of a norm, as the factor that it is, and its bias; float64."""
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
    """Decide whether the aligned norm has the gain of the reference or keeps the candidate's.

    Args:
        reference: Gain and bias of the reference's norm.
        candidate: Gain and bias of the candidate's.
        stream: The map of residual channels.
        must_stay: Whether the gain cannot move into what reads it, because an embedding is tied to the head.

    Returns:
        The gains. Behind a rotation the gain has to move (to 1 without a reference); behind a permutation it moves if
        the two differ by much.
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


def _difference(gain: torch.Tensor, other: torch.Tensor, stream: StreamMap) -> float:
    back = stream.outer.reversed
    placed = other if back.kind == "identity" else back.carry_in(other[None].abs())[0].abs()
    return float((placed.abs() - gain.abs()).norm() / gain.norm())
