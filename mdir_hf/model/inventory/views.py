"""One stack or connector of a model as a model of its own, with roles from names and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from mdir_hf.model.files import TensorSource
from mdir_hf.model.inventory.by_shape import common_width, resolve_by_shape
from mdir_hf.model.inventory.records import LANGUAGE, ModelInventory, PartKind
from mdir_hf.model.roles import Anatomy, ConfigSizes, Layer, Role
from mdir_hf.model.roles.layers import place_layers
from mdir_hf.model.roles.parts import Part, ShapeOf, WeightPart, part_shape
from mdir_hf.model.roles.stacks import find_stacks
from mdir_hf.model.roles.wrappers import with_stored_names, without_wrappers

MOST_MATRICES = 64
"""Maximum number of a connector's tensors in which an MLP is looked for. Published projectors have two to eight."""


@dataclass(frozen=True)
class StackView:
    """A stack of a model. Implements :class:`~mdir_hf.model.comparable.PlacedTensors`."""

    name: str
    label: str
    tensors: TensorSource
    anatomy: Anatomy


def stack_views(
    inventory: ModelInventory, label: str, tensors: TensorSource, language: Anatomy
) -> tuple[StackView, ...]:
    """Return the stacks of a model, the language model first, then towers, connectors and the like.

    A connector without layers counts as one layer if two of its matrices form an MLP.

    Costs the headers of the shards that hold them.

    Returns:
        The stacks with at least one known role.
    """
    views = [StackView(LANGUAGE, label, tensors, language)] if language.layers else []

    def shape_of(name: str) -> tuple[int, ...]:
        return tuple(tensors.spec(name).shape)

    vectors = {part.owner: part.tensors for part in inventory.parts if part.kind is PartKind.VECTORS}
    for part in inventory.parts:
        if part.kind not in (PartKind.STACK, PartKind.CONNECTOR) or part.name == LANGUAGE:
            continue
        if part.kind is PartKind.CONNECTOR and not part.layers:
            anatomy = connector_anatomy(part.tensors, shape_of)
        else:
            anatomy = stack_anatomy((*part.tensors, *vectors.get(part.name, ())), shape_of)
        if anatomy is not None:
            views.append(StackView(part.name, label, tensors, anatomy))
    return tuple(views)


def stack_anatomy(names: Sequence[str], shape_of: ShapeOf) -> Anatomy | None:
    """Assign roles to the tensors of one stack, by name or else by shape.

    Returns:
        The roles, or None without any in the layers.
    """
    stored_names = without_wrappers(names)
    stacks = find_stacks(stored_names)
    if not stacks:
        return None
    stack = max(stacks, key=lambda each: (len(each.names), sum(map(len, each.names.values()))))
    shapes = {name: shape_of(stored) for name, stored in stored_names.items()}
    width = common_width(stack, shapes)
    if width is None:
        return None
    sizes = ConfigSizes(hidden_size=width)
    by_name, unplaced = place_layers(stack, sizes, [])
    inside = [stack.tensor(index, rest) for index, rests in stack.names.items() for rest in rests]
    by_shape = resolve_by_shape({"hidden_size": width}, inside, shapes.__getitem__, is_language=False)
    shape_layers = {} if by_shape is None else {layer.index: layer for layer in by_shape.layers}
    layers = tuple(_merged(layer, shape_layers.get(layer.index), width, shapes.__getitem__) for layer in by_name)
    if not any(not role.is_norm for layer in layers for role in layer.parts):
        return None
    stored_layers = tuple(with_stored_names(layer, stored_names) for layer in layers)
    return _anatomy_of(stored_layers, width, unplaced=unplaced, prefixes=stack.prefixes)


def connector_anatomy(names: Sequence[str], shape_of: ShapeOf) -> Anatomy | None:
    """Assign up and down to two matrices of a connector that form an MLP, such as LLaVA's projector.

    Returns:
        One layer, or None if no matrix has as many columns as another one in the same module has rows.
    """
    matrices = [name for name in sorted(names, key=_by_number)[:MOST_MATRICES] if len(shape_of(name)) == 2]
    for up, down in sorted(
        permutations(matrices, 2), key=lambda pair: matrices.index(pair[0]) > matrices.index(pair[1])
    ):
        n_neurons, width = shape_of(up)
        if _module_of(up) == _module_of(down) and shape_of(down)[1] == n_neurons:
            layer = Layer(0, {Role.UP: WeightPart(up), Role.DOWN: WeightPart(down)})
            return _anatomy_of((layer,), width, output_width=shape_of(down)[0], prefixes=(_module_of(up),))
    return None


def _by_number(name: str) -> list[tuple[int, str]]:
    """Return a sort key in which ``mlp.10`` follows ``mlp.2``."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in name.split(".")]


def _module_of(name: str) -> str:
    """Return the module that holds a linear map: ``projector`` for ``projector.linear_1.weight``."""
    return ".".join(name.split(".")[:-2])


def _anatomy_of(
    layers: tuple[Layer, ...],
    width: int,
    *,
    output_width: int | None = None,
    unplaced: tuple[str, ...] = (),
    prefixes: tuple[str, ...],
) -> Anatomy:
    """Return the anatomy of layers without embeddings and with an unknown number of heads."""
    return Anatomy(
        architecture="unknown",
        hidden_size=width,
        embedding_size=width,
        vocabulary_size=None,
        n_layers=len(layers),
        n_heads=None,
        n_kv_heads=None,
        head_dim=None,
        embedding=None,
        unembedding=None,
        tied=False,
        layers=layers,
        unplaced=unplaced,
        prefixes=prefixes,
        output_width=output_width,
    )


def _merged(by_name: Layer, by_shape: Layer | None, width: int, shape_of: ShapeOf) -> Layer:
    """Combine roles by name that fit their shape with the other roles by shape."""
    parts: dict[Role, Part] = {} if by_shape is None else dict(by_shape.parts)
    parts |= {role: part for role, part in by_name.parts.items() if _fits(role, part, width, shape_of)}
    return replace(by_name, parts=parts)


def _fits(role: Role, part: Part, width: int, shape_of: ShapeOf) -> bool:
    """Return whether a weight has the stack's width along the axis that its role requires."""
    shape = part_shape(part, shape_of)
    if role.is_norm:
        return shape == (width,)
    if len(shape) != 2:
        return False
    return shape[1] == width if role.reads_stream else shape[0] == width if role.writes_stream else True
