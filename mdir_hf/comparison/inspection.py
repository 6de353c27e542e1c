"""Inspect a model: its tensor roles, its vocabulary, and the bytes that a comparison would read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from mdir_hf.comparison.coverage import is_loaded
from mdir_hf.comparison.inspection_result import (
    Inspection,
    LayerGroup,
    PartSummary,
    ReadEstimate,
    TensorSummary,
    VocabularySummary,
)
from mdir_hf.comparison.plan import reads_of
from mdir_hf.comparison.progress import Watch
from mdir_hf.comparison.settings import Listeners
from mdir_hf.errors import AnatomyError, CheckpointError, MdirError, UnsupportedFormatError
from mdir_hf.model.files.choosing import described, files_beside
from mdir_hf.model.hub import IoLedger
from mdir_hf.model.open import NamedModel, Reading
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Layer, Role, StoredWeight

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
        unplaced=anatomy.unplaced,
        inventory=_inventory(model, has_headers=wants_headers),
        notes=tuple(notes),
        reads=_reads(model, has_headers=wants_headers),
        io=watch.io(model.tensors.n_bytes),
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
