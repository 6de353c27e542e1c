"""Reads the heads of single layers, if a config states them layer by layer or by type of layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import cast

from mdir_hf.model.roles.roles import Count, HeadCounts, head_counts, is_number

_Config = Mapping[str, object]

N_HEADS_LISTS = ("num_attention_heads_per_layer", "num_query_heads", "num_attention_heads")
N_KV_HEADS_LISTS = ("num_key_value_heads_per_layer", "num_kv_heads", "num_key_value_heads")
"""Keys of lists with a number for each layer (Laguna, OpenELM, DeciLM)."""

HEADS_BY_LAYER_TYPE: tuple[tuple[str, frozenset[str], tuple[Count, Count]], ...] = (
    ("hybrid_sliding", frozenset(), ("swa_num_attention_heads", "swa_num_key_value_heads")),
    ("sliding_attention", frozenset(), ("swa_num_attention_heads", "swa_num_key_value_heads")),
    # transformers 5.23 does not write the numbers of layers with a window; they have twice the keys.
    ("sliding_attention", frozenset({"mimo_v2_flash"}), ("heads", "2*kv_heads")),
)
"""Entry of ``layer_types``, families (empty for any), query heads and key/value heads."""


def read_layer_heads(
    config: _Config, architecture: str, heads: HeadCounts | None, numbers: Mapping[str, int], *, most_layers: int
) -> dict[int, HeadCounts]:
    """Read the heads of layers for which a config states them; invalid values are ignored.

    Returns:
        Head counts by layer number, for layers that differ from ``heads``.
    """
    layer_heads: dict[int, HeadCounts] = {}
    for index, layer_type in enumerate(_items(config.get("layer_types"))[:most_layers]):
        for name, families, counts in HEADS_BY_LAYER_TYPE:
            if layer_type == name and (not families or architecture in families) and index not in layer_heads:
                _put(layer_heads, index, counts, heads)
    n_heads, n_kv_heads = (
        next((list(_items(config[key])) for key in keys if isinstance(config.get(key), list)), [])
        for keys in (N_HEADS_LISTS, N_KV_HEADS_LISTS)
    )
    for index in range(min(most_layers, max(len(n_heads), len(n_kv_heads)))):
        own = n_heads[index] if index < len(n_heads) else (heads and heads.n_heads)
        kv = n_kv_heads[index] if index < len(n_kv_heads) else (own if heads is None else heads.n_kv_heads)
        _put(layer_heads, index, (own, kv), heads)
    # DeciLM states, block by block, how many query heads share a key.
    for index, block in enumerate(_items(config.get("block_configs"))[:most_layers]):
        shared = _inside(_inside(block, "attention"), "n_heads_in_group")
        if heads is not None and type(shared) is int and shared > 0 and heads.n_heads % shared == 0:
            _put(layer_heads, index, ("heads", heads.n_heads // shared), heads)
    own_configs = config.get("per_layer_config")
    for key, layer in islice(own_configs.items(), most_layers) if isinstance(own_configs, Mapping) else ():
        own, kv = (_inside(layer, name) for name in ("num_attention_heads", "num_key_value_heads"))
        if is_number(str(key)) and (own is not None or kv is not None):
            _put(layer_heads, int(key), ("heads" if own is None else own, "kv_heads" if kv is None else kv), heads)
    return {index: replace(own, numbers=numbers) for index, own in layer_heads.items() if own != heads}


def _put(
    layer_heads: dict[int, HeadCounts], index: int, counts: tuple[object, object], heads: HeadCounts | None
) -> None:
    """Store the heads of a layer if both counts are valid."""
    if not all(type(count) in (int, str) for count in counts):
        return
    own = head_counts(cast("tuple[Count, Count]", counts), heads)
    if own is not None and own.n_heads > 0 and own.n_kv_heads > 0:
        layer_heads[index] = own


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _inside(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, Mapping) else None
