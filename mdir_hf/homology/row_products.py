"""Heads told by the inner products of their rows, which no rotation or permutation of the residual stream changes.

Rows of W and of W Q have the same products for every orthogonal Q. So heads can be paired before anything is known of
the residual bases of two models, and a pairing made from nothing else keeps every p-value that a rotation of one of the
models leaves valid (docs/method.md, "The bound").
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment

from mdir_hf.homology.matching import IntArray


def pair_heads(reference: torch.Tensor, candidate: torch.Tensor) -> tuple[IntArray, IntArray, float]:
    """Pair the heads of two layers by the products of their rows.

    Args:
        reference: ``(h, d, n)``, rows of a projection by head, of unit length.
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


def _standard_products(rows: torch.Tensor) -> torch.Tensor:
    """Products of different rows of each head, ``(h, d(d - 1)/2)``, centred and of unit length.

    Where there are several heads their mean is taken off: rotary positions give the same products to the heads of every
    model, those of neighbouring frequencies being alike.
    """
    d = rows.shape[1]
    i, j = torch.triu_indices(d, d, offset=1)
    products = (rows @ rows.mT).double()[:, i, j]
    if len(products) > 2:
        products = products - products.mean(dim=0)
    products = products - products.mean(dim=1, keepdim=True)
    standard: torch.Tensor = products / products.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return standard
