"""Resolve a checkpoint's roles and take its inventory, even if its index is outdated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from mdir_hf.errors import AnatomyError, CorruptCheckpointError, TensorNotFoundError, UnsupportedFormatError
from mdir_hf.model.files import TensorSource
from mdir_hf.model.inventory.by_class import names_by_class
from mdir_hf.model.inventory.by_shape import resolve_by_shape
from mdir_hf.model.inventory.by_structure import with_structure, without_groups
from mdir_hf.model.inventory.loaded import loaded_names, n_predicted_layers
from mdir_hf.model.inventory.orientation import with_fitting_orientation
from mdir_hf.model.inventory.records import ModelInventory
from mdir_hf.model.inventory.take import take_inventory
from mdir_hf.model.roles import Anatomy, Layer, Role, resolve_anatomy
from mdir_hf.model.roles.config import read_sizes
from mdir_hf.model.roles.layer_names import find_stacks
from mdir_hf.model.roles.parts import ShapeOf, StoredWeight, WeightPart, part_shape
from mdir_hf.model.roles.resolve import resolve_renamed, with_names_in_files
from mdir_hf.model.roles.tables import AWAY_FROM_THE_STREAM, INTERMEDIATE_SIZE_KEYS, OTHER_STACKS
from mdir_hf.model.roles.wrappers import without_wrappers
from mdir_hf.model.sources import ListsContents, StoredTensor


def without_tensors(anatomy: Anatomy, names: Collection[str]) -> Anatomy:
    """Return an anatomy in which the named tensors have no role."""
    dropped = set(names)
    if not dropped:
        return anatomy
    notes = anatomy.notes
    edges: dict[str, WeightPart | None] = {}
    for edge, called in (("embedding", "embedding"), ("unembedding", "unembedding (lm_head)"), ("final_norm", "")):
        part: WeightPart | None = getattr(anatomy, edge)
        if part is not None and part.tensor in dropped:
            edges[edge] = None
            notes += (f"the {called} {part.tensor!r} cannot be read and is not compared",) if called else ()
    layers = tuple(_without(layer, dropped) for layer in anatomy.layers)
    lost = {name for layer in anatomy.layers for _, part in layer.all_parts() for name in part.tensors} & dropped
    return replace(
        anatomy,
        layers=layers,
        unplaced=tuple(sorted({*anatomy.unplaced, *lost})),
        notes=notes,
        readings=() if lost else anatomy.readings,
        tied=anatomy.tied and edges.get("embedding", anatomy.embedding) is not None,
        **edges,  # type: ignore[arg-type]
    )


def keeps_most_layers(anatomy: Anatomy) -> bool:
    """Return whether at least half of the layers have a weight with a role other than norms and routers."""
    return 2 * len(anatomy.unread_layers) <= len(anatomy.layers)


def _without(layer: Layer, dropped: set[str]) -> Layer:
    lost: set[Role] = set()

    def readable(parts: Mapping[Role, StoredWeight]) -> Mapping[Role, StoredWeight]:
        remaining = {role: part for role, part in parts.items() if dropped.isdisjoint(part.tensors)}
        lost.update(parts.keys() - remaining.keys())
        return MappingProxyType(remaining)

    parts = readable(layer.parts)
    experts = tuple(readable(expert) for expert in layer.experts)
    shared = tuple(readable(expert) for expert in layer.shared_experts)
    if not lost:
        return layer
    missing = (*layer.missing, *(role for role in Role if role in lost and not role.is_norm))
    return replace(layer, parts=parts, experts=experts, shared_experts=shared, missing=tuple(dict.fromkeys(missing)))  # type: ignore[arg-type]


def resolve_from_headers(config: Mapping[str, object], tensors: TensorSource) -> Anatomy:
    """Resolve roles from the names in an index, or from all headers if the index seems incomplete.

    An index seems incomplete if it lacks layers, an untied head or the embedding, or contradicts a header.

    Raises:
        AnatomyError: See :func:`~mdir_hf.model.roles.resolve_anatomy`.
        CheckpointError: If a header cannot be read.
    """

    def shape_of(name: str) -> tuple[int, ...]:
        return tuple(tensors.spec(name).shape)

    def by_structure(anatomy: Anatomy) -> Anatomy:
        with suppress(UnsupportedFormatError):
            return with_structure(anatomy, tensors.names(), read_sizes(config), shape_of)
        return anatomy

    try:
        anatomy = _with_loaded_stack(config, tensors, _resolved(config, tensors))
    except AnatomyError as exc:
        fallback = _by_class(config, tensors, 0, shape_of) or _by_shape(config, tensors, shape_of)
        if fallback is None:
            raise exc from None
        anatomy = fallback
    else:
        if lacks_groups(anatomy):
            anatomy = _by_class(config, tensors, _n_roles(anatomy), shape_of) or anatomy
    anatomy = with_fitting_orientation(anatomy, shape_of)
    if lacks_parts(anatomy):
        anatomy = by_structure(anatomy)
    if lacks_groups(anatomy) and not _n_roles(anatomy):
        by_shape = _by_shape(config, tensors, shape_of)
        anatomy = by_shape if by_shape is not None and _n_roles(by_shape) else anatomy
    _refuse_slice(config, anatomy, tensors)
    readable = without_tensors(anatomy, tensors.description.unreadable)
    # If hardly anything is left, keep the unreadable tensors: errors that name them are more helpful.
    return readable if keeps_most_layers(readable) and (readable.embedding or readable.layers) else anatomy


def _with_loaded_stack(config: Mapping[str, object], tensors: TensorSource, anatomy: Anatomy) -> Anatomy:
    """If the class of the config does not load the stack that was chosen, choose among the tensors that it loads."""
    prefixes = [stack.prefix.lower() for stack in find_stacks(tensors.names())]
    own_stacks = [prefix for prefix in prefixes if not any(word in prefix for word in OTHER_STACKS)]
    if len(own_stacks) < 2 or not anatomy.layers:
        return anatomy
    loaded = loaded_names(config, tensors.names())
    chosen = {name for layer in anatomy.layers for _, part in layer.all_parts() for name in part.tensors}
    if loaded is None or not chosen.isdisjoint(loaded):
        return anatomy
    return _resolve(config, tensors, tuple(sorted(loaded)))


def _refuse_slice(config: Mapping[str, object], anatomy: Anatomy, tensors: TensorSource) -> None:
    """Raise an error if the embedding has only one of several ranks' rows, and so has another matrix."""
    sizes = read_sizes(config)
    if anatomy.embedding is None or sizes.vocabulary_size is None:
        return
    n_rows = tensors.spec(anatomy.embedding.tensor).shape[0]
    n_ranks, rest = divmod(sizes.vocabulary_size, n_rows)
    if rest or n_ranks < 2:
        return
    inner = next((sizes.numbers[key] for key in INTERMEDIATE_SIZE_KEYS if key in sizes.numbers), None)
    whole = {Role.UP: inner, Role.Q: sizes.n_heads and sizes.width_of_head and sizes.n_heads * sizes.width_of_head}
    for role, part in anatomy.layers[0].parts.items() if anatomy.layers else ():
        if whole.get(role) == n_ranks * part_shape(part, lambda name: tuple(tensors.spec(name).shape))[0]:
            raise UnsupportedFormatError(
                f"{tensors.paths[0]} holds one rank's slice of {n_ranks}: its matrices have 1/{n_ranks} of the rows "
                "that the config states; gather the slices of all ranks into one model, and compare that"
            )


