"""Choose among the readings of unknown names by agreement with the other model.

Shapes do not tell gate from up, or how q, k and v are fused. Rows of two related models are equally similar to each
other in any basis, so the reading whose rows resemble the other model's most is taken. If none does, rows may be in
another order, and the second moments of channels are compared. Only a few layers are read. The choice depends on the
numbers of neurons, so p pays for the number of readings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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

CHANNELS = 256
"""Number of channels whose second moments are compared if rows do not agree by number, the first ones."""

MOST_VALUES = 1 << 26
"""Largest matrix that is read whole to compare its second moments."""

LEAST_AGREEMENT = 0.3
"""Smallest mean correlation at which a reading is taken. Unrelated rows reach 0.03 in 1,128 pairs."""

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
        notes: The choices, in words.
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
        best: tuple[float, tuple[Reading | None, Reading | None]] = (0.0, (None, None))
        group = "MLPs" if Role.UP in roles else "attention"
        unknown = " and ".join(m.label for m, of_model in zip(models, options, strict=True) if of_model)
        choice = f"names and shapes allow {n_options} readings of the {group} of {unknown}"
        with suppress(AnatomyError, UnsupportedFormatError, NotFiniteError):
            best = _best(models, options, roles, _SampledRows.by_number)
            if best[0] < LEAST_AGREEMENT:
                best = _best(models, options, roles, _SampledRows.by_channel)
        if best[0] < LEAST_AGREEMENT:
            notes.append(f"{choice}; none agrees with the other model, so the first was compared")
            continue
        models = tuple(_with(model, reading) for model, reading in zip(models, best[1], strict=True))  # type: ignore[assignment]
        notes.append(f"{choice}; the one that agrees with the other model was taken (correlation {best[0]:.2f})")
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
    models: tuple[Comparable, Comparable],
    options: Sequence[Sequence[Reading]],
    roles: Sequence[Role],
    likeness: Callable[[_SampledRows, Role, Mapping[Role, StoredWeight]], torch.Tensor],
) -> tuple[float, tuple[Reading | None, Reading | None]]:
    """Return the pair of readings whose rows resemble each other most; None for a model without a choice."""
    n_layers = [len(model.anatomy.layers) for model in models]
    # Verdicts rest on MLPs. Second moments need whole matrices.
    depths = (0.0, 1.0) if Role.UP in roles and likeness is _SampledRows.by_number else (0.0,)
    sides = [_SampledRows(model) for model in models]
    scores: list[tuple[float, tuple[Reading | None, Reading | None]]] = []
    for pair in product(*(of_model or (None,) for of_model in options)):
        anatomies = [
            model.anatomy if reading is None else with_reading(model.anatomy, reading)
            for model, reading in zip(models, pair, strict=True)
        ]
        correlations: list[float] = []
        for depth in depths:
            places = [round(depth * (n - 1)) for n in n_layers]
            parts = [anatomy.layers[place].parts for anatomy, place in zip(anatomies, places, strict=True)]
            for role in roles:
                if all(role in of_layer for of_layer in parts):
                    first, second = (
                        likeness(side, role, of_layer) for side, of_layer in zip(sides, parts, strict=True)
                    )
                    correlations.append(float(first @ second) if first.shape == second.shape else 0.0)
        scores.append((sum(correlations) / max(1, len(correlations)), (pair[0], pair[1])))
    return max(scores, key=lambda score: score[0])  # the first of equals, which is the default


class _SampledRows:
    """The similarities between a few rows of a model's matrices, each read once."""

    def __init__(self, model: PlacedTensors) -> None:
        self._model = model
        self._rows: dict[tuple[StoredWeight, int | None], torch.Tensor] = {}
        self._gains: dict[StoredWeight, torch.Tensor] = {}

    def by_number(self, role: Role, parts: Mapping[Role, StoredWeight]) -> torch.Tensor:
        """Return the centred cosines of all pairs of the first rows, as a unit vector, which is alike in any basis."""
        rows = torch.nn.functional.normalize(self._read(role, parts, ROWS), dim=-1)
        return _centred_pairs(rows @ rows.T)

    def by_channel(self, role: Role, parts: Mapping[Role, StoredWeight]) -> torch.Tensor:
        """Return the centred second moments of some channels, as a unit vector, which is alike in any order of rows.

        Reads the whole matrix.

        Raises:
            UnsupportedFormatError: If the matrix is too large for this.
        """
        rows = self._read(role, parts, None)[:, :CHANNELS]
        return _centred_pairs(rows.T @ rows)

    def _read(self, role: Role, parts: Mapping[Role, StoredWeight], most: int | None) -> torch.Tensor:
        part, norm = parts[role], parts.get(_NORM_OF[role])
        key = (part, most)
        if key not in self._rows:
            n_rows, width = part_shape(part, lambda name: tuple(self._model.tensors.spec(name).shape))
            if most is None and n_rows * width > MOST_VALUES:
                raise UnsupportedFormatError("its matrices are too large to compare them whole")
            rows = np.arange(n_rows if most is None else min(most, n_rows), dtype=np.int64)
            self._rows[key] = read_part(self._model.tensors, part, rows).float()
        if norm is None:
            return self._rows[key]
        if norm not in self._gains:
            self._gains[norm] = read_part(self._model.tensors, norm).float()
        gain = self._gains[norm]
        return self._rows[key] * (1 + gain if self._model.anatomy.norms_add_one else gain)


def _centred_pairs(products: torch.Tensor) -> torch.Tensor:
    above = torch.triu_indices(len(products), len(products), 1)
    values = products[above[0], above[1]]
    return unit_rows((values - values.mean())[None])[0]
