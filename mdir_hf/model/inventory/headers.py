"""Resolve a checkpoint's roles and take its inventory, even if its index is outdated."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from mdir_hf.errors import AnatomyError, CorruptCheckpointError, TensorNotFoundError, UnsupportedFormatError
from mdir_hf.model.files import TensorSource
from mdir_hf.model.files.sources import ListsContents, StoredTensor
from mdir_hf.model.inventory.by_class import names_by_class
from mdir_hf.model.inventory.by_shape import resolve_by_shape
from mdir_hf.model.inventory.loaded import n_predicted_layers
from mdir_hf.model.inventory.records import ModelInventory
from mdir_hf.model.inventory.take import take_inventory
from mdir_hf.model.roles import Anatomy, Layer, Role, resolve_anatomy
from mdir_hf.model.roles.config import read_sizes
from mdir_hf.model.roles.layer_names import split_at_layer
from mdir_hf.model.roles.parts import StoredWeight, WeightPart
from mdir_hf.model.roles.resolve import resolve_renamed
from mdir_hf.model.roles.wrappers import without_wrappers


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
    """In layers that lack attention or an MLP, assign roles to matrices with common names and suitable shapes."""
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
    placed_names = {name for layer in layers for part in layer.parts.values() for name in part.tensors}
    if layers == anatomy.layers:
        return anatomy
    unplaced = tuple(name for name in anatomy.unplaced if name not in placed_names)
    return replace(anatomy, layers=layers, unplaced=unplaced)


def _completed(layer: Layer, stored_names: Mapping[str, str], width: int, shape_of: ShapeOf) -> Layer:
    parts: dict[Role, StoredWeight] = dict(layer.parts)
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
    tensors: dict[Role, str] = {}
    for role, pattern in names.items():
        usual = re.compile(rf"(?:.*\.)?(?:{pattern})(?:\.weight)?")
        is_attention = role in ATTENTION_NAMES
        matching = [
            stored
            for suffix, stored in stored_names.items()
            if usual.fullmatch(suffix) and not _CROSS.search(suffix) and is_attention == ("att" in suffix.lower())
        ]
        if len(matching) == 1:
            tensors[role] = matching[0]
    return tensors


def resolve_from_headers(config: Mapping[str, object], tensors: TensorSource) -> Anatomy:
    """Resolve roles from the names in an index, or from all headers if the index seems incomplete.

    An index seems incomplete if it lacks layers, an untied head or the embedding, or contradicts a header.

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
    # If hardly anything is left, keep the unreadable tensors: errors that name them are more helpful.
    return readable if keeps_most_layers(readable) and (readable.embedding or readable.layers) else anatomy


def lacks_groups(anatomy: Anatomy) -> bool:
    """Return whether most layers lack attention or an MLP, and some matrices are unplaced."""
    layers_without_groups = [layer for layer in anatomy.layers if _missing_groups(layer)]
    return bool(anatomy.unplaced) and 2 * len(layers_without_groups) > len(anatomy.layers)


def _missing_groups(layer: Layer) -> bool:
    missing_roles = set(layer.missing)
    return {Role.Q, Role.O} <= missing_roles or {Role.UP, Role.DOWN} <= missing_roles


def _by_class_or_shape(config: Mapping[str, object], tensors: TensorSource, by_names: Anatomy | None) -> Anatomy | None:
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
        return None  # partly known names are more reliable than shapes
    with suppress(UnsupportedFormatError):
        anatomy_by_shape = resolve_by_shape(config, tensors.names(), shape_of)
        is_useful = anatomy_by_shape is not None and (
            _n_roles(anatomy_by_shape) or (by_names is None and anatomy_by_shape.embedding)
        )
        if is_useful:
            return anatomy_by_shape
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
