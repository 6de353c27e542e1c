"""Group stored tensors (codes, scales, zero points and tables) by weight.

Only names are used, so no headers are read.
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


@dataclass(frozen=True, slots=True)
class RefusedScheme:
    """An unsupported quantisation scheme.

    Attributes:
        markers: Last components of tensor names that identify the scheme. Errors name the first; the last triggers
            the check.
        reason: Text that the error adds to "in a way that is not supported: ".
    """

    name: str
    markers: tuple[str, ...]
    further: tuple[str, ...]
    reason: str

    @property
    def parts(self) -> frozenset[str]:
        """Last components of all of the scheme's tensor names."""
        return frozenset((*self.markers, *self.further))


_CODEBOOK = "its weights are entries of codebooks, in a layout of its own"
_PACKED = "its codes are packed in an order of its own, which this version does not read"
_OTHER_GROUPS = (
    "only its codes of 1, 2, 4 and 8 bits in groups along a row (axis 1) are read, with plain scales and the shape of "
    "the weight beside them"
)
_NOT_PLAIN = "only its 8-bit codes without zero points are read, and these codes are packed or have zero points"

REFUSED: tuple[RefusedScheme, ...] = (
    RefusedScheme("EXL3", ("trellis",), ("suh", "svh", "su", "sv", "mcg", "mul1"), "a trellis code under a rotation"),
    RefusedScheme(
        "EXL2",
        ("q_weight", "q_scale"),
        ("q_scale_max", "q_groups", "q_group_map", "q_perm", "q_invperm"),
        "its bit width changes within a matrix",
    ),
    RefusedScheme("AQLM", ("codes", "codebooks"), ("scales",), _CODEBOOK),
    RefusedScheme(
        "VPTQ",
        ("indices", "centroids"),
        ("res_indices", "res_centroids", "outlier_indices", "outlier_centroids", "perm", "weight_scale", "weight_bias"),
        _CODEBOOK,
    ),
    RefusedScheme("QuIP#", ("Qidxs",), ("SU", "SV", "Wscale", "codebook_id", "A", "B"), _CODEBOOK),
    RefusedScheme(
        "SpQR",
        ("dense_weights", "row_offsets"),
        ("col_vals", "in_perm"),
        "its outliers are kept apart, as a sparse matrix",
    ),
    RefusedScheme("HIGGS", ("tables", "tables2"), ("scales",), "its weights are rotated by blocks, with a code table"),
    RefusedScheme(
        "FP-Quant",
        ("qweight", "forward_hadamard_matrix"),
        ("scales", "dqweight", "backward_hadamard_matrix", "weight_global_scale", "act_global_scale"),
        "its weights are rotated by blocks before they are quantised",
    ),
    RefusedScheme("SINQ", ("W_q", "meta"), (), _PACKED),
    RefusedScheme(
        "HQQ",
        ("W_q",),
        (
            *("scale", "zero", "nbits", "group_size", "axis", "packing", "shape", "channel_wise", "encoded_state_dict"),
            *("compute_dtype", "offload_meta", "optimize", "round_zero", "unpack_view_dtype", "view_as_float"),
            *("quant_scale", "quant_zero", "stores_quant_config"),
        ),
        _OTHER_GROUPS,
    ),
    RefusedScheme("quanto", ("_data", "_scale"), ("_shift", "input_scale", "output_scale"), _NOT_PLAIN),
    RefusedScheme("torchao", ("_weight_qdata",), ("_weight_scale", "_weight_zero_point", "_weight_zero"), _NOT_PLAIN),
    RefusedScheme("Marlin", ("B", "s"), ("meta", "workspace"), "its tiles are laid out for one kind of GPU"),
    RefusedScheme(
        "2:4 sparse Marlin",
        ("weight_packed", "scale_packed", "meta"),
        (),
        "its tiles are laid out for one kind of GPU",
    ),
    RefusedScheme(
        "compressed-tensors, sparse",
        ("compressed", "bitmask"),
        ("shape", "row_offsets"),
        "only the entries that are not zero are stored",
    ),
    RefusedScheme(
        "Gemma, packed",
        ("embedding_quantized",),
        ("embedding_scale",),
        "only patterns in its config tell the bit width of each module",
    ),
    RefusedScheme(
        "SVDQuant",
        ("svdquant_lora_a", "svdquant_lora_b"),
        ("weight", "weight_scale", "weight_scale_2", "pre_quant_scale", "input_scale"),
        "a part of each weight is kept apart, as a product of two thin matrices",
    ),
)
"""Unsupported schemes, each listed before schemes that use a subset of its tensors."""

TELLTALES = frozenset(scheme.markers[-1] for scheme in REFUSED)
"""Last components of tensor names that suggest an unsupported scheme."""

