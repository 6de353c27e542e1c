"""Resolve the role of every tensor from the config and tensor names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.model.roles import tables
from mdir_hf.model.roles.config import Config, ConfigSizes, read_sizes, sizes_of_stack, without_foreign_defaults
from mdir_hf.model.roles.families.decoders import SHORTCUTS
from mdir_hf.model.roles.families.state_space import CHANNELS_PER_HEAD, HEADS_FROM_SHAPE, SIGNS
from mdir_hf.model.roles.layer_names import Stack, find_stacks, is_in_layer, join_sequences, split_at_layer
from mdir_hf.model.roles.layers import Layer, choose_stack, place_layers
from mdir_hf.model.roles.numbered_channels import meaning_of_neuron_numbers, meaning_of_numbers
from mdir_hf.model.roles.parts import ShapeOf, StoredWeight, WeightPart, WeightProduct, part_shape
from mdir_hf.model.roles.roles import Role
from mdir_hf.model.roles.rows import EdgeRow, RopeLayout
from mdir_hf.model.roles.wrappers import with_stored_names, without_wrappers

WITHOUT_EMBEDDING = "there is no embedding, as in draft models and heads that use another model's embedding"


Reading = tuple[Mapping[Role, StoredWeight], ...]
"""A possible reading of a group of weights: for each layer, the parts and their roles."""

DecidedBy = Literal["names", "class", "shapes"]
"""How a tensor's role was found: from its name, the transformers class in the config, or its shape."""


@dataclass(frozen=True)
class Anatomy:
    """The roles of a checkpoint's tensors.

    Attributes:
        architecture: ``model_type`` of the language model, or ``unknown``.
        hidden_size: Width of the residual stream, ``d_model``.
        embedding_size: Width of the embedding, before any projection.
        vocabulary_size: Size of the vocabulary according to the config, or None.
        rope: How rotated rows pair up, or ``none`` if positions do not affect q and k.
        rotary_dim: Number of rotated rows at the start of a head; None if all are rotated, or if unknown.
        norms_add_one: Whether the norms multiply by ``1 + g``.
        embedding_scale: Factor of the embedding rows.
        channel_numbers: Clause that explains the meaning of a residual channel's number, or None.
        prefixes: Prefixes of the layers; looped models have several.
        readings: For each group of weights whose names and shapes allow several readings, all of them; ``layers``
            have the first.
        output_width: Width of the layers' output if it differs from ``hidden_size``.
        embedding: Input embedding, ``(d_vocab, d_model)``.
        unembedding: Stored output head (``lm_head``), ``(d_vocab, d_model)``.
        tied: Whether the output head is the embedding; False if a head is stored.
        unplaced: Names of tensors in the language model's stack that have no role.
        why_main: Why this stack is the main one, which a verdict answers for.
    """

    architecture: str
    hidden_size: int
    embedding_size: int
    vocabulary_size: int | None
    n_layers: int
    n_heads: int | None
    n_kv_heads: int | None
    head_dim: int | None
    embedding: WeightPart | None
    unembedding: WeightPart | None
    tied: bool
    final_norm: WeightPart | None = None
    layers: tuple[Layer, ...] = ()
    unplaced: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    rope: RopeLayout = "unknown"
    rotary_dim: int | None = None
    norms_add_one: bool = False
    embedding_scale: float = 1.0
    channel_numbers: str | None = None
    neuron_numbers: str | None = None
    prefixes: tuple[str, ...] = ()
    why_main: str = field(default="", compare=False)
    readings: tuple[tuple[Reading, ...], ...] = field(default=(), repr=False)
    decided_by: DecidedBy = "names"
    output_width: int | None = None

    @property
    def written_width(self) -> int:
        """Width of the layers' output."""
        return self.hidden_size if self.output_width is None else self.output_width

    @property
    def unread_layers(self) -> tuple[int, ...]:
        """Numbers of the layers in which no weight has a role, apart from norms and routers."""
        return tuple(layer.index for layer in self.layers if not _has_weights(layer))

    def check_shapes(self, layer: Layer, shape_of: ShapeOf) -> None:
        """Check a layer's stored shapes.

        Raises:
            AnatomyError: If a tensor's shape contradicts its role.
        """
        for role, part in layer.all_parts():
            if isinstance(part, WeightProduct):
                self._check_side(
                    role, f"product {' x '.join(part.tensors)!r} (role {role.value})", part_shape(part, shape_of)
                )
                continue
            stored_shape = tuple(shape_of(part.tensor))
            is_stack = part.expert is not None and part.n_experts is None
            if (
                is_stack
                and len(stored_shape) == 3
                and stored_shape[0] not in (len(layer.experts), len(layer.shared_experts))
            ):
                raise AnatomyError(
                    f"tensor {part.tensor!r} has shape {stored_shape}; the config says {len(layer.experts)} experts"
                )
            if role in (Role.Q_NORM, Role.K_NORM) and len(stored_shape) == 2:
                continue  # Chameleon has a scale for every head
            n_axes = 1 if role.is_norm else 3 if is_stack or part.joined else 2
            if len(stored_shape) != n_axes:
                what = {1: "a vector", 2: "a matrix", 3: "a stack of matrices, one for each expert"}[n_axes]
                raise AnatomyError(
                    f"tensor {part.tensor!r} (role {role.value}) has shape {stored_shape}; expected {what}"
                )
            if not role.is_norm:
                label = f"tensor {part.tensor!r} (role {role.value}, stored shape {stored_shape})"
                self._check_side(role, label, part.shape(stored_shape))

    def _check_side(self, role: Role, label: str, shape: tuple[int, ...]) -> None:
        d_out, d_in = shape
        axis, actual = ("input", d_in) if role.reads_stream else ("output", d_out)
        if actual != self.hidden_size:
            raise AnatomyError(f"{label} has {axis} side {actual}; expected the width of the model, {self.hidden_size}")


