"""Inspects one model: its roles, its vocabulary, and what a comparison would read of it.

Reads the config, the index and the tokenizer, the headers of a few weight files, and no weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from mdir_hf.comparison.layer_weights import standing_for
from mdir_hf.comparison.layers import REPRESENTATIVES
from mdir_hf.comparison.plan import make_plan
from mdir_hf.comparison.progress import IoCount, Watch
from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import AnatomyError, CheckpointError, MdirError, UnsupportedFormatError
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Layer, Part, Role
from mdir_hf.report import InputOutput, Level, ModelSummary

SCHEMA = "mdir-hf/inspection/1"

FEW_FILES = 8
"""Up to this many weight files every header is read unasked: a request or two each."""


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """One tensor outside of the layers.

    Attributes:
        tensor: Its name in the checkpoint.
        shape: Its shape.
        dtype: Its dtype, as the format calls it.
        n_bytes: Its stored size.
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class VocabularySummary:
    """The tokenizer as data.

    Attributes:
        kind: How its files spell bytes.
        files: The files read.
        rows: One more than the highest row that a token has.
        tokens: Tokens that a comparison can use.
        special: Rows left out as special tokens.
        reserved: Rows left out as reserved.
        unused: Rows that hold nothing.
        duplicate: Rows left out because another one spells the same bytes.
    """

    kind: str
    files: tuple[str, ...]
    rows: int
    tokens: int
    special: int
    reserved: int
    unused: int
    duplicate: int


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers in which the same roles were found.

    Attributes:
        layers: Their numbers, in the order in which a token passes them.
        names: Their names: the number, or for a looped model the stack with the number in it (``core_block.1``).
        roles: Roles outside of experts.
        experts: Routed experts in each.
        shared_experts: Experts that every token passes, in each.
        expert_roles: Roles that some expert has.
        missing: Roles that such a layer should have and that were not found.
    """

    layers: tuple[int, ...]
    names: tuple[str, ...]
    roles: tuple[str, ...]
    experts: int
    shared_experts: int
    expert_roles: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartSummary:
    """One part of the inventory; together they hold every tensor of the files.

    Attributes:
        part: Its name.
        kind: ``stack``, ``table``, ``connector``, ``experts``, ``storage``, ``vectors`` or ``unplaced``.
        owner: The part that experts, storage and vectors belong to; None if there is none.
        layers: Names of its layers.
        tensors: How many tensors it has.
        bytes: Their stored size; None if the header of a file was not read.
        decided_by: How they were recognised: by ``names``, by the ``class`` of transformers or by ``shapes``.
        reason: Why tensors are unplaced, else None.
    """

    part: str
    kind: str
    owner: str | None
    layers: tuple[str, ...]
    tensors: int
    bytes: int | None
    decided_by: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class ReadEstimate:
    """Bytes that a comparison reads of this model, where the other one has the same tokens.

    Attributes:
        screen: Of its first and of its last look at the embedding; None without an embedding.
        embedding: Of the full test; None likewise.
        unembedding: Of the full test on the untied output head; None without one.
        layers: Of the layer map, by the role that stands for a layer; None where that would cost headers that were
            not read. Empty where no role was found.
        body: Of every weight with a role; None likewise.
    """

    screen: tuple[int, int] | None
    embedding: int | None
    unembedding: int | None
    layers: Mapping[str, int] | None
    body: int | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a comparison sees of one model.

    Attributes:
        model: Name, commit, architecture and sizes.
        heads: Query heads and key/value heads of a layer, where they are known and the same everywhere.
        head_dim: Width of a head, where it is known.
        rope: How rotated rows of a head pair up.
        format: Format of the weight files.
        quantization: How the weights are quantised, None where they are not.
        files: Number of weight files.
        bytes_of_weights: Their size.
        tensors: Number of tensors.
        embedding: The input embedding; None without one.
        unembedding: The output head, where it has a tensor of its own.
        tied: Whether the output head is the embedding.
        vocabulary: The tokenizer; None without one, or where it cannot be read (then a note says why).
        layer_groups: Layers by the roles found in them.
        unplaced: Tensors of the language model's layers that got no role.
        inventory: All tensors of the files by the part that they belong to.
        notes: What a reader should know, in sentences.
        reads: What a comparison would read.
        io: What this inspection read.
    """

    model: ModelSummary
    heads: tuple[int, int] | None
    head_dim: int | None
    rope: str
    format: str
    quantization: str | None
    files: int
    bytes_of_weights: int
    tensors: int
    embedding: TensorSummary | None
    unembedding: TensorSummary | None
    tied: bool
    vocabulary: VocabularySummary | None
    layer_groups: tuple[LayerGroup, ...]
    unplaced: tuple[str, ...]
    inventory: tuple[PartSummary, ...]
    notes: tuple[str, ...]
    reads: ReadEstimate
    io: InputOutput

    def to_json(self) -> str:
        """One JSON object of the schema ``mdir-hf/inspection/1``."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        from mdir_hf.comparison.inspection.text import lines_of

        return "\n".join(lines_of(self))


def inspect_model(
    repo_or_folder: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    force_download: bool = False,
    subfolder: str = "",
    variant: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    bases: Sequence[str] = (),
    all_headers: bool | None = None,
) -> Inspection:
    """Look at one model as a comparison would, without reading weights.

    Args:
        repo_or_folder: ``owner/name``, ``owner/name@revision``, a Hub URL, a local folder or weight file.
        revision: Branch, tag or commit.
        token: Token for gated and private models; None or True: the stored one, False: none.
        cache_dir: The Hub cache to use; the standard one by default.
        local_files_only: Use no network.
        force_download: Do not use what is cached.
        subfolder: Folder of the repository that holds the model.
        variant: ``fp16`` reads ``model.fp16.safetensors``.
        tokenizer: Repository or folder to read its vocabulary from, where its own has none or another one.
        bases: Of an adapter: commits at which to read what lies under it, each ``owner/name@commit``.
        all_headers: Whether to read the header of every weight file, which checks the shape of every weight and tells
            what the layers would cost; None: where there are at most eight.

    Returns:
        What was found.

    Raises:
        MdirError: If the model cannot be opened, has no readable weights, or is not a language model.
    """
    named = NamedModel(repo_or_folder, revision, subfolder, variant, tokenizer, tuple(bases))
    reading = Reading(token, cache_dir, local_files_only, force_download)
    return inspect_named(named, reading, all_headers=all_headers)


def inspect_named(
    named: NamedModel,
    reading: Reading,
    *,
    all_headers: bool | None = None,
    listeners: Listeners = Listeners(progress=False),
) -> Inspection:
    """Look at one model as a comparison would; as :func:`inspect_model`, whose arguments these hold.

    Args:
        named: The model.
        reading: How its repository is opened.
        all_headers: As there.
        listeners: Who is told of the bytes.
    """
    ledger = IoLedger()
    watch = Watch(ledger, listeners, from_start=True)
    with watch.listening():
        watch.enter("opening")
        return _inspected(named.open(reading, ledger), watch.io, all_headers)


def _inspected(model: Model, io: IoCount, all_headers: bool | None) -> Inspection:
    anatomy = model.anatomy
    notes = [*anatomy.notes, *model.tensors.description.notes]
    vocabulary = _vocabulary(model, notes)
    wants_headers = all_headers if all_headers is not None else len(model.tensors.paths) <= FEW_FILES
    if wants_headers:
        _check_shapes(model, notes)
    description = model.tensors.description
    has_heads = anatomy.n_heads is not None and anatomy.n_kv_heads is not None
    return Inspection(
        model=model.summary(),
        heads=(anatomy.n_heads or 0, anatomy.n_kv_heads or 0) if has_heads else None,
        head_dim=anatomy.head_dim,
        rope=anatomy.rope,
        format=description.format,
        quantization=description.quantization,
        files=len(model.tensors.paths),
        bytes_of_weights=model.tensors.n_bytes,
        tensors=len(model.tensors.names()),
        embedding=None if anatomy.embedding is None else _tensor(model, anatomy.embedding),
        unembedding=None if anatomy.unembedding is None else _tensor(model, anatomy.unembedding),
        tied=anatomy.tied,
        vocabulary=vocabulary,
        layer_groups=_groups(anatomy.layers),
        unplaced=anatomy.unplaced,
        inventory=_inventory(model, has_headers=wants_headers),
        notes=tuple(notes),
        reads=_reads(model, vocabulary, has_headers=wants_headers),
        io=io.result(model.tensors.n_bytes),
    )


def _inventory(model: Model, *, has_headers: bool) -> tuple[PartSummary, ...]:
    inventory = model.inventory if has_headers else model.known_inventory()
    return tuple(
        PartSummary(
            part.name,
            part.kind.value,
            part.owner,
            part.layers,
            part.n_tensors,
            part.n_bytes,
            part.decided_by,
            part.reason,
        )
        for part in inventory.parts
    )


def _vocabulary(model: Model, notes: list[str]) -> VocabularySummary | None:
    try:
        found = model.vocabulary
    except MdirError as exc:
        notes.append(f"the vocabulary cannot be read: {exc}")
        return None
    if found is None:
        notes.append("no tokenizer files: rows would be paired by their number")
        return None
    notes += (f"its tokenizer files contradict each other: {doubt}" for doubt in model.vocabulary_doubts())
    return VocabularySummary(
        kind=found.kind.value,
        files=found.files,
        rows=found.n_rows,
        tokens=found.n_tokens,
        special=found.n_special,
        reserved=found.n_reserved,
        unused=found.n_unused,
        duplicate=found.n_duplicate,
    )


def _check_shapes(model: Model, notes: list[str]) -> None:
    """Read every header, and note the first layer whose tensors cannot be what their names say, and how many others."""
    faults = []
    for layer in model.anatomy.layers:
        try:
            model.anatomy.check_shapes(layer, lambda name: model.tensors.spec(name).shape)
        except (AnatomyError, CheckpointError) as exc:
            faults.append(f"layer {layer.index}: {exc.message}")
    notes += faults[:1]
    if len(faults) > 1:
        more = "1 more layer has" if len(faults) == 2 else f"{len(faults) - 1} more layers have"
        notes.append(f"{more} tensors that are not read, or cannot be what their names say")


def _tensor(model: Model, part: Part) -> TensorSummary:
    spec = model.tensors.spec(part.tensor)
    return TensorSummary(spec.name, spec.shape, spec.dtype, spec.n_bytes)


def _groups(layers: Iterable[Layer]) -> tuple[LayerGroup, ...]:
    def values(roles: Iterable[Role]) -> tuple[str, ...]:
        present = set(roles)
        return tuple(role.value for role in Role if role in present)

    members: dict[tuple[Any, ...], list[Layer]] = {}
    for layer in layers:
        experts = [*layer.experts, *layer.shared_experts]
        key = (
            values(layer.parts),
            len(layer.experts),
            len(layer.shared_experts),
            values(role for parts in experts for role in parts),
            values(layer.missing),
        )
        members.setdefault(key, []).append(layer)
    return tuple(
        LayerGroup(tuple(layer.index for layer in alike), tuple(layer.name for layer in alike), *key)
        for key, alike in members.items()
    )


def _reads(model: Model, vocabulary: VocabularySummary | None, *, has_headers: bool) -> ReadEstimate:
    anatomy = model.anatomy
    n_tokens = model.n_rows if vocabulary is None else min(vocabulary.tokens, model.n_rows)
    screen = embedding = unembedding = None
    if anatomy.embedding is not None:
        spec = model.tensors.spec(anatomy.embedding.tensor)
        plan = make_plan(spec, spec, common_tokens=n_tokens, bytes_of_weights=model.tensors.n_bytes, level=Level.AUTO)
        # Of two such models: half of it is this one's.
        screen, embedding = (plan.screen_bytes[0] // 2, plan.screen_bytes[1] // 2), plan.full_bytes // 2
    if anatomy.unembedding is not None and not anatomy.declares_tied:
        head = model.tensors.spec(anatomy.unembedding.tensor)
        unembedding = n_tokens * (head.n_bytes // head.shape[0])
    layers = body = None
    if has_headers:
        layers = {}
        for role in REPRESENTATIVES:
            standing = [(layer, standing_for(layer, role)) for layer in anatomy.layers]
            parts = [layer.parts[stand] for layer, stand in standing if stand is not None]
            if parts:
                layers[role.value] = _n_bytes(model, {name for part in parts for name in part.tensors})
        placed = (part for layer in anatomy.layers for _, part in layer.all_parts())
        body = _n_bytes(model, {name for part in placed for name in part.tensors})
    return ReadEstimate(
        screen=screen,
        embedding=embedding,
        unembedding=unembedding,
        layers=layers,
        body=body,
    )


def _n_bytes(model: Model, names: Iterable[str]) -> int:
    """Stored size of some tensors, but for those that are not read anyway."""
    total = 0
    for name in set(names) - model.tensors.description.unreadable:
        with suppress(UnsupportedFormatError):
            total += model.tensors.spec(name).n_bytes
    return total
