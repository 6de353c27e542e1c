"""Recognise attention heads by the inner products of their key rows.

Rows of W and W Q have the same inner products for every orthogonal Q, so no rotation of the residual stream changes
them. A rotary plane is one complex row, determined up to a factor exp(i t); only sizes of its products are compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch

from mdir_hf.method.assignment import best_assignment
from mdir_hf.method.blocks import FloatArray, IntArray
from mdir_hf.method.planes import PlanePairing, plane_rows
from mdir_hf.thresholds import FALSE_NOMINATIONS

FEWEST_TYPICAL = 5
"""Rows and columns with fewer correlations have no typical size: a single pair of copies would raise the median."""

FEWEST_CENTRED = 8
"""The effects of rows are removed from products of at least this many rows; fewer rows have too few products."""

MEDIAN_TO_DEVIATION = 1.4826
"""Standard deviation of a Gaussian divided by the median of its absolute value."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadRows:
    """Key rows of some heads, scaled to unit length.

    Attributes:
        planes: Rotary planes, ``(h, F, n)`` complex64.
        still: Rows that positions do not rotate, ``(h, S, n)`` float32.
    """

    planes: torch.Tensor
    still: torch.Tensor

    def __len__(self) -> int:
        return len(self.planes)

    def chosen(self, heads: IntArray) -> HeadRows:
        """Return some heads in the given order."""
        index = torch.from_numpy(heads)
        return HeadRows(self.planes[index], self.still[index])

    def noisy(self, noise: float, generator: torch.Generator) -> HeadRows:
        """Return a copy with independent Gaussian noise of ``noise`` times the root mean square of each row."""

        def added(rows: torch.Tensor) -> torch.Tensor:
            drawn = torch.randn(rows.shape, generator=generator, dtype=rows.dtype)
            return _unit(rows + noise * rows.shape[2] ** -0.5 * drawn)

        return HeadRows(added(self.planes), added(self.still))


def heads_of(
    rows: torch.Tensor, n_heads: int, layout: PlanePairing | None, *, rotary_dim: int | None = None
) -> HeadRows:
    """Divide key rows, ``(H d, n)``, into heads and rotary planes.

    Args:
        rows: Rows of unscaled length.
        n_heads: Number of heads.
        layout: How rows are paired into planes; None if no rows are rotated.
        rotary_dim: Number of rotated rows of each head, None for all.

    Raises:
        ValueError: If the rows do not divide into heads, or the rotary rows into planes.
    """
    rotated = 0 if layout is None else rotary_dim
    planes, still = plane_rows(len(rows), n_heads, layout or "half", rotary_dim=rotated)
    first, second = rows.float()[planes].unbind(dim=2)
    return HeadRows(_unit(torch.complex(first, second)), _unit(rows.float()[still]))


def stacked(heads: list[HeadRows]) -> HeadRows:
    """Join heads of several layers."""
    return HeadRows(torch.cat([one.planes for one in heads]), torch.cat([one.still for one in heads]))


def head_prints(heads: HeadRows) -> torch.Tensor:
    """Return what no rotation of the stream and no turn of a rotary plane changes, ``(h, D)`` float64.

    These are the inner products between rows of a head, less the mean of each row's products: every head has some rows
    that resemble most others, and these are the same rows in independently trained models.
    """
    planes, still = heads.planes, heads.still
    blocks = [
        _pairs((planes @ planes.mH).abs()),
        _pairs((planes @ planes.mT).abs()),
        _pairs(still @ still.mT),
        _all((planes @ still.mT.to(planes.dtype)).abs()),
    ]
    return torch.cat(blocks, dim=1).double()