def resolve_anatomy(config: Config | None, names: Iterable[str], shape_of: ShapeOf) -> Anatomy:
    """Assign roles to tensors according to their names. Without a config, embeddings can still be compared.

    Raises:
        AnatomyError: If no embedding, layers or unembedding are found, or a shape contradicts the config.
    """
    return resolve_renamed(config, without_wrappers(names), shape_of)


def resolve_renamed(config: Config | None, stored_names: Mapping[str, str], shape_of: ShapeOf) -> Anatomy:
    """Resolve roles from the keys of ``stored_names``; the values are names in the files."""
    anatomy = _resolve(config, sorted(stored_names), lambda name: shape_of(stored_names[name]))
    return with_names_in_files(anatomy, stored_names)


def with_names_in_files(anatomy: Anatomy, stored_names: Mapping[str, str]) -> Anatomy:
    """Replace names that are keys of ``stored_names`` by names in the files."""
    if all(plain == stored for plain, stored in stored_names.items()):
        return anatomy

    def stored(part: WeightPart | None) -> WeightPart | None:
        return None if part is None else WeightPart(stored_names[part.tensor])

    return replace(
        anatomy,
        embedding=stored(anatomy.embedding),
        unembedding=stored(anatomy.unembedding),
        final_norm=stored(anatomy.final_norm),
        layers=tuple(with_stored_names(layer, stored_names) for layer in anatomy.layers),
        unplaced=tuple(stored_names[name] for name in anatomy.unplaced),
    )


