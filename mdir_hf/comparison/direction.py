"""State equal values of two related models, and both ways in which they can come about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from mdir_hf.errors import MdirError, StoppedError
from mdir_hf.model.comparable import Comparable, embedding_spec
from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Layer, Role, WeightPart
from mdir_hf.report import DirectionFact, FactKind

ROUNDED_SHARE = 0.99
"""Rounding the finer model must reproduce at least this share of the coarser model's entries. Ties and later edits
explain the rest."""

GROUPS = (0, 128, 64, 32)
"""Group sizes of common quantisers: numbers of neighbouring entries that share a set of levels. 0 means a whole row."""

LEVELS_PER_ENTRY = 0.5
"""A group counts as quantised if it has at most this many distinct values per entry."""

FLOATS = (torch.bfloat16, torch.float16)

SIGNIFICANT_BITS = {torch.float8_e5m2: 3, torch.float8_e4m3fn: 4}
"""Number of significant bits, including the leading bit, of float formats stored with a scale, coarsest first."""

FEWEST_SIGNIFICANDS = 0.75
"""A matrix counts as scaled floats only if it contains at least this share of the format's significands. Evenly spaced
levels, as in INT4, use fewer."""

ROUNDED_ROWS, ROUNDED_GROUPS = 64, 1024
"""Maximum number of rows, and of groups within them, that are checked."""

ROUNDING_OF_SCALES = 1e-4
"""Maximum distance of a significand from an integer. With float32 scales, products are off by 1e-6. With BF16 scales,
they are off by 1e-2, so the matrix counts as BF16."""

COPIED_COSINE = 0.3
"""Rows of two layers count as copies if their cosine exceeds this value. In layers trained separately, the cosine is
below 0.05."""


def rounded_form(values: torch.Tensor, rounded: torch.Tensor) -> str | None:
    """Return the format to which rounding ``(r, n)`` values gives other values, or None.

    Values that are in this format already are not rounded. Takes O(r n log n) time; r is at most
    :data:`ROUNDED_ROWS`.
    """
    if values.shape != rounded.shape:
        return None
    fine, coarse = (rows[:ROUNDED_ROWS].float() for rows in (values, rounded))
    own = _grids(fine)
    for grid in _grids(coarse):
        if grid not in own and _rounded_share(fine, coarse, grid) >= ROUNDED_SHARE:
            return _grid_text(grid)
    return None


def repeated_layer(once: Sequence[torch.Tensor], twice: Sequence[torch.Tensor]) -> tuple[int, int, int] | None:
    """Return two layers of the second model and the layer of the first model that both match, or None.

    Takes rows of one matrix per layer, in the same basis. No two layers of the first model may match each other.
    """
    first, second = _unit(once), _unit(twice)
    if first.shape[1] != second.shape[1] or _copies(first, first):
        return None
    origin = _copies(second, first)
    for i, j in sorted(_copies(second, second)):
        for k in range(len(first)):
            if {(i, k), (j, k)} <= origin:
                return i, j, k
    return None


def first_rows(model: Model, layer: Layer, role: Role, n_rows: int) -> torch.Tensor | None:
    """Read the first rows of a layer's matrix if it is stored by rows."""
    part = layer.parts.get(role)
    if not isinstance(part, WeightPart) or part.expert is not None or part.per_head or part.joined:
        return None
    shape = tuple(model.tensors.spec(part.tensor).shape)
    if len(shape) != 2 or part.is_transposed(shape) or shape[1] != model.width:
        return None
    return model.tensors.read_rows(part.tensor, np.sort(part.rows(shape)[:n_rows])).float()


def _grids(rows: torch.Tensor) -> list[torch.dtype | int]:
    """Return the formats to which rows are rounded: float dtypes, or sizes of groups that share levels."""
    grids: list[torch.dtype | int] = [dtype for dtype in FLOATS if torch.equal(rows.to(dtype).float(), rows)]
    grids += [dtype for dtype in SIGNIFICANT_BITS if _float_units(rows, dtype) is not None][:1]
    for group in GROUPS:
        width = group or rows.shape[1]
        if rows.shape[1] % width == 0:
            n_distinct = _n_distinct(rows, width)
            if _share((n_distinct > 2) & (n_distinct <= LEVELS_PER_ENTRY * width)) > 0.5:
                grids.append(width)
    return grids


def _n_distinct(rows: torch.Tensor, group: int) -> torch.Tensor:
    ordered = rows.reshape(-1, group).sort(dim=1).values
    return 1 + (ordered.diff(dim=1) != 0).sum(dim=1)


