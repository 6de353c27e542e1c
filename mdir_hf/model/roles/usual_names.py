"""Assigns roles to matrices with common names in architectures that the tables do not cover.

Names alone are not enough: the shapes have to fit as well. Up and down are placed only together, and so are queries,
keys, values and the output of attention.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from mdir_hf.model.roles.layer_names import split_at_layer
from mdir_hf.model.roles.layers import Layer
from mdir_hf.model.roles.parts import Part, WeightPart
from mdir_hf.model.roles.resolve import Anatomy
from mdir_hf.model.roles.roles import Role
from mdir_hf.model.roles.wrappers import without_wrappers

ATTENTION_NAMES: Mapping[Role, str] = {
    Role.Q: r"q|wq|q_head|q_proj|query|query_proj|q_lin|to_q|linear_q",
    Role.K: r"k|wk|k_head|k_proj|key|key_proj|k_lin|to_k|linear_k",
    Role.V: r"v|wv|v_head|v_proj|value|value_proj|v_lin|to_v|linear_v",
    Role.O: r"o|wo|post_proj|o_proj|out_proj|out|proj|linear_out|attention\.output\.dense|attn\.output\.dense",
}
MLP_NAMES: Mapping[Role, str] = {
    Role.UP: r"fc1|dense1|linear1|linear_1|lin1|w_1|c_fc|fc_in|intermediate_dense|intermediate\.dense|dense_h_to_4h",
    Role.DOWN: r"fc2|dense2|linear2|linear_2|lin2|w_2|fc_out|output_dense|output\.dense|dense_4h_to_h",
}
_CROSS = re.compile(r"cross|encoder_attn|encdec|encoder_decoder", re.IGNORECASE)

ShapeOf = Callable[[str], tuple[int, ...]]


def with_usual_names(anatomy: Anatomy, shape_of: ShapeOf) -> Anatomy:
    """Place matrices without a role by their common names, in layers that lack attention or an MLP.

    Returns:
        The anatomy with the added roles, or the same object without any.
    """
    if not anatomy.unplaced:
        return anatomy
    plain = {stored: name for name, stored in without_wrappers(anatomy.unplaced).items()}
    of_layer: dict[int, dict[str, str]] = defaultdict(dict)
    for stored in anatomy.unplaced:
        split = split_at_layer(plain.get(stored, stored))
        if split is not None and (split[0] in anatomy.prefixes or not anatomy.prefixes) and len(anatomy.prefixes) < 2:
            of_layer[split[1]][split[2]] = stored
    layers = tuple(
        _completed(layer, of_layer.get(layer.index, {}), anatomy.hidden_size, shape_of) for layer in anatomy.layers
    )
    placed = {name for layer in layers for part in layer.parts.values() for name in part.tensors}
    if layers == anatomy.layers:
        return anatomy
    unplaced = tuple(name for name in anatomy.unplaced if name not in placed)
    return replace(anatomy, layers=layers, unplaced=unplaced)


def _completed(layer: Layer, stored_names: Mapping[str, str], width: int, shape_of: ShapeOf) -> Layer:
    """Add the roles of a whole group that the layer lacks."""
    parts: dict[Role, Part] = dict(layer.parts)
    if not any(role in parts for role in (Role.UP, Role.GATE, Role.DOWN)) and not layer.experts:
        mlp = _named(MLP_NAMES, stored_names)
        if len(mlp) == len(MLP_NAMES):
            up, down = shape_of(mlp[Role.UP]), shape_of(mlp[Role.DOWN])
            if len(up) == 2 and up[1] == width and down == up[::-1]:
                parts |= {role: WeightPart(name) for role, name in mlp.items()}
    if not any(role in parts for role in (Role.Q, Role.K, Role.V)):
        attention = _named(ATTENTION_NAMES, stored_names)
        if len(attention) == len(ATTENTION_NAMES):
            shapes = {role: shape_of(name) for role, name in attention.items()}
            reads = all(len(shapes[role]) == 2 and shapes[role][1] == width for role in (Role.Q, Role.K, Role.V))
            if reads and shapes[Role.K] == shapes[Role.V] and shapes[Role.O] == shapes[Role.Q][::-1]:
                parts |= {role: WeightPart(name) for role, name in attention.items()}
    if len(parts) == len(layer.parts):
        return layer
    return replace(layer, parts=parts, missing=tuple(role for role in layer.missing if role not in parts))


def _named(names: Mapping[Role, str], stored_names: Mapping[str, str]) -> dict[Role, str]:
    """Return the tensor with a common name for each role, leaving out roles without exactly one match."""
    tensors: dict[Role, str] = {}
    for role, pattern in names.items():
        usual = re.compile(rf"(?:.*\.)?(?:{pattern})(?:\.weight)?")
        is_attention = role in ATTENTION_NAMES
        matching = [
            stored
            for rest, stored in stored_names.items()
            if usual.fullmatch(rest) and not _CROSS.search(rest) and is_attention == ("att" in rest.lower())
        ]
        if len(matching) == 1:
            tensors[role] = matching[0]
    return tensors
