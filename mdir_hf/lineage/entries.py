"""Samples the same entries of every weight of several models that share one basis."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.model.comparable import PlacedTensors
from mdir_hf.model.roles import WeightPart, WeightProduct

ROWS, COLUMNS = 64, 512
"""Entries of a weight, at most: 0.13 MB of it, 30 MB of a model of 32 layers."""

Place = tuple[int | None, str]
"""Layer, None for the embeddings, and role."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightEntries:
    """Which entries of a weight: some rows and columns of ``(d_out, d_in)``.

    Attributes:
        part: Where the weight is stored.
        rows: ``(r,)``, ascending.
        columns: ``(c,)``, ascending.
    """

    part: WeightPart
    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]

    def of(self, part: WeightPart) -> WeightEntries:
        """The same entries of the weight of another model."""
        return replace(self, part=part)

    def read(self, model: PlacedTensors) -> torch.Tensor:
        """Read them: float32 ``(r, c)``. Costs the stored rows that they lie in, at most :data:`ROWS` of them."""
        shape = model.tensors.spec(self.part.tensor).shape
        rows, columns = self.part.rows(shape)[self.rows], self.columns
        if not self.part.is_transposed(shape):
            return model.tensors.read_rows(self.part.tensor, rows)[:, torch.from_numpy(columns)].float()
        return model.tensors.read_rows(self.part.tensor, columns)[:, torch.from_numpy(rows)].float().T


def placed_matrices(model: PlacedTensors) -> Mapping[Place, WeightPart]:
    """Return the weights that are plain matrices with a role, embeddings among them. Experts are left out.

    Args:
        model: The model. Of a product of two factors, the one whose rows are those of the role counts.
    """
    anatomy = model.anatomy
    edges = {"embedding": anatomy.embedding, "unembedding": anatomy.unembedding}
    found: dict[Place, WeightPart] = {(None, name): part for name, part in edges.items() if part is not None}
    for layer in anatomy.layers:
        for role, part in layer.parts.items():
            one = part.left if isinstance(part, WeightProduct) else part
            if not (role.is_norm or one.expert is not None or one.per_head or one.joined):
                found[layer.index, role.value] = one
    return {place: part for place, part in found.items() if len(model.tensors.spec(part.tensor).shape) == 2}


def matrix_shape(model: PlacedTensors, part: WeightPart) -> tuple[int, ...]:
    """Return ``(d_out, d_in)`` of a weight."""
    return part.shape(model.tensors.spec(part.tensor).shape)


def choose_entries(
    model: PlacedTensors, place: Place, part: WeightPart, *, n_rows: int | None = None, seed: int = 0
) -> WeightEntries:
    """Choose entries of a weight at random, so that few stored rows hold them.

    Args:
        model: The model.
        place: Of the weight; equal places choose alike.
        part: The weight.
        n_rows: Choose among the first rows only; None: all.
        seed: Seed of the choice.
    """
    layer, role = place
    shape = matrix_shape(model, part)
    draw = np.random.default_rng([seed, 0 if layer is None else layer + 1, zlib.crc32(role.encode())])
    few = (COLUMNS, ROWS) if part.is_transposed(model.tensors.spec(part.tensor).shape) else (ROWS, COLUMNS)
    sizes = (shape[0] if n_rows is None else n_rows, shape[1])
    rows, columns = (np.sort(draw.choice(n, min(n, most), replace=False)) for n, most in zip(sizes, few, strict=True))
    return WeightEntries(part, rows.astype(np.int64), columns.astype(np.int64))
