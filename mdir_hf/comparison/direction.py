"""State equal values of two related models, and both ways in which they can come about."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from mdir_hf.comparison.equal_values import (
    first_rows,
    repeated_layer,
    rounded_form,
)
from mdir_hf.errors import MdirError, StoppedError
from mdir_hf.model.comparable import Comparable, embedding_spec
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role, WeightPart
from mdir_hf.report import DirectionFact, FactKind

ROWS = 64
"""Number of rows of a matrix that are checked for rounding, 0.5 MB per model at width 4096."""

ROWS_IN_SAME_FORM = 16
"""Number of rows checked if both models use the same format, since a quantised model may be saved in 16 bits again."""

COPIED_ROWS = 8
"""Number of rows per layer that are checked for copies, 2 MB for a model with 32 layers of width 4096."""


def direction_facts(reference: Comparable, candidate: Comparable, *, level_reads: bool) -> tuple[DirectionFact, ...]:
    """Collect facts on equal values, which name no model as the first.

    If ``level_reads`` is False, only adapter configs are used. Tests that cannot read their rows are skipped.

    Raises:
        StoppedError: If a listener stops the comparison.
    """
    if not isinstance(reference, Model) or not isinstance(candidate, Model):
        return ()
    facts = [*_adapters(reference, candidate)]
    tests = (_roundings, _repeated_layers) if level_reads else ()
    for test in tests:
        try:
            facts += test(reference, candidate)
        except StoppedError:
            raise
        except MdirError:
            continue
    return tuple(facts)


def _adapters(reference: Model, candidate: Model) -> Iterator[DirectionFact]:
    for base, model in ((reference, candidate), (candidate, reference)):
        first, second = base.summary(), model.summary()
        if first.pinned in (second.bases or ()):
            text = f"{second.repo} is stored as an adapter: its weights are changes to {first.repo}"
            yield DirectionFact(FactKind.ADAPTER, text)


def _roundings(reference: Model, candidate: Model) -> Iterator[DirectionFact]:
    """Check the embedding and a middle layer for rounding."""
    is_same_form = _form(reference) == _form(candidate)
    n_rows = ROWS_IN_SAME_FORM if is_same_form else ROWS
    for place, role in (("the embedding", None), ("V of a middle layer", Role.V), ("up of a middle layer", Role.UP)):
        if role is None and is_same_form:
            continue
        rows = {model: _rows(model, role, n_rows) for model in (reference, candidate)}
        for fine, coarse in ((reference, candidate), (candidate, reference)):
            values, rounded = rows[fine], rows[coarse]
            form = None if values is None or rounded is None else rounded_form(values, rounded)
            if form is None or rounded is None:
                continue
            first, second = coarse.summary().repo, fine.summary().repo
            yield DirectionFact(
                FactKind.ROUNDED,
                f"in {len(rounded)} sampled rows of {place}, the values of {first} are the values of {second} rounded "
                f"to {form}: {first} was rounded, or digits were added to {second}",
            )
            return
        if is_same_form and not any(values is None for values in rows.values()):
            return


def _form(model: Model) -> tuple[str | None, ...]:
    layer = model.anatomy.layers[len(model.anatomy.layers) // 2] if model.anatomy.layers else None
    part = None if layer is None else next((p for p in layer.parts.values() if isinstance(p, WeightPart)), None)
    embedding = model.anatomy.embedding
    dtypes = (None if place is None else model.tensors.spec(place.tensor).dtype for place in (embedding, part))
    return (model.tensors.description.quantization, *dtypes)


def _rows(model: Model, role: Role | None, n_rows: int) -> torch.Tensor | None:
    """Return rows of a middle layer or, if ``role`` is None, of the embedding, skipping special tokens at the start."""
    if role is not None:
        layers = model.anatomy.layers
        return first_rows(model, layers[len(layers) // 2], role, n_rows) if layers else None
    if model.anatomy.embedding is None:
        return None
    spec = embedding_spec(model)
    start = spec.shape[0] // 4
    return model.tensors.read_rows(spec.name, np.arange(start, min(start + n_rows, spec.shape[0]))).float()


def _repeated_layers(reference: Model, candidate: Model) -> Iterator[DirectionFact]:
    """Check the deeper model for repeated copies of layers that occur only once in the other model."""
    shallow, deep = sorted((reference, candidate), key=lambda model: len(model.anatomy.layers))
    if len(shallow.anatomy.layers) == len(deep.anatomy.layers) or not shallow.anatomy.layers:
        return
    for role in (Role.V, Role.UP):
        once, twice = (
            [rows for at in range(len(model.anatomy.layers)) if (rows := _stored_rows(model, at, role)) is not None]
            for model in (shallow, deep)
        )
        if len(once) < len(shallow.anatomy.layers) or len(twice) < len(deep.anatomy.layers):
            continue
        places = repeated_layer(once, twice)
        if places is not None:
            i, j, k = places
            first, second = deep.summary().repo, shallow.summary().repo
            yield DirectionFact(
                FactKind.REPEATED_LAYERS,
                f"layers {i} and {j} of {first} both match layer {k} of {second}, by the first {COPIED_ROWS} rows of "
                f"{role.value}: {first} repeats the layer, or {second} was made without the repetition",
            )
        return


def _stored_rows(model: Model, at: int, role: Role) -> torch.Tensor | None:
    part = model.anatomy.layers[at].parts.get(role)
    if not isinstance(part, WeightPart) or part.expert is not None:
        return None
    shape = model.tensors.spec(part.tensor).shape
    if len(shape) != 2 or shape[0] < COPIED_ROWS:
        return None
    return model.tensors.read_rows(part.tensor, np.arange(COPIED_ROWS)).float()
