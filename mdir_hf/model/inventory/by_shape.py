"""Assign roles by tensor shape, for stacks, connectors, and models whose tensor names are unknown.

The embedding has one row per token, layers are numbered groups of tensors with equal shapes, and a matrix gets a role
only if its shape is unique in the layer.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from types import MappingProxyType

from mdir_hf.model.files import TensorSource
from mdir_hf.model.inventory.loaded import is_loaded
from mdir_hf.model.inventory.records import LANGUAGE, ModelInventory, ModelView, PartKind
from mdir_hf.model.roles import Anatomy, ConfigSizes, Layer, Role, WeightPart, read_sizes
from mdir_hf.model.roles.layer_names import Stack, find_stacks
from mdir_hf.model.roles.layers import place_layers
from mdir_hf.model.roles.parts import ShapeOf, StoredWeight, part_shape
from mdir_hf.model.roles.tables import INTERMEDIATE_SIZE_KEYS, OTHER_STACKS
from mdir_hf.model.roles.wrappers import with_stored_names, without_wrappers

LEAST_LAYERS = 2
"""Minimum number of similar tensor groups to treat as layers."""

MOST_MATRICES = 64
"""Number of a connector's tensors, sorted by name, to search for an MLP."""

LIKE_A_HEAD = ("head", "out", "logit", "unembed", "decoder")


def resolve_by_shape(
    config: Mapping[str, object], names: Sequence[str], shape_of: ShapeOf, *, is_language: bool = True
) -> Anatomy | None:
    """Find the embedding, output head and layers from the shapes of all tensors.

    If ``is_language``, skip stacks whose names suggest a tower. Returns None if no embedding or repeated layers are
    found.
    """
    sizes = read_sizes(config)
    shapes = {name: tuple(shape_of(name)) for name in names}
    stacks = find_stacks(names)
    if is_language:
        stacks = tuple(stack for stack in stacks if not any(word in stack.prefix.lower() for word in OTHER_STACKS))
    stack = _repeated_stack(stacks, shapes)
    in_stack = set() if stack is None else _tensors_of(stack)
    in_layers = in_stack.union(*(_tensors_of(stack) for stack in stacks if len(stack.names) >= LEAST_LAYERS))
    tables = _tables({name: shape for name, shape in shapes.items() if name not in in_layers}, sizes)
    hidden = sizes.hidden_size or (shapes[tables[0]][1] if tables else common_width(stack, shapes))
    if hidden is None or not (tables or stack):
        return None
    embedding, head, notes = _embedding_and_head(tables)
    layers = () if stack is None else tuple(_layer(stack, index, shapes, hidden, sizes) for index in stack.names)
    placed_names = {part.tensor for layer in layers for part in layer.parts.values() if isinstance(part, WeightPart)}
    matrices = {name for name in in_stack if len(shapes[name]) > 1}
    return Anatomy(
        architecture=sizes.architecture,
        hidden_size=hidden,
        embedding_size=hidden if embedding is None else shapes[embedding][1],
        vocabulary_size=sizes.vocabulary_size,
        n_layers=len(layers),
        n_heads=sizes.n_heads,
        n_kv_heads=sizes.n_heads if sizes.n_kv_heads is None else sizes.n_kv_heads,
        head_dim=sizes.width_of_head,
        embedding=None if embedding is None else WeightPart(embedding),
        unembedding=None if head is None else WeightPart(head),
        tied=head is None and embedding is not None and sizes.ties_embeddings is not False,
        layers=layers,
        unplaced=tuple(sorted(matrices - placed_names)),
        notes=("its tensors have unknown names; shapes decided which is which", *notes),
        prefixes=() if stack is None else stack.prefixes,
        why_main="the largest stack of layers with equal shapes",
        decided_by="shapes",
        channel_numbers=sizes.channel_numbers,
    )


def _tensors_of(stack: Stack) -> set[str]:
    return {stack.tensor(index, suffix) for index, suffixes in stack.names.items() for suffix in suffixes}


