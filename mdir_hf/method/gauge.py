"""Transform weights from one model's residual basis to another's (the paper's outer transformations).

Once the gains of its norms are folded into the projections that follow, a transformer's residual stream can be rotated
by any orthogonal matrix U. Every weight is ``(d_out, d_in)`` with ``y = W x``; U is ``(n_reference, n_candidate)`` with
``E' ~ E U`` for embeddings E.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from mdir_hf.method.matching import Matching
from mdir_hf.processor import all_cores

MapKind = Literal["identity", "permutation", "signed_permutation", "rotation", "channels"]

LEFT_INVARIANCE = (
    "The models are independent, and given everything else in it, its other layers too, one of them has no preferred "
    "axes on the side of its heads or neurons: its matrix W and H W have the same law for every rotation H of it."
)
"""Null hypothesis of all layer p-values (docs/method/layers.md). It is exact at Gaussian initialisation and, by
symmetry, within each attention head, but an assumption for trained heads and neurons."""

_OUTER_NULL: dict[str, str] = {
    "identity": "The residual basis was used as it is, without fitting a map.",
    "permutation": "The residual channels were matched on the {fitted_on}, which that rotation leaves fixed.",
    "signed_permutation": "The residual channels and signs were matched on the {fitted_on}, which that rotation "
    "leaves fixed.",
    "channels": "Channels of the wider model were selected on the {fitted_on}, which that rotation leaves fixed.",
    "rotation": "The rotation was fitted on rows of the {fitted_on}: it is a nuisance and not evidence in "
    "itself, and it may also align features that both models learnt from language, so compare with other layers.",
}


@dataclass(frozen=True, slots=True, eq=False)
class ResidualBasisMap:
    """The map U from the reference's residual basis to the candidate's.

    Attributes:
        matrix: ``(n_reference, n_candidate)`` if the map is a rotation, else None.
        reference: ``(k,)`` int64 matched reference channels if the map is a matching, else None.
        candidate: ``(k,)`` partner of each reference channel.
        signs: ``(k,)``, +1 or -1.
        fitted_on: Name of the rows to which the map was fitted, such as ``embeddings``.
    """

    kind: MapKind
    n_reference: int
    n_candidate: int
    matrix: torch.Tensor | None = None
    reference: torch.Tensor | None = None
    candidate: torch.Tensor | None = None
    signs: torch.Tensor | None = None
    fitted_on: str = "embeddings"

    @classmethod
    def identity(cls, n: int) -> ResidualBasisMap:
        """Return the identity map between models that share a basis of width ``n``."""
        return cls("identity", n, n)

    @classmethod
    def rotation(cls, matrix: torch.Tensor, *, fitted_on: str = "embeddings") -> ResidualBasisMap:
        """Create a map from a fitted orthogonal matrix or partial isometry, ``(n_reference, n_candidate)``."""
        return cls("rotation", matrix.shape[0], matrix.shape[1], matrix=matrix, fitted_on=fitted_on)

    @classmethod
    def from_matching(
        cls, matching: Matching, n_reference: int, n_candidate: int, *, fitted_on: str = "embeddings"
    ) -> ResidualBasisMap:
        """Create a map from a matching of channels, which may be signed or partial."""
        kind: MapKind = "signed_permutation" if matching.signed else "permutation"
        return cls(
            kind if n_reference == n_candidate else "channels",
            n_reference,
            n_candidate,
            reference=torch.from_numpy(matching.reference),
            candidate=torch.from_numpy(matching.candidate),
            signs=torch.from_numpy(matching.signs),
            fitted_on=fitted_on,
        )

    @property
    def reversed(self) -> ResidualBasisMap:
        """The map from the candidate's basis to the reference's."""
        return replace(
            self,
            n_reference=self.n_candidate,
            n_candidate=self.n_reference,
            matrix=None if self.matrix is None else self.matrix.T,
            reference=self.candidate,
            candidate=self.reference,
        )

    @property
    def negated(self) -> ResidualBasisMap:
        """The map with all signs flipped."""
        if self.matrix is not None:
            return replace(self, matrix=-self.matrix)
        if self.signs is not None:
            kind: MapKind = "signed_permutation" if self.kind == "permutation" else self.kind
            return replace(self, kind=kind, signs=-self.signs)
        every = torch.arange(self.n_reference)
        return replace(self, kind="signed_permutation", reference=every, candidate=every, signs=-torch.ones_like(every))

    @property
    def is_fitted(self) -> bool:
        """Whether the map was fitted rather than assumed."""
        return self.kind != "identity"

    @property
    def null(self) -> str:
        """Text of the null hypothesis for p-values computed after applying this map."""
        return f"{LEFT_INVARIANCE} {_OUTER_NULL[self.kind].format(fitted_on=self.fitted_on)}"

    def carry_in(self, weight: torch.Tensor) -> torch.Tensor:
        """Return ``W U`` for a weight ``(d_out, n_reference)`` that reads the residual stream: q, k, v, gate or up.

        Returns:
            ``(d_out, n_candidate)``; candidate channels without a partner are zero.

        Raises:
            ValueError: If the weight's input width is not ``n_reference``.
        """
        if weight.shape[1] != self.n_reference:
            raise ValueError(
                f"carrying a weight of shape {tuple(weight.shape)}: expected {self.n_reference} input channels"
            )
        if self.kind == "identity":
            return weight
        if self.matrix is not None:
            with all_cores(2.0 * weight.numel() * self.n_candidate, weight.device):
                return weight @ self.matrix.to(weight)
        assert self.reference is not None and self.candidate is not None and self.signs is not None
        device = weight.device
        carried = torch.zeros(weight.shape[0], self.n_candidate, dtype=weight.dtype, device=device)
        carried[:, self.candidate.to(device)] = weight[:, self.reference.to(device)] * self.signs.to(weight)
        return carried

    def carry_out(self, weight: torch.Tensor) -> torch.Tensor:
        """Return ``U^T W`` for a weight ``(n_reference, d_in)`` that writes to the residual stream: o or down.

        Raises:
            ValueError: If the weight's output width is not ``n_reference``.
        """
        if weight.shape[0] != self.n_reference:
            raise ValueError(
                f"carrying a weight of shape {tuple(weight.shape)}: expected {self.n_reference} output channels"
            )
        return self.carry_in(weight.T).T


def residual_basis_maps(
    n_reference: int,
    n_candidate: int,
    *,
    polar: torch.Tensor | None = None,
    matching: Matching | None = None,
) -> tuple[ResidualBasisMap, ...]:
    """Return the residual-basis maps to try on the layers, in order (paper, Algorithm 1: U_E).

    ``polar`` is the polar factor of the common tokens' embeddings, and ``matching`` is its significant matching, if
    any. Without a matching, the maps are the rotation ``polar`` and, for equal widths, the identity, because a model
    retrained with a new tokenizer may keep its basis.
    """
    if matching is not None:
        return (ResidualBasisMap.from_matching(matching, n_reference, n_candidate),)
    maps: list[ResidualBasisMap] = []
    if polar is not None:
        maps.append(ResidualBasisMap.rotation(polar))
    if n_reference == n_candidate:
        maps.append(ResidualBasisMap.identity(n_reference))
    return tuple(maps)


def fold_gain(weight: torch.Tensor, gain: torch.Tensor | None, *, plus_one: bool = False) -> torch.Tensor:
    """Fold the gain ``(n,)`` of an RMSNorm into the projection ``(d_out, n)`` that reads its output: ``W diag(g)``.

    After folding, the norm commutes with rotations of the stream. If ``plus_one``, the norm multiplies by ``1 + g``
    (Gemma).
    """
    if gain is None:
        return weight
    factor = gain.to(weight)
    return weight * (factor + 1.0 if plus_one else factor)
