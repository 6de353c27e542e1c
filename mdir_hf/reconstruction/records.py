"""The transformation from one model to another, as frozen records.

A head is a block of ``d`` rows, a neuron a block of one. Rows are mapped by a permutation of blocks and one invertible
matrix for each (paper, appendix on inner transformations).
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


@dataclass(frozen=True, slots=True, eq=False)
class RowMap:
    """Maps the rows of one matrix to the places and axes of another.

    Attributes:
        order: Which block moves to each place, ``(k,)``: a permutation.
        matrices: ``(k, d, d)``, the factor on the block at each place; None for the identity.
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


def full_order(reference: IntArray, candidate: IntArray, n_blocks: int) -> IntArray:
    """Order all candidate blocks: first blocks with a partner, by its number, then the others."""
    matched = candidate[np.argsort(reference, kind="stable")]
    rest = np.setdiff1d(np.arange(n_blocks, dtype=np.int64), matched)
    return np.concatenate([matched, rest]).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMap:
    """Heads of one matched pair of layers.

    Attributes:
        kv_reference: Matched key-value heads, ``(k,)`` ascending.
        kv_candidate: The candidate's head for each.
        q_reference: Matched query heads, group by group.
        n_kv_heads: Key-value heads of the candidate.
        n_heads: Query heads of the candidate.
        values: H of each key-value head: ``V' = H V`` and ``O' = O H^-1``; None if V or O is missing.
        keys: The same for K and Q; rotations of planes under rotary positions.
        layouts: How rotary rows are paired in the two models; None without rotary positions.
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
        """Map of the candidate's V to the reference's places and axes."""
        return self._single(self.values)

    @property
    def output_rows(self) -> RowMap:
        """Map of the candidate's O^T."""
        return self._grouped(self.values)

    @property
    def key_rows(self) -> RowMap:
        """Map of the candidate's K."""
        return self._single(self.keys)

    @property
    def query_rows(self) -> RowMap:
        """Map of the candidate's Q."""
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
        """Return query heads of the candidate in their new order."""
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
        """Return H^-1 of every key-value head in its new place; the identity for unmatched ones."""
        if blocks is None or blocks.matrices is None:
            return None
        d = blocks.matrices.shape[1]
        every = torch.eye(d, dtype=torch.float64).repeat(self.n_kv_heads, 1, 1)
        every[: len(blocks.matrices)] = torch.linalg.inv(blocks.matrices.double())
        return every


@dataclass(frozen=True, slots=True, eq=False)
class MlpMap:
    """Neurons of one MLP or expert; ``n_neurons`` are the candidate's."""

    neurons: NeuronMap
    n_neurons: int

    @property
    def gate_rows(self) -> RowMap:
        """Map of the candidate's gate to the reference's places."""
        return RowMap(full_order(self.neurons.reference, self.neurons.candidate, self.n_neurons))

    @property
    def up_rows(self) -> RowMap:
        """Map of the candidate's up to the reference's places, signs and sizes."""
        return self._scaled(1.0 / self.neurons.scales)

    @property
    def down_rows(self) -> RowMap:
        """Map of the candidate's down^T to the reference's places, signs and sizes."""
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
    """Experts of one layer: routed ones by number, then shared ones.

    Attributes:
        reference: Matched routed experts, ``(k,)``.
        candidate: The candidate's expert for each. Several may come from one.
        mlps: Neurons of the candidate's routed experts, by number.
        shared: Neurons of its shared experts.
    """

    reference: IntArray
    candidate: IntArray
    mlps: tuple[MlpMap, ...]
    shared: tuple[MlpMap, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class NormGains:
    """Gains of a norm in both models, as factors on the normalised stream.

    Attributes:
        reference: ``(n_reference,)``; None for a norm without gain.
        candidate: ``(n_candidate,)``; None for a norm without gain.
        is_moved: Whether the aligned norm has the reference's gain and the next weights absorb the ratio.
        reference_bias: ``(n_reference,)`` of a LayerNorm, else None.
        candidate_bias: ``(n_candidate,)``.
    """

    reference: torch.Tensor | None
    candidate: torch.Tensor | None
    is_moved: bool
    reference_bias: torch.Tensor | None = None
    candidate_bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ReconstructedLayer:
    """One layer of the candidate with its partner, and the changes inside it.

    Attributes:
        reference: Position of the partner, from 0. None: no partner; its inner side stays.
        candidate: Its own position.
        mlp: Neurons of a dense MLP.
        gains: Norms before its projections, by role.
        residuals: ``|W_aligned - W|_F / |W_aligned|_F`` of each projection, by role, gains folded in, over matched
            rows.
    """

    reference: int | None
    candidate: int
    attention: AttentionMap | None
    mlp: MlpMap | None
    experts: ExpertsMap | None
    gains: Mapping[str, NormGains]
    residuals: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Reconstruction:
    """The transformation from the reference to the candidate.

    Attributes:
        reference: Label of the reference.
        candidate: Label of the candidate.
        stream: The map of residual channels, U, and the scale of the residual stream.
        layers: Every layer of the candidate, in order.
        final_gain: The norm before the head.
        residuals: Relative residuals of the embedding and of the head.
        version: Version of this package.
    """

    reference: str
    candidate: str
    stream: StreamMap
    layers: tuple[ReconstructedLayer, ...]
    final_gain: NormGains | None
    residuals: Mapping[str, float]
    version: str

    @property
    def layer_map(self) -> tuple[tuple[int, int], ...]:
        """Matched layers: (reference, candidate)."""
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
    moved = sum(i != j for i, j in pairs)
    places = f"{moved} of them at another place" if moved else "each in its place"
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
        n_moved = sum(int((each.reference != each.candidate).sum()) for each in neurons)
        n_all = sum(len(each.reference) for each in neurons)
        factors = sorted({each.kind for each in neurons} - {"order"})
        moved_neurons = (
            f"{n_moved:,} of {n_all:,} matched neurons moved"
            if n_moved
            else (f"all {n_all:,} matched neurons keep their places")
        )
        lines.append(moved_neurons + (f"; with {', '.join(factors)}" if factors else ""))
    return lines
