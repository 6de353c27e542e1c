"""Test which of two related models came first.

The later model may have rounded numbers, repeated layers, or new token rows at the mean of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch

from mdir_hf.model.opened import Model
from mdir_hf.model.roles import Layer, Role, WeightPart
from mdir_hf.model.tokens import Vocabulary

ROUNDED_SHARE = 0.99
"""Rounding the finer model must reproduce at least this share of the coarser model's entries. Ties and later edits
explain the rest."""

GROUPS = (0, 128, 64, 32)
"""Group sizes of common quantisers: numbers of neighbouring entries that share a set of levels. 0 means a whole row."""

LEVELS_PER_ENTRY = 0.5
"""A group counts as quantised if it has at most this many distinct values per entry."""

TIMES_FINER = 3.0
"""If both models are quantised, the finer model must have at least this many times as many levels. Each cell of the
coarser model then contains enough levels to distinguish rounding from drift."""

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

UNIFORM, FLATNESS = (0.03, 0.13), 2.5
"""Bounds on two statistics of the finer model's numbers around a level, in cells of width 1: the mean square distance,
and the fourth moment divided by the square of that. Before rounding, numbers lie anywhere in a cell, which gives about
1/12 and 1.8. Numbers that drifted from a level lie close to it or are normally distributed, which gives 3 for the
ratio.
"""

COPIED_COSINE = 0.3
"""Rows of two layers count as copies if their cosine exceeds this value. In layers trained separately, the cosine is
below 0.05."""

MEAN_ROW_SHARE = 0.1
"""New rows are at the mean of the old rows if their distance from it is at most this share of an old row's distance."""

FEWEST_ROWS = 8
"""Minimum number of new rows, and of old rows, for a test."""


@dataclass(frozen=True, slots=True)
class OrderEvidence:
    """Evidence that one of two related models came first.

    Attributes:
        earlier: The model that came first, or one that resembles it.
        form: Format to which numbers were rounded; empty for other kinds of evidence.
        places: Two layers of the later model, and the earlier model's layer that both copy.
    """

    kind: str
    earlier: str
    later: str
    says: str
    form: str = ""
    places: tuple[int, int, int] = (0, 0, 0)


def roundings(rows: Mapping[str, torch.Tensor]) -> tuple[OrderEvidence, ...]:
    """Find models that are rounded versions of another model.

    ``rows`` maps model names to ``(r, n)`` rows for the same tokens. Weights of an original can lie anywhere between
    the levels, whereas weights fine-tuned from a quantised model stay near them. Each rounded model is assigned the
    original that fits best. For m models, takes O(m r n log n) time, plus O(r n) for each pair in which one model is
    rounded; r is at most :data:`ROUNDED_ROWS`.
    """
    sampled = {name: values[:ROUNDED_ROWS].float() for name, values in rows.items()}
    grids = {name: _grids(values) for name, values in sampled.items()}
    best: dict[str, tuple[float, OrderEvidence]] = {}
    for later, earlier in permutations(sampled, 2):
        fine, coarse = sampled[earlier], sampled[later]
        for grid in grids[later]:
            if fine.shape != coarse.shape or (grid in grids[earlier] and not _is_finer(fine, coarse, grid)):
                continue
            share = _rounded_share(fine, coarse, grid)
            if share >= ROUNDED_SHARE and (later not in best or share > best[later][0]):
                form = _grid_text(grid)
                sentence = f"sampled rows of {later} are rows of {earlier} rounded to {form}, which cannot be undone"
                best[later] = (share, OrderEvidence("rounding", earlier, later, sentence, form=form))
    return tuple(evidence for _, evidence in best.values())


def copied_layers(rows: Mapping[str, Sequence[torch.Tensor | None]]) -> tuple[OrderEvidence, ...]:
    """Find models that contain a relative's layer twice, as after depth up-scaling.

    ``rows`` maps model names to rows of one matrix per layer, all in the same basis. Compares O(L^2) pairs of layers
    for each pair of models.
    """
    units = {name: _unit(layers) for name, layers in rows.items()}
    twice = {name: _copies(unit, unit) for name, unit in units.items()}
    evidence = []
    for earlier, later in permutations(rows, 2):
        if twice[earlier] or not twice[later] or units[earlier].shape[1] != units[later].shape[1]:
            continue
        origin = _copies(units[later], units[earlier])
        doubled = [
            (i, j, k) for i, j in sorted(twice[later]) for k in range(len(units[earlier])) if {(i, k), (j, k)} <= origin
        ]
        if doubled:
            i, j, k = doubled[0]
            sentence = (
                f"layers {i} and {j} of {later} both match layer {k} of {earlier} by sampled rows; it has it once"
            )
            evidence.append(OrderEvidence("layers", earlier, later, sentence, places=(i, j, k)))
    return tuple(evidence)


def grown_vocabulary(
    earlier: str, later: str, n_new: int, old_rows: torch.Tensor, new_rows: torch.Tensor
) -> OrderEvidence | None:
    """Check whether a vocabulary was extended by ``n_new`` rows set to the mean of the old ones.

    ``old_rows`` ``(r, n)`` and ``new_rows`` ``(s, n)`` are the later model's rows for shared and for new tokens.
    """
    if len(new_rows) < FEWEST_ROWS or len(old_rows) < FEWEST_ROWS:
        return None
    mean = old_rows.float().mean(dim=0)
    usual = float((old_rows.float() - mean).norm(dim=1).median())
    apart = float((new_rows.float() - mean).norm(dim=1).median())
    # 2 / sqrt(r): the mean of a sample of r rows is about that far from the mean of all rows.
    if usual == 0.0 or apart > (MEAN_ROW_SHARE + 2.0 / len(old_rows) ** 0.5) * usual:
        return None
    sentence = f"{later} has {n_new} tokens more than {earlier}, and their rows lie at the mean of the others"
    return OrderEvidence("vocabulary", earlier, later, sentence)


