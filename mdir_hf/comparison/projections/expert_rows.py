"""Compare sampled rows of experts in paired layers, each expert with every expert of the other layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from mdir_hf.comparison.projections.samples import MOST_WHOLE_VALUES, ProjectionReader
from mdir_hf.comparison.projections.tier_one import RoleCells, TierOne, cells_of
from mdir_hf.comparison.reading import ReadOnce, read_closely
from mdir_hf.comparison.stacks import expert_set
from mdir_hf.errors import AnatomyError, UnsupportedFormatError
from mdir_hf.method.matching import REMARKABLE
from mdir_hf.model.roles import Role, WeightPart
from mdir_hf.report import ExpertName

COLUMNS_ONLY = "the files store its rows as columns, so that each expert would have to be read whole"

MLP_ROLES = (Role.GATE, Role.UP, Role.DOWN)

MOST_EXPERTS = 8
"""Maximum number of experts compared per layer. In larger mixtures, experts with the same numbers are drawn in both
models."""

ROWS_OF_EXPERT = 16
"""Number of rows read per projection and expert. For eight experts, this is twice as many rows as for a dense layer."""

LEAST_OWN_ROWS = 3
"""Two experts agree only if more than this many rows are mutual best matches with the row that has the same number.
Unrelated experts have one such match on average."""


@dataclass(frozen=True, eq=False)
class ExpertCells:
    """Agreement between the experts of two layers, for every pair of experts.

    Attributes:
        names: Experts chosen from the reference layer and from the candidate layer.
        n_experts: Number of experts in each layer; 1 for a dense MLP.
        failures: Reasons why projections were not compared.
    """

    names: tuple[tuple[ExpertName, ...], tuple[ExpertName, ...]]
    n_experts: tuple[int, int]
    cells: Mapping[Role, RoleCells]
    failures: Mapping[Role, str]

    def compared(self, role: Role) -> tuple[tuple[ExpertName, ...], tuple[ExpertName, ...]]:
        """Return the names of each layer's experts whose rows of this role were compared, in the order of the cells."""
        reference, candidate = self.cells[role].sample.places
        return tuple(self.names[0][at] for at in reference), tuple(self.names[1][at] for at in candidate)

    def n_unread(self, role: Role) -> tuple[int, int]:
        """Return the number of experts in each layer whose rows of this role were not compared."""
        reference, candidate = self.compared(role)
        return self.n_experts[0] - len(reference), self.n_experts[1] - len(candidate)

    def partner(self, role: Role, column: int) -> int | None:
        """Return the index of the reference expert that agrees best with the candidate expert ``column``, or None."""
        cells, names = self.cells[role], self.compared(role)
        own, cosine = cells.agreement.own_share[:, column], np.abs(cells.agreement.cosine[:, column])
        is_own_best = own * len(cells.sample.numbers) > LEAST_OWN_ROWS
        agreeing = np.flatnonzero(is_own_best & (cells.log_p[:, column] < math.log(REMARKABLE)))
        if not len(agreeing):
            return None
        has_same_name = [name == names[1][column] for name in names[0]]
        return int(
            max(agreeing, key=lambda row: (round(float(own[row]), 2), round(float(cosine[row]), 2), has_same_name[row]))
        )


def compare_experts(
    reader: ProjectionReader, tier_one: TierOne, pair: tuple[int, int], log_n_tests: float
) -> ExpertCells | None:
    """Compare the experts of a pair of layers; a dense MLP counts as one expert.

    Each cell's p is corrected for ``log_n_tests`` and for all pairs of experts. Return None if neither layer is a
    mixture or if either has no MLP. Also return None if both have a dense MLP, which then represents the layer.
    """
    models = reader.models
    layers = [model.anatomy.layers[place] for model, place in zip(models, pair, strict=True)]
    if not any(layer.experts for layer in layers) or all(Role.UP in layer.parts for layer in layers):
        return None
    sets = expert_set(models[0], pair[0]), expert_set(models[1], pair[1])
    n_experts = len(sets[0].names), len(sets[1].names)
    if 0 in n_experts:
        return None
    order = np.random.default_rng([reader.seed, *pair]).permutation(max(n_experts))
    places = [np.sort(order[order < n][:MOST_EXPERTS]) for n in n_experts]
    views = [
        read_closely(model).with_anatomy(
            replace(experts.anatomy, layers=tuple(experts.anatomy.layers[at] for at in numbers))
        )
        for model, experts, numbers in zip(models, sets, places, strict=True)
    ]
    left_out = {role: COLUMNS_ONLY for role in MLP_ROLES if any(_needs_whole_experts(view, role) for view in views)}
    of_experts = ProjectionReader(
        (views[0], views[1]),
        seed=reader.seed,
        device=reader.device,
        left_out=left_out,
        n_sampled_rows=ROWS_OF_EXPERT,
    )
    cells = cells_of(of_experts, tier_one.residual_map, log_n_tests + math.log(MOST_EXPERTS**2), roles=MLP_ROLES)
    reader.unread.extend(of_experts.unread)
    names = [tuple(experts.names[at] for at in numbers) for experts, numbers in zip(sets, places, strict=True)]
    return ExpertCells((names[0], names[1]), n_experts, cells, {**of_experts.failures, **left_out})


def _needs_whole_experts(view: ReadOnce, role: Role) -> bool:
    """Return whether the experts are large and their rows are stored as columns."""
    for layer in view.anatomy.layers[:1]:
        part = layer.parts.get(role)
        if isinstance(part, WeightPart):
            with suppress(AnatomyError, UnsupportedFormatError):
                stored_shape = tuple(view.tensors.spec(part.tensor).shape)
                return part.is_transposed(stored_shape) and math.prod(part.shape(stored_shape)) > MOST_WHOLE_VALUES
    return False
