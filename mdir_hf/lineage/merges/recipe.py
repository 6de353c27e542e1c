"""The YAML of mergekit as data: the models of each layer of a merge.

Source: mergekit's ``MergeConfiguration`` (``models`` or ``slices``, ``base_model``, ``merge_method``). Parameters such
as weights and densities are not read: shares are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mdir_hf.errors import CardError
from mdir_hf.plain_yaml import read_yaml

FILE = "mergekit_config.yml"
"""What mergekit writes into the folder of a merge."""

MAX_N_BYTES = 256 << 10
MOST_PARENTS = 64
MOST_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class LayerSource:
    """One layer of a parent that went into a layer of the merge.

    Attributes:
        parent: The parent, as the recipe names it.
        layer: Number of the layer there.
    """

    parent: str
    layer: int


@dataclass(frozen=True, slots=True)
class MergeRecipe:
    """What a merge was made from.

    Attributes:
        method: ``slerp``, ``ties``, ``passthrough``, …; empty where it does not say.
        parents: Every model that it names, the base model among them, in order.
        base: The base model; None without one.
        slices: For each layer of the merge what went into it, in order; None: every layer of every parent into the
            layer of its number.
    """

    method: str
    parents: tuple[str, ...]
    base: str | None
    slices: tuple[tuple[LayerSource, ...], ...] | None

    def sources_of(self, layer: int) -> tuple[LayerSource, ...]:
        """What went into a layer; nothing where the merge has more layers than the recipe."""
        if self.slices is None:
            return tuple(LayerSource(parent, layer) for parent in self.parents)
        return self.slices[layer] if layer < len(self.slices) else ()


def read_recipe(data: bytes, *, subject: str) -> MergeRecipe:
    """Read a recipe. YAML is read as data: tags that would make objects are refused.

    Args:
        data: The file.
        subject: What an error calls it.

    Raises:
        CardError: If it is not YAML, or no recipe of one merge.
    """
    try:
        if len(data) > MAX_N_BYTES:
            raise ValueError(f"has {len(data):,} bytes, expected at most {MAX_N_BYTES:,}")
        return _recipe(read_yaml(data.decode("utf-8")))
    except ValueError as exc:
        said = " ".join(str(exc).split())[:300]
        raise CardError(f"is no recipe of mergekit that is read here: {said}", subject=subject) from exc


def _recipe(config: object) -> MergeRecipe:
    if not isinstance(config, dict):
        raise ValueError(f"expected a mapping, found a {type(config).__name__}")
    if "modules" in config:
        raise ValueError("it merges parts of models of several kinds apart (modules), which is not read")
    base = _name(config["base_model"]) if config.get("base_model") else None
    slices = None
    if "slices" in config:
        every = (layer for one in _list(config, "slices") for layer in _layers(_mapping(one, "slice"), base))
        slices = tuple(islice(every, MOST_LAYERS + 1))
        if len(slices) > MOST_LAYERS:
            raise ValueError(f"its slices have more than {MOST_LAYERS:,} layers")
        named = [source.parent for layer in slices for source in layer]
    else:
        named = [_name(_mapping(one, "model").get("model")) for one in _list(config, "models")]
    parents = tuple(dict.fromkeys([*([] if base is None else [base]), *named]))
    if not named:
        raise ValueError("it names no models")
    if len(parents) > MOST_PARENTS:
        raise ValueError(f"it names {len(parents)} models, expected at most {MOST_PARENTS}")
    return MergeRecipe(str(config.get("merge_method") or "")[:40], parents, base, slices)


def _layers(part: Mapping[str, Any], base: str | None) -> Iterator[tuple[LayerSource, ...]]:
    """The layers of one slice; where sources name no base model, mergekit takes the base's layers of the first."""
    ranges: dict[str, range] = {}
    for one in _list(part, "sources"):
        source = _mapping(one, "source")
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
        raise ValueError(f"the sources of a slice have {sorted(lengths)} layers, expected as many in each, and some")
    if base is not None and base not in ranges and len(ranges) > 1:
        ranges = {base: next(iter(ranges.values())), **ranges}
    for layers in zip(*ranges.values(), strict=True):
        yield tuple(LayerSource(parent, layer) for parent, layer in zip(ranges, layers, strict=True))


def _name(model: object) -> str:
    """A model as mergekit names it: a text, or a mapping with its path and revision."""
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
        raise ValueError(f"{model!r:.80} is a model with an adapter, which is not read; name a merged copy")
    return model.strip()


def _list(config: Mapping[str, Any], key: str) -> list[object]:
    found = config.get(key)
    if not isinstance(found, list) or not found:
        raise ValueError(f"its {key} is {found!r:.80}, expected a list")
    return found


def _mapping(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"a {what} is {value!r:.80}, expected a mapping")
    return value
