"""Sketches of bases, from which a large index picks candidates.

A sketch has three parts. The inner product of each part with the same part of the model's sketch measures similarity:

- *rows*: random projections of whitened rows. If widths are equal, the inner product estimates the trace of the polar
  factor for channels in their stored order.
- *shape*: cosines between the first rows, for bases of any width. They do not change if channels are permuted or
  rotated.
- *neurons*: random projections of the similarities between neurons, layer by layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from mdir_hf.comparison.neuron_sample import FEW_LAYERS, NeuronSample, resemblances
from mdir_hf.lineage.fingerprints.fingerprint import Fingerprint
from mdir_hf.method.neurons import unit_rows
from mdir_hf.method.polar import orthonormal_rows

N_PROJECTIONS = 256
"""Number of projections of rows, and of each layer's neurons. Inner products of unit vectors are accurate to 1/16."""

SHAPE_ROWS = 16
"""Number of rows whose cosines are stored."""

_SEED = 20_260_101


class Sketch(NamedTuple):
    """The sketch of a base or model, as float16 unit vectors.

    Attributes:
        rows: ``(N_PROJECTIONS,)``.
        shape: Cosines between the first rows, ``(SHAPE_ROWS (SHAPE_ROWS - 1) / 2,)``; 0 for missing rows.
        neurons: ``(FEW_LAYERS, N_PROJECTIONS)``; 0 for missing layers.
    """

    rows: torch.Tensor
    shape: torch.Tensor
    neurons: torch.Tensor


PARTS = Sketch._fields
_SHAPES = ((N_PROJECTIONS,), (SHAPE_ROWS * (SHAPE_ROWS - 1) // 2,), (FEW_LAYERS, N_PROJECTIONS))


def unstacked(stacks: Sequence[torch.Tensor], n_bases: int) -> list[Sketch]:
    """Return one sketch per base, from a file that stacks each part.

    Raises:
        ValueError: If the stacks do not contain ``n_bases`` sketches.
    """
    for part, stack, shape in zip(PARTS, stacks, _SHAPES, strict=True):
        if tuple(stack.shape) != (n_bases, *shape) or stack.dtype != torch.float16:
            raise ValueError(f"expected sketches of {part} of shape {(n_bases, *shape)}, got {tuple(stack.shape)}")
    return [Sketch(*of_one) for of_one in zip(*stacks, strict=True)]


def sketch_of(base: Fingerprint, place: Mapping[bytes, int]) -> Sketch:
    """Compute the sketch of a base; ``place`` maps each token to its position in the index's sample."""
    neurons = torch.zeros(FEW_LAYERS, N_PROJECTIONS)
    if base.neurons is not None:
        projected = projected_neurons(base.neurons)[:FEW_LAYERS]
        neurons[: len(projected)] = projected
    if not base.tokens:
        return Sketch(torch.zeros(_SHAPES[0]).half(), torch.zeros(_SHAPES[1]).half(), neurons.half())
    usual = base.of_usual_rows()
    first = [base.tokens.index(token) for token in usual.tokens[:SHAPE_ROWS]]
    first = [at for at in first if at < SHAPE_ROWS]
    return Sketch(
        projected_rows(usual.rows, [place[token] for token in usual.tokens]).half(),
        shape_of(usual.rows[: len(first)], first).half(),
        neurons.half(),
    )


def projected_rows(rows: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    """Project whitened rows ``(r, n)`` randomly; return a float32 unit vector, ``(N_PROJECTIONS,)``.

    ``places`` gives the position of each row's token in the sample.
    """
    left, right = orthonormal_rows(rows)
    whitened = left @ right.T
    of_tokens = _signs(max(places, default=0) + 1, 0)[list(places)]
    projected = ((of_tokens.T @ whitened) * _signs(rows.shape[1], 1).T).sum(dim=1)
    return unit_rows(projected[None])[0]


def shape_of(rows: torch.Tensor, at: Sequence[int]) -> torch.Tensor:
    """Return the cosines between rows ``(r, n)`` as one vector, centred and normalised.

    ``at`` gives each row's position among the first :data:`SHAPE_ROWS`.
    """
    centred = rows.double() - rows.double().mean(dim=0)
    unit = unit_rows(centred)
    cosines = torch.zeros(SHAPE_ROWS, SHAPE_ROWS, dtype=torch.float64)
    places = torch.tensor(list(at), dtype=torch.long)
    cosines[places[:, None], places[None]] = unit @ unit.T
    has_cosine = torch.zeros(SHAPE_ROWS, SHAPE_ROWS, dtype=torch.bool)
    has_cosine[places[:, None], places[None]] = True
    above = torch.triu_indices(SHAPE_ROWS, SHAPE_ROWS, 1)
    values, is_known = cosines[above[0], above[1]], has_cosine[above[0], above[1]]
    if is_known.any():
        values = torch.where(is_known, values - values[is_known].mean(), 0.0)
    return unit_rows(values.float()[None])[0]


def projected_neurons(sample: NeuronSample) -> torch.Tensor:
    """Project each layer's neuron similarities; return float32 unit rows, ``(layers, N_PROJECTIONS)``."""
    values = resemblances(sample)
    return unit_rows(values @ _signs(values.shape[1], 2))


@lru_cache(maxsize=8)
def _signs(n: int, which: int) -> torch.Tensor:
    """Return random signs, ``(n, N_PROJECTIONS)``, whose first rows are the same for every n."""
    # Sketches are stored in files, so the random stream must be the same in every version of numpy.
    drawn = np.random.RandomState(_SEED + which).randint(0, 2, size=(n, N_PROJECTIONS))
    return torch.from_numpy(2 * drawn - 1).float()
