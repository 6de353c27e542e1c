"""Resolves the roles of a checkpoint whose index may be out of date, and takes its inventory."""

from __future__ import annotations

from collections.abc import Mapping

from mdir_hf.errors import AnatomyError, CorruptCheckpointError, TensorNotFoundError
from mdir_hf.model.files import TensorSource
from mdir_hf.model.files.sources import ListsContents, StoredTensor
from mdir_hf.model.inventory.records import ModelInventory
from mdir_hf.model.inventory.take import take_inventory
from mdir_hf.model.roles import Anatomy, resolve_anatomy
from mdir_hf.model.roles.config import read_sizes
from mdir_hf.model.roles.prune import keeps_most_layers, without_tensors


def resolve_from_headers(config: Mapping[str, object], tensors: TensorSource) -> Anatomy:
    """Resolve roles from the names of an index, and again from all headers if the index seems to be incomplete.

    An index is incomplete if it lists fewer layers than the config, no head although the config unties it, or no
    embedding; and if a header that was read on the way contradicts it.

    Args:
        config: The config of the model.
        tensors: Its weights.

    Raises:
        AnatomyError: As :func:`~mdir_hf.model.roles.resolve_anatomy`.
        CheckpointError: If a header cannot be read.
    """
    anatomy = _resolved(config, tensors)
    readable = without_tensors(anatomy, tensors.description.unreadable)
    # If hardly anything is left, the errors of the tensors say more than their absence.
    return readable if keeps_most_layers(readable) and (readable.embedding or readable.layers) else anatomy


def _resolved(config: Mapping[str, object], tensors: TensorSource) -> Anatomy:
    """Resolve roles, once more if an index was wrong."""
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
    """Take the inventory of a checkpoint by the headers that were read."""
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
    """Read all headers; True if that changed the names."""
    if not isinstance(tensors, ListsContents):
        return False
    tensors.read_all_headers()
    return tensors.names() != names


def _plain(tensors: TensorSource):  # type: ignore[no-untyped-def]
    def stored(name: str) -> StoredTensor:
        spec = tensors.spec(name)
        return StoredTensor(name, name, spec.n_bytes, spec.shape)

    return stored
