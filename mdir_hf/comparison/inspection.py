"""Inspect a model: its tensor roles, its vocabulary, and the bytes that a comparison would read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from textwrap import fill
from typing import Any

from mdir_hf.comparison.coverage import is_loaded
from mdir_hf.comparison.plan import reads_of
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import AnatomyError, CheckpointError, MdirError, UnsupportedFormatError
from mdir_hf.model.files.choosing import described, files_beside
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.inventory import PartKind
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Layer, Role, StoredWeight
from mdir_hf.names import LONGEST_TEXT, shown_name, visible_text
from mdir_hf.report import InputOutput, ModelSummary, n_bytes_text
from mdir_hf.report.words import counted

SCHEMA = "mdir-hf/inspection/1"

MOST_NAMES = 20
"""Maximum number of tensors without a role that the text lists; the JSON lists all of them."""
NAME_LENGTH = 120


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """A tensor outside the layers."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class VocabularySummary:
    """Statistics of a tokenizer.

    Attributes:
        kind: How the tokenizer files encode bytes.
        rows: Highest row number of any token, plus one.
        duplicate: Number of rows whose token has the same bytes as another.
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
    """Layers with the same roles.

    Attributes:
        layers: Layer numbers, in the order of the forward pass.
        names: Layer numbers as text, prefixed with the stack's name in looped models (``core_block.1``).
        expert_roles: Roles that at least one expert has.
        missing: Roles that these layers should have but lack.
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
    """A part of a model's inventory; every tensor belongs to exactly one part.

    Attributes:
        kind: ``stack``, ``table``, ``connector``, ``experts``, ``storage``, ``vectors`` or ``unplaced``.
        owner: The part to which experts, storage or vectors belong.
        bytes: Stored size; None if a file header was not read.
        decided_by: How tensors were recognised: from their ``names``, the transformers ``class`` or their ``shapes``.
        reason: Why the tensors of an ``unplaced`` part have no known place.
        is_loaded: Whether the model loads the part, according to its config and class; None if unknown.
    """

    part: str
    kind: str
    owner: str | None
    layers: tuple[str, ...]
    tensors: int
    bytes: int | None
    decided_by: str
    reason: str | None
    is_loaded: bool | None


