"""Defaults of the config classes of transformers, for keys that a ``config.json`` lacks.

Configs inside of others (``text_config``) are saved without what equals the default of their class: that of gemma-3-4b
has no head counts. ``class_defaults.json`` holds these defaults as data, so that transformers need not be imported;
``docs/make_class_defaults.py`` writes it, and a test holds that it is current.
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
"""The share of a head that positions turn, which some classes assume."""

SYNONYMS: tuple[tuple[str, ...], ...] = (
    tables.HIDDEN_SIZE_KEYS,
    tables.N_HEADS_KEYS,
    tables.N_KV_HEADS_KEYS,
    tables.HEAD_DIM_KEYS,
    (*SHARE_KEYS, *DIM_KEYS),
)
"""Keys of one meaning. Where a config has any of them, if only as null, no default is taken for it."""


def with_class_defaults(config: Mapping[str, object], model_type: str) -> dict[str, object]:
    """Add what transformers would assume of a family to what its config says.

    Args:
        config: Config of the language model.
        model_type: Its family; the config of one that transformers does not know comes back as it is.
    """
    said = set(config)
    for place in ("rope_parameters", "rope_scaling"):
        inside = config.get(place)
        said |= {key for key in SHARE_KEYS if isinstance(inside, Mapping) and key in inside}
    for keys in SYNONYMS:
        if not said.isdisjoint(keys):
            said.update(keys)
    assumed = {key: value for key, value in _table()["defaults"].get(model_type, {}).items() if key not in said}
    whole = {**config, **assumed}
    n_heads, n_kv_heads = (
        next((n for key in keys if type(n := whole.get(key)) is int and n > 0), 1)
        for keys in (tables.N_HEADS_KEYS, tables.N_KV_HEADS_KEYS)
    )
    if n_heads % n_kv_heads:  # transformers could not build it: the default belongs to another number of heads
        return {key: value for key, value in whole.items() if key in config or key not in tables.N_KV_HEADS_KEYS}
    return whole


def inner_model_type(outer: object, key: str) -> str | None:
    """The family that transformers assumes of a config inside of another, None where it assumes none.

    Args:
        outer: ``model_type`` of the outer config.
        key: Key of the inner one.
    """
    found = _table()["inside"].get(outer, {}).get(key) if isinstance(outer, str) else None
    return found if isinstance(found, str) else None


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, dict[str, object]]]:
    read: dict[str, dict[str, dict[str, object]]] = json.loads(files(__package__).joinpath(TABLE).read_bytes())
    return read