def _resolve(config: Config | None, all_names: list[str], shape_of: ShapeOf) -> Anatomy:
    sizes = _with_family(read_sizes(config), all_names)
    notes: list[str] = [] if config else ["there is no config; names and shapes decided"]
    stacks = join_sequences(find_stacks(all_names, sizes.architecture))
    is_sequential = sizes.architecture in tables.SEQUENTIAL
    is_flat = is_sequential or sizes.architecture in tables.HEADS_ALONE
    outside = all_names if is_flat else [name for name in all_names if not is_in_layer(name)]
    embedding = _find_embedding(outside, sizes, notes)
    embedding_size = sizes.hidden_size
    stored_shape: tuple[int, ...] = ()
    unreadable: UnsupportedFormatError | None = None
    empty: AnatomyError | None = None
    try:
        stored_shape = () if embedding is None else tuple(shape_of(embedding))
    except UnsupportedFormatError as exc:
        notes.append(f"the embedding {embedding!r} is not compared: {exc.message}")
        embedding, unreadable = None, exc
    if embedding is not None and 0 in stored_shape:
        empty = AnatomyError(f"the embedding {embedding!r} is empty, shape {stored_shape}")
        notes.append(f"{empty.message}, and is not compared")
        embedding = None
    if embedding is not None:
        sizes = _as_sliced(sizes, stored_shape, stacks, notes)
        sizes = without_foreign_defaults(config, sizes, stored_shape, notes)
        n_rows, embedding_size = _check_embedding(embedding, stored_shape, sizes)
        if sizes.vocabulary_size is not None and sizes.vocabulary_size != n_rows:
            notes.append(f"the config says {sizes.vocabulary_size} tokens, but the embedding has {n_rows} rows")
    hidden_size = sizes.hidden_size or embedding_size

    unembedding = _find_unembedding(outside, sizes.architecture, embedding)
    if unembedding is None:
        tied = embedding is not None and sizes.ties_embeddings is not False
    else:
        tied = False
        try:
            width = _width_of_head(unembedding, tuple(shape_of(unembedding)), notes)
            unembedding = None if width is None else unembedding
        except UnsupportedFormatError as exc:  # the embedding can still be compared
            notes.append(f"the unembedding (lm_head) is not read: {exc.message}")
            unembedding, width = None, None
        hidden_size = hidden_size or width
        if width not in (None, hidden_size, embedding_size, sizes.unembedding_size):
            notes.append(f"the unembedding (lm_head) {unembedding!r} has width {width}, but the model {hidden_size}")
        if unembedding is not None and embedding is not None and sizes.ties_embeddings:
            notes.append(
                f"the config ties the unembedding (lm_head) to the embedding, but {unembedding!r} is stored; it is an "
                "independent test only if the two differ"
            )

    has_stack = sizes.architecture not in tables.HEADS_ALONE
    stack, why_main = choose_stack(stacks, embedding or "", sizes) if has_stack else (None, "")
    layers: tuple[Layer, ...] = ()
    unplaced: tuple[str, ...] = ()
    final_norm = None
    if stack is not None and is_sequential:
        edge_names = filter(None, (embedding, unembedding))
        edges = {split[1] for name in edge_names if (split := split_at_layer(name)) is not None}
        stack = replace(stack, names={at: suffixes for at, suffixes in stack.names.items() if at not in edges})
        sizes = replace(sizes, n_layers=None)  # layer numbers do not start at 0
    if stack is not None and stack.names:
        sizes = _with_heads(sizes_of_stack(sizes, stack.prefix), stack, shape_of)
        layers, unplaced = place_layers(stack, sizes, notes)
        final_norm = _find_final_norm(all_names, stack.prefix, sizes.architecture)
    if unreadable is not None and not _is_readable(layers, shape_of):
        raise unreadable
    if embedding is None:
        if hidden_size is None or (unembedding is None and not any(_has_weights(layer) for layer in layers)):
            raise empty or _no_embedding(all_names)
        notes.append(WITHOUT_EMBEDDING)
    assert hidden_size is not None
    if sizes.heads is None and any(Role.Q in layer.parts and layer.heads is None for layer in layers):
        notes.append(
            "the number of attention heads is unknown; attention is compared without heads, and without the planes in "
            "which positions turn them"
        )
    n_kv_heads = sizes.n_heads if sizes.n_kv_heads is None else sizes.n_kv_heads
    return Anatomy(
        architecture=sizes.architecture,
        hidden_size=hidden_size,
        embedding_size=embedding_size or hidden_size,
        vocabulary_size=sizes.vocabulary_size,
        n_layers=len(layers),
        n_heads=sizes.n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=sizes.width_of_head,
        embedding=None if embedding is None else WeightPart(embedding),
        unembedding=None if unembedding is None else WeightPart(unembedding),
        tied=tied,
        final_norm=None if final_norm is None else WeightPart(final_norm),
        layers=layers,
        unplaced=unplaced,
        notes=tuple(notes),
        rope=sizes.rotation.layout,
        rotary_dim=sizes.rotation.dim,
        norms_add_one=bool(sizes.flags.get("norms_add_one", sizes.architecture in tables.NORMS_ADDING_ONE)),
        embedding_scale=sizes.embedding_scale,
        channel_numbers=sizes.channel_numbers,
        neuron_numbers=meaning_of_neuron_numbers(sizes.architecture),
        prefixes=() if stack is None else stack.prefixes,
        why_main=why_main,
    )