SCALES_OF_PLAIN_CODES = {"quanto": "_scale", "torchao": "_weight_scale", "HQQ": "scale"}
"""Schemes that are read in their usual layouts: the name of the scales, keyed by scheme."""

REASON: dict[str, str] = {scheme.name: scheme.reason for scheme in REFUSED}


# Appended to the name of a weight: x.weight_scale_inv, x.experts.gate_up_proj_blocks.
_ONTO = {
    "packed": "packed",  # compressed-tensors
    "blocks": "blocks",  # gpt-oss
    "scales": "block_scales",  # gpt-oss; EETQ, not supported
    "scale": "scale",  # compressed-tensors, FBGEMM, ModelOpt, Quark
    "weight_scale": "scale",  # ModelOpt, for weights not called weight
    "scale_inv": "scale_inv",  # DeepSeek and Qwen in FP8, transformers
    "scale_2": "scale_2",  # ModelOpt
    "weight_scale_2": "scale_2",
    "global_scale": "global_scale",  # compressed-tensors
    "zero_point": "zero_point",
    "g_idx": "group_of_column",
    "shape": "shape",
    "pre_quant_scale": "column_scale",  # ModelOpt, AWQ
}
# In the weight's module: x.qweight beside or instead of x.weight.
_INTO = {
    "qweight": "qweight",  # GPTQ, AWQ
    "qzeros": "qzeros",
    "scales": "scales",  # GPTQ, AWQ, MLX
    "g_idx": "group_of_row",
    "biases": "offsets",  # MLX
    "qbiases": "offsets",  # transformers, for Metal
    "scale": "scale",  # DeepSeek's original names
    "qscale_weight": "scale",  # Mistral's original names
    "scale_weight": "scale",  # ComfyUI
    "pre_quant_scale": "column_scale",
    "SCB": "row_maxima",  # bitsandbytes, int8
    "weight_format": "format",
}
# Below the weight's name: x.weight.absmax.
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
    r"|scale_input|scaled_fp8|(?:input_|output_)?activation_scale|qscale_act|(?:k|v|q|kv|prob_output)_scale|[kvq]_(?:cache_)?zero_point)"
)
_CODES_APART = ("packed", "blocks", "qweight")
_MAKES_CODES = frozenset(
    {"scale", "scale_inv", "block_scales", "scales", "offsets", "row_maxima", "quant_state", "absmax"}
)
_OF_QUANTISATION = re.compile(
    r"scale|zero|max|min|quant|code|lut|table|perm|idx|index|meta|shape|outlier|lora|hadamard|rot|exponent|mantissa"
)
"""Words in a tensor's name that suggest it is needed to decode a weight."""

_ONTO_LEAF = re.compile("(?P<weight>.+?)_(?P<part>" + "|".join(sorted(_ONTO, key=len, reverse=True)) + ")")


@dataclass(frozen=True, slots=True)
class QuantizedParts:
    """The stored tensors that make up one weight.

    Attributes:
        form: ``weight``, ``packed``, ``blocks``, ``qweight``, or the name of an unsupported scheme.
        rival: Plain tensor stored under the weight's name in addition to the codes, or None.
    """

    name: str
    codes: str
    form: str
    companions: Mapping[str, str]
    rival: str | None = None

    @property
    def module(self) -> str:
        """Name of the weight's module."""
        return self.name.rpartition(".")[0]

    def name_of(self, part: str) -> str:
        """Return the name of a companion, or its expected name if it is missing."""
        if part in self.companions:
            return self.companions[part]
        for table, before in ((_ONTO, f"{self.name}_"), (_UNDER, f"{self.name}."), (_INTO, f"{self.module}.")):
            for written, meant in table.items():
                if meant == part:
                    return before + written
        return f"{self.name}_{part}"

    @property
    def kind(self) -> tuple[str, ...]:
        """A key shared by all weights with the same scheme."""
        return (self.form, *sorted(self.companions))


@dataclass(frozen=True, slots=True)
class TensorGroups:
    """A checkpoint's tensor names, grouped by weight.

    Attributes:
        orphans: One companion of each weight that has companions but no codes.
    """

    names: tuple[str, ...]
    quantized: Mapping[str, QuantizedParts]
    parts: frozenset[str]
    orphans: Mapping[str, str]
    stored: tuple[str, ...]

    def holds(self, name: str) -> bool:
        """Return whether a tensor with this name is stored."""
        at = bisect_left(self.stored, name)
        return at < len(self.stored) and self.stored[at] == name

    def scales_beside(self, name: str) -> tuple[str, ...]:
        """Return the scales in the same module, excluding activation scales."""
        module = name.rpartition(".")[0]
        return tuple(
            sibling
            for sibling in _between(self.stored, f"{module}." if module else "")
            if sibling.rpartition(".")[0] == module
            and "scale" in sibling.rpartition(".")[2]
            and not _ACTIVATIONS.fullmatch(sibling.rpartition(".")[2])
        )

    def unknown_beside(self, name: str) -> tuple[str, ...]:
        """Return tensors whose names extend this one and suggest an unknown scheme."""
        return tuple(
            extended
            for extended in (*_between(self.stored, name + "."), *_between(self.stored, name + "_"))
            if extended not in self.parts
            and extended not in self.quantized
            and _OF_QUANTISATION.search(extended.removeprefix(name))
            and not _ACTIVATIONS.fullmatch(extended.rpartition(".")[2])
        )