def _rounded_share(fine: torch.Tensor, coarse: torch.Tensor, grid: torch.dtype | int) -> float:
    """Return the share of coarse entries that rounding the fine entries reproduces."""
    if isinstance(grid, int):
        return _share_on_levels(fine, coarse, grid)
    if grid in SIGNIFICANT_BITS:
        return _share_of_scaled_floats(fine, coarse, grid)
    return _share(fine.to(grid).float() == coarse)


def _share_on_levels(fine: torch.Tensor, coarse: torch.Tensor, group: int) -> float:
    n_right = n_all = 0
    for fine_group, coarse_group in zip(
        *(rows.reshape(-1, group)[:ROUNDED_GROUPS] for rows in (fine, coarse)), strict=True
    ):
        levels = torch.unique(coarse_group)
        if not 2 < len(levels) <= LEVELS_PER_ENTRY * group:
            continue
        at = torch.bucketize(fine_group, (levels[1:] + levels[:-1]) / 2)
        n_right += int((levels[at] == coarse_group).sum())
        n_all += group
    return n_right / n_all if n_all > 0 else 0.0


def _float_units(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the ``(groups, 1)`` scales if the rows are scaled floats of this format, else None."""
    n_bits = SIGNIFICANT_BITS[dtype]
    for group in (rows.shape[1], 128):
        if rows.shape[1] % group:
            continue
        values = rows.reshape(-1, group).double()
        largest = values.abs().amax(dim=1, keepdim=True)
        units = torch.full_like(largest, torch.nan)
        for significand in range(2 ** (n_bits - 1), 2**n_bits):
            unit = largest / significand
            significands = _significands(values / unit, n_bits)
            fits = ((significands - significands.round()).abs() < ROUNDING_OF_SCALES).all(dim=1, keepdim=True)
            units = torch.where(fits & units.isnan(), unit, units)
        if not bool(units.isnan().any()):
            used_significands = torch.unique(_significands(values / units, n_bits).round().abs())
            n_used = len(used_significands[(used_significands > 0) & (used_significands < 2**n_bits)])
            return units if n_used >= FEWEST_SIGNIFICANDS * 2 ** (n_bits - 1) else None
    return None


def _significands(values: torch.Tensor, n_bits: int) -> torch.Tensor:
    """Scale nonzero values by powers of two so that their absolute values have ``n_bits`` integer bits."""
    leading: torch.Tensor = torch.frexp(values).mantissa * 2**n_bits
    return leading


def _share_of_scaled_floats(fine: torch.Tensor, coarse: torch.Tensor, dtype: torch.dtype) -> float:
    units = _float_units(coarse, dtype)
    if units is None:
        return 0.0
    n_bits = SIGNIFICANT_BITS[dtype]
    coarse_steps, fine_steps = (rows.reshape(len(units), -1).double() / units for rows in (coarse, fine))
    is_normal = coarse_steps.abs() * 64 > coarse_steps.abs().amax(dim=1, keepdim=True)
    coarse_steps, fine_steps = coarse_steps[is_normal], fine_steps[is_normal]
    # A power of two may have been read as slightly less, and the step doubles there.
    exponents = torch.frexp(coarse_steps * (1.0 + ROUNDING_OF_SCALES / 16)).exponent
    places = (fine_steps - coarse_steps) / torch.ldexp(torch.ones_like(coarse_steps), exponents - n_bits)
    is_right = places.abs() <= 0.5 + ROUNDING_OF_SCALES
    return _share(is_right)


def _grid_text(grid: torch.dtype | int) -> str:
    if isinstance(grid, int):
        return f"a few levels in each {grid} numbers of a row"
    if grid in SIGNIFICANT_BITS:
        return f"{str(grid).removeprefix('torch.')} with a scale"
    return str(grid).removeprefix("torch.")


def _share(equal: torch.Tensor) -> float:
    return float(equal.float().mean())


def _unit(layers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return ``(L, entries)``, a unit vector for each layer, or zeros if its shape differs from the first layer's."""
    rows = [layer if layer.shape == layers[0].shape else torch.zeros_like(layers[0]) for layer in layers]
    flat = torch.stack([layer.float().flatten() for layer in rows])
    unit: torch.Tensor = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return unit


def _copies(x: torch.Tensor, y: torch.Tensor) -> set[tuple[int, int]]:
    i, j = np.nonzero((x @ y.T).numpy() > COPIED_COSINE)
    pairs = set(zip(i.tolist(), j.tolist(), strict=True))
    return {(a, b) for a, b in pairs if a < b} if x is y else pairs


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
