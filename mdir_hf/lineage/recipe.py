"""Read a mergekit recipe as data: the sources of each layer of a merge, and the parameters of the method.

Source: mergekit's ``MergeConfiguration`` and ``ConfigReader``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mdir_hf.errors import CardError, InputError
from mdir_hf.plain_yaml import read_yaml
from mdir_hf.regular_file import open_regular

FILE = "mergekit_config.yml"
"""Name of the recipe file that mergekit writes to the folder of a merge."""

MAX_N_BYTES = 256 << 10
MOST_PARENTS = 64
MOST_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class LayerSource:
    """A parent's layer, used to make a layer of the merge; None stands for the tensors outside of layers."""

    parent: str
    layer: int | None
    parameters: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RecipeLayer:
    """The sources of a layer of the merge, and the parameters that apply to it.

    Attributes:
        position: Position of the layer in its slice, from 0 to 1; gradients are evaluated there.
        parameters: Parameters of the slice, then of the whole recipe.
    """

    sources: tuple[LayerSource, ...]
    base: str | None
    position: float
    parameters: tuple[Mapping[str, object], ...]

    def parameter(self, name: str, tensor: str, source: LayerSource | None = None) -> object:
        """Return a parameter of a tensor, for one source or for all, or None if the recipe does not set it."""
        settings = self.parameters if source is None else (source.parameters, *self.parameters)
        values = (_evaluated(setting[name], tensor, self.position) for setting in settings if name in setting)
        return next((value for value in values if value is not None), None)


@dataclass(frozen=True, slots=True)
class RecipeSlice:
    """Consecutive layers of a merge that are made from the same models.

    Attributes:
        sources: The models, with their first layers.
        n_layers: Number of layers; None for all layers of the models.
    """

    sources: tuple[LayerSource, ...]
    n_layers: int | None
    parameters: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class MergeRecipe:
    """The recipe of a merge.

    Attributes:
        method: ``slerp``, ``ties``, ``passthrough``, …, or an empty string if unspecified.
        dtype: Name of the dtype in which mergekit merges, or None for the dtype of the models.
        out_dtype: Name of the dtype in which mergekit stores the result, or None for ``dtype``.
        changes_tokens: Whether the recipe chooses a tokenizer, so that embedding rows may be moved.
    """

    method: str
    parents: tuple[str, ...]
    base: str | None
    slices: tuple[RecipeSlice, ...]
    dtype: str | None = None
    out_dtype: str | None = None
    changes_tokens: bool = False
    parameters: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)

    @property
    def n_layers(self) -> int | None:
        """Number of layers of the merge, or None if the recipe takes all layers of its models."""
        counts = [part.n_layers for part in self.slices]
        return None if None in counts else sum(count for count in counts if count is not None)

    def layer(self, number: int, n_layers: int) -> RecipeLayer | None:
        """Return the recipe of a layer of a merge with ``n_layers`` layers, or None beyond the last one."""
        first = 0
        for part in self.slices:
            length = n_layers if part.n_layers is None else part.n_layers
            if number < first + length:
                offset = number - first
                sources = tuple(
                    LayerSource(source.parent, (source.layer or 0) + offset, source.parameters)
                    for source in part.sources
                )
                position = offset / (length - 1) if length > 1 else 1.0
                return RecipeLayer(sources, self.base, position, (part.parameters, self.parameters))
            first += length
        return None

    def outside_layers(self, *, is_output: bool) -> RecipeLayer:
        """Return the recipe of tensors before the first layer, or after the last one."""
        part = self.slices[-1 if is_output else 0]
        sources = tuple(LayerSource(source.parent, None, source.parameters) for source in part.sources)
        return RecipeLayer(sources, self.base, 0.0, (part.parameters, self.parameters))


def read_recipe_file(path: Path) -> MergeRecipe:
    """Read a recipe from a file.

    Raises:
        InputError: If the file cannot be read.
        CardError: If it is not YAML, or not the recipe of a single merge.
    """
    try:
        with open_regular(path) as file:
            data = file.read(MAX_N_BYTES + 1)
    except OSError as exc:
        raise InputError(f"cannot be read: {exc.strerror}", subject=str(path)) from exc
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
    if "slices" in config:
        slices = tuple(_slice(_mapping(entry, "slice"), base) for entry in _list(config, "slices"))
        if sum(part.n_layers or 0 for part in slices) > MOST_LAYERS:
            raise ValueError(f"its slices have more than {MOST_LAYERS:,} layers")
    else:
        models = [_mapping(entry, "model") for entry in _list(config, "models")]
        sources = {_name(model.get("model")): _parameters(model) for model in models}
        if base is not None:
            sources.setdefault(base, {})
        slices = (RecipeSlice(tuple(LayerSource(name, 0, own) for name, own in sources.items()), None),)
    names = (source.parent for part in slices for source in part.sources)
    parents = tuple(dict.fromkeys([*([] if base is None else [base]), *names]))
    if len(parents) > MOST_PARENTS:
        raise ValueError(f"it names {len(parents)} models, expected at most {MOST_PARENTS}")
    dtypes = [None if config.get(key) is None else str(config[key])[:40] for key in ("dtype", "out_dtype")]
    return MergeRecipe(
        method=str(config.get("merge_method") or "")[:40],
        parents=parents,
        base=base,
        slices=slices,
        dtype=dtypes[0],
        out_dtype=dtypes[1],
        changes_tokens=bool(config.get("tokenizer_source") or config.get("tokenizer")),
        parameters=_parameters(config),
    )


def _slice(part: Mapping[str, Any], base: str | None) -> RecipeSlice:
    sources: dict[str, LayerSource] = {}
    lengths: set[int] = set()
    for entry in _list(part, "sources"):
        source = _mapping(entry, "source")
        bounds = source.get("layer_range")
        if not (
            isinstance(bounds, list)
            and len(bounds) == 2
            and all(type(n) is int and 0 <= n < MOST_LAYERS for n in bounds)
        ):
            raise ValueError(f"a source has layer_range {bounds!r:.80}, expected two layer numbers")
        name = _name(source.get("model"))
        sources[name] = LayerSource(name, bounds[0], _parameters(source))
        lengths.add(max(0, bounds[1] - bounds[0]))
    if len(sources) > MOST_PARENTS:
        raise ValueError(f"a slice has {len(sources)} sources, expected at most {MOST_PARENTS}")
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"the sources of a slice have {sorted(lengths)} layers, expected equal positive numbers")
    if base is not None and base not in sources and len(sources) > 1:
        sources = {base: LayerSource(base, next(iter(sources.values())).layer), **sources}
    return RecipeSlice(tuple(sources.values()), lengths.pop(), _parameters(part))


def _parameters(entry: Mapping[str, Any]) -> Mapping[str, object]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    return _mapping(parameters, "set of parameters")


def _evaluated(setting: object, tensor: str, position: float) -> object:
    """Evaluate a number, a gradient along the layers, or a list of values with filters on tensor names."""
    if isinstance(setting, dict):
        setting = [setting]
    if not isinstance(setting, list):
        return setting
    if setting and all(type(value) in (int, float) for value in setting):
        place = position * (len(setting) - 1)
        low = min(max(int(place), 0), len(setting) - 1)
        high = min(low + 1, len(setting) - 1)
        return (1 - (place - low)) * setting[low] + (place - low) * setting[high]
    for entry in setting:
        if isinstance(entry, dict) and not isinstance(entry.get("value"), dict):
            pattern = entry.get("filter")
            if pattern in (None, "*") or (isinstance(pattern, str) and pattern in tensor):
                return _evaluated(entry.get("value"), tensor, position)
    return None


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