def _as_sliced(
    sizes: ConfigSizes, stored_shape: tuple[int, ...], stacks: tuple[Stack, ...], notes: list[str]
) -> ConfigSizes:
    """If SliceGPT removed channels, take the width from the embedding."""
    is_sliced = any(
        re.fullmatch(SHORTCUTS, suffix) for stack in stacks for suffixes in stack.names.values() for suffix in suffixes
    )
    if not is_sliced or len(stored_shape) != 2 or sizes.hidden_size in (None, stored_shape[1]):
        return sizes
    notes.append(f"SliceGPT cut {sizes.hidden_size} channels down to {stored_shape[1]}; every layer has its own basis")
    return replace(sizes, hidden_size=stored_shape[1], embedding_size=None, head_dim=sizes.width_of_head)


def _is_readable(layers: tuple[Layer, ...], shape_of: ShapeOf) -> bool:
    for layer in layers[:1]:
        for role, part in layer.all_parts():
            if role.is_norm or role is Role.ROUTER:
                continue
            try:
                part_shape(part, shape_of)
            except (AnatomyError, UnsupportedFormatError):
                continue
            return True
    return False


def _has_weights(layer: Layer) -> bool:
    return not all(role.is_norm or role is Role.ROUTER for role, _ in layer.all_parts())


def _find_embedding(outside: list[str], sizes: ConfigSizes, notes: list[str]) -> str | None:
    architecture = sizes.architecture
    for candidates in (
        [name for name in outside if not _belongs_elsewhere(name)],
        outside,  # a model called visual_bert is not a vision tower
    ):
        match = _first_match(candidates, tables.EMBEDDING_ROWS, architecture)
        if match is not None:
            return match
    can_be_tied = sizes.ties_embeddings is not False and architecture not in tables.HEADS_ALONE
    head = _find_unembedding(outside, architecture, None) if can_be_tied else None
    if head is not None:
        notes.append(
            f"embedding and unembedding (lm_head) are tied, and only {head!r} is stored; it is used as the embedding"
        )
    return head


def _no_embedding(names: list[str]) -> AnatomyError:
    first_names = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    patterns = ", ".join(row.pattern for row in tables.EMBEDDING_ROWS if not row.model_types)
    looked_for = patterns.replace("\\", "").replace("?", "")
    return AnatomyError(
        f"no tensor is named like an input embedding among {len(names)} ({first_names}); looked for {looked_for}"
    )


def _find_unembedding(outside: list[str], architecture: str, embedding: str | None) -> str | None:
    if architecture in tables.HEADS_OF_OTHER_TOKENS or tables.TOKENS_OF_DRAFT in outside:
        return None
    candidates = [name for name in outside if name != embedding and not _belongs_elsewhere(name)]
    return _first_match(candidates, tables.UNEMBEDDING_ROWS, architecture)


