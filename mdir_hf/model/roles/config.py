"""Read a model's sizes from its ``config.json``.

Nested configs such as ``text_config`` omit class defaults, which ``docs/make_class_defaults.py`` collects in
``class_defaults.json``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from itertools import islice
from typing import cast

from mdir_hf.errors import AnatomyError
from mdir_hf.model.roles import tables
from mdir_hf.model.roles.gguf import GGUF_MARK
from mdir_hf.model.roles.numbered_channels import meaning_of_numbers
from mdir_hf.model.roles.roles import HeadCounts, StatedCount, head_counts, is_number
from mdir_hf.model.roles.rotary import DIM_KEYS, SHARE_KEYS, Rotation, read_rotations

_Config = Mapping[str, object]

N_HEADS_LISTS = ("num_attention_heads_per_layer", "num_query_heads", "num_attention_heads")
N_KV_HEADS_LISTS = ("num_key_value_heads_per_layer", "num_kv_heads", "num_key_value_heads")
"""Config keys for lists with one number per layer (Laguna, OpenELM, DeciLM)."""

HEADS_BY_LAYER_TYPE: tuple[tuple[str, frozenset[str], tuple[StatedCount, StatedCount]], ...] = (
    ("hybrid_sliding", frozenset(), ("swa_num_attention_heads", "swa_num_key_value_heads")),
    ("sliding_attention", frozenset(), ("swa_num_attention_heads", "swa_num_key_value_heads")),
    # transformers 5.23 does not save the head counts of windowed layers, which have twice as many key/value heads.
    ("sliding_attention", frozenset({"mimo_v2_flash"}), ("heads", "2*kv_heads")),
)
"""Value in ``layer_types``, families that use it (empty for any), and numbers of query and key/value heads."""


def read_layer_heads(
    config: _Config, architecture: str, heads: HeadCounts | None, numbers: Mapping[str, int], *, most_layers: int
) -> dict[int, HeadCounts]:
    """Return the head counts that differ from ``heads``, keyed by layer number."""
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
        q = n_heads[index] if index < len(n_heads) else (heads and heads.n_heads)
        kv = n_kv_heads[index] if index < len(n_kv_heads) else (q if heads is None else heads.n_kv_heads)
        _put(layer_heads, index, (q, kv), heads)
    # DeciLM states, block by block, how many query heads share a key.
    for index, block in enumerate(_items(config.get("block_configs"))[:most_layers]):
        shared = _inside(_inside(block, "attention"), "n_heads_in_group")
        if heads is not None and type(shared) is int and shared > 0 and heads.n_heads % shared == 0:
            _put(layer_heads, index, ("heads", heads.n_heads // shared), heads)
    own_configs = config.get("per_layer_config")
    for key, layer in islice(own_configs.items(), most_layers) if isinstance(own_configs, Mapping) else ():
        q, kv = (_inside(layer, name) for name in ("num_attention_heads", "num_key_value_heads"))
        if is_number(str(key)) and (q is not None or kv is not None):
            _put(
                layer_heads,
                int(key),
                ("heads" if q is None else q, "kv_heads" if kv is None else kv),
                heads,
            )
    return {index: replace(counts, numbers=numbers) for index, counts in layer_heads.items() if counts != heads}


def _put(
    layer_heads: dict[int, HeadCounts], index: int, counts: tuple[object, object], heads: HeadCounts | None
) -> None:
    if not all(type(count) in (int, str) for count in counts):
        return
    heads_of_layer = head_counts(cast("tuple[StatedCount, StatedCount]", counts), heads)
    if heads_of_layer is not None and heads_of_layer.n_heads > 0 and heads_of_layer.n_kv_heads > 0:
        layer_heads[index] = heads_of_layer


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _inside(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, Mapping) else None


TABLE = "class_defaults.json"

SYNONYMS: tuple[tuple[str, ...], ...] = (
    tables.HIDDEN_SIZE_KEYS,
    tables.N_HEADS_KEYS,
    tables.N_KV_HEADS_KEYS,
    tables.HEAD_DIM_KEYS,
    (*SHARE_KEYS, *DIM_KEYS),
)
"""Groups of keys with the same meaning. If a config contains any key of a group, even as null, no default is added."""


def with_class_defaults(config: Mapping[str, object], model_type: str) -> dict[str, object]:
    """Add transformers' defaults for a model family to a config."""
    stated = set(config)
    for place in ("rope_parameters", "rope_scaling"):
        inside = config.get(place)
        stated |= {key for key in SHARE_KEYS if isinstance(inside, Mapping) and key in inside}
    for keys in SYNONYMS:
        if not stated.isdisjoint(keys):
            stated.update(keys)
    assumed = {key: value for key, value in _table()["defaults"].get(model_type, {}).items() if key not in stated}
    whole = {**config, **assumed}
    n_heads, n_kv_heads = (
        next((n for key in keys if type(n := whole.get(key)) is int and n > 0), 1)
        for keys in (tables.N_HEADS_KEYS, tables.N_KV_HEADS_KEYS)
    )
    if n_heads % n_kv_heads:  # transformers could not build it; the default is for another number of heads
        return {key: value for key, value in whole.items() if key in config or key not in tables.N_KV_HEADS_KEYS}
    return whole


