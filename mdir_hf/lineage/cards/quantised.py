"""Test whether the values of a quantised model are the values of its base under the code, within its step."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from mdir_hf.lineage.cards.quantised_entries import ReadPair, Skipped, read_pairs
from mdir_hf.lineage.entries import matrix_shape, placed_matrices
from mdir_hf.model.opened import Model
from mdir_hf.report.terms import Term

BLOCKS = (32, 16)
"""Numbers of neighbouring entries of a row that may share a scale; groups of codes are multiples of them."""

MOST_LEVELS = 300
"""Entries of a block are integers of at most 8 bits, and a sign, if they are multiples of their smallest gap below this
number. Values that were not quantised hardly ever are."""

FP8_STEP = 0.088
"""Step of FP8 (E4M3) relative to a value: between 1/16 and 1/8."""

FP4 = ("NVFP4", "MXFP4")
"""Names of codes with E2M1 values."""

WITHIN, BEYOND = 0.75, 1.5
"""The RMS difference from the base, in steps. Rounding to the nearest level gives 0.29, 4-bit floats that are clipped
0.5 to 0.7. If it is above the second number in one matrix, no code with this step made these values."""

MOST_LOST = 0.5
"""Largest share of a matrix's squared values that a code may lose. Rounding normal values to one bit loses 0.36, and a
code with three bits and one scale per row 0.05. Nothing of a stranger's matrix remains."""

STANDARD_ERRORS = 6.0
"""Another model is nearer than the base if the mean squared differences differ by this many standard errors."""

RESCALED = 0.02
"""Largest difference, relative to the base, of unquantised values whose rows or columns were only rescaled."""

TUNED_NORM = 0.1
"""A norm that differs by less than this share of its size does not contradict: some methods train norms again."""

MOVED_SCALES = 0.5
"""Smallest correlation of a norm's changes with the changes of columns after it, on log scales, if scales were moved.
Rounding to 3 bits leaves 0.8."""

MOST_NAMED = 3
"""Maximum number of tensors that a sentence names."""


class RelationOutcome(Term):
    """Outcome of testing a declared relation."""

    CONFIRMED = "confirmed", "confirmed"
    CONTRADICTED = "contradicted", "contradicted"
    CANNOT_TELL = "cannot_tell", "cannot tell"


@dataclass(frozen=True, slots=True)
class RelationTest:
    """A declared relation and its test."""

    outcome: RelationOutcome
    tested: str


def check_quantised(model: Model, base_name: str, base: Model, others: Mapping[str, Model]) -> RelationTest:
    """Test whether a model is a base under a code, and whether another model is nearer.

    Reads a few rows of each tensor, drawn afresh. Rows and columns may be rescaled, as AWQ does before it rounds.
    Unquantised tensors must be equal up to the rounding of their dtype.

    Args:
        model: The quantised model.
        base_name: Name of the declared base.
        base: The declared base.
        others: Other candidates, by name.
    """
    others = {name: other for name, other in others.items() if _has_shapes_of(base, other)}
    pairs, skipped = read_pairs(model, base, others)
    quantization = model.tensors.description.quantization or ""
    judged = {pair.place: _judged(pair, quantization) for pair in pairs}
    sampled = [entries for entries in judged.values() if isinstance(entries, _Entries)]
    if not sampled:
        return RelationTest(
            RelationOutcome.CANNOT_TELL, "no matrix was found whose values lie on the levels of a known code"
        )
    step = np.sqrt(np.mean([float(entries.steps.square().mean()) for entries in sampled]))
    difference = np.sqrt(np.mean([float(entries.of_base.mean()) for entries in sampled])) / step
    measured = f"its values differ from {base_name} by {difference:.2g} of the code's step (RMS)"
    distances = {name: _distance(sampled, name) for name in others if _is_nearer(sampled, name)}
    if distances:
        nearest = min(distances, key=distances.__getitem__)
        return RelationTest(
            RelationOutcome.CONTRADICTED, f"{measured}; the nearest base is {nearest}, at {distances[nearest]:.2g}"
        )
    worst = max(sampled, key=lambda entries: entries.rescaled / float(entries.steps.square().mean()))
    largest = math.sqrt(worst.rescaled / float(worst.steps.square().mean()))
    if largest > BEYOND:
        why = f"{measured}, and those of {worst.place} by {largest:.2g}, which no rounding explains"
        return RelationTest(RelationOutcome.CONTRADICTED, why)
    most_lost = max(sampled, key=lambda entries: entries.rescaled - MOST_LOST * entries.size)
    if most_lost.rescaled > MOST_LOST * most_lost.size:
        why = f"{measured}, but no code makes the values of {most_lost.place} from those in {base_name}"
        return RelationTest(RelationOutcome.CONTRADICTED, why)
    different = [entries for entries in judged.values() if isinstance(entries, _Unlike) and entries.is_contradicted]
    if different:
        most = max(different, key=lambda entries: entries.difference)
        why = f"{measured}, but {most.place}, which is not quantised, differs by {most.difference:.2g} of its size"
        return RelationTest(RelationOutcome.CONTRADICTED, f"{why}{_and_others(len(different) - 1)}")
    unconfirmed = [entries for entries in judged.values() if isinstance(entries, _Unlike)]
    if difference > WITHIN:
        return RelationTest(RelationOutcome.CANNOT_TELL, f"{measured}, which rounding alone does not explain")
    if unconfirmed or skipped.unlike:
        reasons = [*skipped.unlike, *(f"{entries.place} {entries.why}" for entries in unconfirmed)]
        listed = "; ".join(reasons[:MOST_NAMED])
        return RelationTest(
            RelationOutcome.CANNOT_TELL, f"{measured}, but {listed}{_and_others(len(reasons) - MOST_NAMED)}"
        )
    size = np.sqrt(np.mean([entries.size for entries in sampled]))
    unnoticed = f"changes of the base below {WITHIN * step / size:.1%} of its size would not be noticed"
    return RelationTest(RelationOutcome.CONFIRMED, f"{measured}; {unnoticed}; {_scope(judged, skipped)}")