def _with_family(sizes: ConfigSizes, names: list[str]) -> ConfigSizes:
    if sizes.architecture != "unknown":
        return sizes
    for pattern, family in SIGNS:
        if any(re.fullmatch(rf"(?:.*\.)?{pattern}", name) for name in names):
            channels = CHANNELS_PER_HEAD.get(family)
            n_heads = sizes.n_heads if channels is None or sizes.hidden_size is None else sizes.hidden_size // channels
            return replace(sizes, architecture=family, n_heads=n_heads, channel_numbers=meaning_of_numbers(family))
    return sizes


def _with_heads(sizes: ConfigSizes, stack: Stack, shape_of: ShapeOf) -> ConfigSizes:
    """Take the head counts from a tensor with one row per head, if there is one."""
    every = {suffix for suffixes in stack.names.values() for suffix in suffixes}
    telling = {suffix for suffix in every if any(re.fullmatch(pattern, suffix) for pattern in HEADS_FROM_SHAPE)}
    for index, suffixes in stack.names.items() if telling else ():
        for suffix in suffixes:
            if suffix in telling:
                shape = tuple(shape_of(stack.tensor(index, suffix)))
                if len(shape) == 2 and 0 not in shape:
                    return replace(sizes, n_heads=shape[0], n_kv_heads=shape[0], head_dim=shape[1])
    return sizes


def _find_final_norm(names: list[str], stack_prefix: str, architecture: str) -> str | None:
    folder = stack_prefix.rpartition(".")[0]
    start = folder + "." if folder else ""
    inside = {name.removeprefix(start): name for name in names if name.startswith(start)}
    matches = (
        name
        for row in _of_family(tables.FINAL_NORM_ROWS, architecture)
        for suffix, name in inside.items()
        if re.fullmatch(row.pattern, suffix)
    )
    return next(matches, None)


def _first_match(candidates: list[str], rows: tuple[EdgeRow, ...], architecture: str) -> str | None:
    for row in _of_family(rows, architecture):
        pattern = re.compile(row.pattern if row.at_root else rf"(?:.*\.)?(?:{row.pattern})")
        matching = [name for name in candidates if pattern.fullmatch(name)]
        if matching:
            # A model with encoder and decoder has an embedding in each; the decoder is the language model.
            return min(matching, key=lambda name: ("encoder" in name, "decoder" not in name, name.count("."), name))
    return None


def _of_family(rows: tuple[EdgeRow, ...], architecture: str) -> list[EdgeRow]:
    return [row for row in rows if not row.model_types or architecture in row.model_types]


def _check_embedding(name: str, stored_shape: tuple[int, ...], sizes: ConfigSizes) -> tuple[int, int]:
    shape = _edge_shape(f"embedding {name!r}", stored_shape)
    allowed = [size for size in (sizes.hidden_size, sizes.embedding_size) if size is not None]
    if allowed and shape[1] not in allowed:
        raise AnatomyError(
            f"the embedding {name!r} has shape {shape}; the config expects width {' or '.join(map(str, allowed))}"
        )
    return shape


def _width_of_head(name: str, shape: tuple[int, ...], notes: list[str]) -> int | None:
    if 0 not in shape:
        return _edge_shape(f"unembedding (lm_head) {name!r}", shape)[1]
    notes.append(f"the unembedding (lm_head) {name!r} is empty, shape {shape}, and is not compared")
    return None


def _edge_shape(what: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2 or 0 in shape:
        raise AnatomyError(f"the {what} has shape {tuple(shape)}; expected (tokens, width), both positive")
    return shape[0], shape[1]


def _belongs_elsewhere(name: str) -> bool:
    return any(word in name.lower() for word in tables.OTHER_STACKS)