UNTRAINED_SPREAD = 0.02
"""Maximum spread of rows added at the mean and never trained, divided by the old rows' distance from the mean."""


def rows_at_mean(old_rows: torch.Tensor, new_rows: torch.Tensor) -> bool:
    """Return whether new rows ``(s, n)`` were set to the mean of old rows ``(r, n)`` and never trained.

    The new rows must be nearly equal to each other, and much closer to that mean than to zero.
    """
    if len(new_rows) < FEWEST_ROWS or len(old_rows) < FEWEST_ROWS:
        return False
    mean, centre = old_rows.float().mean(dim=0), new_rows.float().mean(dim=0)
    usual = float((old_rows.float() - mean).norm(dim=1).median())
    spread = float((new_rows.float() - centre).norm(dim=1).median())
    away = float((centre - mean).norm())
    is_there = away < 2.0 * usual / len(old_rows) ** 0.5 and away < 0.5 * float(centre.norm())
    return usual > 0.0 and spread < UNTRAINED_SPREAD * usual and is_there


def is_extension(small: Vocabulary, large: Vocabulary) -> bool:
    """Return whether the large vocabulary contains all tokens of the small one in the same rows."""
    row_of = large.row_of
    return len(row_of) > len(small.row_of) and all(row_of.get(token) == row for token, row in small.row_of.items())


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


def _is_finer(fine: torch.Tensor, coarse: torch.Tensor, grid: torch.dtype | int) -> bool:
    """Return whether ``fine`` has far more levels per group than ``coarse``; False for float formats."""
    if not isinstance(grid, int):
        return False
    return _n_levels(fine, grid) >= TIMES_FINER * _n_levels(coarse, grid)


def _n_levels(rows: torch.Tensor, group: int) -> float:
    return float(_n_distinct(rows, group).float().mean())


def _n_distinct(rows: torch.Tensor, group: int) -> torch.Tensor:
    ordered = rows.reshape(-1, group).sort(dim=1).values
    return 1 + (ordered.diff(dim=1) != 0).sum(dim=1)


def _rounded_share(fine: torch.Tensor, coarse: torch.Tensor, grid: torch.dtype | int) -> float:
    """Return the share of coarse entries that rounding the fine entries reproduces, or 0 if they drifted."""
    if isinstance(grid, int):
        return _share_on_levels(fine, coarse, grid)
    if grid in SIGNIFICANT_BITS:
        return _share_of_scaled_floats(fine, coarse, grid)
    moved = fine != fine.to(grid).float()
    above = torch.nextafter(coarse.to(grid), torch.tensor(torch.inf, dtype=grid)).float()
    is_even = _is_uniform((fine - coarse)[moved] / (above - coarse)[moved])
    return _share(fine.to(grid).float() == coarse) if is_even else 0.0


def _share_on_levels(fine: torch.Tensor, coarse: torch.Tensor, group: int) -> float:
    n_right = n_all = 0
    places = []
    for fine_group, coarse_group in zip(
        *(rows.reshape(-1, group)[:ROUNDED_GROUPS] for rows in (fine, coarse)), strict=True
    ):
        levels = torch.unique(coarse_group)
        if not 2 < len(levels) <= LEVELS_PER_ENTRY * group:
            continue
        at = torch.bucketize(fine_group, (levels[1:] + levels[:-1]) / 2)
        n_right += int((levels[at] == coarse_group).sum())
        n_all += group
        inner = (at > 0) & (at < len(levels) - 1)
        level = at[inner]
        gap = torch.minimum(levels[level + 1] - levels[level], levels[level] - levels[level - 1])
        places.append((fine_group[inner] - levels[level]) / gap)
    return n_right / n_all if n_all > 0 and _is_uniform(torch.cat(places)) else 0.0


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
    return _share(is_right) if _is_uniform(places.float()) else 0.0


def _grid_text(grid: torch.dtype | int) -> str:
    if isinstance(grid, int):
        return f"a few levels in each {grid} numbers of a row"
    if grid in SIGNIFICANT_BITS:
        return f"{str(grid).removeprefix('torch.')} with a scale"
    return str(grid).removeprefix("torch.")


def _is_uniform(places: torch.Tensor) -> bool:
    low, high = UNIFORM
    square = float(places.square().mean()) if len(places) >= 64 else 0.0
    return low < square < high and float(places.pow(4).mean()) < FLATNESS * square**2


def _share(equal: torch.Tensor) -> float:
    return float(equal.float().mean())


def _unit(layers: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Return ``(L, entries)``, a unit vector for each layer, or zeros if its shape differs from the first layer's."""
    present = [layer for layer in layers if layer is not None]
    if not present:
        return torch.zeros(len(layers), 0)
    like = present[0]
    rows = [layer if layer is not None and layer.shape == like.shape else torch.zeros_like(like) for layer in layers]
    flat = torch.stack([layer.float().flatten() for layer in rows])
    unit: torch.Tensor = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return unit


def _copies(x: torch.Tensor, y: torch.Tensor) -> set[tuple[int, int]]:
    i, j = np.nonzero((x @ y.T).numpy() > COPIED_COSINE)
    pairs = set(zip(i.tolist(), j.tolist(), strict=True))
    return {(a, b) for a, b in pairs if a < b} if x is y else pairs
