"""Find the map of the residual stream from the embeddings, the output heads or, if both are new, the layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mdir_hf.comparison.keys import compare_heads, head_keys, map_of_heads
from mdir_hf.comparison.layer_weights import RoleReader, layer_weights, layers_with
from mdir_hf.comparison.reading import FiniteRows
from mdir_hf.errors import ReconstructionError
from mdir_hf.method.gauge import ResidualBasisMap
from mdir_hf.method.neuron_maps import fit_neurons
from mdir_hf.method.stream_map import TOLD, RowProducts, StreamMap, fit_stream, held_out_share
from mdir_hf.model.comparable import Comparable, PlacedTensors, head_of, matrix_spec
from mdir_hf.model.roles import Role
from mdir_hf.model.tokens import CommonVocabulary
from mdir_hf.reconstruction.mlps import carried_mlp, read_gains
from mdir_hf.report import HomologyReport

LIKE = 0.5
"""Minimum likeness at which layers in the same position are paired without a search."""

LEAST_LIKE = 0.15
"""Minimum likeness of a layer and its ancestor. Unrelated layers do not reach it."""


def pair_layers(
    reference: PlacedTensors, candidate: PlacedTensors, stream: StreamMap, report: HomologyReport | None
) -> list[tuple[int, int]]:
    """Return the pairs of matching layers, as positions in ``anatomy.layers``, in the candidate's order.

    If the report maps all layers, its matches are used. Otherwise, layers are paired by :class:`LayerLikeness`,
    starting with layers in the same position.
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
    """Likeness of two layers: how much of the reference's value rows is in the span of the candidate's (0 is chance).

    Layers are kept in memory.
    """

    def __init__(self, reference: PlacedTensors, candidate: PlacedTensors, outer: ResidualBasisMap) -> None:
        self._readers = RoleReader(reference, Role.V), RoleReader(candidate, Role.V)
        self._outer = outer
        self._carried: dict[int, torch.Tensor] = {}
        self._bases: dict[int, torch.Tensor] = {}
        self.reference_layers = layers_with(reference, Role.V)
        self.candidate_layers = layers_with(candidate, Role.V)

    def __call__(self, reference: int, candidate: int) -> float:
        """Return the likeness of two layers."""
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
    layer, anatomy = model.anatomy.layers[position], model.anatomy
    n_heads = layer.heads.n_kv_heads if layer.heads else anatomy.n_kv_heads or anatomy.n_heads or 1
    n_heads = n_heads if len(rows) % n_heads == 0 else 1
    return rows.reshape(n_heads, len(rows) // n_heads, rows.shape[1])


ROWS_PER_CHANNEL = 8
"""Maximum number of paired rows per channel that are used to fit U."""

BLOCK_ROWS = 4096

REFINED_ON_LAYERS, REFINEMENTS = 6, 2
"""Number of layers whose matched neurons refine a map fitted on keys, and number of refinements."""


def find_stream(
    reference: Comparable, candidate: Comparable, common: CommonVocabulary, *, seed: int, keeps_mean: bool
) -> tuple[StreamMap, dict[str, float]]:
    """Find the residual-stream map U and its scale, and the residuals of the compared embeddings and heads.

    Set ``keeps_mean`` if the norms subtract the mean.

    Raises:
        ReconstructionError: If the widths differ, and neither embeddings nor layers yield a map.
    """
    residuals: dict[str, float] = {}
    best: StreamMap | None = None
    for name in ("embedding", "unembedding"):
        halves = _products_of_tokens(reference, candidate, name, common, seed=seed)
        if halves is None:
            continue
        stream = fit_stream(halves[0] + halves[1], keeps_mean=keeps_mean, fitted_on=f"{name}s")
        residuals[name] = stream.residual
        is_matched = stream.outer.kind not in ("rotation", "channels")  # a matching is significant by itself
        if is_matched or held_out_share(*halves, keeps_mean=keeps_mean) >= TOLD:
            # A head's scale is not the stream's scale.
            best = stream if name == "embedding" else StreamMap(stream.outer, 1.0, stream.residual)
            break
    return best or _stream_of_layers(reference, candidate, seed=seed, keeps_mean=keeps_mean), residuals


def _products_of_tokens(
    reference: Comparable, candidate: Comparable, name: str, common: CommonVocabulary, *, seed: int
) -> tuple[RowProducts, RowProducts] | None:
    """Add up the products of rows for the same tokens, in two halves; return None if rows cannot be paired."""
    models = (reference, candidate)
    is_head = name == "unembedding"
    parts = [head_of(model) if is_head else model.anatomy.embedding for model in models]
    if any(part is None for part in parts) or not len(common):
        return None
    specs = [matrix_spec(model, part) for model, part in zip(models, parts, strict=True) if part is not None]
    widths = (reference.anatomy.hidden_size, candidate.anatomy.hidden_size)
    if tuple(spec.shape[1] for spec in specs) != widths:
        return None
    rows = common.within(specs[0].shape[0], specs[1].shape[0])
    gains = [read_gains(model, model.anatomy.final_norm)[0] if is_head else None for model in models]
    positions = np.arange(len(rows), dtype=np.int64)
    n_wanted = ROWS_PER_CHANNEL * max(widths)
    if len(positions) > n_wanted:
        positions = np.sort(np.random.default_rng(seed).choice(positions, n_wanted, replace=False))
    readers = [FiniteRows(model) for model in models]
    halves = RowProducts.empty(*widths), RowProducts.empty(*widths)
    for start in range(0, len(positions), BLOCK_ROWS):
        at = positions[start : start + BLOCK_ROWS]
        numbers = rows.reference_rows[at], rows.candidate_rows[at]
        blocks = [
            reader.read_rows(spec.name, of_model).double()
            for reader, spec, of_model in zip(readers, specs, numbers, strict=True)
        ]
        x, y = (block if gain is None else block * gain for block, gain in zip(blocks, gains, strict=True))
        for half, products in enumerate(halves):
            products.add(x[half::2], y[half::2])
    return halves


def _stream_of_layers(reference: PlacedTensors, candidate: PlacedTensors, *, seed: int, keeps_mean: bool) -> StreamMap:
    """Try the identity and a map fitted on keys, and refine the one under which value rows are more similar."""
    widths = (reference.anatomy.hidden_size, candidate.anatomy.hidden_size)
    possible_maps = [ResidualBasisMap.identity(widths[0])] if widths[0] == widths[1] else []
    keys = head_keys((reference, candidate))
    heads = None if keys is None else compare_heads((reference, candidate), seed=seed, keys=keys)
    if heads is not None and heads.pairs:
        pairs = [(i, j) for i, j, _ in heads.pairs]
        on_keys = map_of_heads((reference, candidate), pairs, seed=seed, keys=keys)
        possible_maps += [] if on_keys is None else [on_keys]
    if not possible_maps:
        raise ReconstructionError(
            f"the residual streams are {widths[0]} and {widths[1]} wide, and neither the embeddings nor the keys of "
            "the layers relate them",
            subject=f"{reference.label} and {candidate.label}",
        )
    scores = [_likeness(reference, candidate, outer) for outer in possible_maps]
    outer = possible_maps[scores.index(max(scores))]
    stream = StreamMap(outer, 1.0, 1.0)
    if outer.kind == "identity":
        return stream
    # Keys and queries cannot tell U from -U: both change signs, but their products do not.
    either = [StreamMap(turned, 1.0, 1.0) for turned in (outer, _negated(outer))]
    stream = max(either, key=lambda stream: _agreement(reference, candidate, stream, seed=seed))
    for _ in range(REFINEMENTS):
        products = _products_of_neurons(reference, candidate, stream, seed=seed)
        if products is None:
            break
        refined = fit_stream(products, keeps_mean=keeps_mean, fitted_on="neurons of the layers")
        stream = StreamMap(refined.outer, 1.0, refined.residual)
    return stream


def _likeness(reference: PlacedTensors, candidate: PlacedTensors, outer: ResidualBasisMap) -> float:
    likeness = LayerLikeness(reference, candidate, outer)
    common_layers = sorted(set(likeness.reference_layers) & set(likeness.candidate_layers))
    sampled_layers = common_layers[:: max(1, len(common_layers) // REFINED_ON_LAYERS)]
    return sum(likeness(at, at) for at in sampled_layers) / max(1, len(sampled_layers))


def _negated(outer: ResidualBasisMap) -> ResidualBasisMap:
    if outer.matrix is not None:
        return replace(outer, matrix=-outer.matrix)
    assert outer.signs is not None
    kind = "signed_permutation" if outer.n_reference == outer.n_candidate else outer.kind
    return replace(outer, kind=kind, signs=-outer.signs)


def _agreement(reference: PlacedTensors, candidate: PlacedTensors, stream: StreamMap, *, seed: int) -> float:
    """Return the trace of the products of matched neurons under a map."""
    products = _products_of_neurons(reference, candidate, stream, seed=seed)
    return 0.0 if products is None else float(stream.outer.carry_in(products.cross.T).diagonal().sum())


def _products_of_neurons(
    reference: PlacedTensors, candidate: PlacedTensors, stream: StreamMap, *, seed: int
) -> RowProducts | None:
    """Add up the products of matched neurons in a few layers that have the same position in both models."""
    common_layers = sorted(set(layers_with(reference, Role.UP)) & set(layers_with(candidate, Role.UP)))
    products = RowProducts.empty(stream.outer.n_reference, stream.outer.n_candidate)
    for at in common_layers[:: max(1, len(common_layers) // REFINED_ON_LAYERS)]:
        first, second = layer_weights(reference, at).mlp, layer_weights(candidate, at).mlp
        if first is None or second is None:
            continue
        neurons = fit_neurons(carried_mlp(first, stream), second, seed=seed)
        a, b = torch.from_numpy(neurons.reference), torch.from_numpy(neurons.candidate)
        scales = neurons.scales[:, None]
        products.add(first.up[a], second.up[b] / scales)
        products.add(first.down.T[a], second.down.T[b] * scales)
        if first.gate is not None and second.gate is not None:
            products.add(first.gate[a], second.gate[b])
    return products if float(products.reference.sum()) > 0.0 else None
