"""Read a mergekit recipe as data, to find the source models of each layer of a merge.

Source: mergekit's ``MergeConfiguration``. Mixing weights are ignored; shares are measured instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mdir_hf.errors import CardError, InputError
from mdir_hf.plain_yaml import read_yaml

FILE = "mergekit_config.yml"
"""Name of the recipe file that mergekit writes to the folder of a merge."""

MAX_N_BYTES = 256 << 10
MOST_PARENTS = 64
MOST_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class LayerSource:
    """A parent's layer, used to make a layer of the merge."""

    parent: str
    layer: int


@dataclass(frozen=True, slots=True)
class MergeRecipe:
    """The recipe of a merge.

    Attributes:
        method: ``slerp``, ``ties``, ``passthrough``, …, or an empty string if unspecified.
        slices: Sources of each layer; None if each layer is made from the layer with the same number in
            every parent.
    """

    method: str
    parents: tuple[str, ...]
    base: str | None
    slices: tuple[tuple[LayerSource, ...], ...] | None

    def sources_of(self, layer: int) -> tuple[LayerSource, ...]:
        """Return a layer's sources, or an empty tuple beyond the recipe's last layer."""
        if self.slices is None:
            return tuple(LayerSource(parent, layer) for parent in self.parents)
        return self.slices[layer] if layer < len(self.slices) else ()


def read_recipe_file(path: Path) -> MergeRecipe:
    """Read a recipe from a file.

    Raises:
        InputError: If the file cannot be read.
        CardError: If it is not YAML, or not the recipe of a single merge.
    """
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise InputError(f"cannot read the recipe: {exc.strerror}", subject=str(path)) from exc
    return read_recipe(data, subject=str(path))


def read_recipe(data: bytes, *, subject: str) -> MergeRecipe:
    """Read a recipe as plain YAML, rejecting tags that would create Python objects.

    Raises:
        CardError: If the text is not YAML, or not the recipe of a single merge.
    """
    try:
        if len(data) > MAX_N_BYTES:
            raise ValueError(f"has {len(data):,} bytes, expected at most {MAX_N_BYTES:,}")
        return _recipe(read_yaml(data.decode("utf-8")))
    except ValueError as exc:
        reason = " ".join(str(exc).split())[:300]
        raise CardError(f"is not a supported mergekit recipe: {reason}", subject=subject) from exc


def _recipe(config: object) -> MergeRecipe:
    if not isinstance(config, dict):
        raise ValueError(f"expected a mapping, found a {type(config).__name__}")
    if "modules" in config:
        raise ValueError("it merges modules of several kinds separately (modules), which is not supported")
    base = _name(config["base_model"]) if config.get("base_model") else None
    slices = None
    if "slices" in config:
        every = (layer for entry in _list(config, "slices") for layer in _layers(_mapping(entry, "slice"), base))
        slices = tuple(islice(every, MOST_LAYERS + 1))
        if len(slices) > MOST_LAYERS:
            raise ValueError(f"its slices have more than {MOST_LAYERS:,} layers")
        source_names = [source.parent for layer in slices for source in layer]
    else:
        source_names = [_name(_mapping(entry, "model").get("model")) for entry in _list(config, "models")]
    parents = tuple(dict.fromkeys([*([] if base is None else [base]), *source_names]))
    if not source_names:
        raise ValueError("it names no models")
    if len(parents) > MOST_PARENTS:
        raise ValueError(f"it names {len(parents)} models, expected at most {MOST_PARENTS}")
    return MergeRecipe(str(config.get("merge_method") or "")[:40], parents, base, slices)


def _layers(part: Mapping[str, Any], base: str | None) -> Iterator[tuple[LayerSource, ...]]:
    ranges: dict[str, range] = {}
    for entry in _list(part, "sources"):
        source = _mapping(entry, "source")
        bounds = source.get("layer_range")
        if not (
            isinstance(bounds, list)
            and len(bounds) == 2
            and all(type(n) is int and 0 <= n < MOST_LAYERS for n in bounds)
        ):
            raise ValueError(f"a source has layer_range {bounds!r:.80}, expected two layer numbers")
        ranges[_name(source.get("model"))] = range(*bounds)
    if len(ranges) > MOST_PARENTS:
        raise ValueError(f"a slice has {len(ranges)} sources, expected at most {MOST_PARENTS}")
    lengths = {len(layers) for layers in ranges.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"the sources of a slice have {sorted(lengths)} layers, expected equal positive numbers")
    if base is not None and base not in ranges and len(ranges) > 1:
        ranges = {base: next(iter(ranges.values())), **ranges}
    for layers in zip(*ranges.values(), strict=True):
        yield tuple(LayerSource(parent, layer) for parent, layer in zip(ranges, layers, strict=True))


def _name(model: object) -> str:
    if isinstance(model, dict):
        inner = model.get("model")
        if isinstance(inner, dict):
            revision = inner.get("revision")
            model = f"{inner.get('path')}@{revision}" if revision else inner.get("path")
        else:
            model = inner
    if not isinstance(model, str) or not model.strip() or len(model) > 500:
        raise ValueError(f"{model!r:.80} names no model")
    if "+" in model:
        raise ValueError(f"{model!r:.80} is a model with an adapter, which is not supported; name a merged copy")
    return model.strip()


def _list(config: Mapping[str, Any], key: str) -> list[object]:
    value = config.get(key)
    if not isinstance(value, list) or not value:
        raise ValueError(f"its {key} is {value!r:.80}, expected a list")
    return value


def _mapping(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"a {what} is {value!r:.80}, expected a mapping")
    return value
