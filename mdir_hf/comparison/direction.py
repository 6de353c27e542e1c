"""Find out which of two related models came first, from changes that cannot be undone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from mdir_hf.comparison.order_evidence import (
    FEWEST_ROWS,
    copied_layers,
    first_rows,
    is_extension,
    roundings,
    rows_at_mean,
)
from mdir_hf.errors import MdirError, StoppedError
from mdir_hf.model.comparable import Comparable, embedding_spec
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Role, WeightPart
from mdir_hf.report import DirectionFact, FactKind, ModelSummary, fact_side

ROWS = 64
"""Number of rows of a matrix that are checked for rounding, 0.5 MB per model at width 4096."""

ROWS_IN_SAME_FORM = 16
"""Number of rows checked if both models use the same format, since a quantised model may be saved in 16 bits again."""

COPIED_ROWS = 8
"""Number of rows per layer that are checked for copies, 2 MB for a model with 32 layers of width 4096."""

OLD_BLOCKS, OLD_BLOCK_ROWS = 16, 16
"""Number of blocks, and of neighbouring rows per block, from which the mean row of the old tokens is estimated."""

NEW_ROWS = 64


def direction_facts(reference: Comparable, candidate: Comparable, *, level_reads: bool) -> tuple[DirectionFact, ...]:
    """Collect facts that show which of two related models came first.

    If ``level_reads`` is False, only adapter configs and dates are used. Tests that cannot read their rows are skipped.

    Raises:
        StoppedError: If a listener stops the comparison.
    """
    if not isinstance(reference, Model) or not isinstance(candidate, Model):
        return ()
    facts = [*_adapters(reference, candidate)]
    tests = (_roundings, _repeated_layers, _new_tokens) if level_reads else ()
    for test in tests:
        try:
            facts += test(reference, candidate)
        except StoppedError:
            raise
        except MdirError:
            continue
    return (*facts, *_records(reference, candidate))


def _adapters(reference: Model, candidate: Model) -> Iterator[DirectionFact]:
    for base, model in ((reference, candidate), (candidate, reference)):
        first, second = base.summary(), model.summary()
        if first.pinned in (second.bases or ()):
            evidence = f"{second.repo} is an adapter: its weights are changes to {first.repo}"
            yield _fact(FactKind.ADAPTER, first, second, evidence)


def _roundings(reference: Model, candidate: Model) -> Iterator[DirectionFact]:
    """Check the embedding and a middle layer for rounding."""
    is_same_form = _form(reference) == _form(candidate)
    sides = {"reference": reference, "candidate": candidate}
    n_rows = ROWS_IN_SAME_FORM if is_same_form else ROWS
    for name, role in (("embedding", None), ("V", Role.V), ("up", Role.UP)):
        if role is None and is_same_form:
            continue
        rows = {side: values for side, model in sides.items() if (values := _rows(model, role, n_rows)) is not None}
        if len(rows) < 2:
            continue
        for evidence in roundings(rows):
            earlier, later = sides[evidence.earlier].summary(), sides[evidence.later].summary()
            place = "the embedding" if name == "embedding" else f"{name} of a middle layer"
            sentence = (
                f"{len(rows['reference'])} sampled rows of {place} of {later.repo} are rows of {earlier.repo} rounded "
                f"to {evidence.form}, which cannot be undone; {earlier.repo}, or a relative with the same rows, came "
                "first"
            )
            yield _fact(FactKind.ROUNDED, earlier, later, sentence)
            return
        if is_same_form:
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
    sides = {"reference": reference, "candidate": candidate}
    counts = [len(model.anatomy.layers) for model in sides.values()]
    if counts[0] == counts[1] or 0 in counts:
        return
    for role in (Role.V, Role.UP):
        rows = {
            side: [_stored_rows(model, at, role) for at in range(len(model.anatomy.layers))]
            for side, model in sides.items()
        }
        if any(values is None for layers in rows.values() for values in layers):
            continue
        for evidence in copied_layers(rows):
            earlier, later = sides[evidence.earlier].summary(), sides[evidence.later].summary()
            i, j, k = evidence.places
            sentence = (
                f"layers {i} and {j} of {later.repo} both match layer {k} of {earlier.repo}, which has it once, by the "
                f"first {COPIED_ROWS} rows of {role.value}; {earlier.repo}, or a relative with that layer, came first"
            )
            yield _fact(FactKind.REPEATED_LAYERS, earlier, later, sentence)
        return


def _stored_rows(model: Model, at: int, role: Role) -> torch.Tensor | None:
    part = model.anatomy.layers[at].parts.get(role)
    if not isinstance(part, WeightPart) or part.expert is not None:
        return None
    shape = model.tensors.spec(part.tensor).shape
    if len(shape) != 2 or shape[0] < COPIED_ROWS:
        return None
    return model.tensors.read_rows(part.tensor, np.arange(COPIED_ROWS)).float()


def _new_tokens(reference: Model, candidate: Model) -> Iterator[DirectionFact]:
    """Check whether the larger vocabulary extends the smaller one with new rows set to the mean of the others."""
    vocabularies = [model.vocabulary if model.has_read_vocabulary else None for model in (reference, candidate)]
    for at, earlier in enumerate((reference, candidate)):
        small, large, later = vocabularies[at], vocabularies[1 - at], (candidate, reference)[at]
        if small is None or large is None or later.anatomy.embedding is None or not is_extension(small, large):
            continue
        new = sorted(row for token, row in large.row_of.items() if token not in small.row_of and row < later.n_rows)
        old = sorted(row for row in small.row_of.values() if row < later.n_rows)
        if len(new) < FEWEST_ROWS or len(old) < OLD_BLOCKS * OLD_BLOCK_ROWS:
            continue
        starts = np.linspace(0, len(old) - OLD_BLOCK_ROWS, OLD_BLOCKS).astype(int)
        sampled_rows = sorted({row for start in starts for row in old[start : start + OLD_BLOCK_ROWS]})
        name = embedding_spec(later).name
        old_rows = later.tensors.read_rows(name, np.array(sampled_rows, dtype=np.int64))
        new_rows = later.tensors.read_rows(name, np.array(new[:NEW_ROWS], dtype=np.int64))
        if rows_at_mean(old_rows, new_rows):
            first, second = earlier.summary(), later.summary()
            sentence = (
                f"{second.repo} has the tokens of {first.repo} and {len(new):,} more; the {len(new_rows):,} of their "
                "rows that were read are at the mean of the others, as rows are that were added and not trained"
            )
            yield _fact(FactKind.NEW_TOKENS, first, second, sentence)


def _records(reference: Model, candidate: Model) -> Iterator[DirectionFact]:
    first, second = reference.summary(), candidate.summary()
    first_date, second_date = (model.created_at for model in (reference, candidate))
    if first_date is None or second_date is None or first.repo == second.repo:
        return
    if first_date == second_date:
        return
    if second_date < first_date:
        first, second, first_date, second_date = second, first, second_date, first_date
    sentence = (
        f"the Hub has a record of {first.repo} since {first_date:%Y-%m-%d}, and of {second.repo} since "
        f"{second_date:%Y-%m-%d}; these dates are of uploads and show no derivation"
    )
    yield _fact(FactKind.ON_RECORD, first, second, sentence)


def _fact(fact: FactKind, earlier: ModelSummary, later: ModelSummary, evidence: str) -> DirectionFact:
    return DirectionFact(fact=fact, earlier=fact_side(earlier), later=fact_side(later), evidence=evidence)