def inner_model_type(outer: object, key: str) -> str | None:
    """Return the family that transformers assumes for a nested config."""
    family = _table()["inside"].get(outer, {}).get(key) if isinstance(outer, str) else None
    return family if isinstance(family, str) else None


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, dict[str, object]]]:
    read: dict[str, dict[str, dict[str, object]]] = json.loads(files(__package__).joinpath(TABLE).read_bytes())
    return read


_SIZES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
}


def params_config(params: Mapping[str, object]) -> dict[str, object]:
    """Convert the valid sizes in a ``params.json`` to the keys of a ``config.json``."""
    mixture = params.get("moe")
    sizes = {name: params.get(key) for key, name in _SIZES.items()}
    sizes["num_experts"] = mixture.get("num_experts") if isinstance(mixture, Mapping) else None
    return {name: size for name, size in sizes.items() if type(size) is int and size > 0}


Config = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ConfigSizes:
    """The language model's sizes according to its config; missing sizes are None.

    Attributes:
        vocabulary_size: Number of rows in the embedding, including padding.
        n_shared_experts: Number of experts per layer that process every token.
        numbers: All integers, keyed as in the config; a nested key is ``outer.inner``.
        flags: All booleans and strings, keyed in the same way.
        layer_rotations: Rotations that differ from the model's, keyed by layer number.
        channel_numbers: Clause that explains the meaning of a residual channel's number, or None.
        embedding_scale: Factor of the embedding rows.
        is_dense: Whether the class of the config has no experts.
    """

    architecture: str = "unknown"
    hidden_size: int | None = None
    embedding_size: int | None = None
    unembedding_size: int | None = None
    n_layers: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    head_dim: int | None = None
    vocabulary_size: int | None = None
    ties_embeddings: bool | None = None
    rotation: Rotation = field(default_factory=Rotation)
    n_experts: int | None = None
    n_shared_experts: int | None = None
    numbers: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    flags: Mapping[str, bool | str] = field(default_factory=dict, compare=False, repr=False)
    layer_heads: Mapping[int, HeadCounts] = field(default_factory=dict, compare=False, repr=False)
    layer_rotations: Mapping[int, Rotation] = field(default_factory=dict, compare=False, repr=False)
    channel_numbers: str | None = None
    embedding_scale: float = 1.0
    is_dense: bool = False

    @property
    def heads(self) -> HeadCounts | None:
        """The model's head counts, or None."""
        if self.n_heads is None:
            return None
        n_kv_heads = self.n_heads if self.n_kv_heads is None else self.n_kv_heads
        return HeadCounts(self.n_heads, n_kv_heads, self.numbers)

    @property
    def width_of_head(self) -> int | None:
        """Width of a head, as stated or derived from the model's width."""
        if self.head_dim is not None:
            return self.head_dim
        if self.hidden_size is None or self.n_heads is None or self.hidden_size % self.n_heads:
            return None
        return self.hidden_size // self.n_heads

    def heads_of(self, index: int) -> HeadCounts | None:
        """Return a layer's head counts, or None."""
        return self.layer_heads.get(index, self.heads)


