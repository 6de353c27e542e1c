"""One stack of a model as a model of its own, with roles from names and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mdir_hf.model.files import TensorSource
from mdir_hf.model.inventory.by_shape import common_width, resolve_by_shape
from mdir_hf.model.inventory.records import LANGUAGE, ModelInventory, PartKind
from mdir_hf.model.roles import Anatomy, ConfigSizes, Layer, Role
from mdir_hf.model.roles.layers import place_layers
from mdir_hf.model.roles.parts import Part, ShapeOf, part_shape
from mdir_hf.model.roles.stacks import find_stacks
from mdir_hf.model.roles.wrappers import with_stored_names, without_wrappers


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
    """Return the stacks of a model, the language model first. Connectors with layers count as stacks.

    Costs the headers of the shards that hold them.

    Returns:
        The stacks with at least one known role.
    """
    views = [StackView(LANGUAGE, label, tensors, language)] if language.layers else []

    def shape_of(name: str) -> tuple[int, ...]:
        return tuple(tensors.spec(name).shape)

    vectors = {part.owner: part.tensors for part in inventory.parts if part.kind is PartKind.VECTORS}
    for part in inventory.parts:
        is_stack = part.kind is PartKind.STACK or (part.kind is PartKind.CONNECTOR and part.layers)
        if not is_stack or part.name == LANGUAGE:
            continue
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
        layers=tuple(with_stored_names(layer, stored_names) for layer in layers),
        unplaced=unplaced,
        prefixes=stack.prefixes,
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
