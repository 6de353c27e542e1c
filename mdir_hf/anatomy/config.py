"""``config.json`` as data: what it says about sizes, without the class that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import AnatomyError
from . import tables
from .roles import HeadCounts

Config = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ConfigSizes:
    """What a config says about the language model; None where it does not say.

    Attributes:
        architecture: ``model_type`` of the language model, or ``unknown``.
        hidden_size: Width of the residual stream.
        embedding_size: Width of the embedding, where the config gives it separately.
        unembedding_size: Width of the output head, where the config gives it separately.
        n_layers: Number of layers.
        n_heads: Query heads per layer.
        n_kv_heads: Key/value heads per layer.
        head_dim: Width of a head.
        vocabulary_size: Rows of the embedding, padding included.
        ties_embeddings: Whether the unembedding is the embedding.
        rotary_share: Share of a head that rotary positions turn.
        n_experts: Routed experts per layer.
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
    rotary_share: float | None = None
    n_experts: int | None = None

    @property
    def heads(self) -> HeadCounts | None:
        """Head counts, where they are known."""
        if self.n_heads is None:
            return None
        return HeadCounts(self.n_heads, self.n_heads if self.n_kv_heads is None else self.n_kv_heads)


def read_config(data: bytes, *, label: str = "config.json") -> dict[str, object]:
    """Parse the bytes of a ``config.json``.

    Args:
        data: Its content.
        label: What to call it in an error.

    Raises:
        AnatomyError: If it is not JSON, no JSON object, or nested too deeply to be a config.
    """
    try:
        config = json.loads(data.decode("utf-8-sig"))
    except ValueError as exc:
        raise AnatomyError(f"the config is not JSON: {exc}", subject=label) from exc
    except RecursionError as exc:
        raise AnatomyError("the config is nested too deeply to be one", subject=label) from exc
    if not isinstance(config, dict):
        raise AnatomyError(f"the config is a JSON {type(config).__name__}; expected an object", subject=label)
    return config


def language_config(config: Config) -> Config:
    """Return the part of a config that describes the language model: ``text_config`` and the like, or all of it."""
    for path in tables.NESTED_CONFIGS:
        inner: object = config
        for key in path:
            inner = inner.get(key) if isinstance(inner, Mapping) else None
        if isinstance(inner, Mapping) and inner:
            return inner
    return config


def read_sizes(config: Config | None) -> ConfigSizes:
    """Read what a config says about sizes, under whichever names the family uses.

    Args:
        config: The whole config, or None where there is none.

    Raises:
        AnatomyError: If a size is there and is no positive integer. (A list of sizes, one per layer, counts as unsaid.)
    """
    if not config:
        return ConfigSizes()
    inner = language_config(config)
    architecture = inner.get("model_type", config.get("model_type"))
    ties = inner.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return ConfigSizes(
        architecture=architecture if isinstance(architecture, str) and architecture else "unknown",
        hidden_size=_size(inner, tables.HIDDEN_SIZE_KEYS),
        embedding_size=_size(inner, tables.EMBEDDING_SIZE_KEYS),
        unembedding_size=_size(inner, tables.UNEMBEDDING_SIZE_KEYS),
        n_layers=_size(inner, tables.N_LAYERS_KEYS),
        n_heads=_size(inner, tables.N_HEADS_KEYS),
        n_kv_heads=_size(inner, tables.N_KV_HEADS_KEYS),
        head_dim=_size(inner, tables.HEAD_DIM_KEYS),
        vocabulary_size=_size(inner, tables.VOCABULARY_SIZE_KEYS) or _size(config, tables.VOCABULARY_SIZE_KEYS),
        ties_embeddings=ties if isinstance(ties, bool) else None,
        rotary_share=_rotary_share(inner),
        n_experts=_n_experts(inner),
    )


def _rotary_share(config: Config) -> float | None:
    nested = config.get("rope_parameters")
    for place in (config, nested if isinstance(nested, Mapping) else {}):
        for key in tables.PARTIAL_ROTARY_KEYS:
            value = place.get(key)
            if isinstance(value, int | float) and 0.0 < value <= 1.0:
                return float(value)
    return None


def _n_experts(config: Config) -> int | None:
    # Dense models of families with experts say 0, or nothing.
    counts = (config.get(key) for key in tables.N_EXPERTS_KEYS)
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