def read_config(data: bytes, *, label: str = "config.json") -> dict[str, object]:
    """Parse a ``config.json``.

    Raises:
        AnatomyError: If the file is not a JSON object, or is too deeply nested.
    """
    try:
        config = json.loads(data.decode("utf-8-sig"))
    except ValueError as exc:
        raise AnatomyError(f"the config is not JSON: {exc}", subject=label) from exc
    except RecursionError as exc:
        raise AnatomyError("the config is nested too deeply", subject=label) from exc
    if not isinstance(config, dict):
        raise AnatomyError(f"the config is a JSON {type(config).__name__}; expected an object", subject=label)
    return config


def language_config(config: Config) -> Config:
    """Return the language model's part of a config, such as ``text_config``, or else the whole config."""
    for path in tables.NESTED_CONFIGS:
        inner: object = config
        family: object = config.get("model_type")
        for key in path:
            assumed = inner_model_type(family, key)
            inner = inner.get(key) if isinstance(inner, Mapping) else None
            family = inner.get("model_type", assumed) if isinstance(inner, Mapping) else None
        if isinstance(inner, Mapping) and inner:
            return inner if family is None else {**inner, "model_type": family}
    return config


def read_sizes(config: Config | None, *, class_defaults: bool = True) -> ConfigSizes:
    """Read the language model's sizes from a config.

    If ``class_defaults``, transformers' defaults fill in missing sizes. Lists of sizes are ignored, except for
    head counts.

    Raises:
        AnatomyError: If a size is not a positive integer.
    """
    if not config:
        return ConfigSizes()
    stated = language_config(config)
    architecture = stated.get("model_type", config.get("model_type"))
    architecture = architecture if isinstance(architecture, str) and architecture else "unknown"
    architecture = tables.SAME_AS.get(architecture, architecture)
    # Keys that a GGUF header lacks do not stand for class defaults.
    inner = with_class_defaults(stated, architecture) if class_defaults and GGUF_MARK not in config else stated
    # A default of True is used. A default of False is not, because a missing head already shows it.
    assumed = inner.get("tie_word_embeddings") or None
    ties = stated.get("tie_word_embeddings", config.get("tie_word_embeddings", assumed))
    sizes = ConfigSizes(
        architecture=architecture,
        hidden_size=_size(inner, tables.HIDDEN_SIZE_KEYS),
        embedding_size=_size(inner, tables.EMBEDDING_SIZE_KEYS) or _width_beside(config, architecture),
        unembedding_size=_size(inner, tables.UNEMBEDDING_SIZE_KEYS),
        n_layers=_size(inner, tables.N_LAYERS_KEYS),
        n_heads=_size(inner, tables.N_HEADS_KEYS),
        n_kv_heads=_size(inner, tables.N_KV_HEADS_KEYS),
        # Latent attention without positions states a head width of 0, the width of the rotated rows.
        head_dim=_size({key: inner[key] for key in tables.HEAD_DIM_KEYS if inner.get(key)}, tables.HEAD_DIM_KEYS),
        vocabulary_size=_size(inner, tables.VOCABULARY_SIZE_KEYS) or _size(config, tables.VOCABULARY_SIZE_KEYS),
        ties_embeddings=ties if isinstance(ties, bool) else None,
        n_experts=_n_experts(inner, tables.N_EXPERTS_KEYS),
        n_shared_experts=_n_experts(inner, tables.N_SHARED_EXPERTS_KEYS),
        numbers={key: value for key, value in _scalars(inner) if type(value) is int},
        flags={key: value for key, value in _scalars(inner) if isinstance(value, bool | str)},
    )
    is_own_code = GGUF_MARK in config or bool(config.get("auto_map"))
    is_dense = architecture in _table()["dense"]["families"] and not is_own_code
    sizes = replace(sizes, is_dense=is_dense and sizes.n_experts is None)
    sizes = replace(sizes, embedding_scale=_embedding_scale(inner, sizes))
    sizes = replace(sizes, channel_numbers=meaning_of_numbers(architecture, sizes.flags, config))
    if sizes.architecture in tables.VALUES_SHARE_THE_STREAM and sizes.hidden_size and sizes.n_heads:
        values = {"v_head_dim": sizes.hidden_size // sizes.n_heads}
        sizes = replace(sizes, numbers=values | dict(sizes.numbers))
    layer_heads = read_layer_heads(
        inner, sizes.architecture, sizes.heads, sizes.numbers, most_layers=tables.MOST_LAYERS
    )
    rotation, layer_rotations = read_rotations(
        inner, sizes.architecture, sizes.flags, sizes.width_of_head, most_layers=tables.MOST_LAYERS
    )
    return replace(sizes, layer_heads=layer_heads, rotation=rotation, layer_rotations=layer_rotations)


def _embedding_scale(config: Config, sizes: ConfigSizes) -> float:
    is_by_root = config.get("scale_embedding") is True or sizes.architecture in tables.SCALED_BY_ROOT_OF_WIDTH
    if is_by_root and sizes.hidden_size:
        return math.sqrt(sizes.hidden_size)
    stated = (config.get(key) for key in tables.EMBEDDING_SCALE_KEYS)
    scales = (float(value) for value in stated if isinstance(value, int | float) and not isinstance(value, bool))
    return next((scale for scale in scales if 0.0 < scale < math.inf), 1.0)


def _width_beside(config: Config, architecture: str) -> int | None:
    key, family = tables.EMBEDDING_CONFIGS.get(architecture, ("", ""))
    beside = config.get(key)
    if not isinstance(beside, Mapping):
        return None
    return _size(with_class_defaults(beside, family), tables.HIDDEN_SIZE_KEYS)


def _scalars(config: Config) -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inside) for name, inside in value.items())
        else:
            yield key, value