@dataclass(frozen=True, slots=True)
class ReadEstimate:
    """Bytes that a comparison would read from this model at most.

    Attributes:
        steps: Upper bounds on the bytes of each step, in order, until the question is settled.
        body: Size of all weights that have a role; None if headers were not read.
    """

    steps: Mapping[str, int]
    body: int | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of inspecting a model.

    Attributes:
        heads: Numbers of query heads and key/value heads per layer, if known and equal in all layers.
        rope: How RoPE pairs the rows of a head.
        unembedding: The output head, if it has its own tensor.
        vocabulary: The tokenizer, or None if unavailable; a note then gives the reason.
        main_stack: Prefix of the stack that a verdict answers for, and the reason; None if there are no layers.
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
    main_stack: str | None

    def to_json(self) -> str:
        """Return a JSON object with the schema ``mdir-hf/inspection/1``."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        return "\n".join(lines_of(self))


FEW_FILES = 8
"""If there are at most this many weight files, all headers are read by default; each takes one or two requests."""


def inspect_model(
    model: str | os.PathLike[str] | NamedModel,
    *,
    reading: Reading = Reading(),
    all_headers: bool | None = None,
    listeners: Listeners = Listeners(progress=False),
) -> Inspection:
    """Inspect a model without reading its weights.

    If ``all_headers`` is True, every file header is read to report the shapes and sizes of all layers. By default, this
    is done for models with at most eight files.

    Raises:
        MdirError: If the model cannot be opened, has no readable weights, or is not a language model.
    """
    named_model = model if isinstance(model, NamedModel) else NamedModel(model)
    ledger = IoLedger()
    watch = Watch(ledger, listeners, from_start=True)
    with watch.listening():
        watch.enter("opening")
        return _inspected(named_model.open(reading, ledger), watch, all_headers)


def _inspected(model: Model, watch: Watch, all_headers: bool | None) -> Inspection:
    anatomy = model.anatomy
    notes = [*anatomy.notes, *model.tensors.description.notes]
    vocabulary = _vocabulary(model, notes)
    wants_headers = all_headers if all_headers is not None else len(model.tensors.paths) <= FEW_FILES
    if wants_headers:
        _check_shapes(model, notes)
        notes += _files_beside(model, notes)
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
        unplaced=_without_role(model, has_headers=wants_headers),
        inventory=_inventory(model, has_headers=wants_headers),
        notes=tuple(notes),
        reads=_reads(model, has_headers=wants_headers),
        io=watch.io(model.tensors.n_bytes),
        main_stack=f"{' + '.join(anatomy.prefixes)}: {anatomy.why_main}" if anatomy.layers else None,
    )


def _inventory(model: Model, *, has_headers: bool) -> tuple[PartSummary, ...]:
    inventory = model.inventory if has_headers else model.known_inventory()
    loaded = {stack.name: stack.is_loaded for stack in model.other_stacks}
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
            is_loaded(part, loaded),
        )
        for part in inventory.parts
    )


def _without_role(model: Model, *, has_headers: bool) -> tuple[str, ...]:
    """Return tensors of the layers without a role, except those in a part of their own, such as cross-attention."""
    inventory = model.inventory if has_headers else model.known_inventory()
    parts = [part for part in inventory.parts if part.kind in (PartKind.AUXILIARY, PartKind.STACK)]
    placed_names = {name for part in parts for name in part.tensors}
    return tuple(name for name in model.anatomy.unplaced if name not in placed_names)


def _vocabulary(model: Model, notes: list[str]) -> VocabularySummary | None:
    try:
        vocabulary = model.vocabulary
    except MdirError as exc:
        notes.append(f"the vocabulary cannot be read: {exc}")
        return None
    if vocabulary is None:
        notes.append("no tokenizer files: rows would be paired by their number")
        return None
    notes += (f"its tokenizer files contradict each other: {doubt}" for doubt in model.vocabulary_doubts())
    return VocabularySummary(
        kind=vocabulary.kind.value,
        files=vocabulary.files,
        rows=vocabulary.n_rows,
        tokens=vocabulary.n_tokens,
        special=vocabulary.n_special,
        reserved=vocabulary.n_reserved,
        unused=vocabulary.n_unused,
        duplicate=vocabulary.n_duplicate,
    )


def _check_shapes(model: Model, notes: list[str]) -> None:
    faults = []
    for layer in model.anatomy.layers:
        try:
            model.anatomy.check_shapes(layer, lambda name: model.tensors.spec(name).shape)
        except (AnatomyError, CheckpointError) as exc:
            faults.append(f"layer {layer.index}: {exc.message}")
    notes += faults[:1]
    if len(faults) > 1:
        other_faults = "1 more layer has" if len(faults) == 2 else f"{len(faults) - 1} more layers have"
        notes.append(f"{other_faults} tensors that are not read, or cannot be what their names say")


def _files_beside(model: Model, notes: list[str]) -> list[str]:
    """Say what other weight files beside the model hold, unless the notes mention them."""
    weights = model.weights
    beside = [file for file in files_beside(weights.repository, weights.paths) if file.path not in " ".join(notes)]
    return [f"not read: {described(beside)}"] if beside else []


def _tensor(model: Model, part: StoredWeight) -> TensorSummary:
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


def _reads(model: Model, *, has_headers: bool) -> ReadEstimate:
    body = None
    if has_headers:
        layer_parts = (part for layer in model.anatomy.layers for _, part in layer.all_parts())
        body = _n_bytes(model, {name for part in layer_parts for name in part.tensors})
    return ReadEstimate(steps={name: n_bytes for name, n_bytes in reads_of(model).items() if n_bytes}, body=body)


def _n_bytes(model: Model, names: Iterable[str]) -> int:
    total = 0
    for name in set(names) - model.tensors.description.unreadable:
        with suppress(UnsupportedFormatError):
            total += model.tensors.spec(name).n_bytes
    return total


def lines_of(inspection: Inspection) -> Iterator[str]:
    """Yield the lines of an inspection's text form."""
    model = inspection.model
    at = "" if model.commit is None else f"@{model.commit[:7]}"
    layers = f", {counted(model.layers, 'layer')}" if model.layers else ""
    heads = (
        "" if inspection.heads is None else f", {inspection.heads[0]} heads ({inspection.heads[1]} for keys and values)"
    )
    name = shown_name(model.repo, length=200)
    yield f"{name}{at}: {shown_name(model.architecture)}{layers}, width {model.hidden_size}{heads}"
    if model.read_as:
        yield _line("read as", model.read_as)
    quantization = "" if inspection.quantization is None else f", {inspection.quantization}"
    files = f"{counted(inspection.files, 'file')}, " if inspection.files else ""
    size = n_bytes_text(inspection.bytes_of_weights)
    yield _line("weights", f"{inspection.format}{quantization}: {files}{size}, {inspection.tensors} tensors")
    yield _line("embedding", "none found" if inspection.embedding is None else _tensor_text(inspection.embedding))
    if inspection.unembedding is not None:
        yield _line("unembedding", _tensor_text(inspection.unembedding))
    else:
        yield _line("unembedding", "tied to the embedding" if inspection.tied else "none found")
    yield _line("vocabulary", "none" if inspection.vocabulary is None else _vocabulary_text(inspection.vocabulary))
    for group in inspection.layer_groups:
        plural = "" if len(group.layers) == 1 else "s"
        if all(name.isdigit() for name in group.names):
            yield _line(f"layer{plural} {_ranges(group.layers)}", _group_text(group))
        else:
            yield _line(f"layer{plural}", f"{', '.join(group.names)}: {_group_text(group)}")
    if not inspection.layer_groups:
        yield _line("layers", "none found")
    if inspection.main_stack is not None:
        yield _line("main stack", inspection.main_stack)
    if inspection.unplaced:
        n_more = len(inspection.unplaced) - MOST_NAMES
        names = ", ".join(shown_name(name, length=NAME_LENGTH) for name in inspection.unplaced[:MOST_NAMES])
        name_list = names + (f" and {n_more} more" if n_more > 0 else "")
        yield _line("no role", f"{counted(len(inspection.unplaced), 'tensor')} of the layers: {name_list}")
    for part in inspection.inventory:
        yield _line("part", _part_text(part))
    yield _line("reads", _reads_text(inspection.reads))
    for note in inspection.notes:
        yield _line("note", note)
    io = inspection.io
    requests = f" in {io.requests} requests" if io.requests else ""
    yield _line("read now", f"{n_bytes_text(io.bytes_read)}{requests}")


