"""Remove name components that compilers, trainers and adapters insert, and write layer numbers in the usual way."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from mdir_hf.model.roles.layers import Layer
from mdir_hf.model.roles.parts import StoredWeight, WeightPart, WeightProduct

WRAPPERS = (
    *("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "module", "original_module", "base_layer"),
    *("modules_to_save.default", "modules_to_save", "0.auto_model"),
)
"""Name components that denote a wrapper."""

TRAINED_COPY, ORIGINAL = "modules_to_save", "original_module"
"""Name components of PEFT's trained copy and of its original; the copy takes precedence. It does not over a tensor with
the plain name, because a class loads that one."""

_WRAPPER = re.compile(r"(?:^|(?<=\.))(?:" + "|".join(map(re.escape, WRAPPERS)) + r")\.")
_MENTIONS = re.compile("_mod|module|base_layer|auto_model")
_HAS_NUMBER = re.compile(r"(?:^|\.)\d+\.")
_JOINED_NUMBER = re.compile(r"(?:^|(?<=\.))(layers?|blocks?|h)_?(\d{1,6})(?=\.)")


def without_wrappers(names: Iterable[str]) -> dict[str, str]:
    """Map each tensor's name, with wrappers removed, to its stored name.

    PEFT's trained copies replace the originals. A tensor with the plain name takes precedence over all others. Other
    names that would collide keep their wrappers. If no component of any name is a number, slashes are read as dots. In
    a name without a number of its own, ``layer_3`` is read as ``layer.3``, or as ``layer.2`` if they start from 1.
    """
    names = tuple(names)
    unnumbered = [name for name in names if not _HAS_NUMBER.search(name)]
    has_slashes = len(unnumbered) == len(names)
    plains = _with_separate_numbers({name: name.replace("/", ".") if has_slashes else name for name in unnumbered})
    stored: dict[str, list[str]] = defaultdict(list)
    for name in names:
        plain = plains.get(name, name)
        stored[_WRAPPER.sub("", plain) if _MENTIONS.search(plain) else plain].append(name)
    places: dict[str, str] = {}
    for plain, candidates in stored.items():
        trained = [name for name in candidates if f"{TRAINED_COPY}." in name]
        if len(candidates) == 1:
            places[plain] = candidates[0]
        elif len(trained) == 1 and len(candidates) == 2 and any(f"{ORIGINAL}." in name for name in candidates):
            places[plain] = trained[0]
        else:
            places |= {name: name for name in candidates}
    return places


def _with_separate_numbers(names: Mapping[str, str]) -> dict[str, str]:
    """Separate numbers from words in the values, counted from 0 below each prefix."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for name in names.values():
        for match in _JOINED_NUMBER.finditer(name):
            numbers[name[: match.end(1)]].add(int(match[2]))

    def separated(match: re.Match[str]) -> str:
        of_prefix = numbers[match.string[: match.end(1)]]
        return f"{match[1]}.{int(match[2]) - (1 in of_prefix and 0 not in of_prefix)}"

    return {stored: _JOINED_NUMBER.sub(separated, name) for stored, name in names.items()}


def with_stored_names(layer: Layer, stored_names: Mapping[str, str]) -> Layer:
    """Replace the tensor names in a layer with their stored names."""

    def stored(part: StoredWeight) -> StoredWeight:
        return renamed(part, lambda name: stored_names.get(name, name))

    def of_experts(experts: tuple[Mapping, ...]) -> tuple[Mapping, ...]:  # type: ignore[type-arg]
        return tuple({role: stored(part) for role, part in parts.items()} for parts in experts)

    return replace(
        layer,
        parts={role: stored(part) for role, part in layer.parts.items()},
        experts=of_experts(layer.experts),
        shared_experts=of_experts(layer.shared_experts),
    )


def renamed(part: StoredWeight, name_of: Callable[[str], str]) -> StoredWeight:
    """Return a part with its tensors renamed."""
    if isinstance(part, WeightProduct):
        gain = None if part.gain is None else _renamed(part.gain, name_of)
        return replace(part, left=_renamed(part.left, name_of), right=_renamed(part.right, name_of), gain=gain)
    return _renamed(part, name_of)


def _renamed(part: WeightPart, name_of: Callable[[str], str]) -> WeightPart:
    return replace(part, tensor=name_of(part.tensor))