def _n_experts(config: Config, keys: tuple[str, ...]) -> int | None:
    # Dense models in families with experts state 0 or nothing. DBRX has the number in a nested config.
    inside = config.get("ffn_config")
    places = (config, inside if isinstance(inside, Mapping) else {})
    counts = (place.get(key) for place in places for key in keys)
    return next((n for n in counts if type(n) is int and 0 < n <= tables.MOST_EXPERTS), None)


def _size(config: Config, keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = config.get(key)
        if value is None or isinstance(value, list):
            continue
        if type(value) is not int or value <= 0:
            raise AnatomyError(f"the config says {key} = {value!r}; expected a positive integer")
        return value
    return None


def sizes_of_stack(sizes: ConfigSizes, prefix: str) -> ConfigSizes:
    """Return the sizes of the encoder or decoder, whichever the stack's prefix mentions."""
    for side in ("decoder", "encoder"):
        if side in prefix:
            n_layers, n_heads = (
                next((n for key in keys if (n := sizes.numbers.get(key, 0)) > 0), None)
                for keys in (
                    (f"{side}_layers", f"num_{side}_layers"),
                    (f"{side}_attention_heads", f"num_{side}_attention_heads"),
                )
            )
            return replace(sizes, n_layers=n_layers or sizes.n_layers, n_heads=n_heads or sizes.n_heads)
    return sizes


def without_foreign_defaults(
    config: Config | None, sizes: ConfigSizes, shape: tuple[int, ...], notes: list[str]
) -> ConfigSizes:
    """Discard the class defaults if the width comes from them and differs from the embedding's."""
    stated = read_sizes(config, class_defaults=False)
    if stated.hidden_size is not None or sizes.hidden_size in (None, *shape[1:]):
        return sizes
    notes.append(
        f"the config does not state its width, and the embedding's, {shape[-1] if shape else 'unknown'}, differs from "
        f"transformers' default of {sizes.hidden_size}, so no defaults were used"
    )
    return replace(stated, architecture=sizes.architecture)
