"""Test whether the values of a quantised model are the values of its base under the code, within its step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from mdir_hf.comparison.neuron_sample import spread
from mdir_hf.lineage.entries import WeightEntries, matrix_shape, placed_matrices
from mdir_hf.model.opened import Model
from mdir_hf.report.terms import Term

BLOCKS = (32, 16)
"""Numbers of neighbouring entries of a row that may share a scale; groups of codes are multiples of them."""

BLOCK = BLOCKS[0]

ROWS, COLUMNS, LAYERS = 32, 512, 4
"""Largest numbers of rows and neighbouring columns read of each matrix, and of layers: 2 MB for most models."""

MOST_LEVELS = 300
"""Entries of a block are integers of at most 8 bits, and a sign, if they are multiples of their smallest gap below this
number. Values that were not quantised hardly ever are."""

FP8_STEP = 0.088
"""Step of FP8 (E4M3) relative to a value: between 1/16 and 1/8."""

WITHIN, BEYOND = 0.75, 1.5
"""The RMS difference from the base, in steps. Rounding to the nearest level gives 0.29, 4-bit floats that are clipped
0.5 to 0.7. If it is above the second number in one matrix, no code with this step made these values."""

MOST_LOST = 0.5
"""Largest share of a matrix's squared values that a code may lose. Rounding normal values to one bit loses 0.36, and a
code with three bits and one scale per row 0.05. Nothing of a stranger's matrix remains."""

STANDARD_ERRORS = 6.0
"""Another model is nearer than the base if the mean squared differences differ by this many standard errors."""


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

    Reads up to 32 rows of every matrix in four layers, drawn afresh. Rows and columns may be rescaled, as AWQ does
    before it rounds.

    Args:
        model: The quantised model.
        base_name: Name of the declared base.
        base: The declared base.
        others: Other candidates, by name.
    """
    others = {name: other for name, other in others.items() if _has_shapes_of(base, other)}
    sampled = list(_sampled(model, base, others))
    if not sampled:
        return RelationTest(
            RelationOutcome.CANNOT_TELL, "no matrix was found whose values lie on the levels of a known code"
        )
    step = np.sqrt(np.mean([float(entries.steps.square().mean()) for entries in sampled]))
    difference = np.sqrt(np.mean([float(entries.of_base.mean()) for entries in sampled])) / step
    measured = f"its values differ from {base_name} by {difference:.2g} of the code's step (RMS)"
    nearer = min(
        (name for name in others if _is_nearer(sampled, name)),
        key=lambda name: float(np.mean([float(entries.of_others[name].mean()) for entries in sampled])),
        default=None,
    )
    if nearer is not None:
        distance = np.sqrt(np.mean([float(entries.of_others[nearer].mean()) for entries in sampled])) / step
        return RelationTest(
            RelationOutcome.CONTRADICTED, f"{measured}; the nearest base is {nearer}, at {distance:.2g}"
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
    if difference <= WITHIN:
        size = np.sqrt(np.mean([entries.size for entries in sampled]))
        unnoticed = f"changes of the base below {WITHIN * step / size:.1%} of its size would not be noticed"
        return RelationTest(RelationOutcome.CONFIRMED, f"{measured}; {unnoticed}")
    return RelationTest(RelationOutcome.CANNOT_TELL, f"{measured}, which rounding alone does not explain")


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """Entries of one matrix: steps, squared differences, their mean after rescaling, and the base's mean square."""

    place: str
    steps: torch.Tensor
    of_base: torch.Tensor
    of_others: Mapping[str, torch.Tensor]
    rescaled: float
    size: float


def _sampled(model: Model, base: Model, others: Mapping[str, Model]) -> Iterator[_Entries]:
    draw = np.random.default_rng()
    places = placed_matrices(model)
    layers = spread(sorted({layer for layer, _ in places if layer is not None}), LAYERS)
    candidates = [base, *others.values()]
    matrices = [placed_matrices(candidate) for candidate in candidates]
    for place, part in places.items():
        if place[0] not in layers:
            continue
        parts = [placed.get(place) for placed in matrices]
        shape = matrix_shape(model, part)
        if any(
            other is None or matrix_shape(candidate, other) != shape
            for candidate, other in zip(candidates, parts, strict=True)
        ):
            continue
        n_columns = min(COLUMNS, shape[1] // BLOCK * BLOCK)
        if n_columns == 0:
            continue
        rows = np.sort(draw.choice(shape[0], min(shape[0], ROWS), replace=False)).astype(np.int64)
        start = BLOCK * int(draw.integers(0, (shape[1] - n_columns) // BLOCK + 1))
        entries = WeightEntries(part, rows, np.arange(start, start + n_columns, dtype=np.int64))
        values = entries.read(model).double()
        steps = _steps(values, model.tensors.description.quantization or "")
        if steps is None:
            continue
        is_known = ~steps.isnan()
        read = [
            entries.of(other).read(candidate).double()
            for candidate, other in zip(candidates, parts, strict=True)
            if other is not None
        ]
        squared = [(values - rows_of).square()[is_known] for rows_of in read]
        rescaled = (_rescaled(values, read[0]) - read[0]).square()[is_known]
        of_others = dict(zip(others, squared[1:], strict=True))
        size = float(read[0].square()[is_known].mean())
        name = f"layer {place[0]} {place[1]}"
        yield _Entries(name, steps[is_known], squared[0], of_others, float(rescaled.mean()), size)


def _steps(values: torch.Tensor, quantization: str) -> torch.Tensor | None:
    """Return the distance to the next level for entries ``(r, c)``, or NaN; None if most of them show no levels."""
    if "FP8" in quantization.upper():
        return values.abs() * FP8_STEP
    for size in BLOCKS:
        steps = _steps_in_blocks(values.reshape(-1, size)).reshape(values.shape)
        if int(steps.isfinite().sum()) * 2 >= steps.numel():
            return steps
    return None


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


def _is_nearer(sampled: list[_Entries], name: str) -> bool:
    differences = torch.cat([entries.of_base - entries.of_others[name] for entries in sampled])
    error = float(differences.std()) / math.sqrt(len(differences))
    return float(differences.mean()) > max(STANDARD_ERRORS * error, 0.0)


def _has_shapes_of(base: Model, other: Model) -> bool:
    """Return whether another model has all matrices of a base, in the same shapes."""
    matrices = placed_matrices(other)
    return all(
        place in matrices and matrix_shape(other, matrices[place]) == matrix_shape(base, part)
        for place, part in placed_matrices(base).items()
        if place[0] is not None
    )
