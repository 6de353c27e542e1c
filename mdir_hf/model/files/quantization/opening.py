"""Inputs for decoding a weight: its stored parts, and the quantisation declared in the config."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from mdir_hf.budgets import CONFIG_JSON, json_weight
from mdir_hf.errors import CorruptCheckpointError, UnsupportedFormatError
from mdir_hf.model.files.quantization.coded import Grid, column_grid, fit_grid
from mdir_hf.model.files.quantization.parts import QuantizedParts
from mdir_hf.model.sources import FileTree, StoredTensors, TensorSpec
from mdir_hf.validation import T, read_json

MOST_GROUP = 1 << 20
_KEYS = ("quantization_config", "compression_config", "quantization")
_NESTED = ("text_config", "llm_config", "language_config")
_FRONT = frozenset({"model", "language_model", "text_model", "llm", "thinker", "transformer", "base_model"})
"""Leading name components to ignore, because files and configs may write them differently."""

_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Files in which AutoGPTQ, AutoAWQ and ModelOpt declare the quantisation if ``config.json`` does not."""

_CONV1D_FAMILIES = frozenset({"gpt2", "openai-gpt", "imagegpt"})
_CONV1D = re.compile(r"(?:.*\.)?(?:c_attn|q_attn|c_proj|c_fc)\.weight")

DeclaredSettings = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Declared:
    """The quantisation that a config declares; missing properties are None or empty.

    Attributes:
        of_modules: Settings for individual modules, keyed by module name without prefixes such as ``model``.
    """

    settings: DeclaredSettings = field(default_factory=lambda: MappingProxyType({}))
    family: str | None = None
    of_modules: Mapping[str, DeclaredSettings] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def method(self) -> str:
        """Name of the library in lower case, or empty."""
        return self._text("quant_method") or self._text("method")

    @property
    def layout(self) -> str:
        """The library's name for the tensor layout, or empty."""
        return self._text("checkpoint_format") or self._text("format") or self._text("version")

    @property
    def algorithm(self) -> str:
        """Name of ModelOpt's algorithm in lower case, or empty."""
        return self._text("quant_algo")

    @property
    def block(self) -> tuple[int, int] | None:
        """Shape ``(rows, columns)`` of the blocks that share a scale; ``(1, group_size)`` for groups."""
        for settings in (self.settings, *self._weight_groups()):
            for key in ("weight_block_size", "block_structure"):
                value = settings.get(key)
                if isinstance(value, str) and re.fullmatch(r"\d{1,7}x\d{1,7}", value):
                    value = [int(part) for part in value.split("x")]
                if isinstance(value, list) and len(value) == 2:
                    rows, columns = (_size(part) for part in value)
                    if rows and columns:
                        return rows, columns
        sizes = self.group_sizes
        return (1, sizes[0]) if len(sizes) == 1 else None

    @property
    def bits(self) -> tuple[int, ...]:
        """The distinct bit widths."""
        widths = [self.settings.get(key) for key in ("bits", "w_bit", "num_bits")]
        widths += [group.get("num_bits") for group in self._weight_groups()]
        return tuple(dict.fromkeys(bits for bits in widths if type(bits) is int and 1 <= bits <= 8))

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """The distinct group sizes."""
        sizes = [self.settings.get(key) for key in ("group_size", "q_group_size")]
        sizes += [group.get("group_size") for group in self._weight_groups()]
        return tuple(dict.fromkeys(size for size in map(_size, sizes) if size))

    @property
    def is_symmetric(self) -> bool | None:
        """Whether all zero points are in the middle of the range."""
        value = self.settings.get("sym")
        return value if isinstance(value, bool) else None

    @property
    def divides_by_scale(self) -> bool:
        """Whether codes must be divided by ``weight_scale_inv`` (GPTQModel)."""
        return self._text("weight_scale_semantics") == "inverse"

    @property
    def packs_densely(self) -> bool | None:
        """Whether compressed-tensors packed codes of 3, 5, 6 or 7 bits densely; None if unknown."""
        match = re.match(r"(\d+)\.(\d+)", self._text("version"))
        return None if match is None else (int(match[1]), int(match[2])) >= (0, 18)

    def of_module(self, module: str) -> tuple[DeclaredSettings, ...]:
        """Return the settings that may apply to a module, starting with its own."""
        own_settings = self.settings.get(module, self.of_modules.get(_without_front(module)))
        return (own_settings, self.settings) if isinstance(own_settings, Mapping) else (self.settings,)

    def stores_transposed(self, weight: str) -> bool:
        """Return whether the unquantised model stores this weight as ``(d_in, d_out)``."""
        return self.family in _CONV1D_FAMILIES and _CONV1D.fullmatch(weight) is not None

    def notes(self) -> Iterator[str]:
        """Yield notes about properties that are not visible in the tensors."""
        if _mentions_rotation(self.settings):
            yield (
                "rotated: its config lists rotations that were multiplied into the weights (QuaRot or SpinQuant), so "
                "its channels differ from those in the model it was made from"
            )
        algorithms = self.algorithm + " ".join(_names_of_algorithms(self.settings.get("algo_config")))
        if "smooth" in algorithms or "_sq" in algorithms:
            yield rescaled("SmoothQuant")
        elif "awq" in algorithms:
            yield rescaled("AWQ")

    def _text(self, key: str) -> str:
        value = self.settings.get(key)
        return value.strip().lower().replace("-", "_") if isinstance(value, str) else ""

    def _weight_groups(self) -> Iterator[DeclaredSettings]:
        groups = self.settings.get("config_groups")
        for group in groups.values() if isinstance(groups, Mapping) else ():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if isinstance(weights, Mapping):
                yield weights


