"""Assigns roles by shape and repetition if neither names nor the transformers class give them.

The embedding is the matrix with as many rows as the vocabulary. Layers are numbered groups of tensors with equal
shapes. A matrix gets a role only if no other matrix of its layer has the same shape: two matrices that could be gate
and up, or keys and values, cannot be distinguished and get none.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mdir_hf.model.roles import Anatomy, ConfigSizes, Layer, Role, WeightPart, read_sizes
from mdir_hf.model.roles.parts import ShapeOf
from mdir_hf.model.roles.stacks import Stack, find_stacks
from mdir_hf.model.roles.tables import OTHER_STACKS

LEAST_LAYERS = 2
"""Fewer repetitions do not count as layers."""

LIKE_A_HEAD = ("head", "out", "logit", "unembed", "decoder")
_INTERMEDIATE = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size", "feed_forward_size")


def resolve_by_shape(
    config: Mapping[str, object], names: Sequence[str], shape_of: ShapeOf, *, is_language: bool = True
) -> Anatomy | None:
    """Find embedding, head and layers by shape alone. Needs the shape of every tensor.

    Args:
        config: The parsed config; missing sizes are derived from the shapes.
        names: Names of all tensors.
        shape_of: Returns the stored shape of a tensor.
        is_language: Whether to find the language model, and so to skip stacks named like a tower.

    Returns:
        The anatomy, or None if no matrix can be the embedding and no layers repeat.
    """
    sizes = read_sizes(config)
    shapes = {name: tuple(shape_of(name)) for name in names}
    stacks = find_stacks(names)
    if is_language:
        stacks = tuple(each for each in stacks if not any(word in each.prefix.lower() for word in OTHER_STACKS))
    stack = _repeated_stack(stacks, shapes)
    in_stack = set() if stack is None else _tensors_of(stack)
    in_layers = in_stack.union(*(_tensors_of(each) for each in stacks if len(each.names) >= LEAST_LAYERS))
    tables = _tables({name: shape for name, shape in shapes.items() if name not in in_layers}, sizes)
    hidden = sizes.hidden_size or (shapes[tables[0]][1] if tables else common_width(stack, shapes))
    if hidden is None or not (tables or stack):
        return None
    embedding, head, notes = _embedding_and_head(tables)
    layers = () if stack is None else tuple(_layer(stack, index, shapes, hidden, sizes) for index in stack.names)
    placed = {part.tensor for layer in layers for part in layer.parts.values() if isinstance(part, WeightPart)}
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
        declares_tied=bool(sizes.ties_embeddings),
        layers=layers,
        unplaced=tuple(sorted(matrices - placed)),
        notes=("its tensors have unknown names; shapes decided which is which", *notes),
        prefixes=() if stack is None else stack.prefixes,
        decided_by="shapes",
        channel_numbers=sizes.channel_numbers,
    )


def _tensors_of(stack: Stack) -> set[str]:
    return {stack.tensor(index, rest) for index, rests in stack.names.items() for rest in rests}


def _repeated_stack(stacks: Sequence[Stack], shapes: Mapping[str, tuple[int, ...]]) -> Stack | None:
    """Return the stack with most weights in matrices, among stacks most of whose layers have equal shapes."""
    candidates: list[tuple[int, Stack]] = []
    for stack in stacks:
        kinds = Counter(
            tuple(sorted((rest, shapes[stack.tensor(index, rest)]) for rest in rests))
            for index, rests in stack.names.items()
        )
        n_alike = kinds.most_common(1)[0][1]
        n_weights = sum(math.prod(shapes[name]) for name in _tensors_of(stack) if len(shapes[name]) == 2)
        if n_alike >= max(LEAST_LAYERS, (len(stack.names) + 1) // 2):
            candidates.append((n_weights, stack))
    return max(candidates, key=lambda each: each[0])[1] if candidates else None


def _tables(shapes: Mapping[str, tuple[int, ...]], sizes: ConfigSizes) -> list[str]:
    """Return matrices outside the layers that have a row for each token, sorted by name."""
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
    """Decide which of the tables is the embedding, and which the head."""
    if len(tables) < 2:
        return (tables[0] if tables else None), None, ()
    heads = [name for name in tables if any(word in name.lower() for word in LIKE_A_HEAD)]
    if len(tables) == 2 and len(heads) == 1:
        (embedding,) = set(tables) - set(heads)
        return embedding, heads[0], ()
    note = f"which of {tables[0]!r} and {tables[1]!r} is the embedding is a guess"
    return tables[0], tables[1], (note,)


def common_width(stack: Stack | None, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the commonest side of matrices in the layers."""
    if stack is None:
        return None
    sides: Counter[int] = Counter()
    for index, rests in stack.names.items():
        for rest in rests:
            shape = shapes[stack.tensor(index, rest)]
            sides.update(set(shape) if len(shape) == 2 else ())
    return sides.most_common(1)[0][0] if sides else None


def _layer(stack: Stack, index: int, shapes: Mapping[str, tuple[int, ...]], hidden: int, sizes: ConfigSizes) -> Layer:
    """Assign roles to matrices of a layer that are determined by their shape."""
    by_shape: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for rest in stack.names[index]:
        name = stack.tensor(index, rest)
        by_shape[shapes[name]].append(name)
    alone = {shape: names[0] for shape, names in by_shape.items() if len(names) == 1 and len(shape) == 2}
    parts: dict[Role, WeightPart] = {}
    inner = next((sizes.numbers[key] for key in _INTERMEDIATE if key in sizes.numbers), None)
    if inner is None:
        inner = max((shape[1] for shape in by_shape if len(shape) == 2 and shape[0] == hidden), default=None)
    width = None if sizes.n_heads is None or sizes.width_of_head is None else sizes.n_heads * sizes.width_of_head
    wanted = {Role.DOWN: (hidden, inner), Role.UP: (inner, hidden), Role.Q: (width, hidden), Role.O: (hidden, width)}
    for role, shape in wanted.items():
        if shape in alone and list(wanted.values()).count(shape) == 1:
            parts[role] = WeightPart(alone[shape])
    return Layer(index, MappingProxyType(parts))