def _repeated_stack(stacks: Sequence[Stack], shapes: Mapping[str, tuple[int, ...]]) -> Stack | None:
    candidates: list[tuple[int, Stack]] = []
    for stack in stacks:
        kinds = Counter(
            tuple(sorted((suffix, shapes[stack.tensor(index, suffix)]) for suffix in suffixes))
            for index, suffixes in stack.names.items()
        )
        n_alike = kinds.most_common(1)[0][1]
        n_weights = sum(math.prod(shapes[name]) for name in _tensors_of(stack) if len(shapes[name]) == 2)
        if n_alike >= max(LEAST_LAYERS, (len(stack.names) + 1) // 2):
            candidates.append((n_weights, stack))
    return max(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


def _tables(shapes: Mapping[str, tuple[int, ...]], sizes: ConfigSizes) -> list[str]:
    widths = {size for size in (sizes.hidden_size, sizes.embedding_size) if size is not None}
    matrices = {
        name: shape
        for name, shape in shapes.items()
        if len(shape) == 2 and 0 not in shape and (not widths or shape[1] in widths)
    }
    n_tokens = sizes.vocabulary_size
    if n_tokens is not None:
        exact = [name for name, shape in matrices.items() if shape[0] == n_tokens]
        # Rows are padded to a multiple of 64 or 128.
        return sorted(exact) or sorted(n for n, shape in matrices.items() if 0 <= shape[0] - n_tokens < 512)
    tallest = max((shape[0] for shape in matrices.values()), default=0)
    return sorted(name for name, shape in matrices.items() if shape[0] == tallest > 4 * shape[1])


def _embedding_and_head(tables: list[str]) -> tuple[str | None, str | None, tuple[str, ...]]:
    if len(tables) < 2:
        return (tables[0] if tables else None), None, ()
    heads = [name for name in tables if any(word in name.lower() for word in LIKE_A_HEAD)]
    if len(tables) == 2 and len(heads) == 1:
        (embedding,) = set(tables) - set(heads)
        return embedding, heads[0], ()
    note = f"which of {tables[0]!r} and {tables[1]!r} is the embedding is a guess"
    return tables[0], tables[1], (note,)


def common_width(stack: Stack | None, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the most common side length of the matrices in a stack, or None.

    If two lengths are equally common, as in gated MLPs alone, the more common input is chosen.
    """
    if stack is None:
        return None
    sides: Counter[int] = Counter()
    inputs: Counter[int] = Counter()
    for index, suffixes in stack.names.items():
        for suffix in suffixes:
            shape = shapes[stack.tensor(index, suffix)]
            sides.update(set(shape) if len(shape) == 2 else ())
            inputs.update(shape[1:] if len(shape) == 2 else ())
    return max(sides, key=lambda side: (sides[side], inputs[side])) if sides else None


def _layer(stack: Stack, index: int, shapes: Mapping[str, tuple[int, ...]], hidden: int, sizes: ConfigSizes) -> Layer:
    by_shape: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for suffix in stack.names[index]:
        name = stack.tensor(index, suffix)
        by_shape[shapes[name]].append(name)
    alone = {shape: names[0] for shape, names in by_shape.items() if len(names) == 1 and len(shape) == 2}
    parts: dict[Role, WeightPart] = {}
    inner = next((sizes.numbers[key] for key in INTERMEDIATE_SIZE_KEYS if key in sizes.numbers), None)
    if inner is None:
        inner = max((shape[1] for shape in by_shape if len(shape) == 2 and shape[0] == hidden), default=None)
    width = None if sizes.n_heads is None or sizes.width_of_head is None else sizes.n_heads * sizes.width_of_head
    expected_shapes = {
        Role.DOWN: (hidden, inner),
        Role.UP: (inner, hidden),
        Role.Q: (width, hidden),
        Role.O: (hidden, width),
    }
    for role, shape in expected_shapes.items():
        if shape in alone and list(expected_shapes.values()).count(shape) == 1:
            parts[role] = WeightPart(alone[shape])
    return Layer(index, MappingProxyType(parts))


def other_stacks(
    inventory: ModelInventory, label: str, tensors: TensorSource, config: Mapping[str, object]
) -> tuple[ModelView, ...]:
    """Return the stacks other than the language model that have at least one known role.

    A connector with two matrices that form an MLP is treated as one layer. Reads the shards' headers.
    """
    views: list[ModelView] = []

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
            views.append(ModelView(part.name, label, tensors, anatomy, is_loaded=is_loaded(part, inventory, config)))
    return tuple(views)


def stack_anatomy(names: Sequence[str], shape_of: ShapeOf) -> Anatomy | None:
    """Assign roles to a stack's tensors by name or shape; return None if only norms are found."""
    stored_names = without_wrappers(names)
    stacks = find_stacks(stored_names)
    if not stacks:
        return None
    stack = max(stacks, key=lambda stack: (len(stack.names), sum(map(len, stack.names.values()))))
    shapes = {name: shape_of(stored) for name, stored in stored_names.items()}
    width = common_width(stack, shapes)
    if width is None:
        return None
    sizes = ConfigSizes(hidden_size=width)
    by_name, unplaced = place_layers(stack, sizes, [])
    by_name = tuple(
        layer if layer.parts else replace(layer, parts=next(filter(None, (*layer.experts, *layer.shared_experts)), {}))
        for layer in by_name
    )
    inside = [stack.tensor(index, suffix) for index, suffixes in stack.names.items() for suffix in suffixes]
    by_shape = resolve_by_shape({"hidden_size": width}, inside, shapes.__getitem__, is_language=False)
    shape_layers = {} if by_shape is None else {layer.index: layer for layer in by_shape.layers}
    layers = tuple(_merged(layer, shape_layers.get(layer.index), width, shapes.__getitem__) for layer in by_name)
    if not any(not role.is_norm for layer in layers for role in layer.parts):
        return None
    stored_layers = tuple(with_stored_names(layer, stored_names) for layer in layers)
    return _anatomy_of(stored_layers, width, unplaced=unplaced, prefixes=stack.prefixes)


def connector_anatomy(names: Sequence[str], shape_of: ShapeOf) -> Anatomy | None:
    """Find two matrices of a connector that form an MLP, as in LLaVA, and return them as up and down of one layer."""
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
    return [(int(word), "") if word.isdigit() else (-1, word) for word in name.split(".")]


def _module_of(name: str) -> str:
    return ".".join(name.split(".")[:-2])


def _anatomy_of(
    layers: tuple[Layer, ...],
    width: int,
    *,
    output_width: int | None = None,
    unplaced: tuple[str, ...] = (),
    prefixes: tuple[str, ...],
) -> Anatomy:
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
    parts: dict[Role, StoredWeight] = {} if by_shape is None else dict(by_shape.parts)
    parts |= {role: part for role, part in by_name.parts.items() if _fits(role, part, width, shape_of)}
    return replace(by_name, parts=parts)


def _fits(role: Role, part: StoredWeight, width: int, shape_of: ShapeOf) -> bool:
    shape = part_shape(part, shape_of)
    if role.is_norm:
        return shape == (width,)
    if len(shape) != 2:
        return False
    return shape[1] == width if role.reads_stream else shape[0] == width if role.writes_stream else True