def _and_others(n: int) -> str:
    return f", and {n} other{'s' if n > 1 else ''}" if n > 0 else ""


def _scope(judged: Mapping[str, object], skipped: Skipped) -> str:
    """State which tensors were tested, and which were not."""
    n_codes = sum(isinstance(entries, _Entries) for entries in judged.values())
    n_equal = len(judged) - n_codes
    layers = f"{skipped.n_read_layers} of {skipped.n_layers} layers"
    equal = f", and {n_equal} unquantised tensors are equal" if n_equal else ""
    untested = f"; not tested: {', '.join(skipped.untested)}" if skipped.untested else ""
    return f"tested a few rows of {n_codes} quantised matrices in {layers}{equal}{untested}"


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """Entries of one matrix: steps, squared differences, their mean after rescaling, and the base's mean square."""

    place: str
    steps: torch.Tensor
    of_base: torch.Tensor
    of_others: Mapping[str, torch.Tensor]
    rescaled: float
    size: float


@dataclass(frozen=True, slots=True)
class _Unlike:
    """A tensor that is neither the base's nor visibly quantised; difference is relative to the base's size."""

    place: str
    why: str
    difference: float = 0.0
    is_contradicted: bool = False


def _judged(pair: ReadPair, quantization: str) -> _Entries | _Unlike | None:
    """Return how a pair of tensors differs, or None if the two are equal up to rounding."""
    values, base = pair.values, pair.of_base
    if _is_equal(pair):
        return None
    steps = None if values.ndim < 2 else _steps_of(pair, quantization)
    if steps is not None:
        n = steps.shape[1]
        is_known = ~steps.isnan()
        squared = (values[:, :n] - base[:, :n]).square()[is_known]
        rescaled = (_rescaled(values[:, :n], base[:, :n]) - base[:, :n]).square()[is_known]
        of_others = {name: (values[:, :n] - other[:, :n]).square()[is_known] for name, other in pair.of_others.items()}
        size = float(base[:, :n].square()[is_known].mean())
        return _Entries(pair.place, steps[is_known], squared, of_others, float(rescaled.mean()), size)
    size = float(base.square().mean().sqrt()) or 1.0
    difference = float((values - base).square().mean().sqrt()) / size
    if not pair.is_plain:
        return _Unlike(pair.place, "has no levels of a known code", difference)
    if values.ndim < 2:
        if difference <= TUNED_NORM or not pair.is_norm:
            return _Unlike(pair.place, f"differs by {difference:.2g} of its size", difference)
        is_scaled = any(_explains(factors, values[columns], base[columns]) for columns, factors in pair.next_factors)
        why = f"differs by {difference:.2g} of its size, as if scales were moved to the next matrix"
        return _Unlike(pair.place, why, difference, not is_scaled)
    rest = float((_rescaled(values, base) - base).square().mean().sqrt()) / size
    if rest <= RESCALED:
        return _Unlike(pair.place, "has other scales of rows or columns", difference)
    return _Unlike(pair.place, "differs", difference, is_contradicted=True)


def _steps_of(pair: ReadPair, quantization: str) -> torch.Tensor | None:
    width = pair.values.shape[1] // BLOCKS[0] * BLOCKS[0]
    blocked = pair.values[:, :width]
    if width == 0:
        return None
    if "FP8" in quantization.upper():
        return None if pair.is_plain else blocked.abs() * FP8_STEP
    if any(name in quantization.upper() for name in FP4):
        return _fp4_steps(blocked)
    return _steps(blocked)


