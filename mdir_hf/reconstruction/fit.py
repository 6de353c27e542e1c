"""Reconstructs the transformation that takes one opened model to another.

The order follows the paper: U from the embeddings (Algorithm 1), the map of layers (Algorithm 2), then the inner
transformations of each matched pair (Algorithm 3 and the appendix "Solving All Transformations").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from mdir_hf._version import __version__
from mdir_hf.comparison.layer_weights import layer_weights
from mdir_hf.comparison.tokens import common_tokens
from mdir_hf.errors import InputError
from mdir_hf.method.heads import HeadMap
from mdir_hf.method.inner_maps import BlockMap, Sides, fit_blocks, fit_planes, match_heads
from mdir_hf.method.modules import LayerWeights
from mdir_hf.method.neuron_maps import fit_neurons
from mdir_hf.method.planes import RopeLayout
from mdir_hf.method.stream_map import StreamMap
from mdir_hf.model.comparable import Comparable, PlacedTensors
from mdir_hf.model.roles import Role
from mdir_hf.processor import one_pool
from mdir_hf.reconstruction.experts import fit_experts
from mdir_hf.reconstruction.mlps import carried_mlp, mlp_residuals, relative_residual
from mdir_hf.reconstruction.norms import bias_name, pair_gains, read_gains
from mdir_hf.reconstruction.pair_layers import pair_layers
from mdir_hf.reconstruction.records import AttentionMap, MlpMap, NormGains, ReconstructedLayer, Reconstruction
from mdir_hf.reconstruction.stream import find_stream
from mdir_hf.report import HomologyReport, Verdict

OnLayer = Callable[[int, int], None]
"""Takes how many layers are done and how many there are."""


def fit_reconstruction(
    reference: Comparable,
    candidate: Comparable,
    report: HomologyReport | None = None,
    *,
    seed: int = 0,
    on_layer: OnLayer | None = None,
) -> Reconstruction:
    """Find the transformation from the reference to the candidate.

    Args:
        reference: One opened model.
        candidate: The other.
        report: The report of a comparison of the two; it has to be homologous. None: the caller answers for it.
        seed: Seed of the rows that U is fitted on and of random projections.
        on_layer: Told of each layer that is done.

    Returns:
        The reconstruction. Reads the embeddings (or a sample of their rows) and all layers of both models; one layer
        of each is in memory at a time.

    Raises:
        ReconstructionError: If the models have nothing that a transformation could be fitted on.
        InputError: If the report is not homologous.
    """
    if report is not None and report.verdict is not Verdict.HOMOLOGOUS:
        raise InputError(
            f"there is no transformation to reconstruct: the verdict is {report.verdict.value}, expected homologous"
        )
    with one_pool():
        common, _ = common_tokens(reference, candidate)
        keeps_mean = _subtracts_mean(candidate)
        stream, residuals = find_stream(reference, candidate, common, seed=seed, keeps_mean=keeps_mean)
        ancestors = {j: i for i, j in pair_layers(reference, candidate, stream, report)}
        n_layers = len(candidate.anatomy.layers)
        layers = []
        for j in range(n_layers):
            if on_layer is not None:
                on_layer(j, n_layers)
            layers.append(_layer(reference, candidate, ancestors.get(j), j, stream, seed=seed))
        if on_layer is not None:
            on_layer(n_layers, n_layers)
        return Reconstruction(
            reference=reference.label,
            candidate=candidate.label,
            stream=stream,
            layers=tuple(layers),
            final_gain=_final_gain(reference, candidate, stream),
            residuals=residuals,
            version=__version__,
        )


def _subtracts_mean(model: PlacedTensors) -> bool:
    """Whether the norms are LayerNorms: those have a bias beside their gain."""
    norms = [part for layer in model.anatomy.layers[:1] for role, part in layer.parts.items() if role.is_norm]
    if model.anatomy.final_norm is not None:
        norms.append(model.anatomy.final_norm)
    return any(bias_name(model, part) is not None for part in norms)


def _final_gain(reference: PlacedTensors, candidate: PlacedTensors, stream: StreamMap) -> NormGains | None:
    if candidate.anatomy.final_norm is None:
        return None
    is_tied = candidate.anatomy.unembedding is None and candidate.anatomy.tied
    return pair_gains(
        read_gains(reference, reference.anatomy.final_norm),
        read_gains(candidate, candidate.anatomy.final_norm),
        stream,
        must_stay=is_tied and stream.outer.kind != "rotation",
    )


def _layer(
    reference: PlacedTensors,
    candidate: PlacedTensors,
    ancestor: int | None,
    position: int,
    stream: StreamMap,
    *,
    seed: int,
) -> ReconstructedLayer:
    gains = _gains(reference, candidate, ancestor, position, stream)
    if ancestor is None:
        return ReconstructedLayer(None, position, None, None, None, gains, {})
    first, second = layer_weights(reference, ancestor), layer_weights(candidate, position)
    residuals: dict[str, float] = {}
    attention = _attention(first, second, stream, residuals)
    mlp = None
    if first.mlp is not None and second.mlp is not None:
        carried = carried_mlp(first.mlp, stream)
        mlp = MlpMap(fit_neurons(carried, second.mlp, seed=seed), len(second.mlp.up))
        residuals.update(mlp_residuals(mlp, carried, second.mlp))
    layer = candidate.anatomy.layers[position]
    experts = None
    if layer.experts or layer.shared_experts:
        experts = fit_experts(reference, candidate, (ancestor, position), stream, residuals, seed=seed)
    return ReconstructedLayer(ancestor, position, attention, mlp, experts, gains, residuals)


def _gains(
    reference: PlacedTensors, candidate: PlacedTensors, ancestor: int | None, position: int, stream: StreamMap
) -> Mapping[str, NormGains]:
    """Pair the norms in front of projections; under a rotation, gains of a layer without an ancestor move to 1."""
    parts = candidate.anatomy.layers[position].parts
    of_ancestor = {} if ancestor is None else reference.anatomy.layers[ancestor].parts
    return {
        role.value: pair_gains(read_gains(reference, of_ancestor.get(role)), read_gains(candidate, parts[role]), stream)
        for role in (Role.ATTENTION_NORM, Role.MLP_NORM, Role.SHARED_NORM)
        if role in parts
    }


def _attention(
    first: LayerWeights, second: LayerWeights, stream: StreamMap, residuals: dict[str, float]
) -> AttentionMap | None:
    """Match heads and fit the mixing of values and the turns of keys; adds the residuals of q, k, v and o."""
    counts = (first.n_kv_heads, second.n_kv_heads), (first.n_heads, second.n_heads)
    values = _sides(first, second, "v", "o", stream)
    keys = _sides(first, second, "k", "q", stream)
    if values is None and keys is None:
        return None
    layouts = _layouts(first, second)
    found = match_heads(
        values, keys, n_kv_heads=counts[0], n_heads=counts[1], layouts=layouts, rotary_dim=second.rotary_dim
    )

    def fit_keys(x: Sides, y: Sides) -> BlockMap:
        if layouts is None:
            return fit_blocks(x, y)
        signs_only = first.qk_norm or second.qk_norm
        return fit_planes(x, y, layouts, rotary_dim=second.rotary_dim, signs_only=signs_only)

    has_same_groups = counts[1][0] * counts[0][1] == counts[1][1] * counts[0][0]
    value_map = _fit(values, found, fit_blocks) if has_same_groups else None
    key_map = _fit(keys, found, fit_keys) if has_same_groups else None
    attention = AttentionMap(
        found.kv_reference,
        found.kv_candidate,
        found.q_reference,
        found.q_candidate,
        second.n_kv_heads,
        second.n_heads,
        value_map,
        key_map,
        layouts,
        second.rotary_dim,
    )
    maps = {
        "q": attention.query_rows,
        "k": attention.key_rows,
        "v": attention.value_rows,
        "o": attention.output_rows,
    }
    for role, row_map in maps.items():
        x, y = _rows(first, role, stream), _rows(second, role, None)
        if x is not None and y is not None and x.shape[0] == y.shape[0]:
            residuals[role] = relative_residual(row_map.apply(y), x)
    return attention


def _fit(sides: tuple[Sides, Sides] | None, found: HeadMap, fit: Callable[[Sides, Sides], BlockMap]) -> BlockMap | None:
    """Fit the maps of matched heads; None if heads of different size cannot be mapped one by one."""
    if sides is None:
        return None
    x = sides[0].taken(found.kv_reference, found.q_reference)
    y = sides[1].taken(found.kv_candidate, found.q_candidate)
    if x.single.shape[1] != y.single.shape[1] or x.grouped.shape[2] != x.single.shape[1]:
        return None
    return fit(x, y)


def _layouts(first: LayerWeights, second: LayerWeights) -> tuple[RopeLayout, RopeLayout] | None:
    if "none" in (first.rope, second.rope):
        return None
    known = tuple("half" if layer.rope == "unknown" else layer.rope for layer in (first, second))
    return known  # type: ignore[return-value]


def _rows(layer: LayerWeights, role: str, stream: StreamMap | None) -> torch.Tensor | None:
    """Rows of a projection on the side of its heads, carried into the candidate's stream if one is given."""
    rows = layer.inner_rows(role, None if stream is None else stream.outer)  # type: ignore[arg-type]
    if rows is None or stream is None or role != "o":
        return rows
    return rows * stream.scale


def _sides(
    first: LayerWeights, second: LayerWeights, single: str, grouped: str, stream: StreamMap
) -> tuple[Sides, Sides] | None:
    rows = [(_rows(layer, single, s), _rows(layer, grouped, s)) for layer, s in ((first, stream), (second, None))]
    if any(part is None for pair in rows for part in pair):
        return None
    sides = [
        Sides.of(pair[0], pair[1], layer.n_kv_heads, layer.n_heads)  # type: ignore[arg-type]
        for pair, layer in zip(rows, (first, second), strict=True)
    ]
    return sides[0], sides[1]