def n_free_products(n_planes: int, n_still: int) -> int:
    """Return the number of degrees of freedom of a head's print."""
    of_planes, of_still = (n * (n - (3 if n >= FEWEST_CENTRED else 1)) // 2 for n in (n_planes, n_still))
    return 2 * of_planes + of_still + max(0, n_planes - 1) * max(0, n_still - 1)


def correlations(reference: torch.Tensor, candidate: torch.Tensor) -> FloatArray:
    """Return the correlation of every head of one model with every head of the other, ``(h, h')``, in [-1, 1].

    Prints are ``(h, D)`` and ``(h', D)``. The mean over the heads of each model is removed, because all heads have some
    structure in common, also with heads of independent models.
    """
    products: FloatArray = (standard_prints(reference) @ standard_prints(candidate).T).numpy()
    return products


def prominence(correlation: FloatArray, n_products: int) -> FloatArray:
    """Return how far each correlation stands out from the others of both heads, in standard deviations; same shape.

    Independently trained models have heads with common structure, and such a head correlates with many others, while
    the copy of a head correlates with that head only. A correlation r of ``n_products`` independent products exceeds
    its value by chance with probability ``(1 - r^2)^(n_products / 2)``, as a standard normal variable exceeds the
    square root of ``-n_products ln(1 - r^2)``. This is divided by the typical size, in units of the size expected for
    independent products, in the row or the column.
    """
    r = np.clip(correlation, -1 + 1e-9, 1 - 1e-9)
    deviations = np.sign(r) * np.sqrt(-n_products * np.log1p(-np.square(r)))
    typical = np.ones_like(r)
    for axis in (0, 1):
        if r.shape[axis] >= FEWEST_TYPICAL:
            size = np.median(np.abs(r), axis=axis, keepdims=True)
            typical = np.maximum(typical, MEDIAN_TO_DEVIATION * math.sqrt(n_products) * size)
    prominent: FloatArray = deviations / typical
    return prominent


def prominence_limit(n_pairs: int) -> float:
    """Return the prominence that the most prominent of ``n_pairs`` pairs of unrelated heads hardly ever reaches."""
    return -NormalDist().inv_cdf(FALSE_NOMINATIONS / max(1, n_pairs))


def least_correlation(n_products: int, deviations: float) -> float:
    """Return the correlation that lies so many standard deviations from 0 if the products are independent."""
    return math.sqrt(-math.expm1(-(deviations**2) / n_products))


def paired_heads(correlation: FloatArray) -> tuple[IntArray, IntArray, float]:
    """Pair heads one to one, ``(min(h, h'),)`` each, and return the mean correlation of the pairs."""
    heads, candidate_heads = best_assignment(correlation)
    return heads, candidate_heads, float(correlation[heads, candidate_heads].mean())


def _unit(rows: torch.Tensor) -> torch.Tensor:
    scaled: torch.Tensor = rows / rows.norm(dim=2, keepdim=True).clamp(min=1e-30)
    return scaled


def _pairs(products: torch.Tensor) -> torch.Tensor:
    """Return products of different rows, ``(h, d (d - 1) / 2)``, less the least-squares effect of each row."""
    d = products.shape[1]
    i, j = torch.triu_indices(d, d, offset=1)
    if d < FEWEST_CENTRED:
        return products[:, i, j]
    others = products * (1 - torch.eye(d, dtype=products.dtype, device=products.device))
    by_row = others.sum(dim=2, keepdim=True) / (d - 2)
    whole = others.sum(dim=(1, 2))[:, None, None] / ((d - 1) * (d - 2))
    return (products - by_row - by_row.mT + whole)[:, i, j]


def _all(products: torch.Tensor) -> torch.Tensor:
    """Return products of two kinds of rows, ``(h, a b)``, less the effect of each row."""
    if 0 in products.shape:
        return products.new_zeros(len(products), 0)
    rows, columns = products.mean(dim=2, keepdim=True), products.mean(dim=1, keepdim=True)
    return (products - rows - columns + products.mean(dim=(1, 2), keepdim=True)).flatten(1)


def standard_prints(prints: torch.Tensor) -> torch.Tensor:
    """Return a model's prints, ``(h, D)``, as unit rows without their mean; their products are correlations."""
    if len(prints) > 2:
        prints = prints - prints.mean(dim=0)
    prints = prints - prints.mean(dim=1, keepdim=True)
    standard: torch.Tensor = prints / prints.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return standard