def lacks_groups(anatomy: Anatomy) -> bool:
    """Return whether most layers lack attention or an MLP, and some matrices are unplaced."""
    layers_without_groups = [layer for layer in anatomy.layers if _missing_groups(layer)]
    return bool(anatomy.unplaced) and 2 * len(layers_without_groups) > len(anatomy.layers)


def lacks_parts(anatomy: Anatomy) -> bool:
    """Return whether most layers lack a part of their attention or MLP, and some matrices are unplaced.

    Families whose layers lack parts by design do not count.
    """
    if not anatomy.unplaced or anatomy.architecture in AWAY_FROM_THE_STREAM:
        return False
    return 2 * sum(any(without_groups(layer)) for layer in anatomy.layers) > len(anatomy.layers)


def _missing_groups(layer: Layer) -> bool:
    missing_roles = set(layer.missing)
    return {Role.Q, Role.O} <= missing_roles or {Role.UP, Role.DOWN} <= missing_roles


def _by_class(config: Mapping[str, object], tensors: TensorSource, n_known: int, shape_of: ShapeOf) -> Anatomy | None:
    """Resolve roles with the transformers class that the config names, if that gives more than ``n_known`` roles."""
    stored_names = names_by_class(config, frozenset(tensors.names()))
    if stored_names is not None:
        with suppress(AnatomyError):
            anatomy = resolve_renamed(config, stored_names, shape_of)
            if _n_roles(anatomy) > n_known:
                return replace(anatomy, decided_by="class")
    return None


