"""Write the defaults of transformers' config classes, for keys missing in a config.json: ``make class-defaults``."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from mdir_hf.model.roles.config import SYNONYMS, TABLE
from mdir_hf.model.roles.families import LAYER_ROWS, PRODUCT_ROWS
from mdir_hf.model.roles.rotary import SHARE_KEYS
from mdir_hf.model.roles.tables import NESTED_CONFIGS, OTHER_STACKS


def read_keys() -> set[str]:
    """Return every config key that the naming tables use."""
    layouts = [layout for row in LAYER_ROWS for _, layout in row.parts]
    layouts += [layout for row in PRODUCT_ROWS for layout in (row.left_layout, row.right_layout)]
    keys = set(_words([dataclasses.astuple(layout) for layout in layouts if layout is not None]))
    keys |= set(_words([row.n_heads for row in (*LAYER_ROWS, *PRODUCT_ROWS)]))
    keys |= {key for row in LAYER_ROWS for key, _ in row.when} | {key for synonyms in SYNONYMS for key in synonyms}
    return {key for key in keys if key.isidentifier()} | {"tie_word_embeddings"}


def _words(value: object) -> Iterator[str]:
    """Yield the words in nested tuples, with products split into factors."""
    if isinstance(value, str):
        yield from value.split("*")
    elif isinstance(value, tuple | list):
        for inside in value:
            yield from _words(inside)


def of_class(family: type[PreTrainedConfig]) -> dict[str, bool | int | str | float]:
    """Return the defaults of the keys that we read, without values that a class derives from others."""
    stated = {field.name: field.default for field in dataclasses.fields(family)}
    found = {key: value for key in sorted(read_keys()) if isinstance(value := stated.get(key), bool | int | str)}
    try:
        whole = family()
    except Exception:  # a few classes cannot be built without arguments
        return found
    rotation = getattr(whole, "rope_parameters", None)
    share = rotation.get(SHARE_KEYS[0]) if isinstance(rotation, dict) else None
    return found if not isinstance(share, float) or share == 1.0 else found | {SHARE_KEYS[0]: share}


def inside(family: type[PreTrainedConfig]) -> dict[str, str]:
    """Return the default ``model_type`` of each language model config inside a class."""
    try:
        whole = family()
    except Exception:
        return {}
    inner = {key: getattr(whole, key, None) for path in NESTED_CONFIGS for key in path if key in family.sub_configs}
    return {key: one.model_type for key, one in inner.items() if isinstance(one, PreTrainedConfig)}


def has_experts(family: type[PreTrainedConfig]) -> bool:
    """Return whether a class, or a config inside it, has a field about experts; False if it has none."""
    fields = [field.name for field in dataclasses.fields(family)]
    inner = [one for one in family.sub_configs.values() if one is not family and dataclasses.is_dataclass(one)]
    return any("expert" in name for name in fields) or any(map(has_experts, inner))


def table() -> dict[str, dict[str, object]]:
    """Return the whole table, as stored in the file."""
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = [name for name in sorted(CONFIG_MAPPING_NAMES) if not any(word in name for word in OTHER_STACKS)]
        families = {name: CONFIG_MAPPING[name] for name in names}
        defaults = {name: of_class(family) for name, family in families.items()}
        nested = {name: inside(family) for name, family in families.items()}
    return {
        "versions": {"transformers": transformers.__version__},
        "defaults": {name: found for name, found in defaults.items() if found},
        "inside": {name: found for name, found in nested.items() if found},
        "dense": {"families": [name for name, family in families.items() if not has_experts(family)]},
    }


def text(tables: dict[str, dict[str, object]]) -> str:
    """Return the table as JSON, with one family per line."""
    parts = (
        f'"{part}": {{\n' + ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()) + "\n}"
        for part, rows in tables.items()
    )
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    target = Path(__file__).resolve().parent.parent / "mdir_hf" / "model" / "roles" / TABLE
    target.write_text(text(table()), encoding="utf-8")