@collector_paused()
def group_tensors(stored: Iterable[str]) -> TensorGroups:
    """Group the names of stored tensors by weight, in O(n log n) time."""
    names = sorted(stored)
    existing = set(names)
    parts_of_weight: dict[str, dict[str, str]] = defaultdict(dict)
    quantized: dict[str, QuantizedParts] = {}
    orphans: dict[str, str] = {}
    telltales: set[str] = set()
    for name in names:
        stem, _, leaf = name.rpartition(".")
        for weight, part in _readings(stem, leaf):
            parts_of_weight[weight].setdefault(part, name)
        if leaf in TELLTALES:
            telltales.add(stem.removesuffix(".weight"))
    for refused in _refused_parts(names, telltales):
        quantized[refused.name] = refused
    claimed = {name for refused in quantized.values() for name in refused.companions.values()}
    for weight, parts in parts_of_weight.items():
        if weight in quantized or claimed.intersection(parts.values()):
            continue
        form = next((form for form in _CODES_APART if form in parts), "weight")
        if form == "weight" and (weight not in existing or not _MAKES_CODES & parts.keys()):
            if weight not in existing and _MAKES_CODES & parts.keys():
                orphans[weight] = next(iter(parts.values()))
            continue
        companions = MappingProxyType({part: name for part, name in parts.items() if part != form})
        codes = weight if form == "weight" else parts[form]
        rival = weight if form != "weight" and weight in existing else None
        quantized[weight] = QuantizedParts(weight, codes, form, companions, rival)
    if not quantized:
        return TensorGroups(tuple(names), MappingProxyType({}), frozenset(), MappingProxyType(orphans), tuple(names))
    hidden = frozenset(name for parts in quantized.values() for name in (parts.codes, *parts.companions.values()))
    plain = (n for n in names if n not in hidden and not _ACTIVATIONS.fullmatch(n.rpartition(".")[2]))
    all_names = tuple(sorted({*plain, *quantized}))
    return TensorGroups(all_names, MappingProxyType(quantized), hidden, MappingProxyType(orphans), tuple(names))


def _readings(stem: str, leaf: str) -> Iterator[tuple[str, str]]:
    before = f"{stem}." if stem else ""
    for weight, part in _readings_of_leaf(leaf):
        yield before + weight, part
    if leaf in _UNDER:
        yield stem, _UNDER[leaf]
    elif f"quant_state.{leaf}" in _UNDER:
        yield stem.removesuffix(".quant_state"), "quant_state"


@lru_cache(maxsize=1024)
def _readings_of_leaf(leaf: str) -> tuple[tuple[str, str], ...]:
    """Return each weight and part that the last component of a tensor name may stand for."""
    readings = [("weight", _INTO[leaf])] if leaf in _INTO else []
    onto = _ONTO_LEAF.fullmatch(leaf)
    if onto:
        readings.append((onto["weight"], _ONTO[onto["part"]]))
        if onto["part"].startswith("weight_"):
            readings.append((f"{onto['weight']}_weight", _ONTO[onto["part"]]))
    return tuple(readings)


def _refused_parts(names: Iterable[str], modules: Set[str]) -> Iterator[QuantizedParts]:
    leaves: dict[str, dict[str, str]] = defaultdict(dict)
    for name in names if modules else ():
        stem, _, leaf = name.rpartition(".")
        for module in {stem, stem.removesuffix(".weight")} & modules:
            leaves[module][leaf] = name
    for module, of_module in leaves.items():
        scheme = next((scheme for scheme in REFUSED if all(marker in of_module for marker in scheme.markers)), None)
        if scheme is not None:
            own_leaves = {leaf: name for leaf, name in of_module.items() if leaf in scheme.parts}
            weight = f"{module}.weight" if module else "weight"
            yield QuantizedParts(weight, own_leaves[scheme.markers[0]], scheme.name, MappingProxyType(own_leaves))


def _between(names: Sequence[str], prefix: str) -> list[str]:
    start = at = bisect_left(names, prefix)
    while at < len(names) and names[at].startswith(prefix):
        at += 1
    return list(names[start:at])
