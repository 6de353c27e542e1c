"""Pair heads and undo plane rotations by inner products of rows, which do not depend on the residual basis.

Rows of W and of W Q have the same inner products for every orthogonal Q. So heads can be paired, and planes rotated
back, before the residual bases of two models are known. A result that uses only these products keeps every p-value
valid that is valid under a rotation of one of the models (docs/method/bound.md).

The plane of a rotary frequency is represented as one complex row, z = first row + i second row. A rotation by an angle
t, which rotary positions leave free, multiplies it by exp(i t).
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment

from mdir_hf.method.matching import IntArray

N_REFINEMENTS = 30
"""Number of refinement steps from the leading eigenvector to angles of unit length; each step increases the agreement.
"""


def pair_heads(reference: torch.Tensor, candidate: torch.Tensor) -> tuple[IntArray, IntArray, float]:
    """Pair the heads of two layers by the inner products of their rows.

    Args:
        reference: ``(h, d, n)``, unit rows of a projection by head; complex if they are planes, which may be rotated.
        candidate: ``(h', d, n')``, unit rows of the other layer; widths and numbers of heads may differ.

    Returns:
        Heads of the reference, ascending, and the paired heads of the candidate, ``(min(h, h'),)`` each, and the mean
        correlation of the products of paired heads, in [-1, 1], near 0 for unrelated models.

    Raises:
        ValueError: If heads have different numbers of rows.
    """
    if reference.shape[1] != candidate.shape[1]:
        raise ValueError(f"heads of {reference.shape[1]} rows cannot be paired with heads of {candidate.shape[1]}")
    resemblance = _standard_products(reference) @ _standard_products(candidate).T
    heads, candidate_heads = linear_sum_assignment(resemblance.cpu().numpy(), maximize=True)
    return heads, candidate_heads, float(resemblance[heads, candidate_heads].mean())


def turn_back(reference: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
    """Rotate planes of one model so that their products agree with the other's.

    Rotated planes z' = a z, |a| = 1, have the products a_p conj(a_q) <z_p, z_q> and a_p a_q (z_p, z_q). The angles that
    agree best with both kinds are found from the leading eigenvector of a real quadratic form in a, up to one sign for
    all planes together.

    Args:
        reference: ``(m, n)`` complex planes.
        candidate: ``(m, n')`` complex, the plane paired with each.

    Returns:
        The candidate's planes, ``(m, n')``, rotated. Cost O(m^2 (n + n') + m^3).
    """
    x, y = reference.to(torch.complex128), candidate.to(torch.complex128)
    between = (x @ x.mH) * (y @ y.mH).conj()
    along = (x @ x.mT) * (y @ y.mT).conj()
    form = torch.cat(
        (
            torch.cat((between.real + along.real, between.imag - along.imag), 1),
            torch.cat((-between.imag - along.imag, between.real - along.real), 1),
        )
    )
    values, vectors = torch.linalg.eigh((form + form.T) / 2)
    turns = _unit(vectors[:, -1])
    for _ in range(N_REFINEMENTS):
        flat = torch.cat((turns.real, turns.imag))
        turns = _unit(form @ flat + values.abs().max() * flat)
    return (y * turns.conj()[:, None]).to(candidate.dtype)


def _unit(flat: torch.Tensor) -> torch.Tensor:
    real, imaginary = flat.chunk(2)
    turns = torch.complex(real, imaginary)
    return torch.where(turns.abs() > 0, turns / turns.abs().clamp(min=1e-300), torch.ones_like(turns))


def _standard_products(rows: torch.Tensor) -> torch.Tensor:
    """Return centred, normalized products of different rows of each head, ``(h, some)``; for planes, sizes.

    With several heads, their mean is subtracted, because rotary positions cause the same products in the heads of every
    model (neighbouring frequencies are similar).
    """
    d = rows.shape[1]
    i, j = torch.triu_indices(d, d, offset=1)
    if rows.is_complex():
        within, k = torch.triu_indices(d, d)
        sizes = [(rows @ rows.mH).abs()[:, i, j], (rows @ rows.mT).abs()[:, within, k]]
        products = torch.cat(sizes, dim=1).double()
    else:
        products = (rows @ rows.mT)[:, i, j].double()
    if len(products) > 2:
        products = products - products.mean(dim=0)
    products = products - products.mean(dim=1, keepdim=True)
    standard: torch.Tensor = products / products.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return standard