def _line(name: str, text: str) -> str:
    return fill(
        visible_text(text, length=LONGEST_TEXT),
        80,
        initial_indent=f"  {name:<14} ",
        subsequent_indent=" " * 17,
        break_long_words=False,
        break_on_hyphens=False,  # keep repository names and paths whole for copying
    )


def _tensor_text(tensor: TensorSummary) -> str:
    shape = " x ".join(map(str, tensor.shape))
    return f"{shown_name(tensor.tensor, length=NAME_LENGTH)}, {shape} {tensor.dtype}, {n_bytes_text(tensor.n_bytes)}"


def _vocabulary_text(words: VocabularySummary) -> str:
    counts = {name: getattr(words, name) for name in ("special", "reserved", "unused", "duplicate")}
    left_out = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    usable = f"{words.kind} ({', '.join(words.files)}): {words.tokens} usable tokens of {words.rows}"
    return f"{usable}; left out: {left_out}" if left_out else usable


def _group_text(group: LayerGroup) -> str:
    parts = [" ".join(group.roles) or "nothing"]
    if group.experts:
        parts.append(f"{group.experts} experts ({' '.join(group.expert_roles)})")
    if group.shared_experts:
        parts.append(f"{group.shared_experts} shared")
    if group.missing:
        parts.append(f"not found: {' '.join(group.missing)}")
    return "; ".join(parts)


def _part_text(part: PartSummary) -> str:
    size = "size unknown (--all-headers reads it)" if part.bytes is None else n_bytes_text(part.bytes)
    layers = f", {counted(len(part.layers), 'layer')}" if part.layers else ""
    how = {"names": "", "class": ", by its class", "shapes": ", by shapes"}.get(part.decided_by, "")
    is_unplaced = part.kind == PartKind.UNPLACED.value and part.reason is not None
    name = f"{part.part.partition(': ')[0]}: {part.reason}" if is_unplaced else part.part
    loaded = {True: "", False: "; not loaded by this model", None: "; unknown whether this model loads it"}
    use = "" if is_unplaced else loaded[part.is_loaded]
    return f"{name}{layers}: {counted(part.tensors, 'tensor')}, {size}{how}{use}"


def _reads_text(reads: ReadEstimate) -> str:
    parts = [f"{name} {n_bytes_text(n_bytes)}" for name, n_bytes in reads.steps.items()]
    if reads.body is not None:
        parts.append(f"all layers {n_bytes_text(reads.body)}")
    return ", ".join(parts)


def _ranges(numbers: Iterable[int]) -> str:
    """Format numbers as ranges, such as ``0-2, 5, 7-9``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] + 1 == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
