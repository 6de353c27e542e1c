"""Frozen records of the transformation from one model to another.

A head is a block of ``d`` rows; a neuron is a block of one row. Rows are mapped by a permutation of blocks and an
invertible matrix for each block (paper, appendix on inner transformations).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from mdir_hf.method.blocks import IntArray
from mdir_hf.method.inner_maps import BlockMap
from mdir_hf.method.neuron_maps import NeuronMap
from mdir_hf.method.planes import PlanePairing
from mdir_hf.method.stream_map import StreamMap

N_SAMPLED = 4
"""Number of rows, heads or neurons of each weight that are mapped back to check the result."""


@dataclass(frozen=True, slots=True, eq=False)
class RowMap:
    """A map from the rows of one matrix to the order and axes of another.

    Attributes:
        order: ``(k,)`` permutation: the block that moves to each position.
        matrices: ``(k, d, d)`` factor for the block at each position; None for the identity.
    """

    order: IntArray
    matrices: torch.Tensor | None = None

    @property
    def is_identity(self) -> bool:
        """Whether the map leaves all rows unchanged."""
        return self.matrices is None and bool((self.order == np.arange(len(self.order))).all())

    @property
    def inverse(self) -> RowMap:
        """The inverse map."""
        back = np.argsort(self.order).astype(np.int64)
        if self.matrices is None:
            return RowMap(back)
        return RowMap(back, torch.linalg.inv(self.matrices)[torch.from_numpy(back)])

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """Map ``(k d, …)`` rows, or the entries of a vector.

        Raises:
            ValueError: If the rows cannot be divided into blocks.
        """
        if self.is_identity:
            return rows
        n_blocks = len(self.order)
        if rows.shape[0] % n_blocks:
            raise ValueError(f"{rows.shape[0]} rows cannot be divided into {n_blocks} blocks")
        blocks = rows.reshape(n_blocks, rows.shape[0] // n_blocks, -1)[torch.from_numpy(self.order)]
        if self.matrices is not None:
            blocks = self.matrices.to(blocks) @ blocks
        return blocks.reshape(rows.shape)

    def return_error(self, rows: torch.Tensor, mapped: torch.Tensor) -> float:
        """Map a few blocks of :meth:`apply` back, and return ``|back - rows|_F / |rows|_F``."""
        n_blocks = len(self.order)
        chosen = torch.arange(0, n_blocks, max(1, n_blocks // N_SAMPLED))
        blocks, returned = (
            values.reshape(n_blocks, rows.shape[0] // n_blocks, -1)[numbers].double()
            for values, numbers in ((rows, torch.from_numpy(self.order)[chosen]), (mapped, chosen))
        )
        if self.matrices is not None:
            returned = torch.linalg.solve(self.matrices[chosen].double(), returned)
        return float((returned - blocks).norm() / blocks.norm().clamp(min=torch.finfo(blocks.dtype).tiny))


def full_order(reference: IntArray, candidate: IntArray, n_blocks: int) -> IntArray:
    """Order all candidate blocks: first the matched blocks, by their partner's number, then the others."""
    matched = candidate[np.argsort(reference, kind="stable")]
    unmatched = np.setdiff1d(np.arange(n_blocks, dtype=np.int64), matched)
    return np.concatenate([matched, unmatched]).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMap:
    """Map of the attention heads in one matched pair of layers.

    Attributes:
        kv_reference: ``(k,)`` matched key-value heads, ascending.
        kv_candidate: The candidate head matched with each.
        q_reference: Matched query heads, group by group.
        n_kv_heads: Number of the candidate's key-value heads.
        n_heads: Number of the candidate's query heads.
        values: Matrix H of each key-value head, with ``V' = H V`` and ``O' = O H^-1``; None if V or O is missing.
        keys: Corresponding matrices for K and Q; plane rotations if the model uses rotary positions.
        layouts: How rotary rows are paired in the two models; None if there are no rotary positions.
        rotary_dim: Number of rotated rows per head; None for all.
    """

    kv_reference: IntArray
    kv_candidate: IntArray
    q_reference: IntArray
    q_candidate: IntArray
    n_kv_heads: int
    n_heads: int
    values: BlockMap | None
    keys: BlockMap | None
    layouts: tuple[PlanePairing, PlanePairing] | None = None
    rotary_dim: int | None = None

    @property
    def value_rows(self) -> RowMap:
        """Map of the candidate's V rows to the reference's order and axes."""
        return self._single(self.values)

    @property
    def output_rows(self) -> RowMap:
        """Map of the candidate's O^T rows to the reference's."""
        return self._grouped(self.values)

    @property
    def key_rows(self) -> RowMap:
        """Map of the candidate's K rows to the reference's."""
        return self._single(self.keys)

    @property
    def query_rows(self) -> RowMap:
        """Map of the candidate's Q rows to the reference's."""
        return self._grouped(self.keys)

    @property
    def moves_heads(self) -> bool:
        """Whether any head moved."""
        return not (RowMap(self._kv_order).is_identity and RowMap(self._q_order).is_identity)

    @property
    def _kv_order(self) -> IntArray:
        return full_order(self.kv_reference, self.kv_candidate, self.n_kv_heads)

    @property
    def _q_order(self) -> IntArray:
        size = self.n_heads // self.n_kv_heads
        place_of = {int(c): int(r) for r, c in zip(self.q_reference, self.q_candidate, strict=True)}
        order = [
            query
            for head in self._kv_order
            for query in sorted(
                range(int(head) * size, (int(head) + 1) * size),
                key=lambda query: (query not in place_of, place_of.get(query, query)),
            )
        ]
        return np.array(order, dtype=np.int64)

    def _single(self, blocks: BlockMap | None) -> RowMap:
        return RowMap(self._kv_order, self._inverse(blocks))

    def _grouped(self, blocks: BlockMap | None) -> RowMap:
        inverse = self._inverse(blocks)
        if inverse is None:
            return RowMap(self._q_order)
        h_t = torch.linalg.inv(inverse).mT
        return RowMap(self._q_order, h_t.repeat_interleave(self.n_heads // self.n_kv_heads, dim=0))

    def _inverse(self, blocks: BlockMap | None) -> torch.Tensor | None:
        if blocks is None or blocks.matrices is None:
            return None
        d = blocks.matrices.shape[1]
        every = torch.eye(d, dtype=torch.float64).repeat(self.n_kv_heads, 1, 1)
        every[: len(blocks.matrices)] = torch.linalg.inv(blocks.matrices.double())
        return every


@dataclass(frozen=True, slots=True, eq=False)
class MlpMap:
    """Map of the neurons of one MLP or expert; ``n_neurons`` is their number in the candidate."""

    neurons: NeuronMap
    n_neurons: int

    @property
    def gate_rows(self) -> RowMap:
        """Map of the candidate's gate rows to the reference's order."""
        return RowMap(full_order(self.neurons.reference, self.neurons.candidate, self.n_neurons))

    @property
    def up_rows(self) -> RowMap:
        """Map of the candidate's up rows to the reference's order, signs and scales."""
        return self._scaled(1.0 / self.neurons.scales)

    @property
    def down_rows(self) -> RowMap:
        """Map of the candidate's down^T rows to the reference's order, signs and scales."""
        return self._scaled(self.neurons.scales)

    def _scaled(self, factors: torch.Tensor) -> RowMap:
        order = self.gate_rows.order
        if self.neurons.kind == "order":
            return RowMap(order)
        every = torch.ones(self.n_neurons, dtype=torch.float64)
        every[: len(factors)] = factors
        return RowMap(order, every[:, None, None])


@dataclass(frozen=True, slots=True, eq=False)
class ExpertsMap:
    """Map of the experts in one layer.

    Attributes:
        reference: ``(k,)`` matched routed experts. An expert may match several candidate experts.
        candidate: ``(k,)`` candidate expert matched with each.
        mlps: Maps of the neurons of the candidate's routed experts, in expert order.
        shared: Maps of the neurons of shared experts.
    """

    reference: IntArray
    candidate: IntArray
    mlps: tuple[MlpMap, ...]
    shared: tuple[MlpMap, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class NormGains:
    """Gains of a norm in both models, as factors on the normalised stream.

    Attributes:
        reference: ``(n_reference,)``; None if the norm has no gain.
        candidate: ``(n_candidate,)``; None if the norm has no gain.
        is_moved: Whether the aligned norm gets the reference's gain; the next weights then absorb the ratio.
        reference_bias: ``(n_reference,)`` for a LayerNorm, else None.
        candidate_bias: ``(n_candidate,)`` for a LayerNorm, else None.
    """

    reference: torch.Tensor | None
    candidate: torch.Tensor | None
    is_moved: bool
    reference_bias: torch.Tensor | None = None
    candidate_bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ReconstructedLayer:
    """One layer of the candidate, its partner, and the changes inside the layer.

    Attributes:
        reference: Position of the partner, counted from 0, or None.
        candidate: Position of the layer itself.
        gains: Gains of the norms before its projections, keyed by role.
        residuals: ``|W_aligned - W|_F / |W_aligned|_F`` over matched rows of each projection, keyed by role, with gains
            folded in.
    """

    reference: int | None
    candidate: int
    attention: AttentionMap | None
    mlp: MlpMap | None
    experts: ExpertsMap | None
    gains: Mapping[str, NormGains]
    residuals: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reconstruction:
    """The transformation from the reference to the candidate.

    Attributes:
        reference: Label of the reference.
        stream: The map of the residual channels, U, and its scale.
        layers: All layers of the candidate, in order.
        final_gain: Gains of the norm before the head.
        residuals: Relative residuals of the embedding and of the head.
    """

    reference: str
    candidate: str
    stream: StreamMap
    layers: tuple[ReconstructedLayer, ...]
    final_gain: NormGains | None
    residuals: Mapping[str, float]
    version: str

    def __str__(self) -> str:
        """Summarise the transformation in a few lines."""
        return "\n".join(describe(self))

    def __repr__(self) -> str:
        """Return one line, without arrays."""
        n_matched, n_layers = len(self.layer_map), len(self.layers)
        return f"<Reconstruction {self.reference} -> {self.candidate}: {n_matched} of {n_layers} layers>"

    @property
    def layer_map(self) -> tuple[tuple[int, int], ...]:
        """Matched layers, as (reference, candidate)."""
        return tuple((layer.reference, layer.candidate) for layer in self.layers if layer.reference is not None)


def describe(reconstruction: Reconstruction) -> list[str]:
    """Summarise a reconstruction in a few lines."""
    stream = reconstruction.stream
    words = {
        "identity": "residual channels keep their places",
        "permutation": "residual channels are reordered",
        "signed_permutation": "residual channels are reordered and change signs",
        "rotation": "the residual stream is rotated",
        "channels": f"{stream.outer.n_candidate} of {stream.outer.n_reference} residual channels are kept",
    }
    scale = "" if stream.scale == 1.0 else f", scaled by {stream.scale:.6g}"
    lines = [f"{words[stream.outer.kind]}{scale}; relative residual {stream.residual:.2g}"]
    pairs = reconstruction.layer_map
    n_moved_layers = sum(i != j for i, j in pairs)
    places = f"{n_moved_layers} of them at another place" if n_moved_layers else "each in its place"
    lines.append(f"{len(pairs)} of {len(reconstruction.layers)} layers have a partner, {places}")
    n_reordered = sum(layer.attention is not None and layer.attention.moves_heads for layer in reconstruction.layers)
    kinds = sorted(
        {
            f"{name}: {blocks.kind.replace('_', ' ')}"
            for layer in reconstruction.layers
            if layer.attention is not None
            for name, blocks in (("values", layer.attention.values), ("keys", layer.attention.keys))
            if blocks is not None
        }
    )
    heads = f"heads are reordered in {n_reordered} layers" if n_reordered else "heads keep their places"
    lines.append(f"{heads}; {', '.join(kinds)}" if kinds else "no heads were matched")
    neurons = [layer.mlp.neurons for layer in reconstruction.layers if layer.mlp is not None]
    if neurons:
        n_moved = sum(int((neuron_map.reference != neuron_map.candidate).sum()) for neuron_map in neurons)
        n_all = sum(len(neuron_map.reference) for neuron_map in neurons)
        factors = sorted({neuron_map.kind for neuron_map in neurons} - {"order"})
        moved_neurons = (
            f"{n_moved:,} of {n_all:,} matched neurons moved"
            if n_moved
            else (f"all {n_all:,} matched neurons keep their places")
        )
        lines.append(moved_neurons + (f"; with {', '.join(factors)}" if factors else ""))
    return lines
