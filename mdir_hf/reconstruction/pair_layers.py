"""Finds which layer of the candidate descends from which of the reference, to reconstruct them."""

from __future__ import annotations

import torch

from mdir_hf.comparison.layer_weights import RoleReader, layers_with
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.stream_map import StreamMap
from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import Role
from mdir_hf.report import HomologyReport

LIKE = 0.5
"""A layer in its own place is taken to be the same if the values of its heads span the same space to this share."""

LEAST_LIKE = 0.15
"""Layers that are less alike, above what strangers reach, have no ancestor."""


def pair_layers(
    reference: PlacedTensors, candidate: PlacedTensors, stream: StreamMap, report: HomologyReport | None
) -> list[tuple[int, int]]:
    """Pair every layer of the candidate with its ancestor, as positions in ``anatomy.layers``.

    The matches of a report that mapped all layers are used as they are. Else the values of the heads are compared,
    by the space that their rows span: own places first, all pairs where those do not agree.

    Args:
        reference: One model.
        candidate: The other.
        stream: The map of residual channels.
        report: The report of a comparison; None without one.

    Returns:
        Pairs (reference, candidate) in the candidate's order; layers without an ancestor are left out.
    """
    n_layers = len(reference.anatomy.layers), len(candidate.anatomy.layers)
    if report is not None and report.layers is not None and len(report.layers.matches) == n_layers[1]:
        return [(match.reference, match.candidate) for match in report.layers.matches]
    likeness = LayerLikeness(reference, candidate, stream.outer)
    if not likeness.reference_layers or not likeness.candidate_layers:
        return [(i, i) for i in range(min(n_layers))] if n_layers[0] == n_layers[1] else []
    pairs: list[tuple[int, int]] = []
    for j in likeness.candidate_layers:
        if n_layers[0] == n_layers[1] and j in likeness.reference_layers and likeness(j, j) >= LIKE:
            pairs.append((j, j))
            continue
        best, i = max((likeness(i, j), -i) for i in likeness.reference_layers)
        if best >= LEAST_LIKE:
            pairs.append((-i, j))
    return pairs


class LayerLikeness:
    """Share of one layer's values in the space that another layer's values span, above chance; at most 1.

    Layers that were read are kept.

    Args:
        reference: One model.
        candidate: The other.
        outer: The map of residual channels.

    Attributes:
        reference_layers: Layers of the reference that have values.
        candidate_layers: Those of the candidate.
    """

    def __init__(self, reference: PlacedTensors, candidate: PlacedTensors, outer: ResidualBasisMap) -> None:
        self._readers = RoleReader(reference, Role.V), RoleReader(candidate, Role.V)
        self._outer = outer
        self._carried: dict[int, torch.Tensor] = {}
        self._bases: dict[int, torch.Tensor] = {}
        self.reference_layers = layers_with(reference, Role.V)
        self.candidate_layers = layers_with(candidate, Role.V)

    def __call__(self, reference: int, candidate: int) -> float:
        """Compare two layers."""
        if reference not in self._carried:
            rows = self._outer.carry_in(self._readers[0].folded(reference).float())
            self._carried[reference] = _heads(rows, self._readers[0].model, reference)
        if candidate not in self._bases:
            heads = _heads(self._readers[1].folded(candidate).float(), self._readers[1].model, candidate)
            self._bases[candidate] = torch.linalg.qr(heads.mT).Q
        x, basis = self._carried[reference], self._bases[candidate]
        n_heads, d, n = x.shape
        shares = (x.reshape(-1, n) @ basis.transpose(0, 1).reshape(n, -1)).square()
        energy = x.square().sum(dim=(1, 2))[:, None].clamp(min=torch.finfo(x.dtype).tiny)
        by_head = shares.reshape(n_heads, d, len(basis), -1).sum(dim=(1, 3)) / energy
        chance = basis.shape[2] / n
        return float((by_head.amax(dim=0).mean() - chance) / max(1e-9, 1.0 - chance))


def _heads(rows: torch.Tensor, model: PlacedTensors, position: int) -> torch.Tensor:
    """Cut values into heads, ``(G, d, n)``; one head stands for all of a layer whose heads are unknown."""
    layer, anatomy = model.anatomy.layers[position], model.anatomy
    n_heads = layer.heads.n_kv_heads if layer.heads else anatomy.n_kv_heads or anatomy.n_heads or 1
    n_heads = n_heads if len(rows) % n_heads == 0 else 1
    return rows.reshape(n_heads, len(rows) // n_heads, rows.shape[1])