def rescaled(method: str) -> str:
    """Return the note for a method that rescales channels."""
    return (
        f"{method}: per-channel rescaled: norms and the matrices after them, and some pairs of matrices, were divided "
        "and multiplied by one factor for each channel, which leaves the model's function unchanged; the embedding is "
        "untouched"
    )


def read_declared(tree: FileTree) -> Declared:
    """Read the quantisation declared in a tree's root.

    Raises:
        HubError: If an existing file cannot be read.
    """
    config = _read_json(tree, "config.json")
    family = config.get("model_type")
    stated = next(_settings_in(config), None)
    if stated is None:
        for path in _FILES:
            more = _read_json(tree, path)
            stated = next(_settings_in(more), None) or more or None
            if stated is not None:
                break
    settings = MappingProxyType(dict(stated or {}))
    return Declared(settings, family if isinstance(family, str) else None, MappingProxyType(_of_modules(settings)))


def _of_modules(settings: DeclaredSettings) -> dict[str, DeclaredSettings]:
    short: dict[str, DeclaredSettings] = {}
    unclear: set[str] = set()
    for name, own_settings in settings.items():
        if isinstance(own_settings, Mapping) and "." in name:
            key = _without_front(name)
            if short.setdefault(key, own_settings) != own_settings:
                unclear.add(key)
    return {name: own_settings for name, own_settings in short.items() if name not in unclear}


def _without_front(module: str) -> str:
    words = module.split(".")
    n_front = next((place for place, word in enumerate(words) if word not in _FRONT), len(words))
    return ".".join(words[n_front:])


def _settings_in(config: DeclaredSettings) -> Iterator[DeclaredSettings]:
    for place in (config, *(config.get(key) for key in _NESTED)):
        for key in _KEYS:
            value = place.get(key) if isinstance(place, Mapping) else None
            if isinstance(value, Mapping) and value:
                yield value


def _read_json(tree: FileTree, path: str) -> DeclaredSettings:
    if path not in tree.files:
        return {}
    try:
        data = tree.read(path, max_bytes=CONFIG_JSON.n_bytes)
        loaded = {} if json_weight(data) > CONFIG_JSON.n_items else json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return {}  # the config's own reader reports errors; hints are optional
    return loaded if isinstance(loaded, dict) else {}


def _size(value: object) -> int | None:
    return value if type(value) is int and 0 < value <= MOST_GROUP else None


