"""Sample the same entries of corresponding weights in models that share a basis."""

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
"""Maximum number of rows and columns sampled from a weight: 0.13 MB, or 30 MB for a model with 32 layers."""

MatrixPlace = tuple[int | None, str]
"""Layer number (None for embeddings) and role."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightEntries:
    """Sampled rows ``(r,)`` and columns ``(c,)`` of a ``(d_out, d_in)`` weight, in ascending order."""

    part: WeightPart
    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]

    def of(self, part: WeightPart) -> WeightEntries:
        """Return the same entries for another model's weight."""
        return replace(self, part=part)

    def read(self, model: PlacedTensors) -> torch.Tensor:
        """Read the entries as float32, ``(r, c)``, from at most :data:`ROWS` stored rows."""
        shape = model.tensors.spec(self.part.tensor).shape
        rows, columns = self.part.rows(shape)[self.rows], self.columns
        if not self.part.is_transposed(shape):
            return model.tensors.read_rows(self.part.tensor, rows)[:, torch.from_numpy(columns)].float()
        return model.tensors.read_rows(self.part.tensor, columns)[:, torch.from_numpy(rows)].float().T


def placed_matrices(model: PlacedTensors) -> Mapping[MatrixPlace, WeightPart]:
    """Return a model's matrices, including embeddings but not experts.

    A weight stored as a product of two factors is represented by the left factor, which has the same rows.
    """
    anatomy = model.anatomy
    edges = {"embedding": anatomy.embedding, "unembedding": anatomy.unembedding}
    matrices: dict[MatrixPlace, WeightPart] = {(None, name): part for name, part in edges.items() if part is not None}
    for layer in anatomy.layers:
        for role, part in layer.parts.items():
            weight = part.left if isinstance(part, WeightProduct) else part
            if not (role.is_norm or weight.expert is not None or weight.per_head or weight.joined):
                matrices[layer.index, role.value] = weight
    return {place: part for place, part in matrices.items() if len(model.tensors.spec(part.tensor).shape) == 2}


def matrix_shape(model: PlacedTensors, part: WeightPart) -> tuple[int, ...]:
    """Return the shape ``(d_out, d_in)`` of a weight."""
    return part.shape(model.tensors.spec(part.tensor).shape)


def choose_entries(
    model: PlacedTensors, place: MatrixPlace, part: WeightPart, *, n_rows: int | None = None, seed: int = 0
) -> WeightEntries:
    """Choose random entries in a few stored rows of a weight.

    The choice depends only on the seed, place and shape. If ``n_rows`` is given, rows are drawn from the first
    ``n_rows``.
    """
    layer, role = place
    shape = matrix_shape(model, part)
    draw = np.random.default_rng([seed, 0 if layer is None else layer + 1, zlib.crc32(role.encode())])
    few = (COLUMNS, ROWS) if part.is_transposed(model.tensors.spec(part.tensor).shape) else (ROWS, COLUMNS)
    sizes = (shape[0] if n_rows is None else n_rows, shape[1])
    rows, columns = (np.sort(draw.choice(n, min(n, most), replace=False)) for n, most in zip(sizes, few, strict=True))
    return WeightEntries(part, rows.astype(np.int64), columns.astype(np.int64))
