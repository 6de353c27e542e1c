"""Reads the sizes of a model from its ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from mdir_hf.errors import AnatomyError
from mdir_hf.model.roles import tables
from mdir_hf.model.roles.class_defaults import inner_model_type, with_class_defaults
from mdir_hf.model.roles.gguf import GGUF_MARK
from mdir_hf.model.roles.layer_heads import read_layer_heads
from mdir_hf.model.roles.numbered_channels import meaning_of_numbers
from mdir_hf.model.roles.roles import HeadCounts
from mdir_hf.model.roles.rotary import Rotation, read_rotations

Config = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ConfigSizes:
    """Sizes of the language model according to a config; missing ones are None.

    Attributes:
        architecture: ``model_type`` of the language model, or ``unknown``.
        hidden_size: Width of the residual stream.
        embedding_size: Width of the embedding, if stated separately.
        unembedding_size: Width of the output head, if stated separately.
        n_layers: Number of layers.
        n_heads: Query heads per layer.
        n_kv_heads: Key/value heads per layer.
        head_dim: Width of a head.
        vocabulary_size: Rows of the embedding, including padding.
        ties_embeddings: Whether the unembedding is the embedding.
        rotation: How rotary positions turn q and k.
        layer_rotations: The same for layers that differ from the model's, by number.
        n_experts: Routed experts per layer.
        n_shared_experts: Experts per layer that process every token.
        numbers: Every integer by key; keys of nested dictionaries are ``outer.inner``.
        flags: Every boolean and string by key, like ``numbers``.
        layer_heads: Head counts of layers that differ from the model's, by number.
        channel_numbers: Meaning of the number of a residual channel, as a clause, or None.
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

    @property
    def heads(self) -> HeadCounts | None:
        """Head counts, or None."""
        if self.n_heads is None:
            return None
        n_kv_heads = self.n_heads if self.n_kv_heads is None else self.n_kv_heads
        return HeadCounts(self.n_heads, n_kv_heads, self.numbers)

    @property
    def width_of_head(self) -> int | None:
        """Width of a head, from the config, else from the width of the model."""
        if self.head_dim is not None:
            return self.head_dim
        if self.hidden_size is None or self.n_heads is None or self.hidden_size % self.n_heads:
            return None
        return self.hidden_size // self.n_heads

    def heads_of(self, index: int) -> HeadCounts | None:
        """Return the head counts of one layer, or None."""
        return self.layer_heads.get(index, self.heads)


def read_config(data: bytes, *, label: str = "config.json") -> dict[str, object]:
    """Parse the bytes of a ``config.json``.

    Raises:
        AnatomyError: If it is not a JSON object, or too deeply nested.
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
    """Return the part of a config that describes the language model: ``text_config`` or similar, or all of it.

    If that part has no ``model_type``, transformers' default is added.
    """
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
    """Read sizes from a config, under whichever keys the family uses.

    Args:
        config: The whole config, or None.
        class_defaults: Whether to use transformers' defaults for missing keys, if it knows the family.

    Raises:
        AnatomyError: If a size is not a positive integer. (A list of sizes, one per layer, is ignored.)
    """
    if not config:
        return ConfigSizes()
    stated = language_config(config)
    architecture = stated.get("model_type", config.get("model_type"))
    architecture = architecture if isinstance(architecture, str) and architecture else "unknown"
    architecture = tables.SAME_AS.get(architecture, architecture)
    # Missing keys of a GGUF header are not defaults of a class.
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
        # Latent attention without positions states 0, the width of the turned rows, as the width of a head.
        head_dim=_size({key: inner[key] for key in tables.HEAD_DIM_KEYS if inner.get(key)}, tables.HEAD_DIM_KEYS),
        vocabulary_size=_size(inner, tables.VOCABULARY_SIZE_KEYS) or _size(config, tables.VOCABULARY_SIZE_KEYS),
        ties_embeddings=ties if isinstance(ties, bool) else None,
        n_experts=_n_experts(inner, tables.N_EXPERTS_KEYS),
        n_shared_experts=_n_experts(inner, tables.N_SHARED_EXPERTS_KEYS),
        numbers={key: value for key, value in _scalars(inner) if type(value) is int},
        flags={key: value for key, value in _scalars(inner) if isinstance(value, bool | str)},
    )
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


def _width_beside(config: Config, architecture: str) -> int | None:
    """Return the width of the stack that the embedding belongs to, if another stack is compared."""
    key, family = tables.EMBEDDING_CONFIGS.get(architecture, ("", ""))
    beside = config.get(key)
    if not isinstance(beside, Mapping):
        return None
    return _size(with_class_defaults(beside, family), tables.HIDDEN_SIZE_KEYS)


def _scalars(config: Config) -> Iterator[tuple[str, object]]:
    """Yield every entry; nested ones as ``outer.inner``."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inside) for name, inside in value.items())
        else:
            yield key, value


def _n_experts(config: Config, keys: tuple[str, ...]) -> int | None:
    # Dense models of families with experts state 0, or nothing. DBRX has the number in a nested config.
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
