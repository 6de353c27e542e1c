"""The weights of one layer, with the gains of its norms folded in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from mdir_hf.method.gauge import ResidualBasisMap, fold_gain
from mdir_hf.method.neurons import MlpWeights

Projection = Literal["q", "k", "v", "o", "gate", "up", "down"]
PROJECTIONS: tuple[Projection, ...] = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """The weights of one layer, each ``(d_out, d_in)`` with ``y = W x``, or None if missing.

    q is ``(H d, n)``, k ``(G d, n)``, v ``(G d_v, n)``, o ``(n, H d_v)``, gate and up ``(m, n)``, down ``(n, m)``. If
    an MLP has no gate, its first matrix is up.

    Attributes:
        n_heads: H, number of query heads.
        n_kv_heads: G, number of key and value heads.
        rope: Pairing of rotary rows. If ``unknown``, both layouts are tried; ``none`` means no rotary positions.
        rotary_dim: Number of leading rows that are rotated in each head; None means all.
        qk_norm: Whether q and k are normalised per head with gains.
        attention_gain: ``(n,)`` gain of the norm before q, k, v.
        mlp_gain: ``(n,)`` gain of the norm before gate and up.
    """

    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    o: torch.Tensor | None = None
    gate: torch.Tensor | None = None
    up: torch.Tensor | None = None
    down: torch.Tensor | None = None
    n_heads: int = 1
    n_kv_heads: int = 1
    rope: Literal["half", "interleaved", "unknown", "none"] = "half"
    rotary_dim: int | None = None
    qk_norm: bool = False
    attention_gain: torch.Tensor | None = None
    mlp_gain: torch.Tensor | None = None

    def folded(self, *, plus_one: bool = False, dtype: torch.dtype = torch.float64) -> LayerWeights:
        """Fold the gains into q, k, v, gate and up, and convert all weights to one dtype.

        If ``plus_one``, the norms multiply by ``1 + g`` (Gemma).
        """
        changes: dict[str, torch.Tensor | None] = {"attention_gain": None, "mlp_gain": None}
        for role in PROJECTIONS:
            weight = self.weight(role)
            if weight is None:
                continue
            gain = {"o": None, "down": None, "gate": self.mlp_gain, "up": self.mlp_gain}.get(role, self.attention_gain)
            changes[role] = fold_gain(weight.to(dtype), gain, plus_one=plus_one)
        return replace(self, **changes)  # type: ignore[arg-type]

    def weight(self, role: Projection) -> torch.Tensor | None:
        """Return the weight of a projection, or None if it is missing."""
        weight: torch.Tensor | None = getattr(self, role)
        return weight

    def inner_rows(self, role: Projection, residual_map: ResidualBasisMap | None = None) -> torch.Tensor | None:
        """Return a weight as ``(m, n)`` with heads or neurons as rows, transformed by ``residual_map`` if given."""
        weight = self.weight(role)
        if weight is None:
            return None
        rows = weight.T if role in ("o", "down") else weight
        return rows if residual_map is None else residual_map.carry_in(rows)

    @property
    def mlp(self) -> MlpWeights | None:
        """The MLP, or None if up or down is missing."""
        return None if self.up is None or self.down is None else MlpWeights(self.up, self.down, self.gate)