def _is_equal(pair: ReadPair) -> bool:
    """Return whether values are the base's, perhaps rounded to 16 bits and then to the stored dtype."""
    if not pair.is_plain:
        return bool((pair.values == pair.of_base).all())
    limits = torch.finfo(pair.dtype).eps * pair.of_base.abs() + 2 * torch.finfo(torch.float16).smallest_normal * 2**-10
    rounded = (pair.of_base, *(pair.of_base.to(dtype).double() for dtype in (torch.bfloat16, torch.float16)))
    return any(bool(((pair.values - base).abs() <= limits).all()) for base in rounded)


def _explains(factors: torch.Tensor, values: torch.Tensor, base: torch.Tensor) -> bool:
    """Return whether columns of the next matrix, which need ``factors`` to fit the base, explain a norm's scales."""
    ratios = values / base
    is_known = (ratios > 0) & (factors > 0) & ratios.isfinite()
    if int(is_known.sum()) * 2 < len(values):
        return False
    logs = torch.stack([ratios[is_known].log(), factors[is_known].log()])
    return float(torch.corrcoef(logs)[0, 1]) > MOVED_SCALES


def _steps(values: torch.Tensor) -> torch.Tensor | None:
    """Return the distance to the next level for entries ``(r, c)``, or NaN; None if most of them show no levels."""
    for size in BLOCKS:
        steps = _steps_in_blocks(values.reshape(-1, size)).reshape(values.shape)
        if int(steps.isfinite().sum()) * 2 >= steps.numel():
            return steps
    return None


def _fp4_steps(values: torch.Tensor) -> torch.Tensor | None:
    """Return the distance to the next level of FP4 (E2M1), whose levels are 0, 1, 2, 3, 4, 6, 8 and 12 units."""
    units = _steps_in_blocks(values.reshape(-1, BLOCKS[-1])).reshape(values.shape)
    multiples = (values / units).abs().round()
    steps = units * torch.where(multiples > 8, 4.0, torch.where(multiples > 4, 2.0, 1.0))
    return steps if int(steps.isfinite().sum()) * 2 >= steps.numel() else None


def _steps_in_blocks(blocks: torch.Tensor) -> torch.Tensor:
    """Return the step of each entry of blocks ``(b, n)``, or NaN for blocks without visible levels."""
    least = 1e-6 * blocks.abs().amax(dim=1, keepdim=True)
    gaps = blocks.sort(dim=1).values.diff(dim=1)
    gaps = torch.where(gaps > least, gaps, torch.inf)
    step = gaps.amin(dim=1, keepdim=True)
    multiples = (blocks - blocks[:, :1]) / step
    is_even = ((multiples - multiples.round()).abs() < 0.05) & (multiples.abs() <= MOST_LEVELS) & step.isfinite()
    has_few = (gaps.isfinite().sum(dim=1, keepdim=True) < blocks.shape[1] // 2) & step.isfinite()
    apart = (blocks[:, :, None] - blocks[:, None, :]).abs()
    nearest = torch.where(apart > least[:, :, None], apart, torch.inf).amin(dim=2)
    return torch.where(is_even.all(dim=1, keepdim=True), step, torch.where(has_few, nearest, torch.nan))


def _rescaled(values: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Scale columns and rows by positive factors, in turn, to fit the base best."""
    for dim in (0, 1, 0, 1):
        squares = values.square().sum(dim=dim, keepdim=True).clamp(min=1e-30)
        values = values * ((values * base).sum(dim=dim, keepdim=True) / squares).clamp(min=0.0)
    return values


def _is_nearer(sampled: Collection[_Entries], name: str) -> bool:
    differences = torch.cat(
        [entries.of_base - entries.of_others[name] for entries in sampled if name in entries.of_others]
        or [torch.zeros(2)]
    )
    error = float(differences.std()) / math.sqrt(len(differences))
    return float(differences.mean()) > max(STANDARD_ERRORS * error, 0.0)


def _distance(sampled: Collection[_Entries], name: str) -> float:
    """Return the RMS difference from another model, in steps."""
    pairs = [(entries.of_others[name], entries.steps) for entries in sampled if name in entries.of_others]
    squared = sum(float(of_other.mean()) for of_other, _ in pairs)
    return math.sqrt(squared / sum(float(steps.square().mean()) for _, steps in pairs))


def _has_shapes_of(base: Model, other: Model) -> bool:
    """Return whether another model has all matrices of a base, in the same shapes."""
    matrices = placed_matrices(other)
    return all(
        place in matrices and matrix_shape(other, matrices[place]) == matrix_shape(base, part)
        for place, part in placed_matrices(base).items()
        if place[0] is not None
    )
