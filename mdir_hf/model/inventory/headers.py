"""Resolves the roles in a checkpoint whose index may be out of date, and takes its inventory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from mdir_hf.errors import AnatomyError, CorruptCheckpointError, TensorNotFoundError, UnsupportedFormatError
from mdir_hf.model.files import TensorSource
from mdir_hf.model.files.sources import ListsContents, StoredTensor
from mdir_hf.model.inventory.by_class import names_by_class
from mdir_hf.model.inventory.by_shape import resolve_by_shape
from mdir_hf.model.inventory.records import ModelInventory
from mdir_hf.model.inventory.take import take_inventory
from mdir_hf.model.roles import Anatomy, Layer, Role, resolve_anatomy
from mdir_hf.model.roles.config import read_sizes
from mdir_hf.model.roles.prune import keeps_most_layers, without_tensors
from mdir_hf.model.roles.resolve import resolve_renamed
from mdir_hf.model.roles.usual_names import with_usual_names


def resolve_from_headers(config: Mapping[str, object], tensors: TensorSource) -> Anatomy:
    """Resolve roles from the names in an index, and again from all headers if the index seems incomplete.

    An index is incomplete if it lists fewer layers than the config, no head although the config unties it, or no
    embedding, or if a header read on the way contradicts it.

    Raises:
        AnatomyError: See :func:`~mdir_hf.model.roles.resolve_anatomy`.
        CheckpointError: If a header cannot be read.
    """
    try:
        anatomy = _resolved(config, tensors)
    except AnatomyError as exc:
        fallback = _by_class_or_shape(config, tensors, None)
        if fallback is None:
            raise exc from None
        anatomy = fallback
    else:
        if lacks_groups(anatomy):
            anatomy = _by_class_or_shape(config, tensors, anatomy) or anatomy
            anatomy = with_usual_names(anatomy, lambda name: tuple(tensors.spec(name).shape))
    readable = without_tensors(anatomy, tensors.description.unreadable)
    # If hardly anything is left, errors about the tensors are more helpful than their absence.
    return readable if keeps_most_layers(readable) and (readable.embedding or readable.layers) else anatomy


def lacks_groups(anatomy: Anatomy) -> bool:
    """Return whether most layers have unplaced matrices and lack all roles of attention, or of the MLP."""
    lacking = [layer for layer in anatomy.layers if _missing_groups(layer)]
    return bool(anatomy.unplaced) and 2 * len(lacking) > len(anatomy.layers)


def _missing_groups(layer: Layer) -> bool:
    missing = set(layer.missing)
    return {Role.Q, Role.O} <= missing or {Role.UP, Role.DOWN} <= missing


def _by_class_or_shape(config: Mapping[str, object], tensors: TensorSource, by_names: Anatomy | None) -> Anatomy | None:
    """Resolve roles by class, then by shapes; None if neither finds more than the names."""

    def shape_of(name: str) -> tuple[int, ...]:
        return tuple(tensors.spec(name).shape)

    least = 0 if by_names is None else _n_roles(by_names)
    stored_names = names_by_class(config, frozenset(tensors.names()))
    if stored_names is not None:
        with suppress(AnatomyError):
            anatomy = resolve_renamed(config, stored_names, shape_of)
            if _n_roles(anatomy) > least:
                return replace(anatomy, decided_by="class")
    if by_names is not None and least:
        return None  # shapes tell less than partly known names
    with suppress(UnsupportedFormatError):
        anatomy_by_shape = resolve_by_shape(config, tensors.names(), shape_of)
        is_useful = anatomy_by_shape is not None and (
            _n_roles(anatomy_by_shape) or (by_names is None and anatomy_by_shape.embedding)
        )
        if is_useful:
            return anatomy_by_shape
    return None


def _n_roles(anatomy: Anatomy) -> int:
    """Return the number of matrices with a role in all layers."""
    return sum(
        not role.is_norm and role is not Role.ROUTER for layer in anatomy.layers for role, _ in layer.all_parts()
    )


def _resolved(config: Mapping[str, object], tensors: TensorSource) -> Anatomy:
    """Resolve roles, again if the index turns out to be wrong."""
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


def inventory_of(tensors: TensorSource, anatomy: Anatomy) -> ModelInventory:
    """Take the inventory of a checkpoint from the headers read so far."""
    contents = tensors.contents() if isinstance(tensors, ListsContents) else map(_plain(tensors), tensors.names())
    return take_inventory(contents, anatomy, n_bytes_of_files=tensors.n_bytes, notes=tensors.description.notes)


def _resolve(config: Mapping[str, object], tensors: TensorSource, names: tuple[str, ...]) -> Anatomy:
    return resolve_anatomy(config, names, lambda name: tensors.spec(name).shape)


def _lacks_something(config: Mapping[str, object], anatomy: Anatomy) -> bool:
    sizes = read_sizes(config)
    if sizes.n_layers is not None and 0 < anatomy.n_layers < sizes.n_layers and len(anatomy.prefixes) < 2:
        return True
    has_head = anatomy.unembedding is not None
    return anatomy.embedding is not None and not has_head and config.get("tie_word_embeddings") is False


def _reads_more(tensors: TensorSource, names: tuple[str, ...]) -> bool:
    """Read all headers; return whether that changed the names."""
    if not isinstance(tensors, ListsContents):
        return False
    tensors.read_all_headers()
    return tensors.names() != names


def _plain(tensors: TensorSource) -> Callable[[str], StoredTensor]:
    """Describe tensors of a source that cannot list its contents."""

    def stored(name: str) -> StoredTensor:
        spec = tensors.spec(name)
        return StoredTensor(name, name, spec.n_bytes, spec.shape)

    return stored
