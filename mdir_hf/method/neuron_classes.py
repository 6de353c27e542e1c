"""Judge neurons of one layer with equal gates by the sum of their outputs.

A gated neuron computes ``down_i * act(gate_i x) * (up_i x)``. If the gates of several neurons are equal, together they
compute ``act(gate x) * sum_i down_i (up_i x)``, so only the sum of ``up_i (x) down_i`` matters. A neuron can be split
into parts with arbitrary ups or downs, and neurons that cancel each other can be added, but the sum does not change.
"""

from __future__ import annotations

import torch

from mdir_hf.method.polar import thin_svd

EQUAL_COSINE = 0.98
"""Gates are equal if their rows have at least this cosine, and if their lengths, and their biases in units of the
length, differ by less than 2%. Parts of a split neuron still fulfil this under noise of 0.14 times the weights. Ten
layers of SmolLM2 have no two neurons with a cosine of 0.9."""

BLOCK = 1024
"""Number of neurons that are compared with all others at once, which bounds the memory."""

NEGLIGIBLE_SUM = 0.01
"""Neurons cancel each other if their sum is below this share of the root sum of squares of its terms. Rounding to an
8-bit mantissa leaves 0.002."""


def equal_neurons(
    rows: torch.Tensor,
    lengths: torch.Tensor,
    chosen: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    device: str = "cpu",
) -> list[torch.Tensor]:
    """Find the neurons with the same gate as each chosen neuron, or with the same up if there are no gates.

    ``rows`` are unit rows ``(n, width)``, ``lengths`` ``(n,)`` the lengths of the stored rows, and ``chosen`` ``(k,)``
    neuron numbers.

    Returns:
        For each chosen neuron, the ascending numbers of the neurons equal to it, itself included.
    """
    on_device = rows.to(device)
    tiny = torch.finfo(lengths.dtype).tiny
    offsets = None if bias is None else bias / lengths.clamp(min=tiny)
    classes: list[torch.Tensor] = []
    for block in torch.split(chosen, BLOCK):
        is_equal = (on_device[block.to(device)] @ on_device.T).cpu() > EQUAL_COSINE
        is_equal &= (lengths / lengths[block].clamp(min=tiny)[:, None] - 1.0).abs() < 1.0 - EQUAL_COSINE
        if offsets is not None:
            is_equal &= (offsets - offsets[block][:, None]).abs() < 1.0 - EQUAL_COSINE
        is_equal[torch.arange(len(block)), block] = True
        classes += [row.nonzero()[:, 0] for row in is_equal]
    return classes


def summed_neuron(ups: torch.Tensor, downs: torch.Tensor) -> torch.Tensor:
    """Return the up row of one neuron that stands for neurons with equal gates.

    ``ups`` ``(m, width)`` and ``downs`` ``(m, written_width)`` are the up rows and down columns of the same neurons.

    Returns:
        The leading left singular vector ``(width,)`` of ``sum_i up_i (x) down_i``, with arbitrary sign; zeros if the
        neurons cancel each other.
    """
    up_basis, up_factor = torch.linalg.qr(ups.double().T)
    _, down_factor = torch.linalg.qr(downs.double().T)
    left, scale, _ = thin_svd(up_factor @ down_factor.T)
    size = (ups.double().square().sum(dim=1) * downs.double().square().sum(dim=1)).sum().sqrt()
    if not float(scale[0]) > NEGLIGIBLE_SUM * float(size):
        return torch.zeros_like(ups[0])
    leading: torch.Tensor = (up_basis @ left[:, 0]).to(ups.dtype)
    return leading
