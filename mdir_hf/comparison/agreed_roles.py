"""Choose among the readings of unknown names by agreement with the other model.

Shapes do not tell gate from up, or how q, k and v are fused. Rows of two related models are equally similar to each
other in any basis, so the reading whose rows resemble the other model's most is taken. Only a few layers are read. The
choice depends on the numbers of neurons, so p pays for the number of readings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

import numpy as np
import torch

from mdir_hf.errors import AnatomyError, NotFiniteError, UnsupportedFormatError
from mdir_hf.method.neurons import unit_rows
from mdir_hf.model.comparable import Comparable, PlacedTensors
from mdir_hf.model.inventory.by_structure import with_reading
from mdir_hf.model.roles import Role, StoredWeight, part_shape, read_part
from mdir_hf.model.roles.resolve import Reading

C = TypeVar("C", bound=Comparable)

ROWS = 48
"""Number of rows of each matrix that are compared, the first ones."""

LEAST_AGREEMENT = 0.3
"""Smallest mean correlation at which a reading is taken. Of 1,128 pairs of rows, unrelated ones reach 0.03."""

_NORM_OF = {
    **dict.fromkeys((Role.Q, Role.K, Role.V), Role.ATTENTION_NORM),
    **dict.fromkeys((Role.GATE, Role.UP), Role.MLP_NORM),
}
"""Roles that are compared, each with the norm whose scale belongs to its columns."""

_GROUPS = ((Role.GATE, Role.UP), (Role.Q, Role.K, Role.V))


@dataclass(frozen=True)
class Agreement:
    """Two models whose open readings were chosen.

    Attributes:
        log_n_readings: Natural log of the number of readings of gate and up among which data chose, for p.
        notes: What was chosen, in words.
    """

    models: tuple[Comparable, Comparable]
    log_n_readings: float = 0.0
    notes: tuple[str, ...] = ()


def with_agreed_roles(reference: Comparable, candidate: Comparable) -> Agreement:
    """Choose each model's readings so that they agree with the other model."""
    models = (reference, candidate)
    if not any(model.anatomy.readings for model in models):
        return Agreement(models)
    notes: list[str] = []
    log_n = 0.0
    for roles in _GROUPS:
        options = tuple(_readings_of(model, roles) for model in models)
        n_options = math.prod(len(of_model) or 1 for of_model in options)
        if n_options < 2:
            continue
        if Role.UP in roles:
            log_n += math.log(n_options)
        best: tuple[float, tuple[Reading | None, Reading | None]] | None = None
        with suppress(AnatomyError, UnsupportedFormatError, NotFiniteError):
            best = _best(models, options, roles)
        if best is None or best[0] < LEAST_AGREEMENT:
            continue
        models = tuple(_with(model, reading) for model, reading in zip(models, best[1], strict=True))  # type: ignore[assignment]
        named = " and ".join(role.value for role in roles)
        notes.append(
            f"names and shapes allow {n_options} readings of {named}; the one that agrees with the other model was "
            f"taken (correlation {best[0]:.2f})"
        )
    return Agreement(models, log_n, tuple(notes))


def _readings_of(model: PlacedTensors, roles: Sequence[Role]) -> tuple[Reading, ...]:
    return next(
        (options for options in model.anatomy.readings if any(set(roles) & parts.keys() for parts in options[0])), ()
    )


def _with(model: C, reading: Reading | None) -> C:
    if reading is None:
        return model
    chosen = copy(model)
    chosen.anatomy = with_reading(model.anatomy, reading)  # type: ignore[misc]
    return chosen


def _best(
    models: tuple[Comparable, Comparable], options: Sequence[Sequence[Reading]], roles: Sequence[Role]
) -> tuple[float, tuple[Reading | None, Reading | None]]:
    """Return the pair of readings whose rows resemble each other most; None for a model without a choice."""
    n_layers = [len(model.anatomy.layers) for model in models]
    depths = [0.0, 0.5, 1.0] if n_layers[0] == n_layers[1] else [0.0, 1.0]
    sides = [_Rows(model) for model in models]
    scores: list[tuple[float, tuple[Reading | None, Reading | None]]] = []
    for pair in product(*(of_model or (None,) for of_model in options)):
        correlations: list[float] = []
        for depth in depths:
            places = [round(depth * (n - 1)) for n in n_layers]
            parts = [
                {**model.anatomy.layers[place].parts, **(reading[place] if reading is not None else {})}
                for model, place, reading in zip(models, places, pair, strict=True)
            ]
            for role in roles:
                if all(role in of_layer for of_layer in parts):
                    first, second = (side.likeness(role, of_layer) for side, of_layer in zip(sides, parts, strict=True))
                    correlations.append(float(first @ second) if first.shape == second.shape else 0.0)
        scores.append((sum(correlations) / max(1, len(correlations)), (pair[0], pair[1])))
    return max(scores, key=lambda score: score[0])  # the first of equals, which is the default


class _Rows:
    """The similarities between a few rows of a model's matrices, each read once."""

    def __init__(self, model: PlacedTensors) -> None:
        self._model = model
        self._rows: dict[StoredWeight, torch.Tensor] = {}
        self._gains: dict[StoredWeight, torch.Tensor] = {}

    def likeness(self, role: Role, parts: Mapping[Role, StoredWeight]) -> torch.Tensor:
        """Return the centred cosines of all pairs of rows, as a unit vector."""
        rows = self._read(parts[role])
        norm = parts.get(_NORM_OF[role])
        if norm is not None:
            gain = self._gains.setdefault(norm, read_part(self._model.tensors, norm).float())
            rows = rows * (1 + gain if self._model.anatomy.norms_add_one else gain)
        rows = torch.nn.functional.normalize(rows, dim=-1)
        above = torch.triu_indices(len(rows), len(rows), 1)
        cosines = (rows @ rows.T)[above[0], above[1]]
        return unit_rows((cosines - cosines.mean())[None])[0]

    def _read(self, part: StoredWeight) -> torch.Tensor:
        if part not in self._rows:
            n_rows = part_shape(part, lambda name: tuple(self._model.tensors.spec(name).shape))[0]
            rows = np.arange(min(ROWS, n_rows), dtype=np.int64)
            self._rows[part] = read_part(self._model.tensors, part, rows).float()
        return self._rows[part]