def _mentions_rotation(settings: DeclaredSettings) -> bool:
    transforms = settings.get("transform_config")
    groups = transforms.get("config_groups") if isinstance(transforms, Mapping) else None
    names = " ".join(_names_of_algorithms(settings.get("algo_config")))
    return bool(groups) or any(word in names for word in ("rotation", "quarot", "spinquant"))


def _names_of_algorithms(value: object) -> Iterator[str]:
    for entry in value if isinstance(value, list) else [value]:
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if isinstance(name, str):
            yield name.lower()


MOST_SMALL_BYTES = 1 << 20
"""Size limit for companions read to open a weight (a shape, a JSON state, a scalar)."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The inputs for opening a weight."""

    stored: StoredTensors
    parts: QuantizedParts
    declared: Declared

    @property
    def codes(self) -> TensorSpec:
        """Spec of the codes."""
        return self.stored.spec(self.parts.codes)

    def has(self, part: str) -> bool:
        """Return whether the weight has this companion."""
        return part in self.parts.companions

    def spec(self, part: str) -> TensorSpec:
        """Return the spec of a companion.

        Raises:
            CorruptCheckpointError: If the companion is missing.
        """
        name = self.parts.name_of(part)
        if not self.has(part):
            raise self.corrupt(
                f"tensor {self.parts.codes!r} holds codes of a quantised weight, but its companion {name!r} is not in "
                "the checkpoint; the upload or the conversion is incomplete"
            )
        return self.stored.spec(name)

    def grid(self, part: str, shape: tuple[int, ...], *, block: tuple[int, int] | None = None) -> Grid:
        """Return a companion as a grid over a weight of the given shape."""
        spec = self.spec(part)
        grid = fit_grid(spec, shape, block=block or self.declared.block)
        if grid is None:
            raise self.misfit()
        return grid

    def column_scale(self, shape: tuple[int, ...]) -> tuple[Grid, ...]:
        """Return the factors by which to multiply the weight's columns, if any."""
        if not self.has("column_scale"):
            return ()
        spec = self.spec("column_scale")
        grid = column_grid(spec, shape)
        if grid is None:
            raise self.misfit()
        return (grid,)

    def small(self, part: str) -> torch.Tensor:
        """Read a companion of at most :data:`MOST_SMALL_BYTES`."""
        spec = self.spec(part)
        if spec.n_bytes > MOST_SMALL_BYTES:
            raise self.corrupt(f"tensor {spec.name!r} of {self.parts.codes!r} has {spec.n_bytes:,} bytes")
        return self.stored.read_stored(spec.name)

    def small_json(self, part: str, kind: type[T]) -> T:
        """Read a small companion that contains a JSON object."""
        data = bytes(self.small(part).reshape(-1).view(torch.uint8).tolist())
        what = f"the object in tensor {self.parts.companions[part]!r} of {self.parts.codes!r}"
        return read_json(data, kind, what=what, label=self.stored.label)

    def misfit(self) -> CorruptCheckpointError:
        """Return the error for companions whose shapes do not fit the codes."""
        codes = self.codes
        companions = [self.stored.spec(name) for name in self.parts.companions.values()]
        companions_text = ", ".join(f"{spec.name!r} ({spec.dtype}, shape {spec.shape})" for spec in companions)
        return self.corrupt(
            f"tensor {codes.name!r} ({codes.dtype}, shape {codes.shape}) does not fit its companions: {companions_text}"
        )

    def corrupt(self, message: str) -> CorruptCheckpointError:
        """Return the error for a corrupt weight."""
        return CorruptCheckpointError(message, subject=self.stored.label)

    def refuse(self, reason: str) -> UnsupportedFormatError:
        """Return the error for an unsupported weight."""
        codes = self.codes
        return UnsupportedFormatError(
            f"tensor {codes.name!r} ({codes.dtype}, shape {codes.shape}) is quantised in a way that is not supported: "
            f"{reason}; compare the unquantised checkpoint it was made from, if available",
            subject=self.stored.label,
        )
