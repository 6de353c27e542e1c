"""Measure distances between related models, for building family trees.

Distances between aligned raw rows can rank relatives. p-values cannot, because they depend on the widths and the number
of rows. If models change independently, squared distances add along a lineage, ``D2(A, C) = D2(A, B) + D2(B, C)`` for A
-> B -> C, as neighbour joining and the four-point condition require (docs/method/many.md, "Distances").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import torch

from mdir_hf.errors import InputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

BOOTSTRAP_GROUPS = 1024
"""Number of token groups to resample. A standard error estimated from this many groups is accurate to 2%."""


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """A map from one model's channels to another's.

    Attributes:
        source: ``(m,)`` matched channels of the model that is mapped.
        target: ``(m,)`` channel to which each source channel is mapped.
        signs: ``(m,)`` +1 or -1, or None if no sign changes.
        scale: Factor by which :meth:`carry` multiplies rows; 1 for a plain fine-tune.
    """

    source: IntArray
    target: IntArray
    signs: FloatArray | None = None
    scale: float = 1.0

    @classmethod
    def identity(cls, n_channels: int) -> Alignment:
        """Align every channel with itself."""
        channels = np.arange(n_channels, dtype=np.int64)
        return cls(channels, channels)

    def carry(self, rows: torch.Tensor, channels: IntArray | None = None) -> torch.Tensor:
        """Map rows ``(r, n_source)`` to the target channels.

        The result is ``(r, len(channels))``, float64. ``channels`` selects target channels and defaults to ``target``.

        Raises:
            InputError: If a requested channel is not matched.
        """
        order = np.arange(len(self.target))
        if channels is not None:
            by_target = np.argsort(self.target)
            place = np.searchsorted(self.target, channels, sorter=by_target)
            order = by_target[np.minimum(place, len(by_target) - 1)]
            missing = channels[self.target[order] != channels]
            if len(missing):
                raise InputError(f"{len(missing)} target channels are not matched, the first is {missing[0]}")
        carried = rows[:, torch.from_numpy(self.source[order]).to(rows.device)].double() * self.scale
        if self.signs is not None:
            carried = carried * torch.from_numpy(self.signs[order]).to(carried)
        return carried


def common_channels(alignments: Sequence[Alignment]) -> IntArray:
    """Return the target channels that all alignments share, ascending."""
    return np.sort(reduce(np.intersect1d, [alignment.target for alignment in alignments]))


@dataclass(frozen=True, slots=True, eq=False)
class TokenGeometry:
    """Inner products between the rows of aligned models, summed over groups of tokens.

    Attributes:
        products: ``(groups, m, m)``, sums over a group's tokens of ``<x_i - x_0, x_j - x_0>`` for models i and j.
            Subtracting the first model preserves precision for near copies.
        n_tokens: ``(groups,)`` number of tokens in each group.
    """

    products: FloatArray
    n_tokens: IntArray
    n_channels: int

    def distances(self, counts: IntArray | None = None) -> FloatArray:
        """Return the mean squared differences between models, ``(m, m)``: ``D2(A, B) = |A - B|_F^2 / (V n)``.

        For resampling, ``counts`` are the weights of the token groups; by default, all are 1.
        """
        products = self.products.sum(axis=0) if counts is None else np.tensordot(counts, self.products, axes=1)
        n = float(self.n_tokens.sum() if counts is None else counts @ self.n_tokens)
        norms = np.diagonal(products)
        squared: FloatArray = (norms[:, None] + norms[None, :] - 2.0 * products) / (n * self.n_channels)
        np.fill_diagonal(squared, 0.0)
        return np.maximum(squared, 0.0)


def token_geometry(
    blocks: Iterable[Sequence[torch.Tensor]],
    *,
    alignments: Sequence[Alignment] | None = None,
    n_groups: int = BOOTSTRAP_GROUPS,
    seed: int = 0,
) -> TokenGeometry:
    """Compute the geometry of related models in one pass over the raw rows of their common tokens.

    Each block contains one ``(b, n_i)`` tensor per model, for the same tokens in the same order. Rows must not be
    centred, because distances would then not add along a lineage. ``alignments`` map all models onto the channels of
    one model; None means that they share a basis. Only channels that all alignments share are compared. Tokens are
    assigned to ``n_groups`` groups at random.

    Raises:
        InputError: If there are fewer than two tokens or fewer than two models, or if block shapes differ.
    """
    generator = np.random.default_rng(seed)
    channels = None if alignments is None else common_channels(alignments)
    products: FloatArray | None = None
    n_tokens = np.zeros(n_groups, dtype=np.int64)
    n_channels = 0
    for block in blocks:
        rows = _aligned(block, alignments, channels)
        if products is None:
            products, n_channels = np.zeros((n_groups, len(rows), len(rows))), rows.shape[2]
        if (len(rows), rows.shape[2]) != (products.shape[1], n_channels):
            raise InputError(
                f"blocks disagree: {len(rows)} models of {rows.shape[2]} channels, "
                f"expected {products.shape[1]} of {n_channels}"
            )
        drift = rows - rows[:1]
        per_token = torch.einsum("itn,jtn->tij", drift, drift).cpu().numpy()
        group = generator.integers(n_groups, size=len(per_token))
        np.add.at(products, group, per_token)
        n_tokens += np.bincount(group, minlength=n_groups)
    if products is None or n_tokens.sum() < 2:
        raise InputError(f"distances need at least two common tokens, got {int(n_tokens.sum())}")
    occupied = n_tokens > 0
    return TokenGeometry(products[occupied], n_tokens[occupied], n_channels)


def _aligned(
    block: Sequence[torch.Tensor], alignments: Sequence[Alignment] | None, channels: IntArray | None
) -> torch.Tensor:
    """Align the models' rows in a block and stack them as ``(m, b, n)`` float64."""
    if len(block) < 2:
        raise InputError(f"distances need at least two models, got {len(block)}")
    if alignments is None:
        rows = [model.double() for model in block]
    elif len(alignments) != len(block):
        raise InputError(f"got {len(alignments)} alignments for {len(block)} models")
    else:
        rows = [alignment.carry(model, channels) for alignment, model in zip(alignments, block, strict=True)]
    shapes = {tuple(model.shape) for model in rows}
    if len(shapes) > 1:
        raise InputError(f"models of one block disagree in tokens or channels: {sorted(shapes)}; pass alignments")
    return torch.stack(rows)
