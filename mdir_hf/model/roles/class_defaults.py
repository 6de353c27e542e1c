"""Defaults of transformers' config classes, for keys that a ``config.json`` lacks.

Nested configs (``text_config``) are saved without values that equal the default of their class; gemma-3-4b's has no
head counts. ``class_defaults.json`` holds these defaults as data, so that transformers need not be imported;
``docs/make_class_defaults.py`` writes it, and a test checks that it is current.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files

from mdir_hf.model.roles import tables
from mdir_hf.model.roles.rotary import DIM_KEYS, SHARE_KEYS

TABLE = "class_defaults.json"

SHARE = SHARE_KEYS[0]
"""The share of a head that rotary positions turn, which some classes define."""

SYNONYMS: tuple[tuple[str, ...], ...] = (
    tables.HIDDEN_SIZE_KEYS,
    tables.N_HEADS_KEYS,
    tables.N_KV_HEADS_KEYS,
    tables.HEAD_DIM_KEYS,
    (*SHARE_KEYS, *DIM_KEYS),
)
"""Keys with the same meaning. If a config has any of them, even as null, no default is used for it."""


def with_class_defaults(config: Mapping[str, object], model_type: str) -> dict[str, object]:
    """Add transformers' defaults for a family to its config; configs of unknown families are unchanged."""
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
    if n_heads % n_kv_heads:  # transformers could not build it; the default belongs to another number of heads
        return {key: value for key, value in whole.items() if key in config or key not in tables.N_KV_HEADS_KEYS}
    return whole


def inner_model_type(outer: object, key: str) -> str | None:
    """Return the family that transformers assumes for a nested config, or None."""
    family = _table()["inside"].get(outer, {}).get(key) if isinstance(outer, str) else None
    return family if isinstance(family, str) else None


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, dict[str, object]]]:
    read: dict[str, dict[str, dict[str, object]]] = json.loads(files(__package__).joinpath(TABLE).read_bytes())
    return read
