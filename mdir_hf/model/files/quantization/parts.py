"""Groups stored tensors by weight: codes, scales, zero points and maps. By name only.

Names alone decide what is listed, so that a checkpoint with an index costs no header for it; dtypes and shapes decide
what is read (:mod:`.schemes`). Names are those that the libraries write, see the tables.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from mdir_hf.budgets import collector_paused
from mdir_hf.model.files.quantization.refused import REFUSED, TELLTALES

# Written onto the name of a weight: x.weight_scale_inv, x.experts.gate_up_proj_blocks.
_ONTO = {
    "packed": "packed",  # compressed-tensors
    "blocks": "blocks",  # gpt-oss
    "scales": "block_scales",  # gpt-oss; EETQ, refused
    "scale": "scale",  # compressed-tensors, FBGEMM, ModelOpt, Quark
    "weight_scale": "scale",  # ModelOpt, where the weight is not called weight
    "scale_inv": "scale_inv",  # DeepSeek and Qwen in FP8, transformers
    "scale_2": "scale_2",  # ModelOpt
    "weight_scale_2": "scale_2",
    "global_scale": "global_scale",  # compressed-tensors
    "zero_point": "zero_point",
    "g_idx": "group_of_column",
    "shape": "shape",
    "pre_quant_scale": "column_scale",  # ModelOpt, AWQ
}
# Written into its module: x.qweight beside or instead of x.weight.
_INTO = {
    "qweight": "qweight",  # GPTQ, AWQ
    "qzeros": "qzeros",
    "scales": "scales",  # GPTQ, AWQ, MLX
    "g_idx": "group_of_row",
    "biases": "offsets",  # MLX
    "qbiases": "offsets",  # transformers, for Metal
    "scale": "scale",  # DeepSeek in its own names
    "qscale_weight": "scale",  # Mistral in its own names
    "pre_quant_scale": "column_scale",
    "SCB": "row_maxima",  # bitsandbytes, int8
    "weight_format": "format",
}
# Written under its name: x.weight.absmax.
_UNDER = {
    "absmax": "absmax",  # bitsandbytes, 4 bits
    "quant_map": "quant_map",
    "nested_absmax": "nested_absmax",
    "nested_quant_map": "nested_quant_map",
    "quant_state.bitsandbytes__nf4": "quant_state",
    "quant_state.bitsandbytes__fp4": "quant_state",
}
_ACTIVATIONS = re.compile(
    r"(?:.+_)?(?:input_scale(?:_ub|_inv)?|(?:input|output|act)_global_scale|(?:input|output)_zero_point|output_scale"
    r"|(?:input_|output_)?activation_scale|qscale_act|(?:k|v|q|kv|prob_output)_scale|[kvq]_(?:cache_)?zero_point)"
)
_CODES_APART = ("packed", "blocks", "qweight")
_MAKES_CODES = frozenset(
    {"scale", "scale_inv", "block_scales", "scales", "offsets", "row_maxima", "quant_state", "absmax"}
)
_OF_QUANTISATION = re.compile(
    r"scale|zero|max|min|quant|code|lut|table|perm|idx|index|meta|shape|outlier|lora|hadamard|rot|exponent|mantissa"
)
"""Words in the name of a tensor that hangs on another one and changes what it means; a bias does not."""

_ONTO_LEAF = re.compile("(?P<weight>.+?)_(?P<part>" + "|".join(sorted(_ONTO, key=len, reverse=True)) + ")")


@dataclass(frozen=True, slots=True)
class Parts:
    """The stored tensors of one weight.

    Attributes:
        name: The weight, as the unquantised checkpoint would call it.
        codes: Name of the tensor that holds its codes.
        form: How that one is named: ``weight`` like the weight itself, ``packed``, ``blocks``, ``qweight``, or
            the name of a scheme that is not read.
        companions: Names of the others, by what they are.
        rival: A plain tensor with the weight's name beside its codes; None if the file has none.
    """

    name: str
    codes: str
    form: str
    companions: Mapping[str, str]
    rival: str | None = None

    @property
    def module(self) -> str:
        """Name of the module that the weight belongs to."""
        return self.name.rpartition(".")[0]

    def name_of(self, part: str) -> str:
        """How a companion is called, or would be if it were there."""
        if part in self.companions:
            return self.companions[part]
        for table, before in ((_ONTO, f"{self.name}_"), (_UNDER, f"{self.name}."), (_INTO, f"{self.module}.")):
            for written, meant in table.items():
                if meant == part:
                    return before + written
        return f"{self.name}_{part}"

    @property
    def kind(self) -> tuple[str, ...]:
        """What is alike in weights that one scheme wrote."""
        return (self.form, *sorted(self.companions))


@dataclass(frozen=True, slots=True)
class Inventory:
    """A checkpoint's names, sorted out.

    Attributes:
        names: What the unquantised checkpoint would hold, sorted.
        quantized: The stored parts of every weight that has companions.
        parts: Every tensor that is codes or a companion.
        orphans: Weights that have companions and no codes, and one companion of each.
        stored: All stored names, sorted.
    """

    names: tuple[str, ...]
    quantized: Mapping[str, Parts]
    parts: frozenset[str]
    orphans: Mapping[str, str]
    stored: tuple[str, ...]

    def holds(self, name: str) -> bool:
        """Whether a tensor of that name is stored."""
        at = bisect_left(self.stored, name)
        return at < len(self.stored) and self.stored[at] == name

    def scales_beside(self, name: str) -> tuple[str, ...]:
        """Tensors of the same module that are called scales, but for those of activations."""
        module = name.rpartition(".")[0]
        return tuple(
            other
            for other in _between(self.stored, f"{module}." if module else "")
            if other.rpartition(".")[0] == module
            and "scale" in other.rpartition(".")[2]
            and not _ACTIVATIONS.fullmatch(other.rpartition(".")[2])
        )

    def unknown_beside(self, name: str) -> tuple[str, ...]:
        """Tensors that hang on this one by their name and that no scheme here knows."""
        return tuple(
            other
            for other in (*_between(self.stored, name + "."), *_between(self.stored, name + "_"))
            if other not in self.parts
            and other not in self.quantized
            and _OF_QUANTISATION.search(other.removeprefix(name))
            and not _ACTIVATIONS.fullmatch(other.rpartition(".")[2])
        )


@collector_paused()
def take_inventory(stored: Iterable[str]) -> Inventory:
    """Sort out which stored names are weights, which hold codes and which are companions.

    Args:
        stored: All names of the checkpoint.

    Returns:
        The inventory. Cost: O(n log n) for n names; a mixture of 671B parameters has 90,000.
    """
    names = sorted(stored)
    there = set(names)
    found: dict[str, dict[str, str]] = defaultdict(dict)
    quantized: dict[str, Parts] = {}
    orphans: dict[str, str] = {}
    telltales: set[str] = set()
    for name in names:
        stem, _, leaf = name.rpartition(".")
        for weight, part in _readings(stem, leaf):
            found[weight].setdefault(part, name)
        if leaf in TELLTALES:
            telltales.add(stem.removesuffix(".weight"))
    for refused in _refused_parts(names, telltales):
        quantized[refused.name] = refused
    claimed = {name for refused in quantized.values() for name in refused.companions.values()}
    for weight, parts in found.items():
        if weight in quantized or claimed.intersection(parts.values()):
            continue
        form = next((form for form in _CODES_APART if form in parts), "weight")
        if form == "weight" and (weight not in there or not _MAKES_CODES & parts.keys()):
            if weight not in there and _MAKES_CODES & parts.keys():
                orphans[weight] = next(iter(parts.values()))
            continue
        companions = MappingProxyType({part: name for part, name in parts.items() if part != form})
        codes = weight if form == "weight" else parts[form]
        rival = weight if form != "weight" and weight in there else None
        quantized[weight] = Parts(weight, codes, form, companions, rival)
    if not quantized:
        return Inventory(tuple(names), MappingProxyType({}), frozenset(), MappingProxyType(orphans), tuple(names))
    hidden = frozenset(name for parts in quantized.values() for name in (parts.codes, *parts.companions.values()))
    plain = (n for n in names if n not in hidden and not _ACTIVATIONS.fullmatch(n.rpartition(".")[2]))
    listed = tuple(sorted({*plain, *quantized}))
    return Inventory(listed, MappingProxyType(quantized), hidden, MappingProxyType(orphans), tuple(names))


def _readings(stem: str, leaf: str) -> Iterator[tuple[str, str]]:
    """Every weight that a tensor could belong to, and as what."""
    before = f"{stem}." if stem else ""
    for weight, part in _readings_of_leaf(leaf):
        yield before + weight, part
    if leaf in _UNDER:
        yield stem, _UNDER[leaf]
    elif f"quant_state.{leaf}" in _UNDER:
        yield stem.removesuffix(".quant_state"), "quant_state"


@lru_cache(maxsize=1024)
def _readings_of_leaf(leaf: str) -> tuple[tuple[str, str], ...]:
    """The same for weights of the same module, by the last part of their names; a checkpoint has few different ones."""
    readings = [("weight", _INTO[leaf])] if leaf in _INTO else []
    onto = _ONTO_LEAF.fullmatch(leaf)
    if onto:
        readings.append((onto["weight"], _ONTO[onto["part"]]))
        if onto["part"].startswith("weight_"):
            readings.append((f"{onto['weight']}_weight", _ONTO[onto["part"]]))
    return tuple(readings)


def _refused_parts(names: Iterable[str], modules: Set[str]) -> Iterator[Parts]:
    """What is stored under these modules, or under a ``weight`` of theirs, by a scheme that is not read."""
    leaves: dict[str, dict[str, str]] = defaultdict(dict)
    for name in names if modules else ():
        stem, _, leaf = name.rpartition(".")
        for module in {stem, stem.removesuffix(".weight")} & modules:
            leaves[module][leaf] = name
    for module, of_module in leaves.items():
        scheme = next((scheme for scheme in REFUSED if all(marker in of_module for marker in scheme.markers)), None)
        if scheme is not None:
            own = {leaf: name for leaf, name in of_module.items() if leaf in scheme.parts}
            weight = f"{module}.weight" if module else "weight"
            yield Parts(weight, own[scheme.markers[0]], scheme.name, MappingProxyType(own))


def _between(names: Sequence[str], prefix: str) -> list[str]:
    """The names that start with a prefix; names are sorted."""
    start = at = bisect_left(names, prefix)
    while at < len(names) and names[at].startswith(prefix):
        at += 1
    return list(names[start:at])