def _by_shape(config: Mapping[str, object], tensors: TensorSource, shape_of: ShapeOf) -> Anatomy | None:
    with suppress(UnsupportedFormatError):
        stored_names = without_wrappers(tensors.names())
        anatomy = resolve_by_shape(config, list(stored_names), lambda name: shape_of(stored_names[name]))
        if anatomy is not None and (_n_roles(anatomy) or anatomy.embedding):
            return with_names_in_files(anatomy, stored_names)
    return None


def _n_roles(anatomy: Anatomy) -> int:
    return sum(
        not role.is_norm and role is not Role.ROUTER for layer in anatomy.layers for role, _ in layer.all_parts()
    )


def _resolved(config: Mapping[str, object], tensors: TensorSource) -> Anatomy:
    names = tensors.names()
    try:
        anatomy = _resolve(config, tensors, names)
    except (AnatomyError, CorruptCheckpointError, TensorNotFoundError):
        if not _reads_more(tensors, names):
            raise
        return _resolve(config, tensors, tensors.names())
    is_doubtful = _lacks_something(config, anatomy)
    if tensors.names() is not names or (is_doubtful and _reads_more(tensors, names)):
        return _resolve(config, tensors, tensors.names())
    return anatomy


def inventory_of(tensors: TensorSource, anatomy: Anatomy, config: Mapping[str, object]) -> ModelInventory:
    """Take a checkpoint's inventory, using the headers read so far."""
    contents = tensors.contents() if isinstance(tensors, ListsContents) else map(_plain(tensors), tensors.names())
    return take_inventory(
        contents,
        anatomy,
        n_bytes_of_files=tensors.n_bytes,
        n_predicted=n_predicted_layers(config),
        notes=tensors.description.notes,
    )


def _resolve(config: Mapping[str, object], tensors: TensorSource, names: tuple[str, ...]) -> Anatomy:
    return resolve_anatomy(config, names, lambda name: tensors.spec(name).shape)


def _lacks_something(config: Mapping[str, object], anatomy: Anatomy) -> bool:
    sizes = read_sizes(config)
    if sizes.n_layers is not None and 0 < anatomy.n_layers < sizes.n_layers and len(anatomy.prefixes) < 2:
        return True
    has_head = anatomy.unembedding is not None
    return anatomy.embedding is not None and not has_head and config.get("tie_word_embeddings") is False


def _reads_more(tensors: TensorSource, names: tuple[str, ...]) -> bool:
    if not isinstance(tensors, ListsContents):
        return False
    tensors.read_all_headers()
    return tensors.names() != names


def _plain(tensors: TensorSource) -> Callable[[str], StoredTensor]:
    def stored(name: str) -> StoredTensor:
        spec = tensors.spec(name)
        return StoredTensor(name, name, spec.n_bytes, spec.shape)

    return stored
