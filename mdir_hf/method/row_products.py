"""Heads, and turns of their planes, told by inner products of rows, which no change of the residual basis alters.

Rows of W and of W Q have the same products for every orthogonal Q. So heads can be paired, and planes turned back,
before anything is known of the residual bases of two models; and what was made from nothing else keeps every p-value
that a rotation of one of the models leaves valid (docs/method/bound.md).

The plane of a rotary frequency is one complex row here, z = first row + i second row. A turn by an angle t, which
rotary positions leave free, multiplies it by exp(i t).
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment

from mdir_hf.method.matching import IntArray

N_REFINEMENTS = 30
"""Steps from the leading eigenvector to angles of length one each; each raises the agreement."""


def pair_heads(reference: torch.Tensor, candidate: torch.Tensor) -> tuple[IntArray, IntArray, float]:
    """Pair the heads of two layers by the products of their rows.

    Args:
        reference: ``(h, d, n)``, rows of a projection by head, of unit length; complex where they are planes, which may
            have been turned.
        candidate: ``(h', d, n')``, the same; widths and numbers of heads may differ.

    Returns:
        Heads of the reference, ascending, the head of the candidate paired with each, ``(min(h, h'),)`` each, and how
        much paired heads resemble each other: the mean correlation of their products, in [-1, 1], near 0 for strangers.

    Raises:
        ValueError: If the rows of a head are not as many in both.
    """
    if reference.shape[1] != candidate.shape[1]:
        raise ValueError(f"heads of {reference.shape[1]} rows cannot be paired with heads of {candidate.shape[1]}")
    resemblance = _standard_products(reference) @ _standard_products(candidate).T
    mine, theirs = linear_sum_assignment(resemblance.cpu().numpy(), maximize=True)
    return mine, theirs, float(resemblance[mine, theirs].mean())


def turn_back(reference: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
    """Turn planes of one model so that their products are those of the other.

    Turned planes z' = a z, |a| = 1, have the products a_p conj(a_q) <z_p, z_q> and a_p a_q (z_p, z_q). The angles that
    agree best with all of both kinds are found from the leading eigenvector of a real quadratic form in a, which leaves
    one sign for all planes together.

    Args:
        reference: ``(m, n)`` complex, planes.
        candidate: ``(m, n')`` complex, the plane paired with each.

    Returns:
        The candidate's planes, ``(m, n')``, turned. Cost O(m^2 (n + n') + m^3).
    """
    mine, other = reference.to(torch.complex128), candidate.to(torch.complex128)
    between = (mine @ mine.mH) * (other @ other.mH).conj()
    along = (mine @ mine.mT) * (other @ other.mT).conj()
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
    return (other * turns.conj()[:, None]).to(candidate.dtype)


def _unit(flat: torch.Tensor) -> torch.Tensor:
    real, imaginary = flat.chunk(2)
    turns = torch.complex(real, imaginary)
    return torch.where(turns.abs() > 0, turns / turns.abs().clamp(min=1e-300), torch.ones_like(turns))


def _standard_products(rows: torch.Tensor) -> torch.Tensor:
    """Products of different rows of each head, centred and of unit length, ``(h, some)``; of planes, their sizes.

    Where there are several heads their mean is taken off: rotary positions give the same products to the heads of every
    model, those of neighbouring frequencies being alike.
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
